"""Clusters of very unequal size: large categories are not cut up, small ones are not swallowed.

k-means cuts a large category into pieces before it finds a small one, since that lowers the inertia more. Here rows
that were averaged with their neighbours, see `smoothed`, are sorted into more clusters than are asked for, and clusters
with the most neighbours in common are merged: parts of one category have many where they meet, categories few,
whatever their sizes. Numbers of labels, a sample of sizes, tell where that is to be expected.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import chdtr, chdtrc

from selex.cluster.kmeans import Problem
from selex.cluster.rows import count
from selex.types import Level

_CHANCE = 0.01  # that numbers of labels differ as much, or as little, where every category is as likely to get one
_FEW = 4  # known categories; fewer tell nothing of sizes
_RISE = 0.2  # of the logarithm of sizes with that of numbers of labels: 0 if sizes are equal, 1 if labels are a sample
_TIMES = 2  # as many clusters to merge as are asked for
_MORE = 40  # than asked for, where these are few
_NODES = 3  # of each of them, at least on average
_BORDER = 0.75  # power of the number of nodes, by which those at the border of a cluster become more


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
    """Whether known clusters hold more rows the more labels they have, as where labels are a random sample.

    Where only numbers of labels differ and sizes do not, the logarithm of sizes hardly rises with that of numbers.
    """
    known, group = slice(problem.n_known), problem.rows.group
    found = group.sum(count(torch.as_tensor(level.labels), problem.k))[known].double()
    counts = problem.counts[known].double().log()
    away = counts - counts.mean()
    return group.agree(float(away @ found.log() / (away @ away))) > _RISE


def starting_clusters(k: int, n_known: int, n_free: int) -> int:
    """How many clusters to merge to k: more than k, of which those without labels have a few nodes on average."""
    return max(k, min(max(_TIMES * k, k + _MORE), n_known + n_free // _NODES))


def merge_to_k(
    links: NDArray[np.float64],
    sizes: NDArray[np.int64],
    means: NDArray[np.float64],
    n_known: int,
    k: int,
) -> NDArray[np.int64]:
    """Which of k clusters each of m belongs to: agglomerative merging of the two with the most links, time and again.

    Links count for each node of the smaller, to a power below 1. Clusters without any link are merged last, by Ward's
    cost. Known clusters, the first, are never merged with each other.

    Args:
        links: how much clusters are linked, `(m, m)`.
        sizes: their numbers of nodes, `(m,)`.
        means: those of their nodes, `(m, d)`.
        n_known: how many of them are known.
        k: how many are left.
    """
    links, sizes, means = links.copy(), np.maximum(sizes, 1), means.copy()
    barred = np.eye(len(sizes), dtype=bool)
    barred[:n_known, :n_known] = True
    found = np.arange(len(sizes))

    def ties(one: int) -> NDArray[np.float64]:
        linked = links[one] / np.minimum(sizes[one], sizes) ** _BORDER
        ward = sizes[one] * sizes / (sizes[one] + sizes) * np.square(means[one] - means).sum(1)
        return np.where(barred[one], -np.inf, np.where(linked > 0, linked, -ward))

    best = np.stack([ties(one) for one in range(len(sizes))])
    for _ in range(len(sizes) - k):
        one, other = sorted(np.unravel_index(best.argmax(), best.shape))
        found[found == other] = one
        means[one] += (means[other] - means[one]) * sizes[other] / (sizes[one] + sizes[other])
        sizes[one] += sizes[other]
        links[one] += links[other]
        links[:, one] = links[one]
        barred[other] = barred[:, other] = True
        best[one] = best[:, one] = ties(one)
        best[other] = best[:, other] = -np.inf
    return np.unique(found, return_inverse=True)[1]
