"""Clusters of limited size: algorithm 3 of the paper, carried on until the matching is stable.

Row and cluster both prefer what is near, so this is deferred acceptance: a cluster over its capacity keeps its nearest
rows and frees the rest, a freed row goes to the nearest cluster that would still keep it. Among equals the lower
cluster id and the lower row come first. Shapes: n rows, k clusters.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from selex.cluster.rows import InvertedFile, Rows, compare_with, count

_NEVER = torch.iinfo(torch.long).max
_RECORDED = 1 << 21  # entries of a problem that is small enough to keep its rounds recorded
_ROUNDS = 4  # recorded at a time
_STEP = 1024  # rows; problems of nearly one size share a record


def stable_match(rows: Rows, centers: Tensor, capacity: Tensor) -> tuple[Tensor, Tensor]:
    """Cluster of every row such that none is over capacity and no row and cluster would both rather have each other.

    Args:
        rows: the rows to match.
        centers: the clusters' centres.
        capacity: how many rows each cluster may hold; in all at least as many as there are rows.

    Returns:
        Labels, and squared distances to those clusters.
    """
    if rows.total * len(centers) * rows.dtype.itemsize > rows.memory // 8:
        return match_freed(rows, centers, capacity)
    known = rows.distances(centers)
    if rows.device.type == "cpu" or rows.dtype != torch.float32 or rows.group.size > 1:
        return match_freed(rows, centers, capacity, known)
    return match_at_once(known, capacity)


def match_freed(rows: Rows, centers: Tensor, capacity: Tensor, known: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Each round looks at the freed rows alone, few after the first. `known` spares it working out their distances."""
    labels, distances = rows.nearest(centers) if known is None else known.min(1)[::-1]
    file = compare_with(centers, (centers * centers).sum(1), rows.probes if known is None else None)
    # a full cluster takes only rows that come before its worst one; (worst_distance, worst_row) falls round by round
    worst_distance = torch.full((len(centers),), torch.inf, dtype=rows.dtype, device=rows.device)
    worst_row = torch.full((len(centers),), rows.total, device=rows.device)
    while True:
        freed, full, worst = overflow(labels, distances, capacity, rows)
        if not len(full):
            return labels, distances
        worst_distance[full] = torch.where(capacity[full] > 0, worst.distance, -torch.inf)
        worst_row[full] = worst.row
        if isinstance(file, InvertedFile):
            freed = _among_probed(rows, file, freed, worst_distance, labels, distances)
        for part in torch.split(freed, rows.step(2 * len(centers))):
            to_all = known[part] if known is not None else rows.distances(centers, part)
            tied = (to_all == worst_distance) & (part[:, None] + rows.first < worst_row)
            to_all = to_all.masked_fill(~((to_all < worst_distance) | tied), torch.inf)
            distances[part], labels[part] = to_all.min(1)


def _among_probed(
    rows: Rows, file: InvertedFile, freed: Tensor, worst: Tensor, labels: Tensor, distances: Tensor
) -> Tensor:
    """Freed rows go to the nearest cluster that would keep them, of those they are compared with; which found none.

    A row as near as the last one that a cluster keeps does not go there.
    """
    none = [freed[:0]]
    for part in torch.split(freed, rows.step(file.width)):
        nearest, found = file.under(worst, rows.take(part), rows.norms[part])
        there = nearest.isfinite()
        labels[part[there]], distances[part[there]] = found[there], nearest[there]
        none.append(part[~there])
    return torch.cat(none)


def match_at_once(known: Tensor, capacity: Tensor) -> tuple[Tensor, Tensor]:
    """The same for a GPU and few rows: every row in every round, which costs its launches and not its arithmetic."""
    n, k = known.shape
    keys = keys_of(known)
    if known.is_cuda and n * k <= _RECORDED:
        labels = _recorded(-(-n // _STEP) * _STEP, k, known.device).match(keys, capacity)
    else:
        labels = rounds(keys, capacity)
    return labels, known.gather(1, labels[:, None])[:, 0]


def keys_of(distances: Tensor) -> Tensor:
    """A float32 ≥ 0 and a row number make one whole number that orders as (distance, row) does."""
    rows = torch.arange(len(distances), device=distances.device)[:, None]
    return (distances.view(torch.int32).long() << 32) | rows


def rounds(keys: Tensor, capacity: Tensor) -> Tensor:
    """Cluster of every row, after as many rounds as it takes."""
    worst, going = _no_worst(capacity), True
    while going:
        labels, worst, full = _round(keys, capacity, worst)
        going = bool(full.any())
    return labels


def _no_worst(capacity: Tensor) -> Tensor:
    """Key of the worst row that each cluster keeps, before there is any: it keeps what comes no later."""
    return torch.where(capacity > 0, _NEVER - 1, -1)


def _round(keys: Tensor, capacity: Tensor, worst: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Every row goes to the nearest cluster that would keep it; clusters over capacity learn their worst row anew.

    Once no cluster is over capacity a further round changes nothing.
    """
    nearest, labels = torch.where(keys <= worst, keys, _NEVER).min(1)
    by_cluster, order = torch.sort((labels << 32) | (nearest >> 32), stable=True)
    first = torch.searchsorted(by_cluster, torch.arange(len(capacity) + 1, device=keys.device) << 32)
    full = first[1:] - first[:-1] > capacity
    last = (first[:-1] + capacity - 1).clamp_(0, len(keys) - 1)
    return labels, torch.where(full, nearest[order[last]], worst), full


def padded(keys: Tensor, capacity: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """The same problem with n rows: those that are not there go to a cluster of their own, which has room for all."""
    more = torch.full((n, keys.shape[1] + 1), _NEVER, device=keys.device)
    more[: len(keys), :-1] = keys
    more[len(keys) :, -1] = 0
    return more, torch.cat([capacity, capacity.new_tensor([n])])


class _Recorded:
    """A few rounds for up to n rows and k clusters, recorded once and replayed with a single launch."""

    def __init__(self, n: int, k: int, device: torch.device) -> None:
        self.n = n
        nobody = torch.zeros(0, k, dtype=torch.long, device=device)
        self.keys, self.capacity = padded(nobody, torch.zeros(k, dtype=torch.long, device=device), n)
        self.worst = _no_worst(self.capacity)
        _round(self.keys, self.capacity, self.worst)  # what is made at the first call must not be recorded
        self.graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        with torch.cuda.graph(self.graph, stream=stream):  # of this device, whichever is the current one
            worst = self.worst
            for _ in range(_ROUNDS):
                self.labels, worst, full = _round(self.keys, self.capacity, worst)
            self.worst.copy_(worst)
            self.going = full.any()

    def match(self, keys: Tensor, capacity: Tensor) -> Tensor:
        for own, given in zip((self.keys, self.capacity), padded(keys, capacity, self.n), strict=True):
            own.copy_(given)
        self.worst.copy_(_no_worst(self.capacity))
        self.graph.replay()
        while self.going:
            self.graph.replay()
        return self.labels[: len(keys)].clone()


_recorded = lru_cache(maxsize=16)(_Recorded)


def sweep(rows: Rows, centers: Tensor, labels: Tensor, distances: Tensor, capacity: Tensor) -> tuple[Tensor, Tensor]:
    """Algorithm 3 once, to the letter: freed rows go to the nearest cluster that *was* sparse, and may overfill it."""
    labels, distances = labels.clone(), distances.clone()
    freed, _, _ = overflow(labels, distances, capacity, rows)
    dense = rows.group.sum(count(labels, len(centers))) >= capacity
    for part in torch.split(freed, rows.step(2 * len(centers))):
        to_sparse = rows.distances(centers, part).masked_fill_(dense, torch.inf)
        distances[part], labels[part] = to_sparse.min(1)
    return labels, distances


class Worst(NamedTuple):
    """The last row that each cluster over capacity keeps: its squared distance and its number."""

    distance: Tensor
    row: Tensor


def overflow(labels: Tensor, distances: Tensor, capacity: Tensor, rows: Rows) -> tuple[Tensor, Tensor, Worst]:
    """Rows that clusters over capacity free, those clusters, and the last row that each of them keeps.

    A cluster of capacity 0 keeps nobody; a row of its own stands in for the last one kept.
    """
    if rows.group.size == 1:
        return _overflow_here(labels, distances, capacity)
    own = rows.group.gather(count(labels, len(capacity))[None], [1] * rows.group.size)  # by process and cluster
    counts = own.sum(0)
    over = (counts - capacity).clamp(min=0)
    full = torch.nonzero(over)[:, 0]
    shown = torch.minimum(own, over + 1)[:, full]
    portion = (shown.sum(0).cumsum(0) - 1) // max(rows.total // rows.group.size, 1)  # nobody sees many more than it has
    parts = [
        _last(labels, distances, over, full[portion == number], shown[:, portion == number].sum(1).tolist(), rows)
        for number in sorted(set(portion.tolist()))
    ]
    if not parts:
        return full, full, Worst(distances[:0], full)
    freed, distance, row = (torch.cat(kind) for kind in zip(*parts, strict=True))
    return freed, full, Worst(distance, row)


def _overflow_here(labels: Tensor, distances: Tensor, capacity: Tensor) -> tuple[Tensor, Tensor, Worst]:
    """The same where all rows are in one process, which then sorts them once."""
    counts = count(labels, len(capacity))
    full = torch.nonzero(counts > capacity)[:, 0]
    members = torch.nonzero((counts > capacity)[labels])[:, 0]
    members = members[_order(labels[members], distances[members])]
    before = torch.cumsum(counts[full], 0) - counts[full]
    rank = torch.arange(len(members), device=labels.device) - before.repeat_interleave(counts[full])
    worst = members[before + capacity[full].clamp(min=1) - 1]
    return members[rank >= capacity[labels[members]]], full, Worst(distances[worst], worst)


def _last(
    labels: Tensor, distances: Tensor, over: Tensor, full: Tensor, lengths: list[int], rows: Rows
) -> tuple[Tensor, Tensor, Tensor]:
    """Of each of some clusters with e rows too many the e last ones, as far as they are this process's; and the next.

    Every process shows the e + 1 that are last among its own, which are the last among all and some more.
    """
    of_these = torch.zeros_like(over, dtype=torch.bool).index_fill_(0, full, True)
    members = torch.nonzero(of_these[labels])[:, 0]
    members = members[_order(labels[members], distances[members])]
    shown = members[_from_end(labels[members], len(over)) <= over[labels[members]]]
    bits = distances[shown].double().view(torch.long)  # whole numbers travel in one message
    seen = rows.group.gather(torch.stack([labels[shown], bits, shown + rows.first], 1), lengths)
    cluster, distance, row = seen[_order(seen[:, 0], seen[:, 1])].unbind(1)  # bits order as distances of 0 and more do
    freed = row[_from_end(cluster, len(over)) < over[cluster]] - rows.first
    held = count(cluster, len(over))[full]
    worst = held.cumsum(0) - torch.minimum(over[full] + 1, held)
    distance = distance[worst].view(torch.double).to(distances.dtype)
    return freed[(freed >= 0) & (freed < rows.n)], distance, row[worst]


def _order(labels: Tensor, distances: Tensor) -> Tensor:
    """By cluster, then distance, then row."""
    order = torch.argsort(distances, stable=True)
    return order[torch.argsort(labels[order], stable=True)]


def _from_end(labels: Tensor, k: int) -> Tensor:
    """How many of its own cluster come after each row, where labels are sorted."""
    last = count(labels, k).cumsum(0) - 1
    return last[labels] - torch.arange(len(labels), device=labels.device)
