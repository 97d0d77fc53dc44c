"""How large known categories are, unlabelled rows included, and so how many categories there would be of that size.

Which unlabelled rows belong to known categories nobody knows, but how many do can be estimated: labelled rows that
are held out show how rows of known categories look to a clustering, and categories held out as a whole show how novel
rows look. Unlabelled rows are a mixture of the two. n rows, d dims, k clusters, c known categories, s bins of scores,
b of nearness.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from selex.cluster.kmeans import Problem, Settings
from selex.cluster.rows import Rows
from selex.cluster.whiten import fit_whitener
from selex.types import UNLABELLED

_FOLDS = 4  # of every so many categories one is held out as a whole, and of so many labels of each other one, or of all
_DIMS = 128  # leading principal components are enough to tell, and quick
_ROWS = 20_000  # unlabelled ones, and labelled ones, at most; shares need no more
_WHITEN = 0.5
QUICK = 5
"""Iterations of clusterings that only need to tell counts apart."""
MANY = 5
"""Labels of a category from which on more of them change little."""
_QUARTILES = (0.25, 0.5, 0.75)
_RESAMPLES = 200
_ROUNDS = 200  # of expectation-maximisation
# Clusters for each category, one after the other: too many do less harm than too few. Other folds tell something else.
_FINER = ((2.0,), (1.25, 1.5, 1.25, 1.5))
_SELDOM = 0.5**0.5  # rows, the standard error of a number of mistakes of which none was seen (Jeffreys' prior)
_WEIGHTS = (0.25, 4.0)  # least and most that a row that is held out counts

Values = NDArray[np.float64]


class Count(NamedTuple):
    """How many categories there are by the share of known ones."""

    n_clusters: float  # the estimate
    error: float  # standard error of its logarithm
    rows: Rows  # a sample of the rows along their leading principal components, whitened by all labels
    known: Tensor  # the labels of these, one of each known category at least
    weight: tuple[float, float] = (1.0, 1.0)  # for how many rows each labelled and each unlabelled one stands


class _Fold(NamedTuple):
    """What one fold saw of every row: how novel it looks, how near known categories a novel one there would be.

    Its own category or the nearest one left, what it counts; which rows were held out and which of these with their
    whole category; which categories kept labels.
    """

    score: Values
    near: Values
    own: NDArray[np.int64]
    weights: Values
    held_out: NDArray[np.bool_]
    whole: NDArray[np.bool_]
    left: NDArray[np.bool_]


@dataclass(frozen=True)
class _Tables:
    """Rows of a fold by category and by bin of their score and nearness, `(c, s, b)`; 0 where a category is absent.

    `free` has unlabelled rows by the known category that is nearest; `left` says which categories kept labels.
    """

    held_out: Values
    whole: Values
    free: Values
    left: NDArray[np.bool_]


def places(labels: NDArray[np.int64], rows: Rows) -> NDArray[np.int64]:
    """Place of each row among those of its label, in an order by what rows hold and not by where they stand."""
    order = rows.by_content().cpu().numpy()
    order = order[np.argsort(labels[order], kind="stable")]
    sizes = np.unique(labels, return_counts=True)[1]
    place = np.empty(len(labels), dtype=np.int64)
    place[order] = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return place


def count_by_share(rows: Rows, known: Tensor, n_known: int, balanced: bool, rng: np.random.Generator) -> Count | None:
    """How many categories there are if novel ones are as large as known ones, on average.

    None where labels do not tell: fewer than two categories, none with two labels, or so few that no fold has both.
    """
    labels = rows.group.gather(known).cpu().numpy()
    sample, weight = _sample(labels, rng)
    labels = labels[sample]
    if n_known < 2 or not (labels == UNLABELLED).any() or np.bincount(labels + 1)[1:].max() < 2:
        return None
    some = Rows(_leading(rows.here(torch.from_numpy(sample).to(rows.device))), rows.memory)
    look = _Look(some, labels, n_known, weight, balanced)
    counts = look.counts((None,), rng)
    for finer in _FINER:
        if len(counts):
            most = max(n_known + 1, some.n // 3)
            counts = look.counts([int(np.clip(more * counts[0], n_known + 1, most)) for more in finer], rng)
    if not len(counts):
        return None
    error = look.error(counts)
    known = torch.from_numpy(labels).to(some.device)
    return Count(max(float(counts[0]), n_known), error, _whitened(some, labels), known, weight)


def _whitened(rows: Rows, labels: NDArray[np.int64]) -> Rows:
    """Rows whitened by these labels."""
    data = rows.take(slice(None))
    whitener = fit_whitener(data, labels, _WHITEN, rows.memory)
    return Rows(whitener(data) if whitener else data, rows.memory)


def _sample(labels: NDArray[np.int64], rng: np.random.Generator) -> tuple[NDArray[np.int64], tuple[float, float]]:
    """Rows to look at, with each known category; how many rows each labelled and each other one of them stands for."""
    parts, weights = [], []
    for part in (np.flatnonzero(labels != UNLABELLED), np.flatnonzero(labels == UNLABELLED)):
        kept = part
        if len(part) > _ROWS:
            order = rng.permutation(part)
            first = np.unique(labels[order], return_index=True)[1]
            kept = np.sort(np.concatenate([order[first], np.delete(order, first)])[: max(_ROWS, len(first))])
        parts.append(kept)
        weights.append(len(part) / max(len(kept), 1))
    return np.concatenate(parts), (weights[0], weights[1])


def _leading(rows: Rows) -> Tensor:
    """The rows along their leading principal components."""
    if rows.d <= _DIMS:
        return rows.take(slice(None)).float()
    total = torch.zeros(rows.d, rows.d, dtype=torch.float64, device=rows.device)
    mean = sum(x.sum(0, dtype=torch.float64) for _, x in rows.blocks(rows.d)) / rows.n
    for _, x in rows.blocks(rows.d):
        away = x - torch.as_tensor(mean).to(x)
        total += (away.T @ away).double()
    axes = torch.linalg.eigh(total)[1][:, -_DIMS:].to(rows.dtype)
    return torch.cat([x @ axes for _, x in rows.blocks(rows.d)]).float()


@dataclass(frozen=True)
class _Look:
    """Rows, their labels, and for how many rows each labelled and each unlabelled one stands."""

    rows: Rows
    labels: NDArray[np.int64]
    n_known: int
    weight: tuple[float, float]
    balanced: bool

    def counts(self, ks: Sequence[int | None], rng: np.random.Generator) -> Values:
        """The estimate and resampled ones, from so many clusters; from distances to known categories alone where None.

        Resampled ones may be below the number of known categories: how far they spread is what they are for. None at
        all where labels are so few that no fold holds out both some of a category and all of another.
        """
        folds = [self._tables([self._fold(*parts, k, rng) for parts in self._folds(rng)]) for k in ks]
        draws = rng.multinomial(self.n_known, np.full(self.n_known, 1 / self.n_known), size=_RESAMPLES)
        times = np.concatenate([np.ones((1, self.n_known)), draws])
        if not any(fold.held_out.any() for fold in folds[0]):
            return np.zeros(0)
        with np.errstate(divide="ignore", invalid="ignore"):  # a draw may lack all categories of a fold
            counts: Values = self.total / self._sizes(folds, times)
        finite = np.isfinite(counts)
        return counts[finite] if finite[0] and finite.sum() > 2 else np.zeros(0)

    def error(self, counts: Values) -> float:
        """Standard error of the logarithm of the first of `counts`, the others being of resampled categories.

        Where no held-out row is mistaken resampling sees no error: how seldom that may be has its own.
        """
        n_labelled = int((self.labels != UNLABELLED).sum())
        mistaken = _SELDOM / n_labelled * self.weight[1] * (len(self.labels) - n_labelled)
        known_rows = self.n_known * self.total / counts[0]
        resampled = np.log(counts[1:]).std() * np.sqrt(self.n_known / (self.n_known - 1))
        return float(np.hypot(resampled, mistaken / known_rows))

    @property
    def total(self) -> float:
        """All rows that these stand for."""
        return float(np.where(self.labels == UNLABELLED, self.weight[1], self.weight[0]).sum())

    def _folds(self, rng: np.random.Generator) -> Iterator[tuple[NDArray[np.bool_], NDArray[np.bool_]]]:
        """Rows of categories that are held out as a whole, and held-out rows of the others: of each that has two."""
        folds = min(_FOLDS, self.n_known)
        fold_of = rng.permutation(self.n_known) % folds
        labelled = self.labels != UNLABELLED
        place = places(self.labels, self.rows)
        parts = np.clip(np.bincount(self.labels[labelled], minlength=self.n_known), 1, folds)[self.labels]
        for fold in range(folds):
            whole = labelled & (fold_of[self.labels] == fold)
            yield whole, labelled & ~whole & (parts > 1) & ((place + self.labels - fold) % parts == 0)

    def _fold(
        self, whole: NDArray[np.bool_], held_out: NDArray[np.bool_], k: int | None, rng: np.random.Generator
    ) -> _Fold:
        kept = np.where(whole | held_out, UNLABELLED, self.labels)
        ids, numbers = np.unique(np.append(kept, UNLABELLED), return_inverse=True)
        left, free = numbers[:-1] - 1, self.labels == UNLABELLED
        score, nearest, near = self._scores(left, len(ids) - 1, k, rng)
        own = np.where(free, ids[1:][nearest], self.labels)
        weights = np.ones(len(score))
        weights[held_out] = self._as_known(kept, held_out)
        weights[free] = self.weight[1]
        return _Fold(score, near, own, weights, held_out, whole, np.isin(np.arange(self.n_known), ids[1:]))

    def _tables(self, folds: list[_Fold]) -> list[_Tables]:
        """With the same bins in all folds, so that they can be added: few labels do not tell in each fold."""
        score, near = self._edges(folds)
        shape = self.n_known, len(score) + 1, len(near) + 1

        def table(fold: _Fold, part: NDArray[np.bool_]) -> Values:
            bins = np.searchsorted(score, fold.score[part]), np.searchsorted(near, fold.near[part])
            where = np.ravel_multi_index((fold.own[part], *bins), shape)
            counts: Values = np.bincount(where, fold.weights[part], minlength=int(np.prod(shape))).astype(np.float64)
            return counts.reshape(shape)

        free = self.labels == UNLABELLED
        return [_Tables(table(one, one.held_out), table(one, one.whole), table(one, free), one.left) for one in folds]

    def _edges(self, folds: list[_Fold]) -> tuple[Values, Values]:
        """Between bins of scores, by held-out rows of both kinds, and of nearness, by rows of whole categories.

        Of two categories one is left in each fold: how near it others are has nothing to be compared with.
        """
        held_out, whole = (
            np.concatenate([fold.score[getattr(fold, part)] for fold in folds]) for part in ("held_out", "whole")
        )
        near = np.concatenate([fold.near[fold.whole] for fold in folds])
        scores = [np.quantile(part, _QUARTILES) for part in (held_out, whole) if len(part)]
        return np.unique(scores), np.unique(np.quantile(near, _QUARTILES)) if self.n_known > 2 else np.zeros(0)

    def _as_known(self, kept: NDArray[np.int64], held_out: NDArray[np.bool_]) -> Values:
        """What held-out rows count, so that their categories have kept as many labels as those of known rows have.

        A label can be held out where another one is left, so categories with few labels have too few held-out rows,
        and theirs look most like novel ones. Of how large a category is its labels tell as much as their numbers differ
        by more than chance (Poisson's).
        """
        labels, left = (np.bincount(part[part >= 0], minlength=self.n_known) for part in (self.labels, kept))
        told = max(1 - labels.mean() / max(labels.var(), 1e-9), 0.0)
        sizes = labels.mean() + told * (labels - labels.mean())
        few = np.minimum(left, MANY)
        wanted = np.bincount(few, sizes * (left > 0), minlength=MANY + 1)
        there = np.bincount(few[self.labels[held_out]], minlength=MANY + 1)
        times = np.clip(wanted * there.sum() / np.maximum(wanted[there > 0].sum() * there, 1e-9), *_WEIGHTS)
        weights: Values = times[few[self.labels[held_out]]]
        return weights / weights.mean() if len(weights) else weights

    def _scores(
        self, left: NDArray[np.int64], n_left: int, k: int | None, rng: np.random.Generator
    ) -> tuple[Values, NDArray[np.int64], Values]:
        """Of every row: how novel it looks, the known category nearest to it, how near known ones a novel one is."""
        rows, known = _whitened(self.rows, left), torch.from_numpy(left).to(self.rows.device)
        n_novel = max(k - n_left, 1) if k else 0
        problem = Problem(rows, known, n_left, n_novel, Settings(self.balanced, n_iter=QUICK))
        if not k:
            nearest, distance = rows.nearest(problem.mass / problem.counts[:, None])
            return distance.double().cpu().numpy(), nearest.cpu().numpy(), np.zeros(rows.n)
        centers = torch.as_tensor(problem.solve(rng).centers)
        nearest, to_known = rows.nearest(centers[:n_left])
        other, to_novel = rows.nearest(centers[n_left:])
        near = torch.cdist(centers[n_left:], centers[:n_left]).min(1).values[other]
        return (to_known - to_novel).double().cpu().numpy(), nearest.cpu().numpy(), near.double().cpu().numpy()

    def _sizes(self, ways: list[list[_Tables]], times: Values) -> Values:
        """Mean size of known categories, each counted so many `times`, `(draws, c)`; folds of one way are added."""
        labelled = self.weight[0] * np.bincount(self.labels[self.labels >= 0], minlength=self.n_known)
        total, number = np.zeros(len(times)), np.zeros(len(times))
        for folds in ways:
            known, novel = (
                np.tensordot(times, np.sum([getattr(fold, part) for fold in folds], 0), 1)
                for part in ("held_out", "whole")
            )
            belongs = _mixture(known, novel, sum(fold.free.sum(0) for fold in folds))
            for fold in folds:
                sizes = (labelled + np.tensordot(belongs, fold.free, ((1, 2), (1, 2)))) * fold.left
                total += (times * sizes).sum(1)
                number += times @ fold.left
        return total / np.maximum(number, 1)


def _mixture(known: Values, novel: Values, mixed: Values) -> Values:
    """How likely a row of each bin is one of known categories, `(draws, s, b)`: expectation-maximisation of the share.

    Novel categories may be nearer to known ones than those that were held out, or farther: how many of their rows are
    as near is estimated with the share. Rows that are as near have scores as held-out categories have there.
    """
    known, novel = (part + 0.5 / mixed.size for part in (known, novel))  # half a row more: nothing is impossible
    known, there = known / known.sum((1, 2), keepdims=True), novel / novel.sum(1, keepdims=True)
    near = novel.sum(1, keepdims=True) / novel.sum((1, 2), keepdims=True)
    mixed, share, tiny = mixed / mixed.sum(), np.full((len(known), 1, 1), 0.5), np.finfo(float).tiny
    for _ in range(_ROUNDS):
        belongs: Values = share * known / np.maximum(share * known + (1 - share) * near * there, tiny)
        rest = (1 - belongs) * mixed
        share = (belongs * mixed).sum((1, 2), keepdims=True)
        near = rest.sum(1, keepdims=True) / np.maximum(rest.sum((1, 2), keepdims=True), tiny)
    return belongs
