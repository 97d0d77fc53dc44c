"""How many categories are there, when nobody knows? Try counts, score each, search around the best."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment, minimize_scalar
from torch import Tensor

from selex.cluster.kmeans import Settings, prepare, run
from selex.cluster.rows import DEFAULT_MEMORY, Rows
from selex.errors import InputError
from selex.metrics import contingency
from selex.types import UNLABELLED, KEstimate, Level

_GRID = 8  # counts tried first, evenly in their logarithm
_SEARCH = 10  # counts tried by Brent's method after that
_RESAMPLES = 500
_GROUPS = 100  # of rows, the units that the silhouette's interval resamples

# A score of one clustering, as (sum, weight) of each unit: a labelled category or a group of rows.
Parts = tuple[NDArray[np.float64], NDArray[np.float64]]


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
        max_clusters: the highest count to try; by default five times the known categories or `2 √n`, whichever is more.
        method: `"accuracy"` clusters without the labels and scores how well clusters match the categories of the
            labelled rows (Vaze et al.). `"silhouette"` clusters with all labels and scores how much nearer rows are to
            their own centre than to the next; it needs no labels. `"auto"` is accuracy where two categories are
            labelled, else silhouette.
        balanced: balance cluster sizes; off for long tails.
        n_init: restarts for each count.
        rng: generator or seed.
        memory: bytes that temporaries may take.
        progress: called with each count and its score.

    Returns:
        The estimate; the interval holds 90 % of the estimates from resampled categories (or groups of rows).
    """
    rows, known, n_known = prepare(data, labels, memory)
    if method == "auto":
        method = "accuracy" if n_known > 1 else "silhouette"
    if method not in ("accuracy", "silhouette"):
        raise InputError(f"method must be 'auto', 'accuracy' or 'silhouette', not {method!r}")
    if method == "accuracy" and n_known < 2:
        raise InputError(f"method 'accuracy' needs two labelled categories, there are {n_known}; use 'silhouette'")
    low = max(n_known, 2)
    high = max_clusters or min(rows.n // 4, max(5 * n_known, int(2 * rows.n**0.5)))
    if max_clusters is not None and not low <= max_clusters <= rows.n:
        raise InputError(f"max_clusters must lie between {low} and the {rows.n} rows, not be {max_clusters}")
    generator = np.random.default_rng(rng)
    seed = int(generator.integers(1 << 31))
    settings = Settings(balanced=balanced, n_init=n_init)
    scored: dict[int, Parts] = {}

    def score(k: float) -> float:
        """Score of a count, tried once; every count starts from the same seed, so that only the count differs."""
        count = round(k)
        if count not in scored:
            judge = _accuracy if method == "accuracy" else _silhouette
            scored[count] = judge(rows, known, n_known, count, settings, np.random.default_rng(seed))
            if progress:
                progress(count, _ratio(scored[count]))
        return _ratio(scored[count])

    _search(score, low, max(low, high))
    counts = sorted(scored)
    best, interval = _resample(counts, [scored[count] for count in counts], generator)
    return KEstimate(best, *interval, tuple((count, score(count)) for count in counts), method)


def _search(score: Callable[[float], float], low: int, high: int) -> None:
    """A coarse grid, then Brent's method between the neighbours of its best point."""
    grid = sorted({round(k) for k in np.geomspace(low, high, _GRID)})
    best = int(np.argmax([score(k) for k in grid]))
    left, right = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    if right - left > 1:
        options = {"maxiter": _SEARCH, "xatol": 0.5}
        minimize_scalar(lambda k: -score(k), bounds=(left, right), method="bounded", options=options)


def _accuracy(rows: Rows, known: Tensor, n_known: int, k: int, settings: Settings, rng: np.random.Generator) -> Parts:
    """Hungarian accuracy of the labelled rows, category by category, when clustering has not seen their labels."""
    level = run(rows, torch.full_like(known, UNLABELLED), 0, k, settings, rng)
    held = known != UNLABELLED
    table = contingency(known[held].cpu().numpy(), torch.as_tensor(level.labels)[held].cpu().numpy())
    hits = np.zeros(len(table))
    category, cluster = linear_sum_assignment(table, maximize=True)
    hits[category] = table[category, cluster]
    return hits, table.sum(1).astype(np.float64)


def _silhouette(rows: Rows, known: Tensor, n_known: int, k: int, settings: Settings, rng: np.random.Generator) -> Parts:
    """Mean of 1 - (distance to the nearest centre / distance to the next one), over groups of rows."""
    n_novel = min(k - n_known, int((known == UNLABELLED).sum()))
    level = run(rows, known, n_known, n_novel, settings, rng)
    values = _margins(rows, level).double().cpu().numpy()
    group = np.arange(rows.n) % _GROUPS
    sums, sizes = np.zeros(_GROUPS), np.bincount(group, minlength=_GROUPS)
    np.add.at(sums, group, values)
    return sums, sizes.astype(np.float64)


def _margins(rows: Rows, level: Level) -> Tensor:
    centers = torch.as_tensor(level.centers)
    if len(centers) < 2:
        return torch.zeros_like(rows.norms)
    margins = []
    step = rows.step(2 * len(centers))
    for start in range(0, rows.n, step):
        nearest = rows.distances(centers, slice(start, start + step)).topk(2, largest=False).values.sqrt()
        margins.append(1 - nearest[:, 0] / nearest[:, 1].clamp(min=torch.finfo(rows.dtype).tiny))
    return torch.cat(margins)


def _resample(counts: list[int], parts: list[Parts], rng: np.random.Generator) -> tuple[int, tuple[int, int]]:
    """The best count, and the 5th and 95th percentile of the best counts when units are drawn with replacement."""
    sums, weights = np.stack([part[0] for part in parts]), np.stack([part[1] for part in parts])
    best = counts[int(np.argmax(sums.sum(1) / weights.sum(1)))]
    n_units = sums.shape[1]
    times = rng.multinomial(n_units, np.full(n_units, 1 / n_units), size=_RESAMPLES).T
    with np.errstate(invalid="ignore", divide="ignore"):
        winners = np.array(counts)[np.argmax(np.nan_to_num(sums @ times / (weights @ times)), axis=0)]
    low, high = np.percentile(winners, [5, 95], method="nearest")
    return best, (int(min(low, best)), int(max(high, best)))


def _ratio(parts: Parts) -> float:
    return float(parts[0].sum() / parts[1].sum())
