"""Rows spread over real processes give what one process gives: matching, draws, clusters, refusals."""

import os
import pickle
import re
import socket
import warnings
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from commands import SERVER, selex, several
from reference import stable_match as plain_stable_match
from selex.cli import shards as shards_command
from selex.cluster import adapt
from selex.cluster.balance import stable_match
from selex.cluster.blocks import Pieces, open_pieces
from selex.cluster.distributed.group import Group, join
from selex.cluster.distributed.shards import Shard
from selex.cluster.hierarchy import hssk
from selex.cluster.kmeans import bssk
from selex.cluster.pipeline import fit_clusters
from selex.cluster.rows import Rows
from selex.config import ClusterConfig, Config
from selex.errors import InputError

COUNTS = (1, 2, 4)
SHIFTED = "equal sizes"  # what has a limit of its own to how many of the rows of each cluster can be right


def edges(n, size, seed):
    """Where the processes' rows begin and end: nobody's are as many as another's."""
    cuts = np.sort(np.random.default_rng(seed).choice(np.arange(1, n), size - 1, replace=False))
    return [0, *cuts.tolist(), n]


def mine(rows, group, seed):
    cuts = edges(len(rows), group.size, seed)
    return rows[cuts[group.rank] : cuts[group.rank + 1]]


def matchings():
    """Small problems of whole numbers, full of ties, with room for all; some clusters have none."""
    made = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        n, k = int(rng.integers(4, 40)), int(rng.integers(1, 7))
        capacity = rng.integers(0, 2 * n // k + 1, k)
        while capacity.sum() < n:
            capacity[rng.integers(k)] += 1
        x, centers = (rng.integers(0, 4, (m, 2)).astype(np.float64) for m in (n, k))
        made.append((x - x.mean(0).round(), centers, capacity))
    return made


def clusterings():
    """Rows, labels, clusters and options: spread, in tight copies, far away, of whole numbers; with restarts."""
    made = []
    for seed in range(2):
        rng = np.random.default_rng(seed)
        x = rng.standard_normal((200, 6)).astype(np.float32) + np.float32(3 * seed)
        ties = rng.integers(0, 3, (200, 6)).astype(np.float16)
        copies = np.repeat(rng.integers(0, 50, (20, 6)).astype(np.float64), 10, axis=0)
        labels = np.where(rng.random(200) < 0.3, rng.integers(0, 5, 200), -1)
        made += [(x, labels, 20, {}), (x, labels, 9, {"balanced": False}), (ties, labels, 12, {})]
        made += [(x, np.sort(labels)[::-1].copy(), 5 + seed, {}), (x, None, 10, {"memory": 1 << 12})]  # type: ignore[dict-item]
    probed = {"probes": 2, "memory": 1 << 12}
    return [*made, (copies, None, 25, {}), (x, None, 8, {"n_init": 2}), (x, labels, 20, probed)]


def fits():
    """Rows of categories that overlap, some labelled, and settings of the whole pipeline."""
    rng = np.random.default_rng(5)
    truth = rng.integers(0, 8, 240)
    x = (rng.standard_normal((8, 6))[truth] + 0.25 * rng.standard_normal((240, 6))).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    labels = np.where((truth < 4) & (rng.random(240) < 0.5), truth, -1)
    first = np.argsort(labels == -1, kind="stable")  # as folders are: other processes than the first have no label
    differing = np.where(np.arange(240) % 10 < np.array([9, 5, 3, 1, 0, 0, 0, 0])[truth], truth, -1)
    equal, some = rows_of_equal_categories(rng)
    return {
        "sorted": (x[first], labels[first], {"categories": 8, "refine": "auto", "levels": 1, "restarts": 1}),
        "refined": (x, labels, {"categories": 8, "refine": "proportional"}),
        "balanced": (x, labels, {"categories": 8, "refine": "balanced", "whiten": 0.0}),
        "uneven": (x * np.linspace(1, 3, 240, dtype=np.float32)[:, None], labels, {"categories": 8, "refine": "none"}),
        "estimate": (x, labels, {"refine": "proportional"}),
        "silhouette": (x, None, {"refine": "none", "levels": 1, "restarts": 1}),
        "swaps": (x, labels, {"categories": 8, "refine": "auto", "search": "swaps", "levels": 1, "restarts": 1}),
        "unequal": (x, labels, {"categories": 8, "refine": "none", "search": "unequal", "levels": 1, "restarts": 1}),
        "smoothed": (x, labels, {"categories": 8, "refine": "none", "search": "smoothed", "levels": 1, "restarts": 1}),
        "adapted": (x, labels, {"categories": 8, "refine": "none", "adapt": "on", "levels": 1, "restarts": 1}),
        "consensus": (x, labels, {"categories": 8, "refine": "none", "search": "consensus", "levels": 1}),
        "auto": (x, differing, {"categories": 8, "refine": "auto", "search": "auto", "levels": 1, "restarts": 1}),
        SHIFTED: (equal, some, {"categories": 8, "refine": "none", "levels": 1, "restarts": 1}),
    }


def rows_of_equal_categories(rng):
    """Thirty rows of each of eight categories, and labels of six, in numbers as if drawn at random."""
    truth = np.repeat(np.arange(8), 30)
    x = (rng.standard_normal((8, 6))[truth] + 0.25 * rng.standard_normal((240, 6))).astype(np.float32)
    labelled = np.arange(240) % 30 < np.array([18, 20, 22, 20, 20, 20, 0, 0])[truth]
    order = rng.permutation(240)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x[order], np.where(labelled, truth, -1)[order]


QUICK = {"RUNS": 4, "EPOCHS": 2, "FEWEST_STEPS": 10}  # of adapting


def fit_config(options):
    return ClusterConfig(**{"search": "bssk", "adapt": "off", **options})


def cluster(shard, labels, k, options):
    options = {name: value for name, value in options.items() if name != "memory"}
    level = bssk(shard, labels, k, rng=3, n_iter=4, **options)
    return level.labels, level.centers, level.inertia, level.n_iter


def refusals(group):
    """What each process says of rows, labels and settings that one of them, or none, can take."""
    x = np.random.default_rng(0).standard_normal((40, 3))
    broken = x.copy()
    broken[39, 1] = np.nan  # the last process's
    late = np.where(np.arange(40) == 39, 99, -1)
    tries = {
        "nan": lambda: Shard(mine(broken, group, 0), group),
        "width": lambda: Shard(mine(x, group, 0)[:, : 3 - group.rank % 2], group),
        "label": lambda: bssk(Shard(mine(x, group, 0), group), mine(late, group, 0), 4),
        "many": lambda: bssk(Shard(mine(x, group, 0), group), None, 41),
        "refine": lambda: hssk(Shard(mine(x, group, 0), group), None, 4, refine="proportional"),
    }
    said = {}
    for name, attempt in tries.items():
        with pytest.raises(InputError) as caught:
            attempt()
        said[name] = str(caught.value)
    return said


def work(rank, size, port, out):
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(size)}
    group = join()
    found: dict[str, Any] = {"matchings": [], "clusterings": []}
    for seed, (x, centers, capacity) in enumerate(matchings()):
        shard = Shard(mine(x, group, seed), group) if len(x) > size else Shard(x[rank:][:1], group)
        shifted = torch.from_numpy(centers) - shard.shift
        found["matchings"].append(stable_match(shard, shifted, torch.from_numpy(capacity))[0].tolist())
    for seed, (x, labels, k, options) in enumerate(clusterings()):
        shard = Shard(mine(x, group, seed), group, options.get("memory", 1 << 30))
        own = None if labels is None else mine(labels, group, seed)
        found["clusterings"].append(cluster(shard, own, k, options))
    x, labels, k, _ = clusterings()[0]
    levels = hssk(Shard(mine(x, group, 1), group), mine(labels, group, 1), k, n_levels=2, n_iter=3, rng=0).levels
    found["levels"] = [level.labels for level in levels]
    found["fits"] = {}
    for name, value in QUICK.items():
        setattr(adapt, name, value)
    for name, (x, labels, options) in fits().items():
        own = None if labels is None else mine(labels, group, 2)
        found["fits"][name] = fit_clusters(Shard(mine(x, group, 2), group), own, fit_config(options))
    found["refusals"] = refusals(group) if size > 1 else {}
    out.write_bytes(pickle.dumps(found))
    if size > 1:
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each process of 1, 2 and 4 found."""
    folder = tmp_path_factory.mktemp("found")
    started = []
    for size in COUNTS:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        processes = [
            SERVER.Process(target=work, args=(rank, size, port, folder / f"{size}-{rank}")) for rank in range(size)
        ]
        for process in processes:
            process.start()
        started += processes
        for process in processes:
            process.join(600)
    assert [process.exitcode for process in started] == [0] * len(started)
    return {size: [pickle.loads((folder / f"{size}-{rank}").read_bytes()) for rank in range(size)] for size in COUNTS}


def joined(found, size, key, number):
    return np.concatenate([part[key][number] for part in found[size]]).tolist()


@pytest.mark.parametrize("size", COUNTS)
def test_the_matching_is_the_one_of_plain_deferred_acceptance(found, size):
    for number, (x, centers, capacity) in enumerate(matchings()):
        distance = ((x[:, None] - centers) ** 2).sum(-1)
        expected = plain_stable_match(distance.tolist(), capacity.tolist())
        assert joined(found, size, "matchings", number) == expected, number


@pytest.mark.parametrize("size", COUNTS)
@pytest.mark.filterwarnings("ignore")
def test_the_clusters_are_those_of_one_process(found, size):
    for number, (x, labels, k, options) in enumerate(clusterings()):
        level = bssk(x, labels, k, rng=3, n_iter=4, **options)
        parts = [part["clusterings"][number] for part in found[size]]
        assert np.concatenate([part[0] for part in parts]).tolist() == level.labels.tolist(), number
        for _, centers, inertia, n_iter in parts:
            assert np.allclose(centers, level.centers, atol=1e-5)
            assert inertia == pytest.approx(level.inertia, rel=1e-5)
            assert n_iter == level.n_iter


def test_centres_do_not_depend_on_the_number_of_processes(found):
    for number in range(len(clusterings())):
        one = found[1][0]["clusterings"][number][1]
        for size in COUNTS:
            for part in found[size]:
                assert np.array_equal(part["clusterings"][number][1], one), (number, size)


@pytest.mark.parametrize("size", COUNTS)
def test_every_level_is_that_of_one_process(found, size):
    x, labels, k, _ = clusterings()[0]
    for number, level in enumerate(hssk(x, labels, k, n_levels=2, n_iter=3, rng=0).levels):
        assert joined(found, size, "levels", number) == level.labels.tolist()


@pytest.mark.parametrize("size", COUNTS)
@pytest.mark.parametrize("name", fits())
@pytest.mark.filterwarnings("ignore")
def test_the_whole_pipeline_is_that_of_one_process(found, size, name, monkeypatch):
    for setting, value in QUICK.items():
        monkeypatch.setattr(adapt, setting, value)
    x, labels, options = fits()[name]
    one = fit_clusters(x, labels, fit_config(options))
    parts = [part["fits"][name] for part in found[size]]
    for number, level in enumerate(one.hierarchy.levels):
        assert (
            np.concatenate([part.hierarchy.levels[number].labels for part in parts]).tolist() == level.labels.tolist()
        )
    for attribute in ("confidence", "runner_up", "distances", "fits"):
        whole = np.concatenate([getattr(part.assignment, attribute) for part in parts])
        assert np.allclose(whole, getattr(one.assignment, attribute), atol=2e-3), attribute
    for part in parts:
        assert part.assigner.temperature == pytest.approx(one.assigner.temperature, rel=1e-3)
        assert part.assigner.calibration.shifts == pytest.approx(one.assigner.calibration.shifts, abs=1e-3)
        assert len(part.assigner.calibration.shifts) == (6 if name == SHIFTED else 0)
        assert np.allclose(part.assigner.reach, one.assigner.reach, rtol=1e-4)
        assert np.allclose(part.hierarchy.levels[0].centers, one.hierarchy.levels[0].centers, atol=1e-4)
        assert part.hierarchy.levels[0].inertia == pytest.approx(one.hierarchy.levels[0].inertia, rel=1e-4)
        assert part.selection.settings == one.selection.settings
        assert len(part.maps.steps) == len(one.maps.steps)
        for own, theirs in zip(part.maps.steps, one.maps.steps, strict=True):
            assert torch.allclose(own.matrix, theirs.matrix, atol=1e-4)
        assert (part.estimate and part.estimate.n_clusters) == (one.estimate and one.estimate.n_clusters)


@pytest.mark.parametrize("size", COUNTS[1:])
def test_where_one_process_refuses_all_do(found, size):
    last = edges(40, size, 0)[-2]
    assert f"process {size - 1}: features contain NaN: row {39 - last}, column 1" in found[size][-1]["refusals"]["nan"]
    assert found[size][0]["refusals"]["nan"] == f"process {size - 1} rejected its rows: see its error"
    assert f"process {size - 1}: label 99 in row {39 - last}" in found[size][-1]["refusals"]["label"]
    for part in found[size]:
        assert "differ in width" in part["refusals"]["width"]
        assert part["refusals"]["many"] == "41 clusters for 40 rows: ask for at most 40"
        assert "needs rows of equal length" in part["refusals"]["refine"]


def test_alone_is_a_group_of_one(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    group = join()
    assert type(group) is Group
    assert (group.rank, group.size) == (0, 1)


@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_shards_on_disk_are_one_table(tmp_path, kind):
    x = np.random.default_rng(0).standard_normal((50, 4)).astype(kind)
    paths = [tmp_path / f"{number}.npy" for number in range(4)]
    for path, part in zip(paths, np.split(x, [7, 7, 30]), strict=True):
        np.save(path, part)
    whole = open_pieces(paths)
    assert (whole.shape, whole.dtype) == (x.shape, x.dtype)
    assert np.array_equal(whole[3:40], x[3:40])
    picked = np.random.default_rng(1).permutation(50)
    assert np.array_equal(whole[picked], x[picked])
    assert np.array_equal(whole.to("cpu").numpy(), x)
    parts = [whole.part(rank, 3) for rank in range(3)]
    assert [part.shape[0] for part in parts] == [16, 17, 17]
    assert np.array_equal(np.concatenate([part[:] for part in parts]), x)
    assert np.array_equal(bssk(Shard(whole), None, 6, rng=0).labels, bssk(x, None, 6, rng=0).labels)
    assert np.array_equal(Rows(whole, memory=1).take(torch.tensor([49, 0])).numpy(), x[[49, 0]].astype(np.float32))


def test_shards_that_cannot_be_read_are_one_line(tmp_path):
    (tmp_path / "text.npy").write_text("no")
    np.save(tmp_path / "whole.npy", np.zeros((3, 2), int))
    np.save(tmp_path / "two.npy", np.zeros((3, 2)))
    np.save(tmp_path / "three.npy", np.zeros((3, 3)))
    for names, message in {
        (): "no shards",
        ("none.npy",): "none.npy: cannot be read",
        ("text.npy",): "text.npy: cannot be read",
        ("whole.npy",): "whole.npy: a shard is a table of floats, not int64",
        ("two.npy", "three.npy"): "differ in width or dtype",
    }.items():
        with pytest.raises(InputError, match=message):
            open_pieces([tmp_path / name for name in names])
    with pytest.raises(InputError, match="3 rows for 4 processes"):
        Pieces([np.zeros((3, 2))]).part(0, 4)


GIVEN = ("--labels", "labels.csv", "--categories", 8, "--refine", "proportional", "--set", "cluster.search=bssk")


@pytest.fixture
def place(tmp_path):
    """Features in one file and in a folder of shards, labels of some rows."""
    x, labels, _ = fits()["refined"]
    np.save(tmp_path / "features.npy", x)
    (tmp_path / "shards").mkdir()
    for number, part in enumerate(np.split(x, [50, 190])):
        np.save(tmp_path / "shards" / f"{number}.npy", part)
    lines = [f"{row},kind {label}" for row, label in enumerate(labels) if label >= 0]
    (tmp_path / "labels.csv").write_text("\n".join(["row,label", *lines]))
    return tmp_path


def table(path):
    header, *lines = [line.split(",") for line in path.read_text().splitlines()]
    distance = header.index("distance")
    return [header, *([*line[:distance], *line[distance + 1 :]] for line in lines)], [float(x[distance]) for x in lines]


def test_the_command_writes_the_same_table_in_one_process_and_in_two(place, monkeypatch):
    monkeypatch.setattr(shards_command, "BLOCK", 7)
    one = selex("cluster", "features.npy", *GIVEN, "--set", "cluster.adapt=off", "--out", "one.csv", cwd=place)
    config = Config().change(categories=8, refine="proportional", search="bssk")
    shards_command.cluster_shards(place / "shards", place / "labels.csv", place / "folder.csv", config, "cpu", False)
    first, second = several("cluster", "shards", *GIVEN, "--out", "two.csv", cwd=place)
    assert [done.returncode for done in (one, first, second)] == [0] * 3, first.stderr
    assert "240 rows, 2 processes: 4 known categories, 4 novel ones; levels of 8, 4, 2" in first.stdout
    assert "adapt: off (auto)" in first.stdout
    assert "wrote" not in second.stdout
    expected, distances = table(place / "one.csv")
    for name in ("folder.csv", "two.csv"):
        found, apart = table(place / name)
        assert found == expected, name
        assert np.allclose(apart, distances, atol=1e-5)


def test_the_command_refuses_shards_in_one_line(place):
    (place / "empty").mkdir()
    (place / "far.csv").write_text("row,label\n240,a\n")
    (place / "twice.csv").write_text("row,label\n1,a\n1,b\n")
    for arguments, line in {
        ("empty",): "empty: no .npy shard of features in this folder",
        ("shards", "--labels", "far.csv"): "far.csv, line 2: row '240' is not among the features' rows",
        ("shards", "--labels", "twice.csv"): "twice.csv, line 3: row '1' appears twice, first in line 2",
        ("shards", "--published"): "--published needs all features in one file and one process",
    }.items():
        done = selex("cluster", *arguments, "--out", "no.csv", cwd=place)
        assert (done.returncode, done.stderr) == (2, f"error: {line}\n")
        assert not (place / "no.csv").exists()
    done = selex("cluster", "shards", "--device", "no-such", "--out", "no.csv", cwd=place)
    assert done.returncode == 2
    assert re.fullmatch("error: --device no-such: .+\n", done.stderr)


def test_a_number_of_processes_alone_starts_none(place, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")  # as some clusters set it in every shell
    done = selex("cluster", "shards", *GIVEN, "--out", "alone.csv", cwd=place)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "moment", [("selex.cluster.distributed.shards:Shard._stand", 1), ("selex.cluster.kmeans:Problem.means", 2)]
)
def test_where_one_process_is_lost_the_others_say_so_in_one_line(place, moment):
    first, second = several("cluster", "shards", *GIVEN, "--out", "lost.csv", cwd=place, kill=moment)
    assert first.returncode == -9
    line = "error: another process was lost, and this one cannot continue without it: see its error\n"
    assert (second.returncode, second.stderr) == (2, line)
    assert not (place / "lost.csv").exists()


def test_processes_that_cannot_connect_say_why(place):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        started = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        done = selex("cluster", "shards", *GIVEN, "--out", "unconnected.csv", cwd=place, environment=started)
    assert done.returncode == 2
    assert done.stderr.startswith("error: cannot connect the processes: ")
    assert "in use" in done.stderr
    assert not (place / "unconnected.csv").exists()
