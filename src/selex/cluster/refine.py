"""A last stage for BSSK: rows take part in clusters, in place of belonging to one.

k-means puts a row between two clusters wholly into one of them, and moves that one's centre for it. Where categories
overlap the mistake grows. Here a row counts in each cluster for as much as it is likely to belong there, and at the end
goes where that is most. Shapes: n rows, d dimensions, k clusters; centres in centred coordinates.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from selex.cluster.distributed.group import Group
from selex.cluster.kmeans import as_data, as_labels
from selex.cluster.rows import DEFAULT_MEMORY, Rows, as_rows, count
from selex.errors import InputError, Note
from selex.types import REFINEMENTS, UNLABELLED, Level, Refinement

_ROUNDS = 30
_SOFTNESS = 0.12  # of the mean squared distance of rows to their centres: over so much the odds change by a factor of e
_UNEQUAL = 0.05  # of their length: by so much lengths of rows may differ
_NOTHING = 1e-6  # rows; the sum of fewer has no direction to speak of
_LEAST = 0.5  # rows; a cluster counts for no fewer, or it would never have any again
_INNER = 3  # steps towards equal shares in each round, which goes on from those of the last
_FIRST = 8  # steps at each temperature to begin with
_LAST = 30  # and at the end
_TOO_FAR = 3.0  # times an equal share, or that part of it: larger or smaller clusters are not of one size
_EQUAL = 0.02  # shares are equal if none is further off, as a logarithm
_HARDER = (0.5, 0.25, 0.12)  # of the temperature: at the end a row is in one cluster, and these are to be of one size
_ROOM = 0.25  # of an equal share is left for unlabelled rows where labelled ones fill it


def refine_level(data: Any, labels: Any, level: Level, refine: Refinement, memory: int = DEFAULT_MEMORY) -> Level:
    """Soft refinement of a level: rows belong to several clusters until the end.

    A mixture of directions (von Mises-Fisher) of one width: a row belongs to a cluster with weight `exp(-distance² /
    temperature)` times the cluster's prior. Labelled rows stay in their own.

    Args:
        data: `n × d` features, all of one length: numpy (also memory-mapped) or torch on any device.
        labels: per row a known category `0 … n_known - 1` or -1; None if no row is labelled.
        level: where to start, such as what `bssk` found.
        refine: the prior of clusters: `"proportional"` to their shares of rows; `"balanced"`, pulled to equal shares.
            `"none"` leaves the level unchanged.
        memory: bytes that temporary arrays may take.

    Returns:
        The level, with centres as long as rows are, and `offsets`. Novel clusters without rows are dropped. If
        clusters cannot be pulled to equal shares, the level is unchanged.
    """
    rows = as_rows(data, memory)
    check_refinement(refine, rows)
    moved = replace(level, centers=torch.as_tensor(level.centers).to(rows.device, rows.dtype) - rows.shift)
    return as_data(refined(rows, as_labels(labels, rows), moved, refine), rows, data)


def check_refinement(refine: Refinement, rows: Rows) -> None:
    """Refuse another word, and rows of very different lengths."""
    if refine not in REFINEMENTS:
        raise InputError(f"refine must be {', '.join(REFINEMENTS[:-1])} or {REFINEMENTS[-1]}, not {refine!r}")
    if refine != "none":
        _length(rows)


def refined(rows: Rows, known: Tensor, level: Level, refine: Refinement) -> Level:
    """The same among rows in working form; centres are in their centred coordinates."""
    if refine == "none" or not level.inertia:  # every row is where its centre is: nothing is between clusters
        return level
    start = torch.as_tensor(level.centers)
    k, length = len(start), _length(rows)
    free_index, held_index = (torch.nonzero(part)[:, 0] for part in (known == UNLABELLED, known != UNLABELLED))
    free, held, held_labels = rows.at(free_index), rows.at(held_index), known[held_index]
    mass, held_counts = held.sums(held_labels, k)
    temperature = _SOFTNESS * level.inertia / rows.total

    def on_sphere(sums: Tensor, counts: Tensor) -> Tensor:
        return normalize(sums + counts[:, None] * rows.shift, dim=1) * length - rows.shift

    centers, offsets = on_sphere(start, torch.ones_like(start[:, 0])), start.new_zeros(k)
    wanted = _wanted(rows.total, held_counts)
    for softness in _softer(temperature, length, rows.group) if refine == "balanced" else ():
        offsets = equal_shares(free, centers, offsets, softness * temperature, wanted, _FIRST)
    for _ in range(_ROUNDS):
        if refine == "balanced":
            offsets = equal_shares(free, centers, offsets, temperature, wanted, _INNER)
        sums, counts = _shares(free, centers, offsets, temperature)
        sums, counts = sums + mass, counts + held_counts
        centers = torch.where(counts[:, None] > _NOTHING, on_sphere(sums, counts), centers)
        if refine == "proportional":
            offsets = temperature * (counts.clamp(min=_LEAST) / rows.total).log()
    if refine == "balanced":
        for softness in _HARDER:
            offsets = equal_shares(free, centers, offsets, softness * temperature, wanted, _LAST)
    centers, offsets = (rows.group.agree(values) for values in (centers, offsets))
    labels = known.clone()
    if len(free_index):
        labels[free_index] = free.nearest(centers, offsets)[0]
    if refine == "balanced" and not _balanced(rows.group.sum(count(labels, k)), held_counts):
        warnings.warn("category sizes differ too much to be balanced: clusters are not refined", Note, stacklevel=4)
        return level
    return without_empty(rows, labels, centers, offsets, level.n_known, level.n_iter + _ROUNDS)


def of_one_length(rows: Rows) -> bool:
    """Whether all rows but few are of one length, as soft refinement needs them."""
    low, length, high = _lengths(rows)
    return bool(high - low <= _UNEQUAL * length)


def _length(rows: Rows) -> Tensor:
    """The length that rows have."""
    low, length, high = _lengths(rows)
    if high - low > _UNEQUAL * length:
        raise InputError(
            f"soft refinement needs rows of equal length, but theirs are from {low:.3g} to "
            f"{high:.3g}: normalise them (--normalize)"
        )
    return length


def _lengths(rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
    """A low, the middle and a high length of rows; those of length 0, such as black images, do not count."""
    lengths = rows.group.gather(torch.cat([(x + rows.shift).norm(dim=1) for _, x in rows.blocks(rows.d)]))
    some = lengths[lengths > 0].sort().values
    if not len(some):
        return lengths[0], lengths[0], lengths[0]
    low, length, high = (some[int(share * (len(some) - 1))] for share in (0.1, 0.5, 0.9))
    return low, length, high


def _shares(rows: Rows, centers: Tensor, offsets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Sum of the rows of each cluster, `(k, d)`, and their number, `(k,)`, each row by its share in the cluster."""
    lead = offsets - (centers * centers).sum(1)
    sums, counts = torch.zeros_like(centers), torch.zeros_like(offsets)
    for _, x in rows.blocks(2 * len(centers)):
        share = (torch.addmm(lead, x, centers.T, alpha=2) / temperature).softmax(1)
        sums.addmm_(share.T, x)
        counts += share.sum(0)
    return rows.group.sum(sums), rows.group.sum(counts)


def _wanted(n: int, held_counts: Tensor) -> Tensor:
    """Unlabelled rows that each cluster is to have, `(k,)`, so that all have the same number together with labelled."""
    share = n / len(held_counts)
    wanted = (share - held_counts).clamp(min=_ROOM * share)
    return wanted * (n - held_counts.sum()) / wanted.sum()


def _balanced(sizes: Tensor, held_counts: Tensor) -> bool:
    """Whether no cluster is far from an equal share of rows, but for those that labelled rows fill."""
    share = float(sizes.sum()) / len(sizes)
    most = torch.clamp(held_counts + share, min=_TOO_FAR * share)
    return bool((sizes >= share / _TOO_FAR).all() and (sizes <= most).all())


def _softer(temperature: float, length: Tensor, group: Group) -> list[float]:
    """Multiples of the temperature to begin with, from where a row takes part everywhere: offsets have far to go."""
    steps = group.agree(math.ceil(math.log2(max(1.0, float(length) ** 2 / temperature))))
    return [2.0**step for step in range(steps, 0, -1)]


def equal_shares(
    rows: Rows, centers: Tensor, offsets: Tensor, temperature: float, wanted: Tensor, steps: int
) -> Tensor:
    """Offsets under which rows give each cluster as many as wanted, each row by its shares: Sinkhorn's iteration."""
    for _ in range(steps if rows.total else 0):
        step = (_counts(rows, centers, offsets, temperature).clamp(min=_LEAST) / wanted).log()
        offsets = offsets - temperature * step
        if rows.group.agree(bool(step.abs().max() < _EQUAL)):
            break
    return offsets - offsets.mean()


def _counts(rows: Rows, centers: Tensor, offsets: Tensor, temperature: float) -> Tensor:
    """Rows of each cluster, `(k,)`, each by its share in it."""
    lead = offsets - (centers * centers).sum(1)
    counts = torch.zeros_like(offsets)
    for _, x in rows.blocks(2 * len(centers)):
        counts += (torch.addmm(lead, x, centers.T, alpha=2) / temperature).softmax(1).sum(0)
    return rows.group.sum(counts)


def without_empty(
    rows: Rows, labels: Tensor, centers: Tensor, offsets: Tensor | None, n_known: int, n_iter: int
) -> Level:
    """The level of these clusters, without novel ones that are empty."""
    kept = rows.group.sum(count(labels, len(centers))) > 0
    kept[:n_known] = True
    if not kept.all():
        gone = int((~kept).sum())
        warnings.warn(f"{gone} of {len(kept)} clusters have no rows: {len(kept) - gone} are left", Note, stacklevel=5)
        labels = (kept.cumsum(0) - 1)[labels]
        centers, offsets = centers[kept], None if offsets is None else offsets[kept]
    inertia = float(rows.group.sum(rows.distances_to_own(centers, labels).sum(dtype=torch.float64)))
    return Level(labels, centers, n_known, inertia, n_iter, offsets)
