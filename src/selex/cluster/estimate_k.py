"""How many categories are there, when nobody knows? From hidden labels, or by trying counts and scoring each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from selex.cluster.holdout.known_share import QUICK, Count, count_by_share
from selex.cluster.kmeans import Problem, Settings, note, prepare, run
from selex.cluster.rows import DEFAULT_MEMORY, Rows, count
from selex.cluster.search.swaps import swapped
from selex.errors import InputError
from selex.metrics import contingency
from selex.types import UNLABELLED, KEstimate, Level

Method = Literal["auto", "combined", "accuracy", "silhouette"]
_GRID = 8  # counts tried first, evenly in their logarithm
_SEARCH = 10  # counts tried by Brent's method after that
_RESAMPLES = 500
_TIE_BREAK = 1e-6  # weight of the silhouette beside the accuracy, which cannot see how novel categories split or merge
_FLAT = 0.1  # below the best silhouette, which is 1 at most: counts that reach this are as good
_LEVEL = 0.9  # of the probability is in the interval
_SPREAD = 1.0  # relative spread of sizes of categories, as if one more category had shown it: a few do not tell
_FEW = 3  # degrees of freedom of an interval, at least
_WIDE = 0.98  # of what shares make likely is where silhouettes are compared
_TRIED = 12  # counts whose silhouettes are compared there
_CURVED = 3  # degree of the curve through them: single clusterings are noisy
_CLEAR = 0.5  # silhouette from which on clusters are so clear that there is no noise to speak of
_BESIDE = 10.0  # what the logarithm of a silhouette counts beside that of a likelihood
_LOWEST = -1.5  # but no more than so much, unless clusters are clear: silhouettes do not know what labels mean
_POINTS = 200  # counts whose likelihood is worked out, at most
AT_BEST = 0.06
"""Standard error of the logarithm of a count by shares that no number of labels goes below."""

Values = NDArray[np.float64]
Solve = Callable[[Problem, np.random.Generator], Level]
Curve = tuple[tuple[int, float], ...]


def estimate_k(
    data: Any,
    labels: Any,
    *,
    max_clusters: int | None = None,
    method: Method = "auto",
    balanced: bool = True,
    n_init: int = 3,
    rng: np.random.Generator | int | None = None,
    memory: int = DEFAULT_MEMORY,
    progress: Callable[[int, float], None] | None = None,
) -> KEstimate:
    """Estimate the number of categories, known and novel together.

    Args:
        data: `n × d` features: numpy (also memory-mapped) or torch on any device.
        labels: per row a known category `0 … n_known - 1` or -1; None if no row is labelled.
        max_clusters: the highest count to allow; by default no more than half the rows, and where counts are tried no
            more than five times the known categories or `2 √n`, whichever is more.
        method: `"combined"` hides labels and whole categories, learns from them how rows of known and of novel
            categories look to a clustering, and so which share of the rows belongs to known categories: if novel ones
            are as large on average, that tells how many there are. Silhouettes of the counts that this makes likely
            have their say beside it. The others try counts, first on a coarse grid, then by Brent's method.
            `"accuracy"` clusters without the labels and scores how well clusters match the categories of the
            labelled rows (Vaze et al.); equals are told apart by their silhouette. `"silhouette"` clusters with all
            labels and scores how much nearer rows are to their own centre than to the next; it needs no labels.
            `"auto"` is combined where two categories are labelled and one of them twice, else silhouette.
        balanced: balance cluster sizes; off for long tails.
        n_init: clusterings for each count that is tried, whose scores are averaged.
        rng: generator or seed.
        memory: bytes that temporary arrays may take.
        progress: called with each count and its score.

    Returns:
        The estimate, and a 90 % interval: of what other known categories would have given, or of what resampled
        categories give (accuracy); of all counts that do about as well (silhouette).
    """
    if method not in get_args(Method):
        raise InputError(f"method must be 'auto', 'combined', 'accuracy' or 'silhouette', not {method!r}")
    settings = Settings(balanced=balanced, n_init=n_init)
    rows, known, n_known = prepare(data, labels, memory)
    generator = np.random.default_rng(rng)
    limits = _limits(rows.total, n_known, max_clusters, tried=method in ("accuracy", "silhouette"))
    if method in ("auto", "combined"):
        count = count_by_share(rows, known, n_known, balanced, generator)
        if count:
            return _agreed(_combined(count, n_known, limits, balanced, generator, progress), rows)
        if method == "combined":
            raise InputError(_UNTOLD.format("combined"))
        limits = _limits(rows.total, n_known, max_clusters, tried=True)
    if method == "accuracy" and n_known < 2:
        raise InputError(f"method 'accuracy' needs two labelled categories, there are {n_known}; use 'silhouette'")
    judge = _Accuracy(rows, known) if method == "accuracy" else _Silhouette(rows, known, n_known)
    return _agreed(_Tries(judge, settings, generator, progress).best(*limits), rows)


def _agreed(found: KEstimate, rows: Rows) -> KEstimate:
    """The same in every process."""
    agree = rows.group.agree
    return replace(found, n_clusters=agree(found.n_clusters), low=agree(found.low), high=agree(found.high))


_UNTOLD = (
    "method {!r} needs two labelled categories, one of them with two labels, and unlabelled rows; use 'silhouette'"
)


def _limits(n: int, n_known: int, asked: int | None, tried: bool) -> tuple[int, int]:
    """Lowest and highest count."""
    low = min(max(n_known, 2), n)
    if asked is not None and not low <= asked <= n:
        raise InputError(f"the highest count to try must lie between {low} and the {n} rows, not be {asked}")
    usual = max(5 * n_known, int(2 * n**0.5)) if tried else n
    return low, max(low, asked or min(n // 2, usual))


def _combined(
    count: Count,
    n_known: int,
    limits: tuple[int, int],
    balanced: bool,
    rng: np.random.Generator,
    progress: Callable[[int, float], None] | None,
) -> KEstimate:
    """What shares make likely, Student's in the logarithm as few categories tell little, and silhouettes beside it."""
    from scipy.stats import t as student  # takes a second to import

    error = float(np.hypot(count.error, AT_BEST))
    shares = student(n_known - 1, np.log(count.n_clusters), error)
    ends = np.clip(np.exp(shares.interval(_WIDE)), *limits)
    judge = _Silhouette(count.rows, count.known, n_known, _solve)
    silhouette = _silhouettes(judge, ends, balanced, rng, progress)
    ks = np.unique(np.geomspace(ends[0], ends[1], _POINTS).round().astype(int))
    likely = shares.logpdf(np.log(ks)) + silhouette(np.log(ks))
    likely = np.exp(likely - likely.max())
    best = int(ks[likely.argmax()])
    alone = student(max(n_known - 1, _FEW), np.log(count.n_clusters), float(np.hypot(error, _SPREAD / n_known)))
    ends = np.clip(np.exp(alone.interval(_LEVEL)), *limits)  # silhouettes do not know what labels mean: this stays
    low, high = _middle(ks, likely)
    low, high = min(low, int(ends[0])), max(high, int(np.ceil(ends[1])))
    _tell_of_limits(best, *limits)
    curve = tuple((int(k), float(score)) for k, score in zip(ks, likely, strict=True))
    return KEstimate(best, min(low, best), max(high, best), curve, "combined")


def _silhouettes(
    judge: _Silhouette,
    ends: Values,
    balanced: bool,
    rng: np.random.Generator,
    progress: Callable[[int, float], None] | None,
) -> Callable[[Values], Values]:
    """What silhouettes say of a count beside the best one, over the logarithm of the count: a smooth curve."""
    ks = np.unique(np.geomspace(ends[0], ends[1], _TRIED).round().astype(int))
    settings, seed, scores = Settings(balanced, n_iter=QUICK), int(rng.integers(1 << 31)), []
    for k in ks.tolist():
        scores.append(judge.mean(judge(k, settings, np.random.default_rng(seed))))
        if progress:
            progress(k, scores[-1])
    at, best = np.log(ks), max(scores)
    logs = np.log(np.maximum(scores, np.finfo(float).tiny)) - np.log(max(best, np.finfo(float).tiny))
    smooth = np.polynomial.Polynomial.fit(at, logs, min(_CURVED, len(ks) - 1))
    lowest = _LOWEST / max(1 - best, np.finfo(float).eps)

    def beside(where: Values) -> Values:
        curve = np.interp(where, at, logs) if best > _CLEAR else smooth(where)
        said: Values = np.maximum(_BESIDE * (curve - curve.max()), lowest)
        return said

    return beside


def _solve(problem: Problem, rng: np.random.Generator) -> Level:
    """One run, then swaps: where sizes differ, seeds alone leave small categories without a centre."""
    return swapped(problem, problem.solve(rng))


def _middle(ks: NDArray[np.int64], likely: Values) -> tuple[int, int]:
    """5th and 95th percentile of counts that are so likely, evenly in their logarithm."""
    if len(ks) < 2:
        return int(ks[0]), int(ks[0])
    total = np.cumsum(likely * np.gradient(np.log(ks)))
    low, high = np.searchsorted(total / total[-1], (0.05, 0.95))
    return int(ks[low]), int(ks[min(high, len(ks) - 1)])


def _tell_of_limits(best: int, low: int, high: int) -> None:
    """An end of the range is no estimate."""
    if best == high > low:
        note(f"{best} categories, the highest count tried, did best: there may be more")
    elif best == low < high:
        note(f"{best} categories, the lowest count tried, did best: features may not tell the others apart")


@dataclass(frozen=True)
class _Tries:
    """Counts that are tried one after the other."""

    judge: _Judge
    settings: Settings
    rng: np.random.Generator
    progress: Callable[[int, float], None] | None

    def best(self, low: int, high: int) -> KEstimate:
        """A coarse grid, Brent's method around its best count, and an interval."""
        seeds = self.rng.integers(1 << 31, size=self.settings.n_init)  # the same for every count: only that differs
        tried: dict[int, Values] = {}  # per count: clusterings × units
        group = self.judge.rows.group

        def score(k: float) -> float:
            count = group.agree(round(k))
            if count not in tried:
                tried[count] = self._runs(count, seeds)
            return group.agree(self.judge.mean(tried[count]))

        _search(score, low, high)
        curve = tuple((count, score(count)) for count in sorted(tried))
        best = max(curve, key=lambda point: point[1])[0]
        _tell_of_limits(best, low, high)
        ends = self.judge.interval(curve, np.stack([tried[count] for count, _ in curve]), self.rng)
        return KEstimate(best, min(ends[0], best), max(ends[1], best), curve, self.judge.name)

    def _runs(self, count: int, seeds: NDArray[np.int64]) -> Values:
        once = replace(self.settings, n_init=1)
        runs = np.stack([self.judge(count, once, np.random.default_rng(seed)) for seed in seeds])
        if self.progress:
            self.progress(count, self.judge.mean(runs))
        return runs


def _search(score: Callable[[float], float], low: int, high: int) -> None:
    """A coarse grid, then Brent's method between the neighbours of its best point."""
    grid = sorted({round(k) for k in np.geomspace(low, high, _GRID)})
    best = int(np.argmax([score(k) for k in grid]))
    left, right = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    if right - left > 1:
        from scipy.optimize import minimize_scalar  # takes half a second to import

        options = {"maxiter": _SEARCH, "xatol": 0.5}
        minimize_scalar(lambda k: -score(k), bounds=(left, right), method="bounded", options=options)


class _Judge(ABC):
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


class _Accuracy(_Judge):
    """Hungarian accuracy of the labelled rows, by category, when clustering has not seen their labels."""

    name = "accuracy"

    def __init__(self, rows: Rows, known: Tensor) -> None:
        self.rows, self.held = rows, known != UNLABELLED
        self.categories = rows.group.gather(known[self.held]).cpu().numpy()
        self.weights = np.bincount(self.categories).astype(np.float64)

    def __call__(self, k: int, settings: Settings, rng: np.random.Generator) -> Values:
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


class _Silhouette(_Judge):
    """Mean of 1 - (distance to the nearest centre / distance to the next one), over all rows; uses all labels."""

    name = "silhouette"

    def __init__(self, rows: Rows, known: Tensor, n_known: int, solve: Solve = Problem.solve) -> None:
        self.rows, self.known, self.n_known, self.solve = rows, known, n_known, solve
        self.n_free = int(rows.group.sum((known == UNLABELLED).sum()))
        self.weights = np.array([float(rows.total)])

    def __call__(self, k: int, settings: Settings, rng: np.random.Generator) -> Values:
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
