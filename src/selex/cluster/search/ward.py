"""Seeds from Ward linkage: small groups of rows are merged, the pair that costs least first, until k clusters are left.

Where categories are clear but of unequal size this finds them whatever the seeds were. Groups are few whatever the
number of rows: the table of distances is one of groups. Shapes: n rows, d dimensions, k clusters, m groups.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from selex.cluster.kmeans import Problem, Settings
from selex.cluster.rows import Rows, count
from selex.types import UNLABELLED, Level

_GROUPS = 2000  # at most; so many make a table of 16 MB and take a second
ROWS = 3
"""Rows that a small group has at least on average."""
_SAMPLE = 40_000  # rows of which groups are made; the others go to the nearest


def from_ward(problem: Problem, rng: np.random.Generator) -> Level:
    """What stage 3 reaches from the means of Ward's clusters; known categories are groups that are never merged."""
    free = problem.free
    if min(_GROUPS, free.total // ROWS) <= problem.k - problem.n_known:
        return problem.solve(rng)
    group, m = small_groups(free, rng, _GROUPS)
    sums, counts = free.sums(group, m)
    known = slice(problem.n_known)
    sums, counts = torch.cat([problem.mass[known], sums]), torch.cat([problem.counts[known], counts])
    clusters = ward(
        (sums / counts[:, None]).double().cpu().numpy(), counts.double().cpu().numpy(), problem.n_known, problem.k
    )
    number = free.group.agree(torch.from_numpy(clusters).to(free.device))[problem.n_known :]
    return problem.ended(problem.means(number[group]))


def small_groups(rows: Rows, rng: np.random.Generator, most: int) -> tuple[Tensor, int]:
    """A small group for every row, and how many groups there are: k-means of the rows, or of some where they are many.

    Which ones depends on what rows hold, not on where they stand.
    """
    some = rows
    if rows.total > _SAMPLE:
        order, ranks = rows.ranked()
        some = rows.at(order[ranks % -(-rows.total // _SAMPLE) == 0])
    nobody = torch.full((some.n,), UNLABELLED, device=rows.device)
    settings = Settings(balanced=False, n_iter=3)
    found = Problem(some, nobody, 0, min(most, some.total // ROWS), settings).solve(rng)
    nearest = found.labels if some is rows else rows.nearest(torch.as_tensor(found.centers))[0]
    nearest = torch.as_tensor(nearest)
    used = rows.group.sum(count(nearest, found.n_clusters)) > 0
    return (used.cumsum(0) - 1)[nearest], int(used.sum())


def ward(means: NDArray[np.float64], sizes: NDArray[np.float64], n_known: int, k: int) -> NDArray[np.int64]:
    """Cluster of each of m groups with these means and sizes; the first `n_known` stay apart, as clusters 0 and on."""
    m, sizes = len(means), sizes.copy()
    squares = (means * means).sum(1)
    apart = np.maximum(squares[:, None] + squares - 2 * means @ means.T, 0)
    costs = apart * (sizes[:, None] * sizes / (sizes[:, None] + sizes))
    costs[:n_known, :n_known] = np.inf
    np.fill_diagonal(costs, np.inf)
    cluster = np.arange(m)
    nearest, least = costs.argmin(1), costs.min(1)
    for _ in range(m - k):
        one = int(least.argmin())
        kept, gone = sorted((one, int(nearest[one])))
        _merge(costs, sizes, kept, gone, n_known)
        cluster[cluster == gone] = kept
        stale = np.flatnonzero(np.isin(nearest, (kept, gone)) & np.isfinite(least))
        nearer = costs[kept] < least
        nearest[nearer], least[nearer] = kept, costs[kept][nearer]
        for row in {*stale.tolist(), kept}:
            nearest[row], least[row] = costs[row].argmin(), costs[row].min()
        least[gone] = np.inf
    return np.unique(cluster, return_inverse=True)[1].astype(np.int64)


def _merge(costs: NDArray[np.float64], sizes: NDArray[np.float64], kept: int, gone: int, n_known: int) -> None:
    """Lance and Williams: what merging costs, once `gone` is part of `kept`."""
    total = sizes + sizes[kept] + sizes[gone]
    costs_of_both = (sizes + sizes[kept]) * costs[kept] + (sizes + sizes[gone]) * costs[gone]
    merged = (costs_of_both - sizes * costs[kept, gone]) / total
    merged[[kept, gone]] = np.inf
    if kept < n_known:
        merged[:n_known] = np.inf
    costs[kept], costs[:, kept] = merged, merged
    costs[gone], costs[:, gone] = np.inf, np.inf
    sizes[kept] += sizes[gone]
