"""Calibration: what held-out labels say of the confidence with which rows are in their clusters.

Half of the labels are held out and clusters are made without them. How likely held-out rows are in their own clusters
sets the temperature. Known clusters hold rows of novel categories too, which no label tells of: but each held-out row
stands for so many unlabelled rows of known categories, and what known clusters hold beyond these is foreign. That is
mostly in a few clusters, which hold a whole novel category beside their own, and can be told by their size.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from selex.cluster.adapt import adapt as fit_adapted
from selex.cluster.assign import (
    Calibration,
    expected_right,
    judge,
    likeliest_temperature,
    log_odds,
    offsets_of,
    unlabelled_sizes,
)
from selex.cluster.distributed.group import ALONE
from selex.cluster.estimate_k import AT_BEST
from selex.cluster.hierarchy import hssk
from selex.cluster.holdout.known_share import MANY, count_by_share
from selex.cluster.holdout.split import halves, known_labels, numbered, present
from selex.cluster.refine import of_one_length, refine_level
from selex.cluster.rows import DEFAULT_MEMORY, Rows, as_rows, count
from selex.cluster.whiten import Whitener, fit_whitener
from selex.errors import Note
from selex.types import SIZED, UNLABELLED, Level, Refinement, Search

_EVEN = 0.02  # standard error of the logarithm of a mean size by the number of clusters, however even sizes are
_APART = 2.0  # standard errors from which on a number of clusters is not one of categories like the known ones
_FARTHEST = 100.0  # log-odds

Values = NDArray[np.float64]


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
    rng: np.random.Generator | int | None = None,
    memory: int = DEFAULT_MEMORY,
) -> Calibration | None:
    """The calibration of confidence, from held-out labels.

    Half of the labels of each category are held out. None where no category has two, or where one cluster is left.

    Args:
        features: `n × d` features: numpy (also memory-mapped) or torch on any device.
        labels: per row a known category `0 … n_known - 1` or -1; None if no row is labelled.
        n_clusters: K, known and novel together.
        search: the search, see `hssk`. Clusters are looked for again in this way if they keep their sizes, or if
            categories have few labels left, five on average; else those of BSSK will do.
        refine: the refinement, see `refine_level`.
        adapt: whether features are adapted, see `cluster.adapt`.
        whitener: a map that was learned without these labels, in place of one that is learned now.
        whiten: how far features are whitened, see `fit_whitener`.
        balanced: limit cluster sizes.
        held_out: labelled rows that had no part in making the features: they are held out instead, but for half of a
            category that would be gone as a whole.
        rng: generator or seed.
        memory: bytes that temporary arrays may take.

    Returns:
        The temperature under which held-out rows are likeliest in their own clusters; and what tells how many rows are
        right in known clusters, so that as many unlabelled rows are expected to be right there as held-out ones say.
    """
    known, seen = known_labels(features, labels, memory), as_rows(features, memory)
    half = halves(known, seen)
    # of a category that is held out as a whole half will do: in the end all are known
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
    return trial.calibration(_rows_of_known(seen, known, n_clusters, balanced, generator))


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
        labelled = np.bincount(known[known != UNLABELLED], minlength=level.n_known)
        self.labelled = rows.group.sum(torch.from_numpy(labelled)).double().numpy()

    def calibration(self, of_known: float | None) -> Calibration:
        """By held-out rows, and the number of unlabelled rows of their categories where something tells it."""
        temperature = likeliest_temperature(self.rows, self.level, self.held_out, self.own)
        if of_known is None:
            return Calibration(temperature)
        group, n_known = self.rows.group, self.level.n_known
        offsets = offsets_of(self.level, self.rows)
        odds = log_odds(judge(self.rows, self.centers, offsets, self.clusters, temperature)[0])
        clusters, own, held_out, free = (
            part.cpu().numpy() for part in (self.clusters, self.own, self.held_out, self.free)
        )
        right = clusters[held_out] == own
        told = clusters[held_out] < n_known
        shift = _likeliest_shift(*(self._gathered(part[told]) for part in (odds[held_out], right)))
        free = free[clusters[free] < n_known]
        found = expected_right(clusters[free], odds[free] + shift, n_known, group)
        share = float(self._gathered(right).mean())
        sizes = unlabelled_sizes(self.labelled, found, (of_known + self.labelled.sum()) / n_known)
        most = _level(found, sizes, share * of_known)
        size = (of_known + self.labelled.sum()) / n_known / self.rows.total
        return Calibration(temperature, *(group.agree(float(value)) for value in (shift, size, most)))

    def _gathered(self, values: NDArray[Any]) -> Values:
        """Those of all processes."""
        return self.rows.group.gather(torch.from_numpy(values.astype(np.float64))).numpy()


def _likeliest_shift(odds: Values, right: Values) -> float:
    """What to add to log-odds so that rows are as often right as they are; a normal deviate beforehand."""
    from scipy.optimize import brentq  # takes half a second to import
    from scipy.special import expit

    return float(brentq(lambda shift: shift - (right - expit(odds + shift)).sum(), -_FARTHEST, _FARTHEST))


def _level(found: Values, sizes: Values, right: float) -> float:
    """The share of its size that a known cluster holds at most, where so many rows are `right` of those `found`."""
    from scipy.optimize import brentq

    if np.minimum(found, sizes).sum() <= right:
        return 1.0
    return float(brentq(lambda share: np.minimum(found, share * sizes).sum() - right, 0, 1))


def _rows_of_known(
    rows: Rows, known: NDArray[Any], n_clusters: int, balanced: bool, rng: np.random.Generator
) -> float | None:
    """How many unlabelled rows are of known categories; None where labels do not tell.

    There are two estimates of the mean size of known categories. That of all categories is near it, and the nearer the
    less their numbers of labels differ. And held-out categories tell the share of known rows, see `known_share`. They
    count by how certain they are; the second alone where the first contradicts it: then clusters are not meant to be
    categories like the known ones.
    """
    labels, n_known = torch.from_numpy(known).to(rows.device), len(present(known[known >= 0], rows.group))
    shares = count_by_share(rows, labels, n_known, balanced, rng)
    if shares is None:
        return None
    labelled = rows.group.sum(count(labels[labels >= 0], n_known)).double().cpu().numpy()
    mean = labelled.mean()
    differ = max(0.0, (labelled.var(ddof=1) - mean) / mean**2) / n_known  # beyond chance
    counts = np.log([n_clusters, shares.n_clusters])
    errors = np.hypot(
        np.sqrt([differ * (1 - n_known / n_clusters), max(0.0, shares.error**2 - differ)]), [_EVEN, AT_BEST]
    )
    weights = errors**-2.0 if abs(counts[0] - counts[1]) <= _APART * np.hypot(*errors) else np.array([0.0, 1.0])
    size = rows.total / np.exp(np.average(counts, weights=weights))
    return rows.group.agree(float(max(size * n_known - labelled.sum(), 1.0)))
