"""Labels that are held out and looked for again: which ones.

Labels shape clusters, and features where these are whitened or adapted: only rows whose labels did neither tell how
good a way of clustering is, and how often a row near a centre belongs there.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from selex.cluster.distributed.group import ALONE, Group
from selex.cluster.distributed.shards import Shard
from selex.cluster.holdout.known_share import places
from selex.cluster.kmeans import prepare
from selex.cluster.rows import Rows
from selex.errors import Note
from selex.types import UNLABELLED, Refinement

UNTOLD: Refinement = "proportional"
"""What suits where labels cannot tell: it costs little where sizes are equal and gains much where they are not."""
ENOUGH = 20
"""Held-out rows from which on they tell something."""
_ENOUGH_KNOWN = 5  # categories, of which one can be spared
_WHOLE = 4  # of every so many categories one is held out as a whole: it has to be discovered


def known_labels(features: Any, labels: Any, memory: int) -> NDArray[Any]:
    """Labels, checked."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Note)  # who clusters will say it
        known: NDArray[Any] = prepare(features, labels, memory)[1].cpu().numpy()
    return known


def halves(labels: NDArray[Any], rows: Rows) -> NDArray[np.bool_]:
    """Every second labelled row of each category, never the first; they are in order by what they hold."""
    held_out: NDArray[np.bool_] = labels != UNLABELLED
    if isinstance(rows, Shard):
        place = rows.places(torch.from_numpy(labels).to(rows.device)).cpu().numpy()
    else:
        place = places(labels, rows)[held_out]
    held_out[held_out] = place % 2 == 1
    return held_out


def wholes(labels: NDArray[Any], draw: int = 0) -> NDArray[np.bool_]:
    """All labelled rows of every fourth category; other ones in each of four draws."""
    return (labels != UNLABELLED) & ((labels + draw) % _WHOLE == _WHOLE - 1)


def kept_from_training(labels: NDArray[Any], share: float) -> NDArray[np.bool_]:
    """Labelled rows whose labels training does not see: a share of those of each category, and half as many categories.

    Of five categories or more one at least is held out as a whole, or nothing would tell how novel ones fare. None at
    all where held-out rows would be too few to tell anything. Rows count in the order in which they stand.
    """
    known = labels != UNLABELLED
    if not share or not known.any():
        return np.zeros(len(labels), dtype=bool)
    order = np.argsort(labels[known], kind="stable")
    place = np.empty(known.sum(), dtype=np.int64)
    place[order] = np.concatenate([np.arange(count) for count in np.unique(labels[known], return_counts=True)[1]])
    some, whole = place % max(2, round(1 / share)) == 1, _spread(int(labels.max()) + 1, share / 2)
    held_out = known.copy()
    held_out[known] = some | np.isin(labels[known], whole)
    return held_out if held_out.sum() >= ENOUGH else np.zeros(len(labels), dtype=bool)


def _spread(n_known: int, share: float) -> NDArray[np.int64]:
    """A share of the categories, evenly spread: one at least of five or more, none of fewer."""
    many = max(1, round(n_known * share)) if n_known >= _ENOUGH_KNOWN else 0
    return np.arange(1, many + 1) * (n_known // max(1, many)) - 1


def numbered(labels: NDArray[Any], group: Group = ALONE) -> NDArray[Any]:
    """The categories that are left in any process, numbered from 0 on."""
    return np.searchsorted(present(np.append(labels, UNLABELLED), group), labels) - 1


def present(labels: NDArray[Any], group: Group) -> NDArray[Any]:
    """The numbers among the labels of all processes."""
    here = torch.from_numpy(np.unique(labels).astype(np.int64))
    return np.unique(group.gather(here).numpy())
