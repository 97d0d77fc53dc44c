"""Processes on machines that round differently take the same decisions: none waits for the others for ever."""

import os
import pickle
import socket
import warnings

import numpy as np
import pytest
import torch
import torch.distributed as dist

from commands import SERVER
from selex.cluster.distributed.group import join
from selex.cluster.distributed.shards import Shard
from selex.cluster.holdout import calibrate
from selex.cluster.pipeline import fit_clusters
from selex.config import ClusterConfig

FITS = {
    "swaps": {"categories": 16, "search": "swaps", "refine": "none"},
    "balanced": {"categories": 16, "search": "swaps", "refine": "balanced", "whiten": 0.0},
    "consensus": {"categories": 16, "search": "consensus", "refine": "none", "levels": 1},
    "auto": {"categories": 16, "search": "swaps", "refine": "auto", "levels": 1, "restarts": 1},
    "estimate": {"search": "bssk", "refine": "none", "levels": 1, "restarts": 1},
}

LONGEST = 60  # seconds; a process that waits for ever is ended then


def data():
    """Rows that come in pairs, each the mirror image of the other, and labels of some."""
    rng = np.random.default_rng(1)
    truth = rng.integers(0, 8, 150)
    half = rng.standard_normal((8, 6))[truth] + 0.4 * rng.standard_normal((150, 6))
    x = np.concatenate([half, -half]).astype(np.float32)
    labels = np.where(np.concatenate([truth, truth + 8]) < 4, np.concatenate([truth, truth]), -1)
    order = rng.permutation(300)
    x, labels = x[order], np.where(rng.random(300) < 0.5, labels[order], -1)
    return x / np.linalg.norm(x, axis=1, keepdims=True), labels


def round_differently(rank):
    """Sums and decompositions are off by some percent, by others in each process: more than any machine is.

    Numbers of labels are just alike enough in the first process, and just not in the second.
    """
    draws = torch.Generator().manual_seed(rank)

    def off(values):
        if not values.is_floating_point():
            return values
        noise = torch.randn(values.shape, generator=draws, dtype=torch.float64)
        return values * (1 + 0.03 * noise).to(values.dtype)

    total, qr, cholesky = torch.Tensor.sum, torch.linalg.qr, torch.linalg.cholesky
    torch.Tensor.sum = lambda self, *how, **more: off(total(self, *how, **more))  # type: ignore[method-assign]
    torch.linalg.qr = lambda values: tuple(map(off, qr(values)))
    torch.linalg.cholesky = lambda values: off(cholesky(values))
    calibrate.alike = lambda *_: rank == 0  # type: ignore[assignment]


def work(rank, port, out, name):
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": "2"}
    group = join()
    round_differently(rank)
    x, labels = data()
    own = slice(0, 120) if rank == 0 else slice(120, 300)
    found = fit_clusters(Shard(x[own], group), labels[own], ClusterConfig(adapt="off", **FITS[name]))
    levels = [(level.centers, level.labels, level.inertia) for level in found.hierarchy.levels]
    out.write_bytes(pickle.dumps((levels, found.selection.settings, found.assigner.calibration.shifts)))
    dist.destroy_process_group()


@pytest.mark.parametrize("name", FITS)
def test_processes_that_round_differently_decide_the_same(tmp_path, name):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [SERVER.Process(target=work, args=(rank, port, tmp_path / str(rank), name)) for rank in (0, 1)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(LONGEST)
    ended = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
        process.join()
    assert ended == [0, 0]
    (levels, settings, shifts), (others, other_settings, other_shifts) = (
        pickle.loads((tmp_path / str(rank)).read_bytes()) for rank in (0, 1)
    )
    assert settings == other_settings
    assert shifts == other_shifts
    assert len(shifts) == (0 if name == "balanced" else 4), "nothing there needs held-out labels"
    for (centers, labels, inertia), (other_centers, other_labels, other_inertia) in zip(levels, others, strict=True):
        assert np.array_equal(centers, other_centers)
        assert inertia == other_inertia
        assert len(labels) + len(other_labels) == 300
