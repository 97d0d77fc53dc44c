"""Many quick clusterings, each from other seeds and on other dimensions, and what they agree on.

Two rows that nearly every run puts together belong together far more often than two rows of one cluster do: a single
run merges two categories here and splits one there, and the next run does so elsewhere. Shapes: r runs, n rows, d
dimensions, b rows of a batch.
"""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np
import torch
from torch import Tensor

from selex.cluster.kmeans import Settings, novel_clusters, prepare, run
from selex.cluster.rows import DEFAULT_MEMORY, Rows
from selex.errors import InputError


def agreement_runs(
    data: Any,
    labels: Any,
    n_clusters: int,
    n_runs: int = 20,
    *,
    subspace: float = 0.5,
    balanced: bool = True,
    n_iter: int = 10,
    rng: np.random.Generator | int | None = None,
    memory: int = DEFAULT_MEMORY,
) -> Any:
    """Labels of many quick runs of BSSK, each from other seeds and on a random part of the dimensions.

    Args:
        data: `n × d` features: numpy (memory-mapped too) or torch on any device.
        labels: per row a known category `0 … n_known - 1` or -1; None if no row is labelled.
        n_clusters: K, known and novel together.
        n_runs: how many runs.
        subspace: the share of the dimensions that each run sees.
        balanced: limit cluster sizes.
        n_iter: iterations of each stage of BSSK.
        rng: generator or seed.
        memory: bytes that temporaries may take.

    Returns:
        `(n_runs, n)` int32, in the data's kind and on its device. Labelled rows are in their own category in every run;
        novel clusters are numbered anew in each.
    """
    if not 0 < subspace <= 1:
        raise InputError(f"subspace must be over 0 and at most 1, not {subspace}")
    rows, known, n_known = prepare(data, labels, memory)
    n_novel = novel_clusters(n_clusters, n_known, known)
    settings, generator = Settings(balanced, n_iter), np.random.default_rng(rng)
    runs = torch.empty(n_runs, rows.n, dtype=torch.int32, device=rows.device)
    for one in runs:
        part = _part(rows, subspace, generator)
        one.copy_(torch.as_tensor(run(part, known, n_known, n_novel, settings, generator).labels))
    return runs if isinstance(data, Tensor) else runs.numpy()


def agreement(ours: Tensor, theirs: Tensor) -> Tensor:
    """The share of runs in which rows `(r, b)` are together with rows `(r, m)`: `(b, m)`."""
    together = torch.zeros(ours.shape[1], theirs.shape[1], device=ours.device)
    for mine, other in zip(ours, theirs, strict=True):
        together += mine[:, None] == other
    return together / len(ours)


def _part(rows: Rows, subspace: float, rng: np.random.Generator) -> Rows:
    """The rows in a random part of their dimensions."""
    if subspace == 1:
        return rows
    return rows.along(torch.from_numpy(np.sort(rng.permutation(rows.d)[: ceil(subspace * rows.d)])).to(rows.device))
