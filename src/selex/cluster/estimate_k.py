"""How many categories are there, when nobody knows? From held-out labels, or by trying counts and scoring each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from selex.cluster.holdout.known_share import QUICK, Count, count_by_share
from selex.cluster.holdout.uneven import Novel, novel_if_uneven
from selex.cluster.kmeans import Problem, Settings, note, prepare
from selex.cluster.rows import DEFAULT_MEMORY, Rows
from selex.cluster.score_k import Accuracy, Judge, Silhouette, Values
from selex.cluster.search.swaps import swapped
from selex.errors import InputError
from selex.types import KEstimate, Level

Method = Literal["auto", "combined", "accuracy", "silhouette"]
_GRID = 8  # counts tried first, evenly in their logarithm
_SEARCH = 10  # counts tried by Brent's method after that
_LEVEL = 0.9  # of the probability is in the interval
_FEW = 3  # degrees of freedom of an interval, at least
_WIDE = 0.98  # of what shares make likely is where silhouettes are compared
_TRIED = 12  # counts whose silhouettes are compared there
_CURVED = 3  # degree of the curve through them: single clusterings are noisy
_CLEAR = 0.5  # silhouette from which on clusters are so clear that there is no noise to speak of
_BESIDE = 5.0  # what the logarithm of a silhouette counts beside that of a likelihood
_LOWEST = -1.5  # but no more than so much, unless clusters are clear: silhouettes do not know what labels mean
_POINTS = 200  # counts whose likelihood is worked out, at most
_VAGUE = 0.35  # standard error of a logarithm from which on it may be chance that no category seems novel
_FAR = 2  # a median of more than so many times the likeliest count only says how little is known
AT_BEST = 0.06
"""Standard error of the logarithm of a count by shares that no number of labels goes below."""


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
        max_clusters: the highest count to allow: an estimate above is cut off there. By default no more than half the
            rows, and where counts are tried no more than five times the known categories or `2 √n`, whichever is more.
        method: `"combined"` holds out labels and whole categories, learns from them how rows of known and of novel
            categories look to a clustering, and so which share of the rows belongs to known categories: if novel ones
            are as large on average, that tells how many there are. Silhouettes of the counts that this makes likely
            can shift the estimate. Where sizes differ, how uneven novel clusters are counts as well, the more the less
            sure that mean is. The others try counts, first on a coarse grid, then by Brent's method.
            `"accuracy"` clusters without the labels and scores how well clusters match the categories of the
            labelled rows (Vaze et al.); ties are broken by the silhouette. `"silhouette"` clusters with all
            labels and scores how much nearer rows are to their own centre than to the next; it needs no labels.
            `"auto"` is combined if two categories are labelled, one of them with two rows, else silhouette.
        balanced: balance cluster sizes; off for long tails.
        n_init: clusterings for each count that is tried, whose scores are averaged.
        rng: generator or seed.
        memory: bytes that temporary arrays may take.
        progress: called with each count and its score; NaN for clusters that only tell how uneven sizes are.

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
            free = limits[0], max(limits[1], rows.total // 2)  # a limit does not tell how many there are
            found = _clipped(_combined(count, n_known, free, balanced, generator, progress), *limits)
            _tell_of_limits(found.n_clusters, *limits)
            return _agreed(found, rows)
        if method == "combined":
            need = "two labelled categories, one of them with two labels, and unlabelled rows"
            raise InputError(f"method 'combined' needs {need}; use 'silhouette'")
        limits = _limits(rows.total, n_known, max_clusters, tried=True)
    if method == "accuracy" and n_known < 2:
        raise InputError(f"method 'accuracy' needs two labelled categories, there are {n_known}; use 'silhouette'")
    judge = Accuracy(rows, known) if method == "accuracy" else Silhouette(rows, known, n_known)
    return _agreed(_Tries(judge, settings, generator, progress).best(*limits), rows)


def _agreed(found: KEstimate, rows: Rows) -> KEstimate:
    """The same in every process."""
    agree = rows.group.agree
    return replace(found, n_clusters=agree(found.n_clusters), low=agree(found.low), high=agree(found.high))


def _limits(n: int, n_known: int, asked: int | None, tried: bool) -> tuple[int, int]:
    """Lowest and highest count."""
    low = min(max(n_known, 2), n)
    if asked is not None and not low <= asked <= n:
        raise InputError(f"the highest count must lie between {low} and the {n} rows, not be {asked}")
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
    """What shares make likely, Student's in the logarithm as few categories tell little, and silhouettes beside it.

    The likeliest count where that is a limit, else the median. Where labels hardly tell, what shares alone say if that
    is less than the median, which then only says how little is known, and at least one novel category: that none is
    novel may be likeliest by chance. Where sizes differ, the estimate moves by how uneven novel clusters are.
    """
    from scipy.stats import t as student  # takes a second to import

    error = float(np.hypot(count.error, AT_BEST))
    shares = student(n_known - 1, np.log(count.n_clusters), error)
    ends = np.clip(np.exp(shares.interval(_WIDE)), *limits)
    judge = Silhouette(count.rows, count.known, n_known, _solve)
    silhouette = _silhouettes(judge, ends, balanced, rng, progress)
    ks = np.unique(np.geomspace(ends[0], ends[1], _POINTS).round().astype(int))
    likely = shares.logpdf(np.log(ks)) + silhouette(np.log(ks))
    likely = np.exp(likely - likely.max())
    low, best, high = _percentiles(ks, likely)
    likeliest = int(ks[likely.argmax()])
    vague = error > _VAGUE and (best > _FAR * likeliest or likeliest == limits[0] < best)
    if vague:
        note("labels hardly tell how many categories are novel, if any")
        best = int(ks[np.searchsorted(ks, min(max(round(count.n_clusters), n_known + 1), best))])
    elif likeliest in limits:  # a median close to a limit would hide that it is one
        best = likeliest
    alone = student(max(n_known - 1, _FEW), np.log(count.n_clusters), float(np.hypot(error, _one_more(count, n_known))))
    ends = np.exp(alone.interval(_LEVEL))  # silhouettes do not know what labels mean: this stays
    low, high = min(low, best, int(ends[0])), max(high, best, int(np.ceil(ends[1])))
    curve = tuple((int(k), float(score)) for k, score in zip(ks, likely, strict=True))
    found = KEstimate(best, low, high, curve, "combined")
    novel = novel_if_uneven(count, best - n_known, balanced, rng, progress)
    return _moved(found, novel, n_known) if novel else found


def _moved(found: KEstimate, novel: Novel, n_known: int) -> KEstimate:
    """The estimate moved to another number of novel categories, in proportion with its curve.

    The lower end of its interval moves down as far as clusters alone tell, the upper one stays; both estimates are in
    it.
    """

    def at(k: int, number: float) -> int:
        return round(n_known + max(k - n_known, 0) * number / (found.n_clusters - n_known))

    best, curve = at(found.n_clusters, novel.likely), tuple((at(k, novel.likely), score) for k, score in found.curve)
    low = min(found.low, at(found.low, novel.by_clusters))
    return KEstimate(best, low, max(found.high, best), curve, found.method)


def _clipped(found: KEstimate, low: int, high: int) -> KEstimate:
    """The estimate within limits; of points of its curve that have become one the best stays."""

    def at(k: int) -> int:
        return min(max(k, low), high)

    scores = {at(k): score for k, score in sorted(found.curve, key=lambda point: point[1])}
    return KEstimate(at(found.n_clusters), at(found.low), at(found.high), tuple(sorted(scores.items())), found.method)


def _one_more(count: Count, n_known: int) -> float:
    """What the logarithm of the mean size might change by with one more category: it may be as large as the largest.

    A few categories do not tell how large others may be.
    """
    labelled = count.known[count.known >= 0].bincount(minlength=n_known).double()
    return float(labelled.max() / labelled.sum())


def _silhouettes(
    judge: Silhouette,
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


def _percentiles(ks: NDArray[np.int64], likely: Values) -> tuple[int, int, int]:
    """5th, 50th and 95th percentile of counts that are so likely, evenly in their logarithm."""
    if len(ks) < 2:
        return int(ks[0]), int(ks[0]), int(ks[0])
    total = np.cumsum(likely * np.gradient(np.log(ks)))
    low, middle, high = ks[np.searchsorted(total / total[-1], (0.05, 0.5, 0.95)).clip(max=len(ks) - 1)].tolist()
    return low, middle, high


def _tell_of_limits(best: int, low: int, high: int) -> None:
    """An end of the range is no estimate."""
    if best == high > low:
        note(f"{best} categories, the highest count allowed: there may be more")
    elif best == low < high:
        note(f"{best} categories, the lowest count, did best: features may not tell the others apart")


@dataclass(frozen=True)
class _Tries:
    """Counts that are tried one after the other."""

    judge: Judge
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
