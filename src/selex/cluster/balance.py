"""Clusters of limited size: algorithm 3 of the paper, carried on until the matching is stable.

Row and cluster both prefer what is near, so this is deferred acceptance: a cluster over its capacity keeps its nearest
rows and frees the rest, a freed row goes to the nearest cluster that would still keep it. Among equals the lower
cluster id and the lower row come first. Shapes: n rows, k clusters.
"""

from __future__ import annotations

import torch
from torch import Tensor

from selex.cluster.rows import Rows, count


def stable_match(rows: Rows, centers: Tensor, capacity: Tensor) -> tuple[Tensor, Tensor]:
    """Cluster of every row such that none is over capacity and no row and cluster would both rather have each other.

    Args:
        rows: the rows to match.
        centers: the clusters' centres.
        capacity: how many rows each cluster may hold; in all at least as many as there are rows.

    Returns:
        Labels, and squared distances to those clusters.
    """
    if rows.n * len(centers) * rows.dtype.itemsize > rows.memory // 8:
        return match_freed(rows, centers, capacity)
    known = rows.distances(centers)
    if rows.device.type == "cpu" or rows.dtype != torch.float32:
        return match_freed(rows, centers, capacity, known)
    return match_at_once(known, capacity)


def match_freed(rows: Rows, centers: Tensor, capacity: Tensor, known: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Each round looks at the freed rows alone, few after the first. `known` spares it working out their distances."""
    labels, distances = rows.nearest(centers) if known is None else known.min(1)[::-1]
    # a full cluster takes only rows that come before its worst one; (worst_distance, worst_row) falls round by round
    worst_distance = torch.full((len(centers),), torch.inf, dtype=rows.dtype, device=rows.device)
    worst_row = torch.full((len(centers),), rows.n, device=rows.device)
    while True:
        freed, full, worst = overflow(labels, distances, capacity)
        if not len(freed):
            return labels, distances
        worst_distance[full] = torch.where(capacity[full] > 0, distances[worst], -torch.inf)
        worst_row[full] = worst
        for part in torch.split(freed, rows.step(2 * len(centers))):
            to_all = known[part] if known is not None else rows.distances(centers, part)
            tied = (to_all == worst_distance) & (part[:, None] < worst_row)
            to_all = to_all.masked_fill(~((to_all < worst_distance) | tied), torch.inf)
            distances[part], labels[part] = to_all.min(1)


def match_at_once(known: Tensor, capacity: Tensor) -> tuple[Tensor, Tensor]:
    """The same for a GPU and few rows, where a round costs its launches and not its arithmetic: every row, every round.

    A float32 ≥ 0 and a row number make one whole number that orders as (distance, row) does.
    """
    n, k = known.shape
    keys = (known.view(torch.int32).long() << 32) | torch.arange(n, device=known.device)[:, None]
    never = torch.iinfo(torch.long).max
    worst = torch.where(capacity > 0, never - 1, -1)  # a cluster keeps what comes no later than its worst row
    bounds = torch.arange(k + 1, device=known.device) << 32
    while True:
        nearest, labels = torch.where(keys <= worst, keys, never).min(1)
        by_cluster, order = torch.sort((labels << 32) | (nearest >> 32), stable=True)
        first = torch.searchsorted(by_cluster, bounds)
        full = first[1:] - first[:-1] > capacity
        if not full.any():
            return labels, known.gather(1, labels[:, None])[:, 0]
        last = (first[:-1] + capacity - 1).clamp_(0, n - 1)
        worst = torch.where(full, nearest[order[last]], worst)


def sweep(rows: Rows, centers: Tensor, labels: Tensor, distances: Tensor, capacity: Tensor) -> tuple[Tensor, Tensor]:
    """Algorithm 3 once, to the letter: freed rows go to the nearest cluster that *was* sparse, and may overfill it."""
    labels, distances = labels.clone(), distances.clone()
    freed, _, _ = overflow(labels, distances, capacity)
    dense = count(labels, len(centers)) >= capacity
    for part in torch.split(freed, rows.step(2 * len(centers))):
        to_sparse = rows.distances(centers, part).masked_fill_(dense, torch.inf)
        distances[part], labels[part] = to_sparse.min(1)
    return labels, distances


def overflow(labels: Tensor, distances: Tensor, capacity: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows that clusters over capacity free, those clusters, and the last row that each of them keeps.

    A cluster of capacity 0 keeps nobody; a row of its own stands in for the last one kept.
    """
    counts = count(labels, len(capacity))
    full = torch.nonzero(counts > capacity)[:, 0]
    members = torch.nonzero((counts > capacity)[labels])[:, 0]
    members = members[torch.argsort(distances[members], stable=True)]
    members = members[torch.argsort(labels[members], stable=True)]  # by cluster, then distance, then row
    first = torch.cumsum(counts[full], 0) - counts[full]
    rank = torch.arange(len(members), device=labels.device) - first.repeat_interleave(counts[full])
    worst = members[first + capacity[full].clamp(min=1) - 1]
    return members[rank >= capacity[labels[members]]], full, worst
