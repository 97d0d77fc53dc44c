"""Many quick clusterings, each from other seeds and on other dimensions, and what they agree on.

Two rows that nearly every run puts together belong together far more often than two rows of one cluster do: a single
run merges two categories here and splits one there, and the next run does so elsewhere. Shapes: r runs, n rows, d
dimensions, k clusters, b rows of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import ceil
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag, normalize

from selex.cluster.kmeans import Problem, Settings, novel_clusters, prepare
from selex.cluster.rows import DEFAULT_MEMORY, Rows
from selex.cluster.search.swaps import swapped
from selex.errors import InputError
from selex.types import Level

RUNS = 20
SUBSPACE = 0.5  # of the dimensions, in each run
_POWER = 3  # iterations towards the directions in which memberships vary most


def agreement_runs(
    data: Any,
    labels: Any,
    n_clusters: int,
    n_runs: int = RUNS,
    *,
    subspace: float = SUBSPACE,
    balanced: bool = True,
    n_iter: int = 10,
    rng: np.random.Generator | int | None = None,
    memory: int = DEFAULT_MEMORY,
) -> Any:
    """Labels of many quick runs of BSSK, each from other seeds and on a random part of the dimensions.

    There are `n_runs` of them, and each sees a share `subspace` of the dimensions; all else is as for `bssk`.

    Returns:
        `(n_runs, n)` int32, in the data's kind and on its device. Labelled rows are in their own category in every run;
        novel clusters are numbered anew in each.
    """
    if not 0 < subspace <= 1:
        raise InputError(f"subspace must be greater than 0 and at most 1, not {subspace}")
    rows, known, n_known = prepare(data, labels, memory)
    n_novel = novel_clusters(n_clusters, n_known, known, rows)
    problem = Problem(rows, known, n_known, n_novel, Settings(balanced, n_iter))
    generator = np.random.default_rng(rng)
    levels = (part.solve(generator) for part in _parts(problem, n_runs, subspace, generator))
    runs = torch.stack([torch.as_tensor(level.labels).int() for level in levels])
    return runs if isinstance(data, (Tensor, Rows)) else runs.numpy()


def agreement(ours: Tensor, theirs: Tensor) -> Tensor:
    """The share of runs in which rows `(r, b)` are together with rows `(r, m)`: `(b, m)`."""
    together = torch.zeros(ours.shape[1], theirs.shape[1], device=ours.device)
    for mine, other in zip(ours, theirs, strict=True):
        together += mine[:, None] == other
    return together / len(ours)


def consensus(problem: Problem, rng: np.random.Generator) -> Level:
    """The clusters that many runs agree on: rows clustered by the clusters that they were in, then by features again.

    Runs end with swaps. Their memberships, one column for each cluster of each run, are brought to k dimensions (their
    first singular vectors, rows of length 1) and clustered as features are; no table of rows by rows is made. Stage 3
    of BSSK among the features goes on from there, so that every row is in its nearest cluster.
    """
    parts = _parts(problem, RUNS, SUBSPACE, rng)
    runs = torch.stack([torch.as_tensor(swapped(part, part.solve(rng)).labels) for part in parts])
    seen = problem.rows.made(memberships(runs, problem.k, rng, problem.rows.memory, problem.rows))
    agreed = Problem(seen, problem.known, problem.n_known, problem.k - problem.n_known, problem.settings)
    labels = torch.as_tensor(swapped(agreed, agreed.solve(rng)).labels)
    return problem.ended(problem.means(labels[problem.free_index]))


def memberships(
    runs: Tensor, k: int, rng: np.random.Generator, memory: int = DEFAULT_MEMORY, rows: Rows | None = None
) -> Tensor:
    """Rows by the clusters that they were in, `(r, n)`, in few dimensions: `(n, at most k)`, rows of length 1.

    Power iteration on the matrix of memberships, `(n, r · k)`, of which only the places of its ones are kept. `rows`
    are the ones that were clustered, if they are spread over processes.
    """
    n_runs, n = len(runs), rows.total if rows else runs.shape[1]
    dims = max(1, min(k, n_runs * k, memory // (8 * n)))
    made = rows.made if rows else partial(Rows, memory=memory)
    places = (runs.long() + k * torch.arange(n_runs, device=runs.device)[:, None]).T.contiguous()
    start = rng.standard_normal((n_runs * k, dims)).astype(np.float32)
    loadings = torch.from_numpy(start).to(runs.device)
    for _ in range(_POWER - 1):
        among = made(embedding_bag(places, loadings, mode="sum"))
        parts = [among.sums(one.long(), k) for one in runs]
        loadings = torch.linalg.qr(torch.cat([sums + counts[:, None] * among.shift for sums, counts in parts]))[0]
        loadings = among.group.agree(loadings)
    return normalize(embedding_bag(places, loadings, mode="sum"), dim=1)


def _parts(problem: Problem, n_runs: int, subspace: float, rng: np.random.Generator) -> Iterator[Problem]:
    """The problem in random parts of its dimensions, one after the other."""
    rows = problem.rows
    for _ in range(n_runs):
        columns = np.sort(rng.permutation(rows.d)[: ceil(subspace * rows.d)])
        part = rows if len(columns) == rows.d else rows.along(torch.from_numpy(columns).to(rows.device))
        yield Problem(part, problem.known, problem.n_known, problem.k - problem.n_known, problem.settings)
