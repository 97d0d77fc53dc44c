"""Small work runs on one thread, and threads of the command line sleep while they wait."""

import subprocess
import sys

import pytest
import torch

from conftest import blobs, half_labelled
from selex.cluster.pipeline import fit_clusters
from selex.config import ClusterConfig
from selex.threads import PER_THREAD, threads_for
from selex.training.loop import Callbacks
from training_for_tests import digit_data, fit, small


@pytest.fixture
def four():
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    assert torch.get_num_threads() == 4, "whoever called keeps their threads"
    torch.set_num_threads(before)


@pytest.mark.parametrize(("numbers", "count"), [(0, 1), (PER_THREAD, 1), (3 * PER_THREAD, 3), (10**12, 4)])
def test_as_many_as_work_is_worth(four, numbers, count):
    with threads_for(numbers):
        assert torch.get_num_threads() == count


def test_they_come_back_after_a_failure(four):
    with pytest.raises(ZeroDivisionError), threads_for(1):
        raise ZeroDivisionError


def test_small_clustering_is_on_one_thread(four, monkeypatch):
    seen = []
    monkeypatch.setattr("selex.cluster.pipeline.hssk", counted("selex.cluster.pipeline.hssk", seen))
    rows, truth = blobs(5, 20)
    fit_clusters(rows, half_labelled(truth, 3), ClusterConfig(categories=5))
    assert set(seen) == {1}


def test_a_small_network_is_trained_on_one_thread(four, tmp_path):
    seen = []
    told = Callbacks(log=lambda entry: seen.append(torch.get_num_threads()))
    fit(small("selex", epochs=1), digit_data(tmp_path), callbacks=told)
    assert set(seen) == {1}


def test_threads_of_the_command_line_sleep_while_they_wait():
    code = """
import os, sys
sys.argv[1:] = ["--version"]
from selex.__main__ import main
os.environ["KMP_BLOCKTIME"] = "7"  # a user's own
try:
    main()
except SystemExit:
    print(os.environ["OMP_WAIT_POLICY"], os.environ["KMP_BLOCKTIME"], "torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "PASSIVE 7 False", done.stderr


def test_importing_the_package_changes_nothing_in_the_process():
    code = "import os, torch; a = dict(os.environ), torch.get_num_threads(); import selex, selex.cli, selex.discovery; "
    code += "assert (dict(os.environ), torch.get_num_threads()) == a"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr == ""


def counted(place, seen):
    """The function at a place, noting how many threads there are when it is called."""
    module, _, name = place.rpartition(".")
    real = getattr(sys.modules[module], name)

    def noted(*args, **kwargs):
        seen.append(torch.get_num_threads())
        return real(*args, **kwargs)

    return noted
