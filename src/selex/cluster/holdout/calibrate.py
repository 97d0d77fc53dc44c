"""Calibration: what held-out labels say of the confidence with which rows are in their clusters.

Half of the labels are held out and clusters are made without them. How likely held-out rows are in their own clusters
sets the temperature. Known clusters hold rows of novel categories too, and no label marks these. But each held-out row
stands for a number of unlabelled rows of known categories, and all other rows of known clusters are novel. Most of them
are in a few known clusters, each of which holds a whole novel category beside its own. So where numbers of labels tell
that categories are of one size, each known cluster has its own limit to how many of its rows can be right.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from selex.cluster.adapt import adapt as fit_adapted
from selex.cluster.assign import SUREST, Calibration, likeliest_temperature, offsets_of, probabilities, sampled
from selex.cluster.distributed.group import ALONE
from selex.cluster.estimate_k import AT_BEST
from selex.cluster.hierarchy import hssk
from selex.cluster.holdout.known_share import MANY, count_by_share
from selex.cluster.holdout.label_counts import alike, as_given
from selex.cluster.holdout.split import halves, known_labels, numbered, present
from selex.cluster.refine import of_one_length, refine_level
from selex.cluster.rows import DEFAULT_MEMORY, Rows, as_rows, count
from selex.cluster.whiten import Whitener, fit_whitener
from selex.errors import Note
from selex.types import SIZED, UNLABELLED, Level, Refinement, Search

_EVEN = 0.02  # least standard error of the logarithm of the mean size that the number of clusters gives
_APART = 2.0  # standard errors between two numbers of categories from which on they contradict each other
_FARTHEST = round(math.log(SUREST / (1 - SUREST)), 1)  # log-odds; those beyond are in the first or last bin
_BINS = round(20 * _FARTHEST)  # of log-odds, a tenth wide
_LEAST_SHARE = 0.01
_BELOW = 0.1  # standard deviation beforehand of how far the share is below 1; that of the shift is 1
_MOST_SHIFT = 8.0
_LEAST = 0.5  # of the mean number of unlabelled rows: no category is taken to have fewer, as sizes are estimates
_HALVINGS = 30

Values = NDArray[np.float64]
Counts = NDArray[np.int64]


def held_out_calibration(
    features: Any,
    labels: Any,
    n_clusters: int,
    *,
    search: Search = "bssk",
    refine: Refinement = "none",
    adapt: bool = False,
    whitener: Whitener | None = None,
    whiten: float = 0.0,
    balanced: bool = True,
    held_out: NDArray[np.bool_] | None = None,
    end: tuple[Any, Level] | None = None,
    rng: np.random.Generator | int | None = None,
    memory: int = DEFAULT_MEMORY,
) -> Calibration | None:
    """The calibration of confidence, from held-out labels.

    Half of the labels of each category are held out. None where no category has two, or where one cluster is left.

    Args:
        features: `n × d` features: numpy (also memory-mapped) or torch on any device.
        labels: per row a known category `0 … n_known - 1` or -1; None if no row is labelled.
        n_clusters: K, known and novel together.
        search: the search, see `hssk`. Clusters without the held-out labels are searched for in the same way if it is
            `"unequal"` or `"smoothed"`, or if fewer than five labels are left in each category, on average; else BSSK
            is enough.
        refine: the refinement, see `refine_level`.
        adapt: whether features are adapted, see `cluster.adapt`.
        whitener: a map that was learned without these labels, in place of one that is learned now.
        whiten: how far features are whitened, see `fit_whitener`.
        balanced: limit cluster sizes.
        held_out: labelled rows that had no part in making the features. They are held out instead; of a category that
            would have no label left, only half of them are.
        end: the rows as they are compared with centres, and the clusters that were found with all labels. With more
            labels rows look surer, but hardly more of them are right, except for those that have moved from a novel
            cluster to a known one.
        rng: generator or seed.
        memory: bytes that temporary arrays may take.

    Returns:
        The temperature under which held-out rows are likeliest in their own clusters; and how confidence in known
        clusters is adjusted, so that as many unlabelled rows are expected to be right there as held-out ones say. It
        can become lower or higher.
    """
    known, seen = known_labels(features, labels, memory), as_rows(features, memory)
    half = halves(known, seen)
    # half of a category that is held out as a whole is given back: in the end every category is known
    held_out = half if held_out is None else held_out & (half | np.isin(known, present(known[~held_out], seen.group)))
    if n_clusters < 2 or seen.group.all(not held_out.any()):
        return None
    generator = np.random.default_rng(rng)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Note)  # of what is held out
        way = _Way(n_clusters, whiten, adapt, search, balanced, memory)
        rows, left, level = way.without(held_out, features, known, generator, whitener)
        if of_one_length(as_rows(rows, memory)):  # too few labels to whiten by may be left
            level = refine_level(rows, left, level, refine, memory)
    if level.n_clusters < 2:
        return None
    trial = _Trial(as_rows(rows, memory), level, known, held_out)
    last = _Trial(as_rows(end[0], memory), end[1], known, held_out) if end else trial
    labelled = _labelled(seen, known)
    return trial.calibration(labelled, _rows_of_known(seen, known, labelled, n_clusters, balanced, generator), last)


@dataclass(frozen=True)
class _Way:
    """A way of clustering."""

    n_clusters: int
    whiten: float
    adapt: bool
    search: Search
    balanced: bool
    memory: int

    def without(
        self,
        held_out: NDArray[np.bool_],
        features: Any,
        known: NDArray[Any],
        rng: np.random.Generator,
        whitener: Whitener | None = None,
    ) -> tuple[Any, NDArray[Any], Level]:
        """Features and labels as if held-out ones were not there, and clusters made of them."""
        group = features.group if isinstance(features, Rows) else ALONE
        left = numbered(np.where(held_out, UNLABELLED, known), group)
        how: dict[str, Any] = {"balanced": self.balanced, "rng": rng, "memory": self.memory}
        if whitener is None:
            whitener = fit_whitener(features, left, self.whiten, self.memory)
            if self.adapt:
                whitener = fit_adapted(features, left, self.n_clusters, whitener, **how)
        rows = whitener(features) if whitener else features
        labelled = group.sum(torch.tensor((left >= 0).sum())) / max(1, len(present(left[left >= 0], group)))
        search: Search = self.search if self.search in SIZED or labelled < MANY else "bssk"
        return rows, left, hssk(rows, left, self.n_clusters, n_levels=1, search=search, **how).levels[0]


class _Trial:
    """Clusters made without some labels, and how often rows are right in them."""

    def __init__(self, rows: Rows, level: Level, known: NDArray[Any], held_out: NDArray[np.bool_]) -> None:
        """All labels, and which of them were held out; every category has kept one."""
        self.rows, self.level = rows, level
        self.centers = torch.as_tensor(level.centers).to(rows.device, rows.dtype) - rows.shift
        self.clusters, self.own = (torch.as_tensor(ids).to(rows.device) for ids in (level.labels, known[held_out]))
        parts = known == UNLABELLED, held_out
        self.free, self.held_out = (torch.from_numpy(np.flatnonzero(part)).to(rows.device) for part in parts)

    def calibration(self, labelled: Counts, of_known: float | None, last: _Trial) -> Calibration:
        """By held-out rows, and by the number of unlabelled rows of known categories, None if nothing tells it.

        `labelled` are the numbers of labels of these; `last` are the clusters whose confidence it is for.
        """
        temperature = likeliest_temperature(self.rows, self.level, self.held_out, self.own)
        if of_known is None:
            return Calibration(temperature)
        found = self.odds(self.free, temperature)
        right = self.odds(self.held_out[self.clusters[self.held_out] == self.own], temperature)
        each = of_known / int(self.rows.group.sum(torch.tensor(len(self.held_out))))  # held-out row stands for so many
        share, shift = _lowered(found.sum(0) / each, right.sum(0))
        as_many = each * right.sum()
        if last is not self:
            found = last.odds(last.free, temperature)
            as_many = min(as_many + each * self.joined(last.clusters), of_known)
            share, shift = _lowered_to(as_many, found.sum(0), share, shift)
        size = (of_known + labelled.sum()) / len(labelled)
        shifts = np.zeros(0)
        if self.rows.group.agree(alike(labelled, size)):
            beforehand = _likeliest_shift(self.odds(self.held_out, temperature).sum(0), right.sum(0))
            free = np.maximum(size - labelled, _LEAST * (size - labelled.mean()))
            shifts = _limited(as_many, found, free, beforehand)
        agree = self.rows.group.agree
        return Calibration(temperature, agree(share), agree(shift), tuple(agree(torch.from_numpy(shifts)).tolist()))

    def joined(self, clusters: Tensor) -> float:
        """How many more held-out rows would be right if they moved from novel clusters to known ones as others did.

        A row that moved counts by how many held-out rows of the known category the novel cluster had for each of its
        unlabelled ones: where there are more clusters than categories, novel clusters hold parts of known categories.
        """
        n_known, group = self.level.n_known, self.rows.group
        sizes = group.sum(count(self.clusters[self.free], self.level.n_clusters))
        pairs, times = torch.unique(group.gather(self.clusters[self.held_out] * n_known + self.own), return_counts=True)
        went = self.free[(self.clusters[self.free] >= n_known) & (clusters[self.free] < n_known)]
        of = self.clusters[went] * n_known + clusters[went]
        place = torch.searchsorted(pairs, of).clamp(max=len(pairs) - 1)
        shares = torch.where(pairs[place] == of, times[place], 0) / sizes[self.clusters[went]]
        return float(group.sum(shares.double().sum()))

    def odds(self, index: Tensor, temperature: float) -> Values:
        """How many of these rows there are in each known cluster and each bin of its log-odds, `(n_known, bins)`."""
        index = index[self.clusters[index] < self.level.n_known]
        some = index[sampled(torch.arange(len(index), device=index.device), self.rows, len(self.centers))]
        of = probabilities(self.rows.at(some), self.centers, offsets_of(self.level, self.rows), temperature)
        odds = of.gather(1, self.clusters[some, None])[:, 0].double().logit().clamp(-_FARTHEST, _FARTHEST)
        bins = ((odds / _FARTHEST + 1) * _BINS / 2).long().clamp(max=_BINS - 1)
        counts = count(self.clusters[some] * _BINS + bins, self.level.n_known * _BINS).double()
        group = self.rows.group
        seen = group.sum(torch.tensor([len(index), len(some)]))
        times = seen[0] / seen[1].clamp(min=1)
        return (group.sum(counts).cpu() * times).reshape(-1, _BINS).numpy()


def _lowered(found: Values, right: Values) -> tuple[float, float]:
    """The likeliest factor of the probability and summand of the log-odds where so many of the rows found are right.

    `found` and `right` are numbers of rows by their log-odds. Rows of novel categories can only make it less likely
    that one is right: the factor is 1 at most, the summand 0. Both are normally distributed beforehand, so that a few
    rows, which do not tell one from the other, change little.
    """
    from scipy.optimize import minimize  # takes half a second to import
    from scipy.special import expit

    odds = _middles()

    def unlikely(x: Values) -> float:
        sure = np.clip(x[0] * expit(odds + x[1]), 1e-9, 1 - 1e-9)
        believed = (((1 - x[0]) / _BELOW) ** 2 + x[1] ** 2) / 2
        return float(believed - (found * np.log1p(-sure) + right * np.log(sure / (1 - sure))).sum())

    share, shift = minimize(unlikely, [0.9, -0.1], bounds=[(_LEAST_SHARE, 1), (-_MOST_SHIFT, 0)]).x
    return float(share), float(shift)


def _lowered_to(right: float, found: Values, share: float, shift: float) -> tuple[float, float]:
    """Factor and summand under which no more rows than `right` are expected to be right, of those `found`.

    Half of what is too much is taken off by the factor, which lowers the surest rows most, and the rest by the summand.
    """
    from scipy.optimize import brentq
    from scipy.special import expit

    def beyond(share: float, shift: float) -> float:
        return float((found * share * expit(_middles() + shift)).sum() - right)

    if (excess := beyond(share, shift)) <= 0:
        return share, shift
    share = max(_LEAST_SHARE, share * float(np.sqrt(right / (right + excess))))
    if beyond(share, -_MOST_SHIFT) >= 0:
        return share, -_MOST_SHIFT
    return share, float(brentq(lambda less: beyond(share, less), -_MOST_SHIFT, shift))


def _likeliest_shift(found: Values, right: Values) -> float:
    """What to add to log-odds so that as many rows are expected to be right as are; normally distributed beforehand."""
    from scipy.optimize import brentq
    from scipy.special import expit

    def gain(shift: float) -> float:
        return float((right - found * expit(_middles() + shift)).sum() - shift)

    return float(brentq(gain, -2 * _FARTHEST, 2 * _FARTHEST))


def _limited(right: float, found: Values, sizes: Values, shift: float) -> Values:
    """What to add to the log-odds of each cluster so that no more rows than `right` are expected to be right in all.

    That is `shift`, or less where more rows of a cluster would be right than a share of its size. The share is 1 at
    most, and the same for all clusters.
    """
    from scipy.optimize import brentq
    from scipy.special import expit

    def expected(shifts: Values) -> Values:
        return np.asarray((found * expit(_middles() + shifts[:, None])).sum(1))

    high = np.full(len(found), shift)
    held, share = expected(high), 1.0
    if np.minimum(held, sizes).sum() > right:
        share = brentq(lambda part: np.minimum(held, part * sizes).sum() - right, 0, 1)
    low = np.where(held > share * sizes, -2 * _FARTHEST, high)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        above = expected(middle) > share * sizes
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return high


def _middles() -> Values:
    """Log-odds in the middle of each bin."""
    return np.linspace(-_FARTHEST, _FARTHEST, 2 * _BINS + 1)[1::2]


def _labelled(rows: Rows, known: NDArray[Any]) -> Counts:
    """How many labels each known category has."""
    own = known[known != UNLABELLED]
    numbers: Counts = rows.group.sum(count(torch.from_numpy(own), len(present(own, rows.group)))).numpy()
    return numbers


def _rows_of_known(
    rows: Rows, known: NDArray[Any], labelled: Counts, n_clusters: int, balanced: bool, rng: np.random.Generator
) -> float | None:
    """How many unlabelled rows are of known categories; None where labels do not tell.

    There are two estimates of the mean size of known categories. The mean size of all categories is near it, and the
    nearer the less their numbers of labels differ. And held-out categories tell the share of known rows, see
    `known_share`. The two are weighted by how certain they are. Where they contradict each other only the second
    counts: then clusters are not meant to be categories like the known ones. But only the first counts if it is larger
    and each category was given the same number of labels: then large categories have too few held-out rows for all
    their unlabelled ones, and the second is too low.
    """
    n_known, mean = len(labelled), labelled.mean()
    shares = count_by_share(rows, torch.from_numpy(known).to(rows.device), n_known, balanced, rng)
    if shares is None:
        return None
    differ = max(0.0, (labelled.var(ddof=1) - mean) / mean**2) / n_known  # beyond chance
    counts = np.log([n_clusters, shares.n_clusters])
    errors = np.hypot(
        np.sqrt([differ * (1 - n_known / n_clusters), max(0.0, shares.error**2 - differ)]), [_EVEN, AT_BEST]
    )
    weights = errors**-2.0
    if abs(counts[0] - counts[1]) > _APART * np.hypot(*errors):
        fewer = counts[0] < counts[1] and as_given(labelled, rows.total / n_clusters)
        weights = np.array([1.0, 0.0] if fewer else [0.0, 1.0])
    size = rows.total / np.exp(np.average(counts, weights=weights))
    return rows.group.agree(float(max(size * n_known - labelled.sum(), 1.0)))
