"""How good a clustering is when the truth is known: All / Known / Novel accuracy, NMI, ARI."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from selex.errors import InputError
from selex.types import Scores


def split_accuracy(truth: Any, clusters: Any, known: Any, version: Literal["v1", "v2"] = "v2") -> Scores:
    """Hungarian accuracy on All, Known and Novel rows.

    Args:
        truth: the true category of each scored row (ints, strings, ...).
        clusters: the cluster of each row; there may be more or fewer clusters than categories.
        known: per row, whether its true category is a known one.
        version: `"v2"` matches clusters to categories once, over all rows, and is the one to report. `"v1"` matches
            known and novel rows separately, as older tables do; its *all* is the mean of the two weighted by rows.

    Returns:
        `Scores(all, known, novel)`; a part without rows is `nan`.
    """
    truth, clusters, known = _column(truth, "truth"), _column(clusters, "clusters"), _column(known, "known")
    if not len(truth) == len(clusters) == len(known):
        raise InputError(
            f"truth, clusters and known need one entry per row; they have {len(truth)}, {len(clusters)}, {len(known)}"
        )
    if not np.isin(known, (0, 1)).all():
        raise InputError("known must be true or false for every row: whether the row's true category is a known one")
    known = known.astype(bool)
    if version == "v2":
        hit = matched(truth, clusters)
    elif version == "v1":
        hit = np.zeros(len(truth), dtype=bool)
        for part in (known, ~known):
            hit[part] = matched(truth[part], clusters[part])
    else:
        raise InputError(f"version must be 'v1' or 'v2', not {version!r}")
    return Scores(_mean(hit), _mean(hit[known]), _mean(hit[~known]))


def nmi(truth: Any, clusters: Any) -> float:
    """Normalised mutual information of truth and clusters, in [0, 1]."""
    from sklearn.metrics import normalized_mutual_info_score  # takes a second to import

    return float(normalized_mutual_info_score(_column(truth, "truth"), _column(clusters, "clusters")))


def ari(truth: Any, clusters: Any) -> float:
    """Adjusted Rand index of truth and clusters: 1 is perfect, 0 is chance."""
    from sklearn.metrics import adjusted_rand_score  # takes a second to import

    return float(adjusted_rand_score(_column(truth, "truth"), _column(clusters, "clusters")))


def contingency(truth: NDArray[Any], clusters: NDArray[Any]) -> NDArray[np.int64]:
    """Table of counts, categories × clusters, both in sorted order."""
    categories, rows = np.unique(truth, return_inverse=True)
    ids, columns = np.unique(clusters, return_inverse=True)
    table = np.zeros((len(categories), len(ids)), dtype=np.int64)
    np.add.at(table, (rows, columns), 1)
    return table


def matched(truth: NDArray[Any], clusters: NDArray[Any]) -> NDArray[np.bool_]:
    """Per row: is its cluster the one matched to its category? Clusters without a category are never right."""
    categories, rows = np.unique(truth, return_inverse=True)
    columns = np.unique(clusters, return_inverse=True)[1]
    partner = np.full(len(categories), -1)
    if len(truth):
        from scipy.optimize import linear_sum_assignment  # takes half a second to import

        matched_rows, matched_columns = linear_sum_assignment(contingency(rows, columns), maximize=True)
        partner[matched_rows] = matched_columns
    return partner[rows] == columns


def _mean(hit: NDArray[np.bool_]) -> float:
    return float(hit.mean()) if len(hit) else float("nan")


def _column(values: Any, name: str) -> NDArray[Any]:
    """A one-dimensional array on the CPU from a list, array, series or tensor."""
    if hasattr(values, "detach"):  # a torch tensor, perhaps on a GPU
        values = values.detach().cpu()
    column = np.asarray(values)
    if column.ndim != 1:
        raise InputError(f"{name} must be one-dimensional, not of shape {column.shape}")
    return column
