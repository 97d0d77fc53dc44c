"""How many categories there are where sizes differ: clusters show whether novel ones are as uneven as known ones.

That novel categories are as large as known ones, on average, cannot be relied on if there are few and one holds half of
the rows: it may be known or novel. But large categories are found as clusters, and over how many of equal size rows
are spread in effect (the exponential of the entropy of their shares) depends little on small ones, which nobody can
count.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from math import nan
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from selex.cluster.holdout.known_share import Count
from selex.cluster.holdout.label_counts import differ, follow
from selex.cluster.kmeans import Problem, Settings
from selex.cluster.search import searched
from selex.errors import Note

_ERROR = 0.2  # standard error of the logarithm of a count by effective numbers: clusters are not categories
_OFF = 2  # more than so many times as many, as few or as unsure is taken for more than chance


class Novel(NamedTuple):
    """How many novel categories there are where sizes differ: likely, and by clusters alone."""

    likely: float
    by_clusters: float


def novel_if_uneven(
    count: Count,
    by_size: int,
    balanced: bool,
    rng: np.random.Generator,
    progress: Callable[[int, float], None] | None = None,
) -> Novel | None:
    """How many novel categories there are if they are as uneven as known ones, given how many `by_size`, the mean one.

    A very large category that is known makes the mean too large and the known ones too uneven, one that is novel the
    reverse. So two numbers of novel categories are averaged in their logarithm, each by how sure it is: the one by
    size, and the effective number of novel clusters times how many known categories there are for each in effect, by
    their labels. If clusters tell of far fewer than were asked for, novel ones are more uneven than known ones, or one
    is cut up: then the mean of as many known categories as there are may be far less sure than they themselves show,
    and if that would be more than twice as unsure, it is. Too many clusters cut a large category up, and too few show
    no small ones: where the second number is less than half or more than twice the novel clusters that were asked for,
    the search is repeated for as many as the average gives, and both are averaged.

    None where by size no category is novel, where numbers of labels do not differ by more than chance or sizes of
    clusters do not follow them, and where there are too many clusters to search for unequal ones.
    """
    from selex.cluster.search.smoothed import can_smooth  # imports scipy.sparse

    labels = count.known[count.known >= 0].bincount().cpu().numpy()
    n_known, n_free = len(labels), int((count.known < 0).sum())
    n_novel = min(by_size, n_free)
    if by_size < 1 or not differ(labels):
        return None

    def by_clusters(asked: int) -> float | None:
        if not can_smooth(count.rows.total, n_known + asked):
            return None
        sizes = _sizes_of_novel(count, n_known, asked, balanced, rng)
        if progress:
            progress(n_known + asked, nan)
        return None if sizes is None else n_known * effective_number(sizes) / effective_number(labels)

    found = by_clusters(n_novel)
    if found is None:
        return None
    implied = (max(n_novel / found - 1, 0.0) / effective_number(labels)) ** 0.5
    error = implied if implied > _OFF * count.error else count.error
    sure = _ERROR**2 / (_ERROR**2 + error**2)

    def average(other: float) -> float:
        return float(by_size**sure * other ** (1 - sure))

    likely = min(round(average(found)), n_free)
    if not n_novel / _OFF < found < n_novel * _OFF and likely != n_novel and (again := by_clusters(likely)):
        found = float((found * again) ** 0.5)
    return Novel(average(found), found)


def _sizes_of_novel(
    count: Count, n_known: int, n_novel: int, balanced: bool, rng: np.random.Generator
) -> NDArray[np.int64] | None:
    """Sizes of novel clusters; None where they hold nothing or sizes of known ones do not follow numbers of labels."""
    problem = Problem(count.rows, count.known, n_known, n_novel, Settings(balanced))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Note)
        level = searched(problem, "unequal", rng)
    sizes: NDArray[np.int64] = torch.as_tensor(level.labels).cpu().bincount(minlength=problem.k)[n_known:].numpy()
    return sizes if sizes.any() and follow(problem, level, count.weight) else None


def effective_number(sizes: ArrayLike) -> float:
    """Over how many of equal size things of these sizes are spread in effect: the exponential of their entropy."""
    from scipy.stats import entropy  # takes a second to import

    return float(np.exp(entropy(np.asarray(sizes, dtype=float))))
