"""Clusters by the workers of a Ray cluster: each has its part of the rows, and sums go between them.

Rows are read from the file of features on this machine and sent a block at a time: neither this process nor any worker
ever holds all of them. Workers cannot go on without the rows of one that is lost. All are started anew then, and get
their rows from disk again: clusters depend on rows and seed alone, so they are those of a run that nobody disturbed.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from selex.cluster.blocks import Pieces, open_pieces
from selex.cluster.distributed.fit import joined, on_host
from selex.cluster.distributed.group import join
from selex.cluster.distributed.shards import Shard
from selex.cluster.pipeline import FittedClusters, fit_clusters
from selex.config import ClusterConfig
from selex.errors import InputError, Note
from selex.features.ray_cluster import NOTICE, RayEngine, Worker, attempts, room, running, start_workers, stop_workers

BLOCK = 1 << 26
"""Bytes of rows that are sent at a time."""


@dataclass(frozen=True)
class _Task:
    """What workers are to do: `labels` of their rows, None if none is labelled anywhere."""

    labels: Any
    config: ClusterConfig
    seed: int
    device: str

    @property
    def on_gpu(self) -> bool:
        """Whether each worker needs a GPU."""
        return torch.device(self.device).type == "cuda"

    def of(self, first: int, last: int) -> _Task:
        """That of one worker."""
        return replace(self, labels=None if self.labels is None else self.labels[first:last])


def fit_on_ray(
    engine: RayEngine, features: Path, labels: Any, config: ClusterConfig, *, seed: int, device: str | torch.device
) -> tuple[FittedClusters, int]:
    """Clusters of the rows of a `.npy` file, as `fit_clusters` makes them, and by how many workers."""
    rows, task = open_pieces([features]), _Task(labels, config, seed, str(device))
    with running(engine, torch.device(device)) as asked:

        def attempt() -> tuple[FittedClusters, int]:
            size = min(room(asked, task.on_gpu), rows.shape[0])
            return joined(_attempt(rows, task, engine, size)), size

        return attempts("clustering", attempt)


def _attempt(rows: Pieces, task: _Task, engine: RayEngine, size: int) -> list[FittedClusters]:
    """What each of so many new workers found; they are gone when it returns."""
    workers, place = start_workers(_Worker, engine, size, task.on_gpu)
    try:
        fits, first = [], 0
        for rank, worker in enumerate(workers):
            part = rows.part(rank, size)
            _send(part, worker)
            fits.append((task.of(first, first + part.shape[0]), rank, size, place))
            first += part.shape[0]
        return _results([worker.fit.remote(*given) for worker, given in zip(workers, fits, strict=True)])
    finally:
        stop_workers(workers)


def _send(part: Pieces, worker: Any) -> None:
    """The rows of a worker, one block after the other."""
    import ray

    ray.get(worker.expect.remote(part.shape, part.dtype))
    step = max(1, BLOCK // (part.shape[1] * part.dtype.itemsize))
    for start in range(0, part.shape[0], step):
        ray.get(worker.take.remote(start, part[start : start + step]))


def _results(fits: list[Any]) -> list[FittedClusters]:
    """What the workers return; the first that fails ends it, once Ray knows who else is lost with it."""
    import ray

    left = list(fits)
    try:
        while left:
            done, left = ray.wait(left)
            ray.get(done)
    except ray.exceptions.RayError:
        ray.wait(fits, num_returns=len(fits), timeout=NOTICE)
        raise
    returned = ray.get(fits)
    for text in returned[0][1]:
        warnings.warn(text, Note, stacklevel=2)
    refused = [found for found, _ in returned if isinstance(found, InputError)]
    if refused:  # one says what is wrong with its rows, the others that one did
        raise min(refused, key=lambda error: "see its error" in str(error))
    return [found for found, _ in returned]


class _Worker(Worker):
    """An actor: holds a part of the rows, and clusters it together with the others."""

    def expect(self, shape: tuple[int, int], dtype: Any) -> None:
        """Make room for rows."""
        self.rows = np.empty(shape, dtype)

    def take(self, start: int, rows: Any) -> None:
        """Some of the rows."""
        self.rows[start : start + len(rows)] = rows

    def fit(
        self, task: _Task, rank: int, size: int, place: dict[str, str]
    ) -> tuple[FittedClusters | InputError, list[str]]:
        """What was found, or why the rows were refused, and notes for the user."""
        self.meet(rank, size, place)
        found: FittedClusters | InputError
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", Note)
            try:
                shard = Shard(torch.from_numpy(self.rows).to(task.device), join(task.device))
                found = on_host(fit_clusters(shard, task.labels, task.config, rng=task.seed))
            except InputError as error:
                found = error
        return found, [str(one.message) for one in said if issubclass(one.category, Note)]
