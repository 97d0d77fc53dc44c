"""How good a count of categories is: clusters are made of it and scored, by labels or by distances alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from selex.cluster.kmeans import Problem, Settings, run
from selex.cluster.rows import Rows, count
from selex.metrics import contingency
from selex.types import UNLABELLED, Level

_RESAMPLES = 500
_TIE_BREAK = 1e-6  # weight of the silhouette beside the accuracy, which cannot see how novel categories split or merge
_FLAT = 0.1  # below the best silhouette, which is 1 at most: counts that reach this are as good

Values = NDArray[np.float64]
Solve = Callable[[Problem, np.random.Generator], Level]
Curve = tuple[tuple[int, float], ...]


class Judge(ABC):
    """Scores a clustering unit by unit: labelled categories, or groups of rows, that the interval can resample."""

    rows: Rows
    weights: Values
    name: str

    @abstractmethod
    def __call__(self, k: int, settings: Settings, rng: np.random.Generator) -> Values:
        """Each unit's part of the score of one clustering into k, a sum over its rows."""

    def mean(self, values: Values) -> float:
        """The score: over all units, the mean of all clusterings."""
        return float(values.sum(-1).mean() / self.weights.sum())

    @abstractmethod
    def interval(self, curve: Curve, values: Values, rng: np.random.Generator) -> tuple[int, int]:
        """Lowest and highest count that may be right, of those tried; `values` is counts × clusterings × units."""


class Accuracy(Judge):
    """Hungarian accuracy of the labelled rows, by category, when clustering has not seen their labels."""

    name = "accuracy"

    def __init__(self, rows: Rows, known: Tensor) -> None:
        self.rows, self.held = rows, known != UNLABELLED
        self.categories = rows.group.gather(known[self.held]).cpu().numpy()
        self.weights = np.bincount(self.categories).astype(np.float64)

    def __call__(self, k: int, settings: Settings, rng: np.random.Generator) -> Values:
        """Rows of each category in the cluster that is matched with it, and a little of the silhouette."""
        from scipy.optimize import linear_sum_assignment

        level = run(self.rows, torch.full_like(self.held, UNLABELLED, dtype=torch.long), 0, k, settings, rng)
        found = self.rows.group.gather(torch.as_tensor(level.labels)[self.held]).cpu().numpy()
        table = contingency(self.categories, found)
        hits: Values = _TIE_BREAK * _margin_sum(self.rows, level) / self.rows.total * self.weights
        category, cluster = linear_sum_assignment(table, maximize=True)
        hits[category] += (1 - _TIE_BREAK) * table[category, cluster]
        return hits

    def interval(self, curve: Curve, values: Values, rng: np.random.Generator) -> tuple[int, int]:
        """5th and 95th percentile of the best counts when categories are drawn with replacement, and a clustering."""
        n_counts, n_runs, n_units = values.shape
        winners = []
        for _ in range(_RESAMPLES):
            times = np.bincount(rng.integers(n_units, size=n_units), minlength=n_units)
            drawn = values[np.arange(n_counts), rng.integers(n_runs, size=n_counts)]
            winners.append(curve[int(np.argmax(drawn @ times / (self.weights @ times)))][0])
        low, high = np.percentile(winners, [5, 95], method="nearest")
        return int(low), int(high)


class Silhouette(Judge):
    """Mean of 1 - (distance to the nearest centre / distance to the next one), over all rows; uses all labels."""

    name = "silhouette"

    def __init__(self, rows: Rows, known: Tensor, n_known: int, solve: Solve = Problem.solve) -> None:
        self.rows, self.known, self.n_known, self.solve = rows, known, n_known, solve
        self.n_free = int(rows.group.sum((known == UNLABELLED).sum()))
        self.weights = np.array([float(rows.total)])

    def __call__(self, k: int, settings: Settings, rng: np.random.Generator) -> Values:
        """The sum over all rows, as one unit."""
        problem = Problem(self.rows, self.known, self.n_known, min(k - self.n_known, self.n_free), settings)
        return np.array([_margin_sum(self.rows, self.solve(problem, rng))])

    def interval(self, curve: Curve, values: Values, rng: np.random.Generator) -> tuple[int, int]:
        """All counts that do about as well as the best."""
        best = max(score for _, score in curve)
        good = [count for count, score in curve if score >= best - _FLAT]
        return good[0], good[-1]


def _margin_sum(rows: Rows, level: Level) -> float:
    return float(rows.group.sum(_margins(rows, level).double().sum()))


def _margins(rows: Rows, level: Level) -> Tensor:
    """How much nearer every row is to its nearest centre than to the next: 0 is not at all, 1 is on it.

    Without one of its n rows a centre is n / (n - 1) times as far from that row; a row alone is not near anything.
    """
    centers = torch.as_tensor(level.centers)
    if len(centers) < 2:
        return torch.zeros_like(rows.norms)
    sizes = rows.group.sum(count(torch.as_tensor(level.labels), len(centers))).to(rows.dtype)
    apart = sizes / (sizes - 1)
    margins = []
    step = rows.step(2 * len(centers))
    for start in range(0, rows.n, step):
        nearest, which = rows.distances(centers, slice(start, start + step)).topk(2, largest=False)
        first, second = nearest.sqrt().unbind(1)
        ratio = first * apart[which[:, 0]] / second.clamp(min=torch.finfo(rows.dtype).tiny)
        margins.append((1 - ratio.nan_to_num(nan=1.0)).clamp(min=0))
    return torch.cat(margins)
