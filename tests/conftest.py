"""Shared by all tests."""

import os
import signal

import hypothesis
import numpy as np
import pytest
import torch

from commands import digit_photos
from selex.review.core.session import Review

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"  # of commands that tests start: with other threads, sums round in another way

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell has it in the background, and commands inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

hypothesis.settings.register_profile(
    "default",
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],  # a busy machine is no fault
)
hypothesis.settings.load_profile("default")


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory):
    """One cache for all tests that do not make their own: never the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SELEX_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def _few_threads():
    """Small tensors gain nothing from more than two, and machines with many cores lose; a worker has one."""
    torch.set_num_threads(1 if "PYTEST_XDIST_WORKER" in os.environ else min(2, torch.get_num_threads()))


def blobs(n_blobs, size, spread=0.01, dims=16, seed=0):
    """Tight blobs of equal size around random unit directions: rows, and the blob of each row, shuffled."""
    rng = np.random.default_rng(seed)
    centers = rng.standard_normal((n_blobs, dims))
    centers /= np.linalg.norm(centers, axis=1, keepdims=True)
    truth = rng.permutation(np.repeat(np.arange(n_blobs), size))
    return centers[truth] + rng.normal(0, spread, (len(truth), dims)) / dims**0.5, truth


TAIL = [60, 40, 30, 20, 20, 10]
VERY_UNEVEN = [200, 25, 8, 4, 3]


def pile(sizes, spread):
    """Blobs of these sizes."""
    x, truth = blobs(len(sizes), max(sizes), spread=spread, dims=24)
    kept = np.concatenate([np.flatnonzero(truth == blob)[:size] for blob, size in enumerate(sizes)])
    return x[kept], truth[kept]


def some_labelled(truth, numbers):
    """So many rows of each of the first categories have a label."""
    labels = np.full(len(truth), -1)
    for category, number in enumerate(numbers):
        labels[np.flatnonzero(truth == category)[:number]] = category
    return labels


def half_labelled(truth, n_known, seed=0):
    """Half the rows of the first categories keep their label (at least one of each), the others get -1."""
    labels = np.full(len(truth), -1)
    rng = np.random.default_rng(seed)
    for category in range(n_known):
        rows = np.flatnonzero(truth == category)
        chosen = rng.choice(rows, max(1, len(rows) // 2), replace=False)
        labels[chosen] = category
    return labels


@pytest.fixture
def short(monkeypatch):
    """Few clusterings that vote and few steps of a map: for tests of what is done with it."""
    for name, value in {"RUNS": 4, "EPOCHS": 2, "FEWEST_STEPS": 6}.items():
        monkeypatch.setattr(f"selex.cluster.adapt.{name}", value)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with photos in it, and a cache of its own beside it."""
    monkeypatch.setenv("SELEX_CACHE", str(tmp_path / "cache"))
    home = tmp_path / "home"
    digit_photos(home / "photos")
    return home


@pytest.fixture
def review(folder):
    """The review of the run that a test module's own `folder` is."""
    review = Review(folder)
    yield review
    review.ledger.close()
