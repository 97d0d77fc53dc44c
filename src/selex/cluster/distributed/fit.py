"""Clusters by processes that `torchrun` started: the first says what is clustered, and gets what all have found."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from selex.cluster.assign import Assignment
from selex.cluster.blocks import open_pieces
from selex.cluster.distributed.group import Group, lost_process
from selex.cluster.distributed.shards import Shard
from selex.cluster.pipeline import FittedClusters, fit_clusters
from selex.cluster.whiten import FeatureMaps
from selex.config import ClusterConfig
from selex.errors import LOST_PROCESS, InputError
from selex.types import Hierarchy


@dataclass(frozen=True)
class ClusterTask:
    """What is clustered: the rows of a `.npy` file that every process sees, their labels, how, and the device."""

    features: Path
    labels: Any
    config: ClusterConfig
    seed: int
    device: str


def fit_distributed(task: ClusterTask | None, group: Group) -> FittedClusters | None:
    """Clusters that all processes make, in the first one; the others have no task and wait for that of the first.

    Without a task in the first one there is nothing to do. Processes part when it is done.
    """
    try:
        return _fit_distributed(task, group)
    except RuntimeError as error:
        if lost_process(error):
            raise InputError(LOST_PROCESS) from None
        raise


def _fit_distributed(task: ClusterTask | None, group: Group) -> FittedClusters | None:
    told = [task]
    dist.broadcast_object_list(told)
    found = _fit(told[0], group) if told[0] else None
    parts: list[Any] | None = [None] * group.size if group.rank == 0 else None
    dist.gather_object(found, parts)
    dist.destroy_process_group()
    return joined(parts) if parts and found else None


def _fit(task: ClusterTask, group: Group) -> FittedClusters:
    """Those of this process's part of the rows."""
    part = open_pieces([task.features]).part(group.rank, group.size)
    on_gpu = torch.device(task.device).type == "cuda"
    shard = Shard(part.to(task.device) if on_gpu else part, group)
    own = None if task.labels is None else task.labels[shard.first : shard.first + shard.n]
    return on_host(fit_clusters(shard, own, task.config, rng=task.seed))


def joined(parts: list[FittedClusters]) -> FittedClusters:
    """The clusters of all rows, from those of each process; whatever is not per row is the same in every part."""
    numbers = range(len(parts[0].hierarchy.levels))
    levels = [[part.hierarchy.levels[number] for part in parts] for number in numbers]
    whole = [replace(level[0], labels=np.concatenate([part.labels for part in level])) for level in levels]
    names = [field.name for field in fields(Assignment)]
    columns = [np.concatenate([getattr(part.assignment, name) for part in parts]) for name in names]
    return replace(parts[0], hierarchy=Hierarchy(tuple(whole)), assignment=Assignment(*columns))


def on_host(found: FittedClusters) -> FittedClusters:
    """The same, for a process that may have no GPU."""
    maps = FeatureMaps.from_tensors({name: tensor.cpu() for name, tensor in found.maps.to_tensors().items()})
    selection = found.selection._replace(whitener=None)  # which nobody needs any more
    return replace(found, hierarchy=found.hierarchy.on_host(), maps=maps, selection=selection)
