"""Clusters that continue from where they were: what nobody touched stays, what was decided holds.

After a review some rows are fixed, some clusters were merged or split, and there may be new rows. Clustering from
nothing would draw all clusters anew, the many that nobody spoke of too. Where nothing but new rows is to be looked at,
`with_added` finds what `continued` finds, but for rounding: to the last bit for the rows that were there. Shapes: n
rows, m new ones, d dimensions, k clusters.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from selex.cluster.assign import Assigner, Assignment, Calibration, at_least_rounding, margins_of, reach_of
from selex.cluster.grow import opened, row_margins, usual_margin
from selex.cluster.hierarchy import level_sizes
from selex.cluster.holdout.select import Selection
from selex.cluster.kmeans import Problem
from selex.cluster.refine import without_empty
from selex.cluster.rows import DEFAULT_MEMORY, Rows, count
from selex.cluster.whiten import FeatureMaps
from selex.config import ClusterConfig
from selex.types import UNLABELLED, Hierarchy, Level

_ROUNDS = 10
_ROUNDING = 1e-5
_ALIKE = 4 / 3  # a level may have so many times as many clusters as one made anew, or as many fewer
CLEARLY = 2.0
"""Times the temperature of confidences: by so much squared distance a cluster is clearly nearer, with odds of e²."""


@dataclass(frozen=True)
class Start:
    """Clusters to continue from. Rows that were not there are in cluster -1, at coarser levels too."""

    clusters: NDArray[Any]  # of every row, (n,): known ones numbered as labels have them, then novel ones
    centers: NDArray[Any]  # of clusters that stay, (k, d), after `maps`; those of others are not looked at
    stays: NDArray[Any]  # clusters that nobody has changed, (k,)
    offsets: NDArray[Any] | None  # what is taken off squared distances to each centre, (k,); None takes nothing
    maps: FeatureMaps  # what features go through, as before
    selection: Selection  # how clusters were searched for and refined
    calibration: Calibration  # that of confidences, as before
    coarser: tuple[NDArray[Any], ...] = ()  # of every row at each level, (n,); none: levels are to be clustered anew
    # what was said of every row, where all that were there still are, with their features; of new ones it says nothing
    judged: Assignment | None = None
    margins: NDArray[np.float64] | None = None  # how distinct the clusters were, as `Assigner.margins`


def continued(problem: Problem, start: Start) -> Level:
    """The clusters that a start leads to; centres in centred coordinates.

    Labelled rows are fixed, and clusters that stay keep their centres. Those of changed clusters are the means of their
    rows. A row leaves its cluster only for one that was changed and is clearly nearer. New rows go to the nearest one,
    or to one that they open, see `grow.opened`.
    """
    rows, free = problem.rows, problem.free_index
    stays = torch.as_tensor(start.stays).to(rows.device)
    first = torch.as_tensor(start.clusters).to(rows.device)[free]
    centers = torch.as_tensor(start.centers).to(rows.device, rows.dtype) - rows.shift
    offsets = torch.as_tensor(0.0 if start.offsets is None else start.offsets).to(rows.device, rows.dtype)
    offsets = offsets.expand(len(centers))
    length = None if start.selection.refine == "none" else length_of(centers[stays] + rows.shift)
    centers = torch.where(stays[:, None], centers, _means(problem, first, centers, length))
    more = _more(problem, first, centers, length)
    if len(more):
        problem = Problem(
            rows, problem.known, problem.n_known, problem.k + len(more) - problem.n_known, problem.settings
        )
        centers, stays = torch.cat([centers, more]), torch.cat([stays, stays.new_zeros(len(more))])
        offsets = torch.cat([offsets, offsets.mean().expand(len(more))])
    labels, moves = _joined(problem.free, centers, offsets, first), 0
    while len(free) and moves < _ROUNDS and not stays.all():
        centers = torch.where(stays[:, None], centers, _means(problem, labels, centers, length))
        previous, labels = labels, _moved(problem.free, centers, offsets, first, stays, start.calibration.temperature)
        moves += 1
        if torch.equal(labels, previous):
            break
    found = problem.known.clone()
    found[free] = labels
    kept = None if start.offsets is None else offsets
    return without_empty(rows, found, centers, kept, problem.n_known, moves)


def coarser_levels(base: Level, rows: Rows | None, start: Start, n_levels: int | None) -> list[Level] | None:
    """The levels above a base level that continues; None where they have to be clustered anew.

    Rows stay where they were at each level. A new row is where most rows of its base cluster are; one of a base cluster
    that is new itself is in the cluster whose centre is nearest to that one's. Levels are made anew where they would
    have far fewer or more clusters by now, or where known clusters are no longer together as they were. Without `rows`
    no base cluster may be new, a centre is the mean of the base centres of its rows, and nobody knows the inertia.
    """
    sizes = level_sizes(base.n_known, base.n_novel)[1:n_levels]
    if len(sizes) != len(start.coarser):
        return None
    levels = []
    for (n_known, n_novel), before in zip(sizes, start.coarser, strict=True):
        level = _coarser_level(base, rows, torch.as_tensor(before).to(torch.as_tensor(base.labels).device), n_known)
        if level is None or not n_known + n_novel <= _ALIKE * level.n_clusters <= _ALIKE**2 * (n_known + n_novel):
            return None
        levels.append(level)
    return levels


def _coarser_level(base: Level, rows: Rows | None, before: Tensor, n_known: int) -> Level | None:
    """A coarser level whose rows were in the clusters `before`, -1 for new ones."""
    labels = torch.as_tensor(base.labels)
    there = torch.nonzero(before != UNLABELLED)[:, 0]
    k = int(before.max()) + 1
    table = count(labels[there] * k + before[there], base.n_clusters * k).reshape(base.n_clusters, k)
    known = table[: base.n_known]
    if (table.sum(0) == 0).any() or known[:, n_known:].any() or ((known > 0).sum(1) != 1).any():
        return None
    if rows is None:
        return _level_of_bases(base, torch.where(before == UNLABELLED, table.argmax(1)[labels], before), k, n_known)
    sums, sizes = (of[:k] for of in rows.sums(torch.where(before == UNLABELLED, k, before), k + 1))
    nearest = torch.cdist(torch.as_tensor(base.centers), sums / sizes[:, None]).argmin(1)
    parent = torch.where(table.any(1), table.argmax(1), nearest)
    found = torch.where(before == UNLABELLED, parent[labels], before)
    new = torch.nonzero(before == UNLABELLED)[:, 0]
    more, others = rows.at(new).sums(found[new], k)
    centers = (sums + more) / (sizes + others)[:, None]
    spread = rows.norms.sum(dtype=torch.float64) - ((sizes + others) * centers.double().square().sum(1)).sum()
    return Level(found, centers, n_known, max(float(spread), 0.0), 0)


def _level_of_bases(base: Level, found: Tensor, k: int, n_known: int) -> Level:
    """A coarser level whose rows count as their base centres."""
    places = torch.as_tensor(base.centers).double()
    table = count(torch.as_tensor(base.labels) * k + found, base.n_clusters * k).reshape(base.n_clusters, k).double()
    centers = table.T @ places / table.sum(0)[:, None]
    return Level(found, centers.to(torch.as_tensor(base.centers).dtype), n_known, float("nan"), 0)


def _more(problem: Problem, first: Tensor, centers: Tensor, length: Tensor | None) -> Tensor:
    """Centres of clusters that new rows open."""
    there = first != UNLABELLED
    old, new = (torch.nonzero(part)[:, 0] for part in (there, ~there))
    if not len(new):
        return centers[:0]
    least = usual_margin(row_margins(problem.free.at(old), first[old], centers))
    return opened(least, centers, problem.free.take(new), problem.rows.shift, length)


def with_kept_centers(level: Level, start: Start) -> Level:
    """The level with the centres of clusters that stay as they were to the last bit: the same again ends the same."""
    centers = torch.as_tensor(level.centers).clone()
    kept = torch.as_tensor(start.centers[: len(centers)]).to(centers)
    same = torch.as_tensor(start.stays[: len(centers)]).to(centers.device)
    moved = (centers[: len(kept)] - kept).abs().amax(1)
    same &= moved <= _ROUNDING * kept.abs().max()  # one that is gone moves numbers
    centers[: len(kept)] = torch.where(same[:, None], kept, centers[: len(kept)])
    return replace(level, centers=centers if isinstance(level.centers, Tensor) else centers.numpy())


def _joined(rows: Rows, centers: Tensor, offsets: Tensor, first: Tensor) -> Tensor:
    """The clusters `first` of rows, with new rows in the nearest one."""
    new = torch.nonzero(first == UNLABELLED)[:, 0]
    return first.clone().index_copy_(0, new, rows.at(new).nearest(centers, offsets)[0]) if len(new) else first


def _moved(rows: Rows, centers: Tensor, offsets: Tensor, first: Tensor, stays: Tensor, temperature: float) -> Tensor:
    """Where rows go that were in the clusters `first`."""
    nearest, distance = rows.nearest(centers, offsets)
    own = torch.where(first == UNLABELLED, nearest, first)
    ahead = rows.distances_to_own(centers, own) - offsets[own] - (distance - offsets[nearest])
    return torch.where(~stays[nearest] & (ahead > CLEARLY * temperature), nearest, own)


def _means(problem: Problem, labels: Tensor, centers: Tensor, length: Tensor | None) -> Tensor:
    """Means of clusters, labelled rows among them, as long as rows are where that is given; rows of -1 do not count."""
    some = labels != UNLABELLED
    sums, counts = problem.free.at(torch.nonzero(some)[:, 0]).sums(labels[some], problem.k)
    sums, counts = sums + problem.mass, counts + problem.counts
    means = sums / counts.clamp(min=1)[:, None]
    if length is not None:
        means = normalize(means + problem.rows.shift, dim=1) * length - problem.rows.shift
    return torch.where(counts[:, None] > 0, means, centers)


def length_of(centers: Tensor) -> Tensor | None:
    """The length that centres of one length have."""
    return centers.norm(dim=1).median() if len(centers) else None


class Grown(NamedTuple):
    """Clusters with new rows, and all that is said of their rows."""

    hierarchy: Hierarchy
    assigner: Assigner
    assignment: Assignment


def with_added(
    features: Any, labels: Any, start: Start, config: ClusterConfig | None = None, memory: int = DEFAULT_MEMORY
) -> Grown | None:
    """The clusters of a start with its new rows; None where new rows change more than that.

    They do where they open a cluster, and where levels or clusters have to be made anew.
    """
    new = np.flatnonzero(start.clusters == UNLABELLED)
    if start.judged is None or start.margins is None or not start.stays.all() or not len(new):
        return None
    known = np.full(len(start.clusters), UNLABELLED) if labels is None else np.asarray(labels)
    rows = Rows(start.maps.transform(features[new]), memory, torch.from_numpy(start.centers).mean(0))
    where = _places(rows, known[new], start)
    if where is None:
        return None
    clusters = start.clusters.copy()
    clusters[new] = where
    n_known, anywhere = int(known.max()) + 1, np.full(len(start.centers), np.inf, np.float32)
    assigner = Assigner(start.centers, anywhere, start.calibration, start.offsets, n_known=n_known)
    judged = _merged(start.judged, assigner(rows, where, memory), clusters, new)
    reach = at_least_rounding(reach_of(judged.distances.astype(float), clusters, len(start.centers)), start.centers)
    judged = replace(judged, fits=judged.distances <= reach[clusters])
    inertia = float(np.square(judged.distances, dtype=np.float64).sum())
    base = Level(clusters, start.centers, n_known, inertia, 0, start.offsets)
    levels = coarser_levels(base, None, start, config.levels if config else None)
    if levels is None:
        return None
    margins = start.margins + margins_of(judged.rows(new), known[new] == UNLABELLED, len(start.centers))
    hierarchy = Hierarchy((base, *levels)).on_host()
    return Grown(hierarchy, replace(assigner, reach=reach, margins=margins), judged)


def _places(rows: Rows, known: NDArray[Any], start: Start) -> NDArray[np.int64] | None:
    """The cluster of each new row, `(m,)`: its own if it is labelled, else the nearest; None if they open another."""
    centers = torch.from_numpy(start.centers).to(rows.device, rows.dtype) - rows.shift
    offsets = torch.as_tensor(0.0 if start.offsets is None else start.offsets).to(rows.device, rows.dtype)
    free = torch.from_numpy(np.flatnonzero(known == UNLABELLED)).to(rows.device)
    length = None if start.selection.refine == "none" else length_of(centers + rows.shift)
    assert start.margins is not None
    if len(opened(usual_margin(start.margins), centers, rows.take(free), rows.shift, length)):
        return None
    nearest = rows.nearest(centers, offsets.expand(len(centers)))[0].cpu().numpy()
    return np.where(known == UNLABELLED, nearest, known)


def _merged(before: Assignment, added: Assignment, clusters: NDArray[np.int64], new: NDArray[np.int64]) -> Assignment:
    """What is said of all rows, from what was said of those that were there and what is said of new ones."""
    columns = {entry.name: np.array(getattr(before, entry.name)) for entry in fields(Assignment)}
    for name, column in columns.items():
        column[new] = getattr(added, name)
    return Assignment(**{**columns, "labels": clusters})
