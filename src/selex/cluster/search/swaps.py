"""Better minima: novel centres that hardly matter are dropped, clusters that hold two are split.

k-means moves a centre a little at a time: one centre too many here and one too few there is a minimum it never leaves.
A swap drops a novel centre where the second-nearest serves its rows nearly as well, and puts it where a cluster falls
into two.

Swaps start from what BSSK finds, or from Ward linkage: small groups of rows are merged, the pair that costs least
first, until k clusters are left. Where categories are clear but of unequal size this finds them whatever the seeds
were. Groups are few whatever the number of rows: the table of distances is one of groups.

Shapes: n free rows, d dimensions, k clusters, m groups; centres in centred coordinates.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from selex.cluster.distributed.group import Group
from selex.cluster.kmeans import Problem, Settings
from selex.cluster.rows import Rows, count, totals
from selex.types import UNLABELLED, Level

SIGNIFICANT = 1.1
"""What a split must gain for each 1 that the drop costs: nearly equal trades merge and split categories at random."""
LOWER_INERTIA = 0.005
"""By this share of the inertia Ward's start must end lower to be taken: minima that are nearer to each other are as
good, and seeds drawn apart then do better where categories are of one size."""
MORE_ACCURACY = 0.05
"""Or by this share it must keep more labelled rows nearest to the centres of their own categories."""
_ROUNDS = 20  # of swaps, at most
_POWER = 4  # iterations towards the direction in which a cluster is widest
_HALVES = 4  # iterations of 2-means in every cluster
_GROUPS = 2000  # at most; so many make a table of 16 MB and take a second
ROWS = 3
"""Rows that a small group has at least on average."""
_SAMPLE = 40_000  # rows of which groups are made; the others go to the nearest


@dataclass(frozen=True)
class Swaps:
    """Novel clusters to drop, and clusters to split in their place, the best pair first."""

    dropped: Tensor  # the cluster whose centre moves, (m,)
    centers: Tensor  # where it goes, (m, d)
    split: Tensor  # the cluster it takes rows from, (m,)
    others: Tensor  # where the centre of that one goes, (m, d)
    gains: Tensor  # by how much the inertia falls before anything is refined, (m,)

    def first(self, m: int) -> Swaps:
        """The m best pairs."""
        return Swaps(*(values[:m] for values in (self.dropped, self.centers, self.split, self.others, self.gains)))


def best_swapped(problem: Problem, rng: np.random.Generator) -> Level:
    """Swaps from what BSSK finds, or from Ward's clusters where these are clearly better: never above BSSK's inertia.

    Ward's draws are made from a copy of the generator, which moves on as with BSSK alone.
    """
    start = problem.best(rng)
    found = swapped(problem, start)
    other = swapped(problem, from_ward(problem, deepcopy(rng)))
    if other.inertia < (1 - LOWER_INERTIA) * found.inertia:
        return other
    better = (
        other.inertia <= start.inertia
        and labelled_accuracy(problem, other) > labelled_accuracy(problem, found) + MORE_ACCURACY
    )
    return other if better else found


def labelled_accuracy(problem: Problem, level: Level) -> float:
    """Share of the labelled rows that are nearest to the centre of their own category: others lost it to a novel one.

    Inertia does not see this, since labelled rows stay where they are.
    """
    held = problem.held
    if not held.total:
        return 1.0
    nearest, _ = held.nearest(torch.as_tensor(level.centers))
    return float(held.group.sum((nearest == problem.held_labels).double().sum())) / held.total


def swapped(problem: Problem, level: Level, significant: float = SIGNIFICANT) -> Level:
    """The level after all swaps that lower its inertia significantly; never one of a higher inertia.

    Many at a time, half as many after each time that they fall short of what they promised.

    Args:
        problem: what was clustered.
        level: where to start, as `problem.solve` gives it: in centred coordinates.
        significant: what a split must gain for each 1 that the drop costs.
    """
    most = problem.k
    for _ in range(_ROUNDS if problem.n_free else 0):
        swaps = find_swaps(problem, level, significant)
        swaps = swaps.first(min(most, len(swaps.gains)))
        most = len(swaps.gains)
        if not most:
            break
        tried = _after(problem, level, swaps)
        better = level.inertia - tried.inertia > max(0.0, float(swaps.gains.sum()) / 2)
        if problem.rows.group.agree(better):
            level = tried
        else:
            most //= 2
    return level


def find_swaps(problem: Problem, level: Level, significant: float) -> Swaps:
    """Pairs of a novel cluster to drop and a cluster to split that lower the inertia significantly."""
    centers = torch.as_tensor(level.centers)
    labels = torch.as_tensor(level.labels)[problem.free_index]
    costs, heirs = _costs(problem, centers, labels)
    gains, mine, new = split_all(problem, labels)
    costs, gains = (problem.rows.group.agree(values) for values in (costs, gains))
    dropped, split = paired(significant * costs, heirs, gains)
    return Swaps(dropped, new[split], split, mine[split], gains[split] - costs[dropped])


def _after(problem: Problem, level: Level, swaps: Swaps) -> Level:
    """The level from the centres that these swaps leave, refined."""
    centers = torch.as_tensor(level.centers).clone()
    centers[swaps.split] = swaps.others
    centers[swaps.dropped] = swaps.centers
    found = problem.ended(centers)
    return replace(found, n_iter=found.n_iter + level.n_iter)


def _costs(problem: Problem, centers: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """What the inertia rises by without each cluster, `(k,)`, at most, infinite for known ones; and their heirs.

    Either every row goes to its second-nearest centre, or all go to the cluster's heir, whose centre moves (Ward).
    """
    k, group = problem.k, problem.rows.group
    second, more = _runners_up(problem.free, centers, labels)
    costs = group.sum(totals(more, labels, k))
    moves, often = _counted(labels * k + second, group)
    moves = moves[torch.argsort(often, stable=True)]  # the last of a cluster is where most of it goes
    heir_of = dict(zip((moves // k).tolist(), (moves % k).tolist(), strict=True))
    heirs = torch.tensor([heir_of.get(cluster, cluster) for cluster in range(k)], device=labels.device)
    sizes = (problem.counts + group.sum(count(labels, k))).double()
    merged = _between(sizes, sizes[heirs], centers, centers[heirs])
    costs = torch.minimum(costs, merged)
    costs[: problem.n_known] = torch.inf
    return costs, heirs


def _counted(numbers: Tensor, group: Group) -> tuple[Tensor, Tensor]:
    """Which numbers there are among the rows of all processes, and how often."""
    every = group.gather(torch.stack(torch.unique(numbers, return_counts=True), 1))
    found, place = torch.unique(every[:, 0], return_inverse=True)
    return found, torch.zeros_like(found).scatter_add_(0, place, every[:, 1])


def _between(sizes: Tensor, others: Tensor, centers: Tensor, other_centers: Tensor) -> Tensor:
    """What the inertia differs by between two clusters and both in one."""
    return sizes * others / (sizes + others).clamp(min=1) * (centers - other_centers).double().square().sum(1)


def _runners_up(rows: Rows, centers: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest other cluster of every row, and by how much its squared distance is longer."""
    second, more = [], []
    squares = (centers * centers).sum(1)
    for part, x in rows.blocks(2 * len(centers)):
        to_all, own = torch.addmm(squares, x, centers.T, alpha=-2), labels[part, None]
        mine = to_all.gather(1, own)[:, 0]
        longer, other = to_all.scatter_(1, own, torch.inf).min(1)
        second.append(other)
        more.append((longer - mine).clamp_(min=0))
    return torch.cat(second), torch.cat(more)


def split_all(problem: Problem, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """2-means in every cluster at once: what each gains, `(k,)`, its centre after it and the new one's, `(k, d)`.

    Labelled rows stay with the first. The start is either side of the direction in which a cluster is widest.
    """
    rows, k = problem.free, problem.k
    new_side = _widest(problem, labels) > 0
    for _ in range(_HALVES):
        sums, counts = rows.sums(labels + k * new_side, 2 * k)
        sums[:k] += problem.mass
        counts[:k] += problem.counts
        mine, new = torch.split(sums / counts.clamp(min=1)[:, None], k)
        new_side = nearer(rows, labels, mine, new)
    first, second = torch.split(counts.double(), k)
    return _between(first, second, mine, new), mine, new


def _widest(problem: Problem, labels: Tensor) -> Tensor:
    """Where each row lies along the direction in which its cluster is widest, 0 at the mean; labelled rows below."""
    rows, k = problem.free, problem.k
    sums, counts = rows.sums(labels, k)
    means = sums / counts.clamp(min=1)[:, None]
    along = rows.distances_to_own(means, labels)  # to start with: the far rows less the near ones
    along = along - (rows.group.sum(totals(along, labels, k)) / counts.clamp(min=1))[labels].to(along)
    for _ in range(_POWER):
        direction = normalize(rows.sums(labels, k, along)[0], dim=1)
        along = _dot(rows, labels, direction) - (means * direction).sum(1)[labels]
    towards_labelled = ((problem.mass - problem.counts[:, None] * means) * direction).sum(1) > 0
    return torch.where(towards_labelled[labels], -along, along)


def nearer(rows: Rows, labels: Tensor, mine: Tensor, new: Tensor) -> Tensor:
    """Whether each row is nearer to the new centre of its cluster than to the first."""
    middle = ((new * new).sum(1) - (mine * mine).sum(1)) / 2
    return _dot(rows, labels, new - mine) > middle[labels]


def _dot(rows: Rows, labels: Tensor, directions: Tensor) -> Tensor:
    """Product of each row with the direction of its cluster."""
    return torch.cat([(x * directions[labels[part]]).sum(1) for part, x in rows.blocks(rows.d)])


def paired(costs: Tensor, heirs: Tensor, gains: Tensor) -> tuple[Tensor, Tensor]:
    """The cheapest to drop with the best to split, the next with the next, as long as it pays.

    A cluster that is to get the rows of a dropped one is not dropped itself, nor is one that is split.
    """
    cost, gain, heir = costs.tolist(), gains.tolist(), heirs.tolist()
    splits = iter(gains.argsort(descending=True, stable=True).tolist())
    pairs: dict[int, int] = {}
    kept: set[int] = set()
    for dropped in costs.argsort(stable=True).tolist():
        if dropped in kept:
            continue
        split = next((one for one in splits if one not in pairs and one != dropped), None)
        if split is None or not gain[split] > cost[dropped]:
            break
        pairs[dropped] = split
        kept |= {split, heir[dropped]}
    found = torch.tensor([*pairs.items()], dtype=torch.long, device=costs.device).reshape(-1, 2)
    return found[:, 0], found[:, 1]


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
