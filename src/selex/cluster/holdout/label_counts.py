"""What the numbers of labels of known categories tell of sizes: labels drawn at random are a sample of them."""

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
_SMALLER = 0.5  # size of the usual known cluster, as a share of the mean of novel ones, below which sizes differ
_RISE = 0.2  # of the logarithm of sizes with that of numbers of labels: 0 if sizes are equal, 1 if labels are a sample


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


def follow(problem: Problem, level: Level, weight: tuple[float, float] = (1.0, 1.0)) -> bool:
    """Whether known clusters hold more rows the more labels they have, as where labels are a random sample.

    Where only numbers of labels differ and sizes do not, the logarithm of sizes hardly rises with that of numbers. The
    usual rise between two categories counts, the median: one that took in a large novel category must not hide it.
    In a sample labelled rows and others stand for so many rows each, its `weight`.
    """
    group, labelled = problem.rows.group, problem.counts[: problem.n_known].double()
    found = group.sum(count(torch.as_tensor(level.labels), problem.k))[: problem.n_known].double()
    sizes, counts = (weight[0] * labelled + weight[1] * (found - labelled)).log(), labelled.log()
    rises, steps = sizes[:, None] - sizes, counts[:, None] - counts
    return group.agree(float((rises[steps > 0] / steps[steps > 0]).quantile(0.5)) > _RISE)


def smaller(problem: Problem, level: Level) -> bool:
    """Whether known clusters are much smaller than novel ones: numbers of labels, which are alike, do not show that.

    The usual known one counts, the median, for one that took in a large novel category must not hide it.
    """
    sizes = problem.rows.group.sum(count(torch.as_tensor(level.labels), problem.k)).double()
    known, novel = sizes[: problem.n_known], sizes[problem.n_known :]
    return problem.rows.group.agree(bool(known.median() < _SMALLER * novel.mean()))
