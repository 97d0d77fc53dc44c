"""What SLURM says to the processes that it starts; and, where there is a cluster, two of them as one."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from commands import digit_photos
from commands import selex as alone
from selex import Run
from selex.launch import adopt_slurm, first_host
from test_distributed import agree

STEP = {
    "SLURM_JOB_ID": "81",
    "SLURM_STEP_ID": "3",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "gpu[07,12]",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
}


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("vm", "vm"),
        ("a1,b2", "a1"),
        ("gpu[003-007,9],login", "gpu003"),
        ("n[5]", "n5"),
        ("r[1-2]-n[3-4]", "r1-n3"),
        ("rack-2-n[10,12]-ib", "rack-2-n10-ib"),
    ],
)
def test_the_first_of_a_list_of_nodes(nodes, first):
    assert first_host(nodes) == first


def test_a_step_of_several_tasks_is_told_as_torchrun_tells():
    environment = dict(STEP)
    adopt_slurm(environment)
    said = {name: value for name, value in environment.items() if name not in STEP}
    port = said.pop("MASTER_PORT")
    assert said == {
        "RANK": "5",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "4",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "MASTER_ADDR": "gpu07",
        "TORCHELASTIC_RUN_ID": "slurm-81-3",
    }
    for name in (*said, "MASTER_PORT"):
        del environment[name]
    environment |= {"SLURM_STEP_ID": "4", "MASTER_ADDR": "10.0.0.7"}
    adopt_slurm(environment)
    assert environment["MASTER_ADDR"] == "10.0.0.7"
    assert environment["MASTER_PORT"] != port


@pytest.mark.parametrize("more", [{"SLURM_STEP_NUM_TASKS": "1"}, {"LOCAL_RANK": "0"}], ids=str)
def test_one_task_and_what_torchrun_started_inside_an_allocation(more):
    environment = STEP | more
    adopt_slurm(environment)
    assert environment == STEP | more


@pytest.fixture(scope="module")
def srun(tmp_path_factory):
    """Runs a command in two tasks of a cluster that answers."""
    if not shutil.which("srun"):
        pytest.skip("there is no SLURM here")
    try:
        subprocess.run(["srun", "-n", "2", "true"], timeout=30, check=True, capture_output=True)
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError):
        pytest.skip("SLURM has no room for two tasks")
    places = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}

    def run(*command, cwd):
        given = ["srun", "-n", "2", sys.executable, "-m", "selex", *map(str, command)]
        return subprocess.run(given, cwd=cwd, env=places, capture_output=True, text=True, timeout=500)

    return run


def test_two_tasks_of_a_real_cluster_cluster_as_one_process(srun, tmp_path):
    rng = np.random.default_rng(0)
    truth = np.arange(600) % 12
    rows = rng.standard_normal((12, 16))[truth] + 0.3 * rng.standard_normal((600, 16))
    np.save(tmp_path / "rows.npy", rows.astype(np.float32))
    known = [f"{row},{truth[row]}" for row in range(200) if truth[row] < 6]
    (tmp_path / "labels.csv").write_text("\n".join(["row,label", *known]) + "\n")
    command = ("cluster", "rows.npy", "--labels", "labels.csv", "--categories", 12, "--set", "cluster.adapt=off")
    done = srun(*command, "--out", "two.csv", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "600 rows, 2 processes: 6 known categories" in done.stdout
    one = alone(*command, "--set", "cluster.search=swaps", "--out", "one.csv", cwd=tmp_path)
    assert one.returncode == 0, one.stderr
    assert columns(tmp_path / "two.csv") == columns(tmp_path / "one.csv")


def columns(path):
    """Rows and categories of a table; distances are rounded differently."""
    return [line.split(",")[:2] for line in path.read_text().splitlines()]


def test_two_tasks_of_a_real_cluster_train_as_one_process(srun, tmp_path):
    digit_photos(tmp_path / "photos")
    train = ("--method", "gcd", "--epochs", 2, "--set", "train.batch=16", "--set", "train.lr=0.003")
    command = ("discover", "photos", "--backbone", "tiny-vit", "--categories", 5, "--store", "store", *train)
    done = srun(*command, "--out", "two", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert alone(*command, "--out", "one", cwd=tmp_path).returncode == 0
    agree(tmp_path / "one", tmp_path / "two")
    one, two = (Run.open(tmp_path / name).clusters["category"] for name in ("one", "two"))
    assert one == two
