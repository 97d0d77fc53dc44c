"""How many categories there are where sizes differ: clusters show whether novel ones are as uneven as known ones.

That novel categories are as large as known ones, on average, is far off where one category holds half of the rows and
there are few: it may be among the known or among the novel ones. But large categories are found as clusters, and how
many categories rows are spread over in effect (the exponential of the entropy of their shares) depends little on small
ones, which nobody can count.
"""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import ArrayLike

from selex.cluster.holdout.known_share import Count
from selex.cluster.holdout.label_counts import differ, follow
from selex.cluster.kmeans import Problem, Settings
from selex.cluster.search import searched
from selex.errors import Note

_ROUNDS = 3  # clusters depend on how many are asked for
_LEAST = 0.5  # novel categories where there seem to be none


def count_if_uneven(count: Count, n_clusters: int, most: int, balanced: bool, rng: np.random.Generator) -> int | None:
    """How many categories there are if novel ones are as uneven as known ones, given how many by their mean size.

    A very large category that is known makes the mean too large and the known ones too uneven, one that is novel the
    reverse. So the geometric mean is taken of two numbers of novel categories: by size, and by the effective number of
    novel clusters, if as many categories stand behind each as behind known ones, by their numbers of labels.

    None where numbers of labels do not differ by more than chance, or sizes of clusters do not follow them, or there
    are too many clusters to search for unequal ones.
    """
    from selex.cluster.search.smoothed import can_smooth  # imports scipy.sparse

    labels = count.known[count.known >= 0].bincount().cpu().numpy()
    n_known, found = len(labels), n_clusters
    most = min(most, n_known + int((count.known < 0).sum()))
    if not differ(labels) or n_known == most:
        return None
    by_size, behind = max(n_clusters - n_known, _LEAST), n_known / effective_number(labels)
    for first in (True, *[False] * (_ROUNDS - 1)):
        n_novel = int(np.clip(found, n_known + 1, most)) - n_known
        problem = Problem(count.rows, count.known, n_known, n_novel, Settings(balanced))
        if not can_smooth(count.rows.total, problem.k):
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Note)
            level = searched(problem, "unequal", rng)
        if first and not follow(problem, level):
            return None
        sizes = np.bincount(np.asarray(level.labels), minlength=problem.k)[n_known:]
        found = round(n_known + float(np.sqrt(by_size * behind * effective_number(sizes))))
    return found


def effective_number(sizes: ArrayLike) -> float:
    """Over how many of equal size things of these sizes are spread in effect: the exponential of their entropy."""
    from scipy.stats import entropy  # takes a second to import

    return float(np.exp(entropy(np.asarray(sizes, dtype=float))))
