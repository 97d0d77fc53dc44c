"""`--engine ray` on a cluster of three nodes: the run that the local engine makes, also where a node is lost."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from commands import digit_photos, selex
from layouts_for_tests import write
from selex.cli.results import next_steps
from selex.cluster.pipeline import fit_clusters
from selex.config import ClusterConfig, Config
from selex.discovery import discover
from selex.errors import InputError, Note
from selex.features import ray_cluster, ray_embed, ray_fit, sources
from selex.features.embed import CPU_BATCH
from selex.features.ray_cache import Shards
from selex.features.ray_cluster import RayEngine
from selex.features.ray_embed import _refused
from selex.models.backbones import load_backbone
from selex.runs.predictor import load
from selex.runs.run import Run
from test_attention_crop_cli import colour_photos, eye
from test_sources import write_tar

ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'selex[cluster]'")
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own
AWS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    digit_photos(home / "photos", per_digit=36)
    return home


@pytest.fixture(scope="module")
def s3(home):
    """A bucket with the photos, on a server of this machine; None where moto or s3fs is not installed."""
    try:
        import boto3
        import s3fs  # noqa: F401
        from moto.server import ThreadedMotoServer
    except ModuleNotFoundError:
        yield None
        return
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (AWS | {"AWS_ENDPOINT_URL": f"http://{host}:{port}"}).items():
            patch.setenv(name, value)
        client = boto3.client("s3")
        client.create_bucket(Bucket="bucket")
        for path in (home / "photos").rglob("*.png"):
            client.upload_file(str(path), "bucket", f"photos/{path.relative_to(home / 'photos')}")
        yield "s3://bucket/photos"
    server.stop()


def kills_when_told(order):
    """What every worker does when it starts: the first that clusters as often as it is told to kills its node."""

    def begin():
        import os
        import signal
        from contextlib import suppress
        from pathlib import Path

        from selex.cluster.kmeans import Problem

        finish, calls = Problem.finish, []

        def finish_or_kill(self, centers):
            calls.append(1)
            with suppress(FileNotFoundError):
                if len(calls) >= int(Path(order).read_text()):
                    node = os.getppid()
                    assert Path(f"/proc/{node}/comm").read_text() == "raylet\n"  # and nobody else
                    os.rename(order, f"{order}-carried-out")  # by one worker only
                    os.kill(node, signal.SIGKILL)
                    os.kill(os.getpid(), signal.SIGKILL)
            return finish(self, centers)

        Problem.finish = finish_or_kill  # type: ignore[method-assign]

    return begin


@pytest.fixture(scope="module")
def cluster(home, s3):
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(2):  # all work is on these two
        cluster.add_node(num_cpus=2)
    hook = {"worker_process_setup_hook": kills_when_told(str(home / "kill"))}
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR", runtime_env=hook)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture
def pieces(monkeypatch, tmp_path):
    """A cache of its own, and units of as many images as the local engine has in a batch."""
    monkeypatch.setenv("SELEX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sources, "PIECE", CPU_BATCH)


ONE_WORKER = RayEngine(workers=1)


def run(photos, out, engine=ONE_WORKER, labels=None):
    config = Config.of(str(photos)).change(backbone="tiny-vit", categories=5)
    return discover(config, out, labels=labels, engine=engine)


def contents(folder, *names):
    return [(folder / name).read_bytes() for name in names or ("embeddings.npy", "clusters.csv", "skipped.csv")]


def made(run):
    return [entry["made"] for entry in run.metrics if entry["step"] == "embed"][-1]


@pytest.fixture(scope="module")
def expected(home):
    return contents(run(home / "photos", home / "local", engine=None).folder)


@pytest.fixture
def loses_a_node(cluster, monkeypatch):
    """The node of an actor that embeds is killed when the first shard comes back; yields the nodes that were."""
    keep, killed = Shards.keep, []

    def keep_and_kill(self, *given):
        if not killed:
            (place,) = {actor["Address"]["NodeID"] for actor in ray._private.state.actors().values() if embeds(actor)}
            killed.extend(node for node in cluster.worker_nodes if node.node_id == place)
            cluster.remove_node(killed[0], allow_graceful=False)
        return keep(self, *given)

    monkeypatch.setattr(Shards, "keep", keep_and_kill)
    yield killed
    cluster.add_node(num_cpus=2)


def test_a_node_is_lost_and_nothing_of_the_result(loses_a_node, home, expected, pieces, tmp_path):
    done = run(home / "photos", tmp_path / "run")
    assert len(loses_a_node) == 1
    assert made(done) == 180
    assert contents(done.folder) == expected


def embeds(actor):
    return actor["State"] == "ALIVE" and "MapWorker" in actor["ActorClassName"]


def test_what_is_on_disk_is_not_made_again(cluster, home, expected, pieces, monkeypatch, tmp_path):
    keep, kept = Shards.keep, []

    def stop(self, *given):
        if len(kept) == 3:
            raise KeyboardInterrupt
        kept.append(keep(self, *given))
        return kept[-1]

    monkeypatch.setattr(Shards, "keep", stop)
    with pytest.raises(KeyboardInterrupt):
        run(home / "photos", tmp_path / "run")
    monkeypatch.setattr(Shards, "keep", keep)
    done = run(home / "photos", tmp_path / "run")
    assert made(done) == 180 - 3 * CPU_BATCH
    assert contents(done.folder) == expected
    monkeypatch.setattr(ray_embed, "running", None)  # nothing is left for it to do
    assert made(run(home / "photos", tmp_path / "other")) == 0


def test_photos_behind_a_url_and_in_tar_shards(cluster, home, s3, expected, pieces, tmp_path):
    if s3 is None:
        pytest.skip("moto or s3fs is not installed: pip install 'moto[server]' s3fs")
    found = run(s3, tmp_path / "s3")
    assert contents(found.folder) == expected
    files = sorted((home / "photos").rglob("*.png"))
    (tmp_path / "shards").mkdir()
    for number, part in enumerate((files[:25], files[25:])):
        images = {f"{path.parent.name}/{path.name}": path.read_bytes() for path in part}
        write_tar(tmp_path / "shards" / f"{number}.tar", images, [label_of(name) for name in images])
    (tmp_path / "shards" / "broken.tar").write_bytes(b"no archive")
    with pytest.raises(InputError, match=r"broken.tar: cannot be read"):
        run(tmp_path / "shards", tmp_path / "tars")
    (tmp_path / "shards" / "broken.tar").unlink()
    found = run(tmp_path / "shards", tmp_path / "tars")
    names = [name.partition("/")[2] for name in table(found.folder)]
    order = [names.index(name) for name in table(home / "local")]
    assert np.allclose(np.load(found.folder / "embeddings.npy")[order], np.load(home / "local" / "embeddings.npy"))
    assert [entry["count"] for entry in found.metrics if entry["step"] == "cluster"] == [180]
    assert found.hierarchy["levels"][0]["n_known"] == 3
    assert [step for step in next_steps(found, Path("run")) if "--to" in step] == [
        "selex export run --to csv --out sorted.csv"
    ]


def label_of(name):
    return name.split("/")[0] if name.startswith("digit") else ""


def table(folder):
    return [line.split(",")[0] for line in (folder / "clusters.csv").read_text().splitlines()[1:]]


@pytest.fixture(scope="module")
def sorted_here(home, expected):
    """What the model of the local run makes of the photos, one of which cannot be read.

    With a cache of its own: features of the same photos that the run left were made in batches of other sizes.
    """
    digit_photos(home / "new", per_digit=20)
    (home / "new" / "worthless.png").write_bytes(b"no image")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SELEX_CACHE", str(home / "cache of its own"))
        return load(home / "local").predict(home / "new", store=home / "store")


def test_a_node_is_lost_and_no_prediction(loses_a_node, home, sorted_here, pieces):
    assert load(home / "local").predict(home / "new", engine=RayEngine(workers=1)) == sorted_here
    assert len(loses_a_node) == 1


def test_predictions_are_those_of_this_machine_and_nothing_is_made_twice(
    cluster, home, sorted_here, pieces, monkeypatch, tmp_path
):
    keep, kept = Shards.keep, []

    def stop(self, *given):
        if len(kept) == 1:
            raise KeyboardInterrupt
        kept.append(keep(self, *given))
        return kept[-1]

    def counted(self, *given):
        kept.append(keep(self, *given))
        return kept[-1]

    model, on_ray = load(home / "local"), RayEngine(workers=1)
    monkeypatch.setattr(Shards, "keep", stop)
    with pytest.raises(KeyboardInterrupt):
        model.predict(home / "new", engine=on_ray)
    monkeypatch.setattr(Shards, "keep", counted)
    monkeypatch.setattr("selex.runs.predictor.BLOCK", 7)
    assert model.predict(home / "new", engine=on_ray) == sorted_here
    assert sum(kept) == len(sorted_here["file"])
    monkeypatch.setattr(ray_embed, "running", None)  # nothing is left for it to do
    assert model.predict(home / "new", engine=on_ray) == sorted_here
    assert not list((tmp_path / "cache").glob(".selex-*"))
    with pytest.raises(InputError, match=r"^worthless\.png: "):
        model.predict(home / "new", engine=on_ray, strict=True)


def test_the_command_sorts_tar_shards_on_a_cluster(cluster, home, sorted_here, tmp_path):
    files = sorted((home / "new").rglob("*.png"))
    images = {str(path.relative_to(home / "new")): path.read_bytes() for path in files}
    (tmp_path / "shards").mkdir()
    write_tar(tmp_path / "shards" / "a.tar", images, [""] * len(images))
    given = ("--engine", "ray", "--address", cluster.address, "--workers", 1, "--out", "p.csv", "--device", "cpu")
    done = selex("predict", home / "local", "shards", *given, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    count = len(sorted_here["file"])
    note = f"note: 1 of {count + 1} images cannot be read and are left out; the first is a.tar/worthless.png"
    assert note in done.stderr
    assert done.stdout.startswith(f"{count} images: {sum(sorted_here['known'])} in known categories, ")
    lines = [line.split(",") for line in (tmp_path / "p.csv").read_text().splitlines()[1:]]
    found = {line[0].removeprefix("a.tar/"): line[1] for line in lines}
    assert found == dict(zip(sorted_here["file"], sorted_here["category"], strict=True))


SPREAD = RayEngine(workers=2, spread=True)


def test_workers_that_cluster_find_what_one_process_finds(cluster, home, expected, pieces, monkeypatch, tmp_path):
    monkeypatch.setattr("selex.discovery_steps.fit_clusters", None)  # this process makes none
    monkeypatch.setattr(ray_fit, "BLOCK", 1000)
    done, alone = run(home / "photos", tmp_path / "run", SPREAD), Run.open(home / "local")
    assert [entry["workers"] for entry in done.metrics if entry["step"] == "cluster"] == [2]
    assert done.hierarchy | {"content_size": 32} == alone.hierarchy
    assert [entry["refine"] for entry in done.metrics if entry["step"] == "cluster"] == [
        entry["refine"] for entry in alone.metrics if entry["step"] == "cluster"
    ]
    found, wanted = done.clusters.to_pydict(), alone.clusters.to_pydict()
    for name, values in found.items():
        if name in ("confidence", "distance"):
            assert np.allclose(values, wanted[name], atol=2e-3), name
        else:
            assert values == wanted[name], name


@pytest.fixture(scope="module")
def rows(home):
    """Features of overlapping categories in a file, and labels of some."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 12, 600)
    x = rng.standard_normal((12, 16))[truth] + rng.standard_normal((600, 16))
    np.save(home / "rows.npy", (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32))
    return home / "rows.npy", np.where((truth < 6) & (rng.random(600) < 0.4), truth, -1)


def fitted(rows):
    config = ClusterConfig(categories=12, adapt="off")
    return ray_fit.fit_on_ray(SPREAD, rows[0], rows[1], config, seed=0, device="cpu")


def test_a_node_is_lost_while_clustering_and_nothing_of_the_result(cluster, home, rows):
    expected, workers = fitted(rows)
    assert workers == 2
    (home / "kill").write_text("2")
    with pytest.warns(Note, match="a worker was lost while clustering: all workers start again"):
        found, workers = fitted(rows)
    (home / "kill-carried-out").unlink()
    cluster.add_node(num_cpus=2)
    assert workers == 2  # the node that is left has room for both
    for one, other in zip(expected.hierarchy.levels, found.hierarchy.levels, strict=True):
        assert np.array_equal(one.labels, other.labels)
        assert np.array_equal(one.centers, other.centers)
    assert np.array_equal(expected.assignment.confidence, found.assignment.confidence)
    plain = fit_clusters(np.load(rows[0]), rows[1], ClusterConfig(categories=12, adapt="off"))
    assert np.array_equal(found.labels, plain.labels)


def test_rows_that_a_worker_refuses_are_one_line(cluster, rows, tmp_path):
    broken = np.load(rows[0])
    broken[-1, 3] = np.nan
    np.save(tmp_path / "rows.npy", broken)
    with pytest.raises(InputError, match=r"^process 1: features contain NaN: row 299, column 3; fix or drop that row$"):
        fitted((tmp_path / "rows.npy", rows[1]))


TRAINED = {"backbone": "tiny-vit", "categories": 5, "method": "selex", "epochs": 3, "batch": 16, "lr": 0.003}


def test_a_node_is_lost_while_training_and_nothing_of_the_result(cluster, home, pieces, tmp_path):
    alone = discover(Config.of(str(home / "photos")).change(**TRAINED), tmp_path / "alone")
    url = Config.of(f"file://{home / 'photos'}").change(**TRAINED)
    (home / "kill").write_text("5")  # clusterings of one worker: in the second epoch, or the third
    with pytest.warns(Note, match="a worker was lost while training: all workers start again"):
        done = discover(url, tmp_path / "run", engine=RayEngine(workers=2))
    (home / "kill-carried-out").unlink()
    cluster.add_node(num_cpus=2)
    epochs = [[entry for entry in run.metrics if entry["step"] == "epoch"] for run in (alone, done)]
    assert [entry["epoch"] for entry in epochs[1]] == [0, 1, 2]  # none of them twice
    for one, other in zip(*epochs, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-4)
    same_network(alone, done)
    assert alone.clusters["category"] == done.clusters["category"]


def test_what_workers_refuse_to_train_on_is_one_line(cluster, home, pieces, tmp_path):
    config = Config.of(str(home / "photos")).change(**TRAINED | {"batch": 200})
    with pytest.raises(InputError, match=r"^a batch of 200 is larger than the 180 images: set train\.batch to at most"):
        discover(config, tmp_path / "run", engine=RayEngine(workers=2))


def same_network(one, other):
    first, second = (load_file(run.folder / "model" / "trained.safetensors") for run in (one, other))
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.allclose(tensor, second[name], atol=2e-5), name


def test_attention_crops_of_tar_shards_trained_on_and_predicted(cluster, pieces, tmp_path):
    colour_photos(tmp_path / "photos")
    write(tmp_path / "eye.pth", eye())
    change = {"backbone": f"file:{tmp_path / 'eye.pth'}", "categories": 4, "attention_crop": True}
    train = change | {"method": "gcd", "epochs": 1, "batch": 8, "lr": 0.05}
    files = sorted((tmp_path / "photos").rglob("*.png"))
    images = {str(path.relative_to(tmp_path / "photos")): path.read_bytes() for path in files}
    (tmp_path / "shards").mkdir()
    labels = ["" if name.startswith("unlabelled") else name.split("/")[0] for name in images]
    write_tar(tmp_path / "shards" / "a.tar", images, labels)
    alone = discover(Config.of(str(tmp_path / "photos")).change(**train), tmp_path / "alone")
    done = discover(Config.of(str(tmp_path / "shards")).change(**train), tmp_path / "run", engine=RayEngine(workers=1))
    same_network(alone, done)
    one, other = (np.load(run.folder / "embeddings.npy") for run in (alone, done))
    assert np.allclose(one, other, atol=1e-5)
    assert alone.clusters["category"] == done.clusters["category"]
    here, there = (
        load(run.folder).predict(tmp_path / "photos", **how)
        for run, how in ((alone, {"store": tmp_path / "store"}), (done, {"engine": RayEngine(workers=1)}))
    )
    assert here["category"] == there["category"]
    assert np.allclose(here["confidence"], there["confidence"], atol=1e-4)


@pytest.mark.parametrize(
    ("address", "line"),
    [
        ("127.0.0.1:1", "no Ray cluster at 127.0.0.1:1: .*refused"),
        ("127.0.0.1:port", "the port after the colon must be a number"),
        ("127.0.0.1:99999999", "no Ray cluster at 127.0.0.1:99999999"),
    ],
)
def test_an_address_where_nobody_listens(home, address, line, tmp_path):
    with pytest.raises(InputError, match=line):
        ray_cluster._join(ray, address)
    given = ("--backbone", "tiny-vit", "--categories", 5, "--engine", "ray", "--address", address, "--out", "run")
    done = selex("discover", home / "photos", *given, cwd=tmp_path)
    assert done.returncode == 2
    assert re.fullmatch(f"error: .*{line}.*\n", done.stderr)
    assert not (tmp_path / "run").exists()


def test_without_an_address_ray_is_started_whatever_else_runs_here(monkeypatch):
    given = []
    monkeypatch.setattr(ray, "init", lambda **how: given.append((how["address"], how.get("num_cpus"))))
    ray_cluster._join(ray, None)
    ray_cluster._join(ray, "auto")
    assert given == [("local", max(2, os.cpu_count() or 1)), ("auto", None)]


def test_what_a_worker_cannot_embed_is_one_line(cluster, home, pieces, tmp_path):
    damaged = load_backbone("tiny-vit")
    next(damaged.parameters()).data.fill_(float("nan"))
    line = r"^a worker cannot embed: the backbone gives no finite feature for row 0: its weights may be damaged$"
    how = {"size": 32, "views": 1, "device": "cpu"}
    with pytest.raises(InputError, match=line):
        ray_embed.embed_on_ray(ONE_WORKER, damaged, [str(home / "photos")], None, tmp_path / "out.npy", **how)


def test_a_worker_that_is_killed_each_time_is_given_up_with_one_line(home, tmp_path):
    """In a process of its own, with a Ray of its own: nothing but that line is printed."""
    (tmp_path / "killed.py").write_text(KILLED)
    (tmp_path / "tmp").mkdir()
    env = os.environ | {"SELEX_CACHE": str(tmp_path / "cache"), "TMPDIR": str(tmp_path / "tmp")}
    env["RAY_TMPDIR"] = "/tmp"  # the names of its sockets may not be long
    asked = [sys.executable, str(tmp_path / "killed.py"), str(home / "photos"), str(tmp_path / "out.npy")]
    done = subprocess.run(asked, env=env, capture_output=True, text=True, timeout=600)
    line = "embedding on the Ray cluster failed: a worker was killed 4 times, perhaps for lack of memory"
    assert done.stdout == f"{line}\n", done.stderr
    assert done.stderr == ""
    assert not list(tmp_path.rglob("selex-deaths-*"))


KILLED = """
import os, signal, sys
from pathlib import Path
from selex.errors import InputError
from selex.features.ray_cluster import RayEngine
from selex.features.ray_embed import embed_on_ray
from selex.models.backbones import load_backbone

backbone = load_backbone("tiny-vit")
backbone.register_forward_pre_hook(lambda *given: os.kill(os.getpid(), signal.SIGKILL))
how = {"size": 32, "views": 1, "device": "cpu"}
try:
    embed_on_ray(RayEngine(), backbone, [sys.argv[1]], None, Path(sys.argv[2]), **how)
except InputError as error:
    print(error)
"""


def test_where_ray_gives_up_there_is_one_line_and_a_bug_of_ours_shows():
    begin = r"^embedding on the Ray cluster failed: "
    with pytest.raises(InputError, match=f"{begin}memory is full$"), _refused():
        raise ray.exceptions.OutOfMemoryError("Task was killed\nmemory is full")
    full = ray.exceptions.RayTaskError("submit", "Traceback\nOSError: no space left on device", OSError(28, "no space"))
    with pytest.raises(InputError, match=f"{begin}OSError: no space left on device$"), _refused():
        raise full
    with pytest.raises(InputError, match=f"{begin}RayError$"), _refused():
        raise ray.exceptions.RayError
    bug = ray.exceptions.RayTaskError("submit", "Traceback", TypeError())
    with pytest.raises(ray.exceptions.RayTaskError), _refused():
        raise bug


def test_libraries_below_torch_are_loaded_with_all_threads_of_a_worker(cluster, monkeypatch):
    class Telling(ray_cluster.Worker):
        def threads(self):
            return torch.get_num_threads(), os.environ["OMP_NUM_THREADS"]

    monkeypatch.setattr(torch, "get_num_threads", lambda: 6)  # of this process
    workers, _ = ray_cluster.start_workers(Telling, RayEngine(), 2, on_gpu=False)
    assert ray.get([worker.threads.remote() for worker in workers]) == [(3, "3")] * 2
    ray_cluster.stop_workers(workers)


def test_more_workers_than_the_cluster_has(cluster, home, pieces, tmp_path):
    with pytest.raises(InputError, match=r"^9 workers on cpu are too many: the cluster has 4 CPU and 0 GPU$"):
        run(home / "photos", tmp_path / "run", RayEngine(workers=9))
    assert not (tmp_path / "run").exists()


def test_workers_train_again_where_labels_were_held_out(cluster, home, pieces, tmp_path):
    digit_photos(tmp_path / "many", per_digit=90, n_known=4, digits=6)
    asked = {**TRAINED, "categories": 6, "epochs": 1, "batch": 32, "lr": 0.03, "temperature": 0.1}
    alone = discover(Config.of(str(tmp_path / "many")).change(**asked), tmp_path / "alone")
    told: list[str] = []
    url = Config.of(f"file://{tmp_path / 'many'}").change(**asked)
    done = discover(url, tmp_path / "run", engine=RayEngine(workers=2), tell=told.append)
    assert "training again, with all labels" in told
    assert [entry["epoch"] for entry in done.metrics if entry["step"] == "epoch"] == [0, 0]
    same_network(alone, done)
