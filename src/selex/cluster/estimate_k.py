"""How many categories are there, when nobody knows? Try counts, score each, search around the best."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment, minimize_scalar
from torch import Tensor

from selex.cluster.kmeans import Settings, note, prepare, run
from selex.cluster.rows import DEFAULT_MEMORY, Rows
from selex.errors import InputError
from selex.metrics import contingency
from selex.types import UNLABELLED, KEstimate, Level

_GRID = 8  # counts tried first, evenly in their logarithm
_SEARCH = 10  # counts tried by Brent's method after that
_RESAMPLES = 500
_GROUPS = 100  # of rows, the units that the silhouette's interval resamples
_TIE_BREAK = 1e-6  # weight of the silhouette beside the accuracy, which cannot see how novel categories split or merge

Values = NDArray[np.float64]


def estimate_k(
    data: Any,
    labels: Any,
    *,
    max_clusters: int | None = None,
    method: Literal["auto", "accuracy", "silhouette"] = "auto",
    balanced: bool = True,
    n_init: int = 3,
    rng: np.random.Generator | int | None = None,
    memory: int = DEFAULT_MEMORY,
    progress: Callable[[int, float], None] | None = None,
) -> KEstimate:
    """Estimate the number of categories, known and novel together.

    Counts from the number of known categories to `max_clusters` are tried, first on a coarse grid, then by Brent's
    method around the best of it.

    Args:
        data: `n × d` features: numpy (memory-mapped too) or torch on any device.
        labels: per row a known category `0 … n_known - 1` or -1; None if no row is labelled.
        max_clusters: the highest count to try; by default five times the known categories or `2 √n`, whichever
            is more, but no more than half the rows.
        method: `"accuracy"` clusters without the labels and scores how well clusters match the categories of the
            labelled rows (Vaze et al.); equals are told apart by their silhouette. `"silhouette"` clusters with all
            labels and scores how much nearer rows are to their own centre than to the next; it needs no labels.
            `"auto"` is accuracy where two categories are labelled, else silhouette.
        balanced: balance cluster sizes; off for long tails.
        n_init: clusterings for each count, whose scores are averaged.
        rng: generator or seed.
        memory: bytes that temporaries may take.
        progress: called with each count and its score.

    Returns:
        The estimate, and an interval that holds 90 % of the estimates when categories (or groups of rows) and
        clusterings are resampled. The interval tells how sure the method is of its answer, not whether it is right.
    """
    if method not in ("auto", "accuracy", "silhouette"):
        raise InputError(f"method must be 'auto', 'accuracy' or 'silhouette', not {method!r}")
    settings = Settings(balanced=balanced, n_init=n_init)
    rows, known, n_known = prepare(data, labels, memory)
    if method == "auto":
        method = "accuracy" if n_known > 1 else "silhouette"
    if method == "accuracy" and n_known < 2:
        raise InputError(f"method 'accuracy' needs two labelled categories, there are {n_known}; use 'silhouette'")
    low = min(max(n_known, 2), rows.n)
    high = max_clusters or min(rows.n // 2, max(5 * n_known, int(2 * rows.n**0.5)))
    if max_clusters is not None and not low <= max_clusters <= rows.n:
        raise InputError(
            f"the highest count to try must lie between {low} and the {rows.n} rows, not be {max_clusters}"
        )
    generator = np.random.default_rng(rng)
    seeds = generator.integers(1 << 31, size=n_init)  # the same for every count, so that only the count differs
    judge = _Accuracy(rows, known) if method == "accuracy" else _Silhouette(rows, known, n_known)
    tried: dict[int, Values] = {}  # per count: clusterings × units

    def score(k: float) -> float:
        count = round(k)
        if count not in tried:
            runs = [judge(count, replace(settings, n_init=1), np.random.default_rng(seed)) for seed in seeds]
            tried[count] = np.stack(runs)
            if progress:
                progress(count, judge.mean(tried[count]))
        return judge.mean(tried[count])

    _search(score, low, max(low, high))
    counts = sorted(tried)
    best = max(counts, key=score)
    if best == counts[-1] > low:
        note(f"{best} categories, the highest count tried, did best: there may be more")
    interval = _interval(counts, np.stack([tried[count] for count in counts]), judge.weights, generator)
    curve = tuple((count, score(count)) for count in counts)
    return KEstimate(best, min(interval[0], best), max(interval[1], best), curve, method)


def _search(score: Callable[[float], float], low: int, high: int) -> None:
    """A coarse grid, then Brent's method between the neighbours of its best point."""
    grid = sorted({round(k) for k in np.geomspace(low, high, _GRID)})
    best = int(np.argmax([score(k) for k in grid]))
    left, right = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    if right - left > 1:
        options = {"maxiter": _SEARCH, "xatol": 0.5}
        minimize_scalar(lambda k: -score(k), bounds=(left, right), method="bounded", options=options)


class _Judge(ABC):
    """Scores a clustering unit by unit: labelled categories, or groups of rows, that the interval can resample."""

    weights: Values

    @abstractmethod
    def __call__(self, k: int, settings: Settings, rng: np.random.Generator) -> Values:
        """Each unit's part of the score of one clustering into k, a sum over its rows."""

    def mean(self, values: Values) -> float:
        """The score: over all units, the mean of all clusterings."""
        return float(values.sum(-1).mean() / self.weights.sum())


class _Accuracy(_Judge):
    """Hungarian accuracy of the labelled rows, by category, when clustering has not seen their labels."""

    def __init__(self, rows: Rows, known: Tensor) -> None:
        self.rows, self.held = rows, known != UNLABELLED
        self.categories = known[self.held].cpu().numpy()
        self.weights = np.bincount(self.categories).astype(np.float64)

    def __call__(self, k: int, settings: Settings, rng: np.random.Generator) -> Values:
        level = run(self.rows, torch.full_like(self.held, UNLABELLED, dtype=torch.long), 0, k, settings, rng)
        table = contingency(self.categories, torch.as_tensor(level.labels)[self.held].cpu().numpy())
        hits: Values = _TIE_BREAK * float(_margins(self.rows, level).mean()) * self.weights
        category, cluster = linear_sum_assignment(table, maximize=True)
        hits[category] += (1 - _TIE_BREAK) * table[category, cluster]
        return hits


class _Silhouette(_Judge):
    """Mean of 1 - (distance to the nearest centre / distance to the next one), by group of rows; uses all labels."""

    def __init__(self, rows: Rows, known: Tensor, n_known: int) -> None:
        self.rows, self.known, self.n_known = rows, known, n_known
        self.n_free = int((known == UNLABELLED).sum())
        self.group = np.arange(rows.n) % min(_GROUPS, rows.n)
        self.weights = np.bincount(self.group).astype(np.float64)

    def __call__(self, k: int, settings: Settings, rng: np.random.Generator) -> Values:
        level = run(self.rows, self.known, self.n_known, min(k - self.n_known, self.n_free), settings, rng)
        sums = np.zeros(len(self.weights))
        np.add.at(sums, self.group, _margins(self.rows, level).double().cpu().numpy())
        return sums


def _margins(rows: Rows, level: Level) -> Tensor:
    """How much nearer every row is to its nearest centre than to the next: 0 is not at all, 1 is on it."""
    centers = torch.as_tensor(level.centers)
    if len(centers) < 2:
        return torch.zeros_like(rows.norms)
    margins = []
    step = rows.step(2 * len(centers))
    for start in range(0, rows.n, step):
        nearest = rows.distances(centers, slice(start, start + step)).topk(2, largest=False).values.sqrt()
        margins.append(1 - nearest[:, 0] / nearest[:, 1].clamp(min=torch.finfo(rows.dtype).tiny))
    return torch.cat(margins)


def _interval(counts: list[int], values: Values, weights: Values, rng: np.random.Generator) -> tuple[int, int]:
    """5th and 95th percentile of the best counts when units are drawn with replacement, and a clustering of each count.

    `values` is counts × clusterings × units.
    """
    n_counts, n_runs, n_units = values.shape
    winners = []
    for _ in range(_RESAMPLES):
        times = np.bincount(rng.integers(n_units, size=n_units), minlength=n_units)
        drawn = values[np.arange(n_counts), rng.integers(n_runs, size=n_counts)]
        winners.append(counts[int(np.argmax(drawn @ times / (weights @ times)))])
    low, high = np.percentile(winners, [5, 95], method="nearest")
    return int(low), int(high)
