"""Clusters of very unequal size: large ones are not cut up, small ones are not swallowed.

k-means cuts a large category into pieces before it finds a small one, since that lowers the inertia more. Here a row
counts by how many others are in its cluster: the cost is the inertia less `temperature · Σ size · log(size)`, as in a
mixture whose shares are free. Novel centres are moved as in `swaps`, by this cost. Labels tell how high the
temperature is to be: they are a sample of the sizes of categories, and it rises until clusters are as unequal as they
are. Shapes: n free rows, d dimensions, k clusters; centres in centred coordinates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import chdtr, chdtrc
from torch import Tensor

from selex.cluster.kmeans import Problem
from selex.cluster.refine import without_empty
from selex.cluster.rows import count
from selex.cluster.search.swaps import nearer, paired, split_all
from selex.types import Level

_CHANCE = 0.01  # that numbers of labels differ as much, or as little, where every category is as likely to get one
_FEW = 4  # known categories; fewer tell nothing of sizes
_SOFTNESS = 0.12  # of the mean squared distance, as in soft refinement: the lowest temperature
_RISE = 1.15  # times the last one
_RISES = 10
_ROUNDS = 40  # of swaps, at most, at each temperature
_ITERATIONS = 30  # iterations of k-means after each
_MARGIN = 0.1  # of what a drop costs, by which a split must gain more


def differ(counts: NDArray[np.int64]) -> bool:
    """Whether numbers of labels of known categories differ by more than chance (index of dispersion)."""
    return len(counts) >= _FEW and bool(chdtrc(len(counts) - 1, _dispersion(counts)) < _CHANCE)


def alike(counts: NDArray[np.int64], size: float) -> bool:
    """Whether they differ as little as where labels are drawn from categories that all have so many rows.

    That is less than by chance, if a good part is labelled.
    """
    by_chance, drawn = _chances(counts, size)
    return by_chance < _CHANCE <= drawn


def as_given(counts: NDArray[np.int64], size: float) -> bool:
    """Whether they differ even less, as where someone gave each category as many labels, which say nothing of sizes."""
    return _chances(counts, size)[1] < _CHANCE


def _chances(counts: NDArray[np.int64], size: float) -> tuple[float, float]:
    """That they differ as little by chance, and where drawn from categories of one size; 1 where nothing tells."""
    drawn = 1 - counts.mean() / size
    if len(counts) < _FEW or drawn <= 0:
        return 1.0, 1.0
    by_chance, from_equal = chdtr(len(counts) - 1, _dispersion(counts) / np.array([1.0, drawn]))
    return float(by_chance), float(from_equal)


def _dispersion(counts: NDArray[np.int64]) -> float:
    return float(np.square(counts - counts.mean()).sum() / counts.mean())


def follow(problem: Problem, level: Level) -> bool:
    """Whether known clusters with more labels also hold more unlabelled rows, as where labels are a random sample.

    Where only numbers of labels differ and sizes do not, those with more labels have fewer rows left without one.
    """
    free = torch.as_tensor(level.labels)[problem.free_index]
    held = problem.rows.group.sum(count(free, problem.k))[: problem.n_known].double()
    both = torch.stack([held + 1, problem.counts[: problem.n_known].double()]).log()
    return problem.rows.group.agree(float(torch.corrcoef(both)[0, 1])) > 0


def evenness(sizes: Tensor) -> float:
    """Logarithm of the share of clusters that would be as even if all were equal: 0 where they are, otherwise less."""
    shares = sizes[sizes > 0].double() / sizes.sum()
    return float(-(shares * shares.log()).sum()) - math.log(len(sizes))


def as_unequal(problem: Problem, level: Level) -> Level:
    """Clusters, from those of a search, as unequal as the numbers of labels are; new rows are sorted by size too.

    The temperature rises until they are; where fewer than two categories are known it stays at the lowest. No cluster
    is lost: one that no row goes to keeps the row that is farthest from its centre.
    """
    if not problem.n_free or not level.inertia:
        return level
    wanted = evenness(problem.counts[: problem.n_known]) if problem.n_known > 1 else 0.0
    mean = level.inertia / problem.rows.total
    clusters, best = None, None
    for step in range(_RISES + 1):
        cost = _Cost(problem, _SOFTNESS * _RISE**step * mean)
        start = torch.as_tensor(level.labels)[problem.free_index] if clusters is None else clusters.labels
        clusters = cost.swapped(cost.converged(start))
        even = problem.rows.group.agree(evenness(clusters.sizes))
        if best is None or abs(even - wanted) < abs(best[0] - wanted):
            best = (even, cost, clusters)
        if even <= wanted:
            break
    return best[1].level(best[2]) if best else level


@dataclass(frozen=True)
class _Clusters:
    """Where free rows are, the means and the sizes of clusters, labelled rows included, and what they cost."""

    labels: Tensor
    centers: Tensor
    sizes: Tensor
    cost: float


@dataclass(frozen=True)
class _Cost:
    """Inertia less `temperature · Σ size · log(size)`, of the clusters of a problem."""

    problem: Problem
    temperature: float

    def converged(self, labels: Tensor) -> _Clusters:
        """What k-means reaches from these clusters."""
        found = self._clusters(labels)
        for _ in range(_ITERATIONS):
            labels = self._assigned(found)
            if self.problem.rows.group.all(torch.equal(labels, found.labels)):
                break
            found = self._clusters(labels)
        return found

    def swapped(self, clusters: _Clusters) -> _Clusters:
        """The clusters after all swaps that lower the cost; many at a time, half as many each time that they fail."""
        most = self.problem.k
        for _ in range(_ROUNDS):
            labels, most = self._after_swaps(clusters, most)
            if not most:
                break
            tried = self.converged(labels)
            if self.problem.rows.group.agree(tried.cost < clusters.cost):
                clusters = tried
            else:
                most //= 2
        return clusters

    def level(self, clusters: _Clusters) -> Level:
        """The level of these clusters, rows where centres and offsets say."""
        problem, offsets = self.problem, self._offsets(clusters.sizes)
        found = problem.known.clone()
        found[problem.free_index] = self._assigned(clusters)
        return without_empty(problem.rows, found, clusters.centers, offsets - offsets.mean(), problem.n_known, 0)

    def _assigned(self, clusters: _Clusters) -> Tensor:
        """Where rows go; a cluster that none goes to takes the one that is farthest from its centre."""
        nearest = self.problem.free.nearest(clusters.centers, self._offsets(clusters.sizes))
        return self.problem.repaired(*nearest, clusters.centers)[0]

    def _clusters(self, labels: Tensor) -> _Clusters:
        problem = self.problem
        sizes = (problem.counts + problem.rows.group.sum(count(labels, problem.k))).double()
        centers = problem.means(labels)
        own = [
            rows.distances_to_own(centers, where).sum(dtype=torch.float64)
            for rows, where in ((problem.free, labels), (problem.held, problem.held_labels))
        ]
        inertia = float(problem.rows.group.sum(torch.stack(own).sum()))
        return _Clusters(labels, centers, sizes, inertia - self.temperature * float(_by_log(sizes).sum()))

    def _offsets(self, sizes: Tensor) -> Tensor:
        return (self.temperature * sizes.log()).to(self.problem.mass)

    def _after_swaps(self, clusters: _Clusters, most: int) -> tuple[Tensor, int]:
        """Where rows are after so many swaps at most, the best first, and how many there are."""
        costs, heirs = self._drops(clusters)
        gains, new_side = self._splits(clusters)
        costs, gains = (self.problem.rows.group.agree(values) for values in (costs, gains))
        dropped, split = (ids[:most] for ids in paired(costs + _MARGIN * costs.abs(), heirs, gains))
        goes, comes = (torch.arange(self.problem.k, device=heirs.device) for _ in range(2))
        goes[dropped], comes[split] = heirs[dropped], dropped
        labels = clusters.labels
        return torch.where(new_side, comes[labels], labels).where(goes[labels] == labels, goes[labels]), len(split)

    def _drops(self, clusters: _Clusters) -> tuple[Tensor, Tensor]:
        """What the cost rises by when each cluster joins another, `(k,)`, infinite for known ones; and that other."""
        sizes, centers, k = clusters.sizes, clusters.centers.double(), self.problem.k
        costs, heirs = [], []
        every, step = torch.arange(k, device=centers.device), self.problem.rows.step(4 * k)
        for part in (every[start : start + step] for start in range(0, k, step)):
            mine, both = sizes[part, None], sizes[part, None] + sizes
            apart = torch.cdist(centers[part], centers).square()
            logs = _by_log(both) - _by_log(mine) - _by_log(sizes)
            joined = mine * sizes / both.clamp(min=1) * apart - self.temperature * logs
            joined[torch.arange(len(part), device=part.device), part] = torch.inf
            least, heir = joined.min(1)
            costs.append(least)
            heirs.append(heir)
        cost = torch.cat(costs)
        cost[: self.problem.n_known] = torch.inf
        return cost, torch.cat(heirs)

    def _splits(self, clusters: _Clusters) -> tuple[Tensor, Tensor]:
        """What the cost falls by when each cluster is halved, `(k,)`; and whether a row is in the new half, `(n,)`."""
        problem, labels = self.problem, clusters.labels
        gains, mine, new = split_all(problem, labels)
        new_side = nearer(problem.free, labels, mine, new)
        there = problem.rows.group.sum(count(labels[new_side], problem.k)).double()
        logs = _by_log(clusters.sizes) - _by_log(there) - _by_log(clusters.sizes - there)
        return gains - self.temperature * logs, new_side


def _by_log(sizes: Tensor) -> Tensor:
    return torch.xlogy(sizes, sizes)
