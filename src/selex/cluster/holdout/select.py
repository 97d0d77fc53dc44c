"""Which way of clustering suits the data: that which recovers categories best whose labels were held out for it.

Several times labels are held out, half of each category and whole categories, and clusters are made of what is left.
Held-out rows show how much of a category is in one cluster, and how large that cluster should be: each stands for some
unlabelled rows. What it holds beyond them is of other categories. Where held-out rows cannot tell two ways apart, the
safer one is taken.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from copy import deepcopy
from itertools import product
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from selex.cluster.adapt import adapt as adapt_to
from selex.cluster.distributed.group import ALONE, Group
from selex.cluster.holdout.label_counts import alike, differ, follow, smaller
from selex.cluster.holdout.split import ENOUGH, UNTOLD, halves, known_labels, numbered, present, wholes
from selex.cluster.kmeans import Problem, Settings, novel_clusters, prepare
from selex.cluster.refine import of_one_length, refined
from selex.cluster.rows import DEFAULT_MEMORY, Rows, as_rows, count
from selex.cluster.search import searched
from selex.cluster.whiten import Whitener, fit_whitener
from selex.errors import Note
from selex.metrics import matched
from selex.types import SIZED, UNLABELLED, Level, Refinement, Search


class Selection(NamedTuple):
    """What recovers held-out categories best: whether features are adapted, how clusters are searched for and refined.

    `whitener` is the map that was learned without the held-out labels, None where features are clustered as they are;
    `right` is what each category adds to the accuracy of the held-out rows, empty where none were held out.
    """

    adapt: bool
    refine: Refinement
    search: Search = "bssk"
    whitener: Whitener | None = None
    right: tuple[float, ...] = ()

    @property
    def settings(self) -> dict[str, str]:
        """The settings that give the same."""
        return {"adapt": "on" if self.adapt else "off", "search": self.search, "refine": self.refine}


SEARCHED: tuple[Search, ...] = ("swaps", "smoothed", "unequal")
"""What to try, the safer first. Clusters whose sizes a search keeps end as they are found, others are refined too."""
REFINED: tuple[Refinement, ...] = (UNTOLD, "none", "balanced")
_DRAWS = 2  # of held-out labels
_MANY = 100_000  # rows; from here on one draw tells enough
_FEW = 4  # known categories; every fourth is held out as a whole
_CHANCE = 0.5  # standard errors by which the best must be ahead of a safer way
_TOLD = 1.0  # and of equal sizes, where numbers of labels speak for them as well
_DIFFER = 2.0  # and of unequal ones, where numbers of labels and sizes of clusters do
W = TypeVar("W")
Scores = dict[W, list[NDArray[np.float64]]]


def select(
    features: Any,
    labels: Any,
    n_clusters: int,
    *,
    adapt: Sequence[bool] = (False,),
    search: Sequence[Search] = SEARCHED,
    refine: Sequence[Refinement] = REFINED,
    whiten: float = 0.0,
    balanced: bool = True,
    held_out: NDArray[np.bool_] | None = None,
    rng: np.random.Generator | int | None = None,
    memory: int = DEFAULT_MEMORY,
    progress: Callable[[int, int], None] | None = None,
) -> Selection:
    """The candidate that recovers held-out categories best; among equals, the first.

    Half of the labels of each category are held out, and all of every fourth category, which has to be discovered:
    twice, with other categories each time. A category's score is its Jaccard index with its cluster, see
    `_Recovery`. Categories held out as a whole together count as much as the others. A candidate equals the best if
    it is behind by no more than half a standard error, categories taken as a random sample. Where numbers of labels
    differ by more than chance and known clusters are larger the more there are, or where known clusters are much
    smaller than novel ones, it is two standard errors for `"unequal"`, which then comes first; where nothing shows that
    sizes differ, `"unequal"` is not tried. Where numbers differ as little as if drawn from categories of one size it is
    a whole one for `"balanced"`, which then comes first. With fewer than twenty held-out rows the first of each is
    chosen; with fewer than four known categories, the first search. Rows of different length are not refined.

    Args:
        features: `n × d` features: numpy (also memory-mapped) or torch on any device.
        labels: per row a known category `0 … n_known - 1` or -1; None if no row is labelled.
        n_clusters: K, known and novel together.
        adapt: whether features are adapted, see `cluster.adapt`: what to try, the safer first.
        search: the searches to try, see `hssk`, the safer first.
        refine: the refinements to try, see `refine_level`, the safer first.
        whiten: how far features are whitened, see `fit_whitener`.
        balanced: limit cluster sizes.
        held_out: labelled rows to hold out, in place of such draws.
        rng: generator or seed.
        memory: bytes that temporary arrays may take.
        progress: called before each step with the steps done and the steps in all.
    """
    known, rows = known_labels(features, labels, memory), as_rows(features, memory)
    data = _Data(features, known, n_clusters, whiten, balanced, memory)
    draws = _draws(known, rows) if held_out is None else [held_out]
    generator, plain = np.random.default_rng(rng), search[0]
    unequal = None
    if n_clusters > 1 and len(search) > 1 and "unequal" in search:
        unequal = _sizes_differ(data, rows.group, deepcopy(generator))
    if unequal is not None:
        rest = [one for one in search if one != "unequal"]
        search = ["unequal", *rest] if unequal else rest
    if n_clusters < 2 or min(int(rows.group.sum(torch.tensor(draw.sum()))) for draw in draws) < ENOUGH:
        return Selection(adapt[0], "none" if unequal and "none" in refine else refine[0], search[0])
    if held_out is None and len(present(known[known >= 0], rows.group)) < _FEW:  # none is held out as a whole
        search = search[:1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Note)  # of what is held out
        tried = _tried(data, list(product(adapt, draws)), search, refine, generator, progress)
        if tried is None:
            return Selection(False, "none", plain)
        found = _best(tried.recovered, data, rows.group, bool(unequal))
    right = tuple(np.mean(tried.right[found], axis=0).tolist())
    return found._replace(whitener=tried.maps[found.adapt], right=right)


class _Data(NamedTuple):
    """What is clustered, and how."""

    features: Any
    known: NDArray[Any]
    n_clusters: int
    whiten: float
    balanced: bool
    memory: int

    def counts(self, group: Group) -> NDArray[np.int64]:
        """Numbers of labels of known categories."""
        return np.bincount(group.gather(torch.from_numpy(self.known[self.known >= 0])).numpy())

    def problem(self, labels: NDArray[Any], whitener: Whitener | None) -> Problem:
        """The problem of the features through a map, where these labels are known."""
        rows, given, n_known = prepare(whitener(self.features) if whitener else self.features, labels, self.memory)
        n_novel = novel_clusters(self.n_clusters, n_known, given, rows)
        return Problem(rows, given, n_known, n_novel, Settings(self.balanced))


class _Tried(NamedTuple):
    """What each way recovers of each category, and sorts right, in each draw; the first map with and without adapting.

    Whoever compares ways takes the first of equals: they are in the order in which they were tried.
    """

    recovered: Scores[Selection]
    right: Scores[Selection]
    maps: dict[bool, Whitener | None]


def _tried(
    data: _Data,
    steps: Sequence[tuple[bool, NDArray[np.bool_]]],
    searches: Sequence[Search],
    refinements: Sequence[Refinement],
    rng: np.random.Generator,
    progress: Callable[[int, int], None] | None,
) -> _Tried | None:
    """All ways, with the held-out rows of each step; None where rows differ in length and nothing can be refined."""
    tried = _Tried({}, {}, {})
    for done, (adapted, held_out) in enumerate(steps):
        trial = _Trial(data, held_out, adapted, rng)
        if not trial.soft:
            return None
        tried.maps.setdefault(adapted, trial.whitener)
        for number, search in enumerate(searches):
            if progress:
                progress(done * len(searches) + number, len(steps) * len(searches))
            if adapted and number and search in SIZED:  # such rows have drawn together as it is
                continue
            for refine, (right, recovered) in trial.search(search, refinements, rng).items():
                way = Selection(adapted, refine, search)
                tried.right.setdefault(way, []).append(right)
                tried.recovered.setdefault(way, []).append(recovered)
    return tried


def _best(scores: Scores[Selection], data: _Data, group: Group, unequal: bool = False) -> Selection:
    """The safest of the ways that are as good as the best, the same in all processes."""
    ways, size = list(scores), float(group.sum(torch.tensor(len(data.known)))) / data.n_clusters
    told = {way: _DIFFER for way in ways if unequal and way.search == "unequal"}
    if alike(data.counts(group), size):
        told |= {way: _TOLD for way in ways if way.refine == "balanced"}
    first = sorted(ways, key=lambda way: (way.adapt != ways[0].adapt, way not in told))
    found = safest({way: scores[way] for way in first}, lambda way: told.get(way, _CHANCE))
    return ways[group.agree(ways.index(found))]


def _sizes_differ(data: _Data, group: Group, rng: np.random.Generator) -> bool | None:
    """Whether sizes of categories differ; None where nothing tells.

    They do where known clusters are much smaller than novel ones, and where numbers of labels differ by more than
    chance and known clusters of either search hold more rows the more there are; it is taken that they do not where
    numbers and clusters show nothing of the kind.
    """
    counts = data.counts(group)
    if len(counts) < _FEW:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Note)
        problem = data.problem(data.known, fit_whitener(data.features, data.known, data.whiten, data.memory))
    found = searched(problem, "unequal", deepcopy(rng))
    if smaller(problem, found):
        return True
    if not group.agree(differ(counts)):
        return False
    return follow(problem, found) or follow(problem, searched(problem, "swaps", rng)) or None


def _draws(known: NDArray[Any], rows: Rows) -> list[NDArray[np.bool_]]:
    half = halves(known, rows)
    return [half | wholes(known, draw) for draw in range(_DRAWS if rows.total <= _MANY else 1)]


def safest(scores: Scores[W], errors: Callable[[W], float] = lambda way: 1.0) -> W:
    """The first way that is behind the best by no more than so many standard errors.

    `scores` holds for each draw of held-out labels what each category adds.
    """
    best = max(scores, key=lambda way: sum(float(draw.sum()) for draw in scores[way]))
    for way, draws in scores.items():
        behind = np.sum([ahead - draw for ahead, draw in zip(scores[best], draws, strict=True)], axis=0)
        if behind.sum() <= errors(way) * np.sqrt(np.square(behind - behind.mean()).sum()):
            return way
    return best


class _Trial:
    """Features as if some labels were not there, and how well each way sorts the rows that had them."""

    def __init__(self, data: _Data, held_out: NDArray[np.bool_], adapted: bool, rng: np.random.Generator) -> None:
        features, known, memory = data.features, data.known, data.memory
        group = features.group if isinstance(features, Rows) else ALONE
        left = numbered(np.where(held_out, UNLABELLED, known), group)
        self.whitener = fit_whitener(features, left, data.whiten, memory)
        if adapted:
            how: dict[str, Any] = {"balanced": data.balanced, "rng": rng, "memory": memory}
            self.whitener = adapt_to(features, left, data.n_clusters, self.whitener, **how)
        self.problem = data.problem(left, self.whitener)
        self.held_out, self.n_known = held_out, int(group.gather(torch.tensor([known.max()])).max()) + 1
        self.truth = group.gather(torch.from_numpy(known[held_out])).numpy()
        left_over = present(known[(known >= 0) & ~held_out], group)
        self.weights = _weights(self.truth, np.isin(self.truth, left_over))
        labelled = np.bincount(group.gather(torch.from_numpy(known[known >= 0])).numpy(), minlength=self.n_known)
        self.recovery = _Recovery(self.truth, labelled, np.isin(np.arange(self.n_known), left_over))
        self.soft = of_one_length(self.problem.rows)

    def search(
        self, search: Search, refinements: Sequence[Refinement], rng: np.random.Generator
    ) -> dict[Refinement, tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """What each category adds to the accuracy, and to what is recovered, with each refinement of one search."""
        if search in SIZED and "none" in refinements:
            refinements = ("none",)
        start = searched(self.problem, search, rng)
        return {one: self._scores(refined(self.problem.rows, self.problem.known, start, one)) for one in refinements}

    def _scores(self, level: Level) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        labels, group = torch.as_tensor(level.labels).cpu(), self.problem.rows.group
        found = group.gather(labels[torch.from_numpy(self.held_out)]).numpy()
        free = labels[self.problem.free_index.cpu()]
        sizes = group.sum(count(free, self.problem.k)).cpu().numpy()
        hit = matched(self.truth, found)
        right = np.bincount(self.truth, np.where(hit, self.weights, 0.0), minlength=self.n_known)
        recovered = self.recovery(found, hit, sizes) * np.bincount(self.truth, self.weights, minlength=self.n_known)
        return right.astype(np.float64), recovered


class _Recovery:
    """How far held-out categories are recovered: the Jaccard index of each with the cluster that is matched with it.

    A held-out row stands for rows of its category that never had a label as well: as many as there are, in the usual
    known cluster of what was found first, for a held-out row of it. So a cluster is known to hold others.
    """

    def __init__(self, truth: NDArray[Any], labelled: NDArray[Any], still: NDArray[np.bool_]) -> None:
        """The category of each held-out row; of each category the number of labels, and whether some were left."""
        self.truth, self.still = truth, still
        self.held_out = np.bincount(truth, minlength=len(labelled)).astype(np.float64)
        self.share = np.where(self.held_out > 0, self.held_out / np.maximum(labelled, 1), 1.0)
        self.unlabelled: float | None = None  # rows for each labelled one

    def __call__(self, found: NDArray[Any], hit: NDArray[np.bool_], sizes: NDArray[Any]) -> NDArray[np.float64]:
        """The index of each category, 0 where none is held out; `sizes` are those of clusters, labelled rows aside."""
        own = np.bincount(self.truth[hit], minlength=len(self.held_out)).astype(np.float64)
        cluster = np.zeros(len(own), dtype=np.int64)
        cluster[self.truth[hit]] = found[hit]
        if self.unlabelled is None:
            told = (own > 0) & self.still
            others = (sizes[cluster] / np.maximum(own, 1) - 1) * self.share
            self.unlabelled = float(np.median(others[told])) if told.any() else np.inf
        if np.isinf(self.unlabelled):  # nothing tells how large a cluster should be
            return own / np.maximum(self.held_out, 1)
        stands = 1 + self.unlabelled / self.share
        foreign = np.where(own > 0, np.maximum(sizes[cluster] - own * stands, 0), 0)
        return own * stands / np.maximum(self.held_out * stands + foreign, 1)


def _weights(truth: NDArray[Any], seen: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Weights of held-out rows: those of categories held out as a whole count as much in all as the others."""
    kinds = [kind for kind in (seen, ~seen) if kind.any()]
    weights = np.zeros(len(truth))
    for kind in kinds:
        weights[kind] = 1 / (len(kinds) * kind.sum())
    return weights
