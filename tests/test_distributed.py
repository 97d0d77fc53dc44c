"""Two processes are one: the same losses, the same weights, one run."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import selex as package
from commands import contents, digit_photos, several
from commands import selex as alone
from selex.cluster.distributed.group import is_first_attempt

OPTIONS = (
    "--backbone",
    "tiny-vit",
    "--categories",
    5,
    "--set",
    "train.batch=16",
    "--set",
    "train.lr=0.003",
    "--store",
    "store",
)
DISCOVER = ("discover", "photos", *OPTIONS, "--epochs", 2)
KILLED = """
import os
from pathlib import Path

from commands import _stop_at
from selex.cli import main

place = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
Path("started " + " ".join(place)).touch()
step = {("0", "1"): 2, ("1", "0"): 5}.get(place)  # one of the first epoch, one of the second
if step:
    _stop_at("selex.training.steps:Steps.step", step, 9)
main()
"""
LIBRARY = "[Gloo] Rank"  # what the library of torch itself says, on standard output


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    digit_photos(home / "photos")
    return home


def epochs(run):
    return [entry for entry in package.Run.open(run).metrics if entry["step"] == "epoch"]


def agree(one, two):
    """The same losses, weights and files, but for rounding."""
    assert sorted(contents(one)) == sorted(contents(two))
    for a, b in zip(epochs(one), epochs(two), strict=True):
        assert set(a) == set(b)
        for part in set(a) - {"time", "prepared", "seconds", "step"}:
            assert a[part] == pytest.approx(b[part], rel=1e-4), part
    first, second = (load_file(run / "model" / "trained.safetensors") for run in (one, two))
    for name, tensor in first.items():
        assert torch.allclose(tensor, second[name], atol=2e-5), name


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("gcd", ()),
        ("simgcd", ()),
        ("selex", ("--set", "train.micro_batch=3")),
        ("selex", ("--set", "train.view_bank=2", "--set", "train.targets=radii")),
        (
            "selex",
            (
                "--set",
                "train.prototypes=0.35",
                "--set",
                "cluster.whiten=0.5",
                "--set",
                "train.interval=2",
                "--set",
                "train.random_crop=0.6",
                "--set",
                "train.color_jitter=0.4",
            ),
        ),
    ],
    ids=str,
)
def test_two_processes_are_one(home, method, options):
    command = (*DISCOVER, "--method", method, *options)
    out = [f"{method} {len(options)} {count}" for count in (1, 2)]
    done = alone(*command, "--out", out[0], cwd=home)
    assert (done.returncode, done.stderr) == (0, "")
    first, second = several(*command, "--out", out[1], cwd=home, slurm=method == "gcd")
    assert (first.returncode, first.stderr) == (0, "")
    assert (second.returncode, second.stderr) == (0, "")
    assert [line for line in second.stdout.splitlines() if not line.startswith(LIBRARY)] == []
    assert "60 images, 12 of them labelled" in first.stdout
    agree(home / out[0], home / out[1])


@pytest.mark.parametrize("method", ["frozen", "gcd"])
def test_two_processes_with_different_jobs_are_refused(home, method):
    """As `srun -n 2` starts them for a script that has a folder for each: only one would be written."""
    command = (*DISCOVER, "--method", method, "--out")
    done = several(*command, "job {rank}", cwd=home, slurm=True)
    for one in done:
        assert one.returncode == 2
        assert "processes that were started together have different settings" in one.stderr
        assert one.stderr.count("\n") == 1
    assert not (home / "job 0" / "clusters.csv").exists()
    assert not (home / "job 1").exists()


def test_two_processes_train_twice_where_labels_were_held_out(home):
    digit_photos(home / "many", per_digit=90, n_known=4, digits=6)
    command = ("discover", "many", "--backbone", "tiny-vit", "--categories", 6, "--epochs", 1, "--method", "selex")
    settings = ("--set", "train.batch=32", "--set", "train.lr=0.03", "--set", "train.temperature=0.1")
    done = alone(*command, *settings, "--out", "twice 1", cwd=home)
    assert (done.returncode, done.stderr) == (0, "")
    first, second = several(*command, *settings, "--out", "twice 2", cwd=home)
    assert (first.returncode, first.stderr) == (0, "")
    assert (second.returncode, second.stderr) == (0, "")
    assert "training again, with all labels" in first.stdout
    assert [entry["epoch"] for entry in epochs(home / "twice 2")] == [0, 0]
    agree(home / "twice 1", home / "twice 2")


def test_two_processes_cluster_together_without_training(home):
    command = ("discover", "photos", "--backbone", "tiny-vit", "--categories", 5, "--store", "store")
    done = alone(*command, "--out", "frozen 1", cwd=home)
    assert (done.returncode, done.stderr) == (0, "")
    digit_photos(home / "more", per_digit=3)
    added = ("discover", "frozen 2", "--add", "more", "--store", "store")  # categories continue: nothing to search for
    for given in ((*command, "--out", "frozen 2"), added):
        first, second = several(*given, cwd=home)
        assert (first.returncode, first.stderr) == (0, "")
        assert (second.returncode, second.stderr) == (0, "")
        assert [line for line in second.stdout.splitlines() if not line.startswith(LIBRARY)] == []
        if given != added:
            one, two = (package.Run.open(home / f"frozen {count}").clusters.to_pydict() for count in (1, 2))
            assert one["category"] == two["category"]
            assert one["confidence"] == pytest.approx(two["confidence"], abs=2e-3)
    steps = [entry for entry in package.Run.open(home / "frozen 2").metrics if entry["step"] == "cluster"]
    assert [(step.get("workers"), step.get("resumed")) for step in steps] == [(2, None), (None, True)]


def test_where_the_first_process_is_lost_while_it_embeds_the_second_says_so(home):
    command = ("discover", "photos", "--backbone", "tiny-vit", "--categories", 5, "--out", "lost")
    first, second = several(*command, cwd=home, kill=("selex.discovery_steps:Discovery.embed", 1))
    assert first.returncode == -9
    assert second.returncode == 2
    assert second.stderr == "error: another process was lost, and this one cannot continue without it: see its error\n"


@pytest.fixture(scope="module")
def undisturbed(home):
    done, _ = several(*DISCOVER, "--method", "selex", "--out", "whole", cwd=home)
    assert done.returncode == 0, done.stderr
    return home / "whole"


def same_result(one, two):
    for name in ("clusters.csv", "model/trained.safetensors", "embeddings.npy"):
        assert (one / name).read_bytes() == (two / name).read_bytes(), name


def test_two_processes_go_on_where_they_were_killed(home, undisturbed):
    command = (*DISCOVER, "--method", "selex")
    first, second = several(*command, "--out", "stopped", cwd=home, kill=("selex.training.steps:Steps.step", 5))
    assert first.returncode == -9
    line = "error: another process was lost, and this one cannot continue without it: see its error\n"
    assert (second.returncode, second.stderr) == (2, line)
    assert (home / "stopped" / ".work" / "checkpoint-00000.pt").exists()
    shutil.copytree(home / "stopped", home / "fewer")
    first, second = several("train", "stopped", "--resume", "--store", "store", cwd=home)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    same_result(home / "stopped", undisturbed)
    done = alone("train", "fewer", "--resume", "--store", "store", cwd=home)  # another number of processes
    assert (done.returncode, done.stderr) == (0, "")
    agree(undisturbed, home / "fewer")


def test_torchrun_restarts_what_was_killed(home, undisturbed):
    """First the second process is lost, before there is a checkpoint, then the first, which holds the run's lock."""
    (home / "killed.py").write_text(KILLED)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=2"]
    places = [str(Path(__file__).parent), *sys.path]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, places)), "OMP_NUM_THREADS": "1"}
    command = [*torchrun, "killed.py", *map(str, DISCOVER), "--method", "selex", "--out", "restarted"]
    done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert len([*home.glob("started *")]) == 6  # processes, two at a time
    same_result(home / "restarted", undisturbed)


def besides_store(home):
    """Every file and folder; decoded images are kept whatever else is refused."""
    return {path for path in home.rglob("*") if path.relative_to(home).parts[0] != "store"}


def test_a_batch_that_cannot_be_shared(home):
    before = besides_store(home)
    for done in several(*DISCOVER, "--method", "gcd", "--set", "train.batch=15", "--out", "uneven", cwd=home):
        assert done.returncode == 2
        line = "error: a batch of 15 cannot be divided among 2 processes: set train.batch=14"
        assert done.stderr.splitlines() == [line]
    assert besides_store(home) == before


def test_what_is_done_once_is_not_done_again_after_a_restart(monkeypatch):
    assert is_first_attempt("run"), "nobody restarts it"
    assert is_first_attempt("run")
    store = torch.distributed.TCPStore("127.0.0.1", 0, 1, is_master=True)
    said = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "WORLD_SIZE": "1"}
    said |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_MAX_RESTARTS": "2"}
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    assert [is_first_attempt(run) for run in ("run", "run", "other")] == [True, False, True]
