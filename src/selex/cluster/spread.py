"""The steps of `fit_clusters` where rows are spread over processes: every sum, sample and limit is over all of them.

Whiten, estimate K, cluster level by level, refine, calibrate. Searches by swaps, linkage or consensus and adapting want
all rows in one place; here the search is BSSK.
"""

from __future__ import annotations

import warnings
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from selex.cluster.assign import fit_assigner, likeliest_temperature
from selex.cluster.hierarchy import hssk
from selex.cluster.holdout import UNTOLD
from selex.cluster.kmeans import bssk, prepare
from selex.cluster.pipeline import FittedClusters, estimate_clusters
from selex.cluster.refine import of_one_length, refined
from selex.cluster.select import Selection
from selex.cluster.shards import Shard
from selex.cluster.whiten import FeatureMaps, fit_whitener
from selex.config import ClusterConfig
from selex.errors import InputError, Note
from selex.progress import progress_bar
from selex.types import UNLABELLED, Level, Refinement


def fit_shards(
    shard: Shard,
    labels: Any,
    config: ClusterConfig | None = None,
    *,
    rng: np.random.Generator | int | None = 0,
    calibrate: bool = True,
    progress: bool = False,
) -> FittedClusters:
    """Known and novel categories of rows that are spread over processes; every process makes the same call.

    The number of processes does not matter, but for rounding. `search` is always `"bssk"`, `refine` of `"auto"` is
    `"proportional"`, or `"none"` where rows differ in length.

    Args:
        shard: the rows of this process.
        labels: per row of its own a known category `0 … n_known - 1` or -1; None if none is labelled anywhere.
        config: how to cluster; the defaults of `ClusterConfig` if not given.
        rng: generator or seed, the same in every process.
        calibrate: also compute confidences, and what new rows need.
        progress: show progress on standard error: bars on a terminal, lines elsewhere.

    Returns:
        The clusters, with labels and assignment of this process's rows; all else is the same in every process.
    """
    config = config or ClusterConfig()
    _check(config)
    known = prepare(shard, labels, shard.memory)[1]
    generator = np.random.default_rng(rng)
    spare, estimate = deepcopy(generator), None
    if not config.categories:
        estimate = estimate_clusters(shard, labels, config, deepcopy(generator), shard.memory, progress)
    count = estimate.n_clusters if estimate else config.categories or 0
    whitener = fit_whitener(shard, known, config.whiten)
    rows = shard.mapped(whitener) if whitener else shard
    selection = Selection(False, _refinement(config, rows))
    with progress_bar("clustering, level", progress) as advance:
        how: dict[str, Any] = {"n_levels": config.levels, "balanced": config.balanced, "refine": selection.refine}
        how |= {"n_iter": config.iterations, "n_init": config.restarts, "rng": generator, "progress": advance}
        hierarchy = hssk(rows, labels, count, **how)
    found = FittedClusters(hierarchy, FeatureMaps((whitener,) if whitener else ()), selection, estimate)
    if not calibrate:
        return found
    temperature = None
    if whitener or config.refine == "auto":  # where labels have shaped the rows or chosen the refinement
        temperature = _held_out_temperature(shard, known, count, config, selection.refine, spare)
    return _calibrated(found, rows, known, temperature)


def distances_in_shard(shard: Shard, found: FittedClusters) -> Tensor:
    """Distance of every row of this process to the centre of its own cluster."""
    centers, labels = torch.as_tensor(found.hierarchy.levels[0].centers).to(shard.device), torch.as_tensor(found.labels)
    out = torch.empty(shard.n, dtype=shard.dtype, device=shard.device)
    for part, x in shard.blocks(4 * shard.d):
        out[part] = (found.transform(x + shard.shift) - centers[labels[part].to(shard.device)]).norm(dim=1)
    return out


def _check(config: ClusterConfig) -> None:
    if config.adapt == "on":
        raise InputError("features in shards are not adapted: leave cluster.adapt at auto or off")
    if config.search in ("ward", "spectral", "consensus"):
        raise InputError(f"features in shards are not searched by {config.search}: set cluster.search to bssk")


def _refinement(config: ClusterConfig, rows: Shard) -> Refinement:
    if config.refine != "auto":
        return config.refine
    return UNTOLD if of_one_length(rows) else "none"


def _calibrated(found: FittedClusters, rows: Shard, known: Tensor, temperature: float | None) -> FittedClusters:
    """Clusters with confidences; `rows` are those after the map."""
    assigner = fit_assigner(rows, found.hierarchy.levels[0], known)
    assigner = replace(assigner, temperature=temperature or assigner.temperature)
    return replace(found, assigner=assigner, assignment=assigner(rows.own(), found.labels, rows.memory))


def _held_out_temperature(
    shard: Shard, known: Tensor, count: int, config: ClusterConfig, refine: Refinement, rng: np.random.Generator
) -> float | None:
    """That under which hidden rows are likeliest to be where they belong: every second labelled one of a category."""
    hidden = torch.zeros_like(known, dtype=torch.bool)
    hidden[known != UNLABELLED] = shard.places(known) % 2 == 1
    if count < 2 or shard.group.all(not hidden.any()):
        return None
    left = torch.where(hidden, UNLABELLED, known)
    whitener = fit_whitener(shard, left, config.whiten)
    rows = shard.mapped(whitener) if whitener else shard
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Note)  # of what is hidden
        level = _refined(rows, left, bssk(rows, left, count, balanced=config.balanced, rng=rng), refine)
    index = torch.nonzero(hidden)[:, 0]
    return likeliest_temperature(rows, level, index, known[index]) if level.n_clusters > 1 else None


def _refined(rows: Shard, known: Tensor, level: Level, refine: Refinement) -> Level:
    if refine == "none" or not of_one_length(rows):
        return level
    centred = replace(level, centers=torch.as_tensor(level.centers).to(rows.device, rows.dtype) - rows.shift)
    done = refined(rows, known, centred, refine)
    return replace(done, centers=torch.as_tensor(done.centers) + rows.shift)
