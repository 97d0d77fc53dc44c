"""Labels that are hidden and looked for again: which ones, and how sure they say one may be.

Labels shape clusters, and features where these are whitened or adapted: only rows whose labels did neither tell how
good a way of clustering is, and how often a row near a centre belongs there.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from selex.cluster.adapt import adapt as fit_adapted
from selex.cluster.assign import likeliest_temperature
from selex.cluster.group import ALONE, Group
from selex.cluster.hierarchy import hssk
from selex.cluster.kmeans import bssk, prepare
from selex.cluster.known_share import places
from selex.cluster.refine import of_one_length, refine_level
from selex.cluster.rows import DEFAULT_MEMORY, Rows, as_rows
from selex.cluster.shards import Shard
from selex.cluster.whiten import Whitener, fit_whitener
from selex.errors import Note
from selex.types import SIZED, UNLABELLED, Level, Refinement, Search

UNTOLD: Refinement = "proportional"
"""What suits where labels cannot tell: it costs little where sizes are equal and gains much where they are not."""
ENOUGH = 20
"""Hidden rows from which on they tell something."""
_ENOUGH_KNOWN = 5  # categories, of which one can be spared
_WHOLE = 4  # of every so many categories one is hidden as a whole: it has to be discovered


def held_out_temperature(
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
    hidden: NDArray[np.bool_] | None = None,
    rng: np.random.Generator | int | None = None,
    memory: int = DEFAULT_MEMORY,
) -> float | None:
    """The temperature of confidence under which hidden rows are likeliest to be where they belong.

    Half of the labels of each category are hidden. None where no category has two, or where one cluster is left.

    Args:
        features: `n × d` features: numpy (also memory-mapped) or torch on any device.
        labels: per row a known category `0 … n_known - 1` or -1; None if no row is labelled.
        n_clusters: K, known and novel together.
        search: the search; clusters that keep their sizes are looked for again, for others those of BSSK will do.
        refine: the refinement, see `refine_level`.
        adapt: whether features are adapted, see `cluster.adapt`.
        whitener: a map that was learned without these labels, in place of one that is learned now.
        whiten: how far features are whitened, see `fit_whitener`.
        balanced: limit cluster sizes.
        hidden: labelled rows to hide instead, of which those count whose category is labelled elsewhere.
        rng: generator or seed.
        memory: bytes that temporary arrays may take.
    """
    known, seen = known_labels(features, labels, memory), as_rows(features, memory)
    hidden = halves(known, seen) if hidden is None else hidden
    counted = hidden & np.isin(known, present(known[~hidden], seen.group))
    if n_clusters < 2 or seen.group.all(not counted.any()):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Note)  # of what is hidden
        way = _Way(n_clusters, whiten, adapt, search, balanced, memory)
        rows, left, level, _ = way.without(hidden, features, known, rng, whitener)
        if of_one_length(as_rows(rows, memory)):  # too few labels to whiten by may be left
            level = refine_level(rows, left, level, refine, memory)
    if level.n_clusters < 2:
        return None
    seen = as_rows(rows, memory)
    still = np.where(hidden & ~counted, UNLABELLED, known)
    own = numbered(still, seen.group)[counted]  # as clusters number what was left
    index, categories = (torch.from_numpy(ids).to(seen.device) for ids in (np.flatnonzero(counted), own))
    return likeliest_temperature(seen, level, index, categories)


def known_labels(features: Any, labels: Any, memory: int) -> NDArray[Any]:
    """Labels, checked."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Note)  # who clusters will say it
        known: NDArray[Any] = prepare(features, labels, memory)[1].cpu().numpy()
    return known


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
        hidden: NDArray[np.bool_],
        features: Any,
        known: NDArray[Any],
        rng: np.random.Generator | int | None,
        whitener: Whitener | None = None,
    ) -> tuple[Any, NDArray[Any], Level, Whitener | None]:
        """Features and labels as if hidden ones were not there, clusters made of them, and the map of the features."""
        group = features.group if isinstance(features, Rows) else ALONE
        left = numbered(np.where(hidden, UNLABELLED, known), group)
        how: dict[str, Any] = {"balanced": self.balanced, "rng": rng, "memory": self.memory}
        if whitener is None:
            whitener = fit_whitener(features, left, self.whiten, self.memory)
            if self.adapt:
                whitener = fit_adapted(features, left, self.n_clusters, whitener, **how)
        rows = whitener(features) if whitener else features
        if self.search in SIZED:
            level = hssk(rows, left, self.n_clusters, n_levels=1, search=self.search, **how).levels[0]
        else:
            level = bssk(rows, left, self.n_clusters, **how)
        return rows, left, level, whitener


def halves(labels: NDArray[Any], rows: Rows) -> NDArray[np.bool_]:
    """Every second labelled row of each category, never the first; they are in order by what they hold."""
    hidden: NDArray[np.bool_] = labels != UNLABELLED
    if isinstance(rows, Shard):
        place = rows.places(torch.from_numpy(labels).to(rows.device)).cpu().numpy()
    else:
        place = places(labels, rows)[hidden]
    hidden[hidden] = place % 2 == 1
    return hidden


def wholes(labels: NDArray[Any], draw: int = 0) -> NDArray[np.bool_]:
    """All labelled rows of every fourth category; other ones in each of four draws."""
    hidden: NDArray[np.bool_] = (labels != UNLABELLED) & ((labels + draw) % _WHOLE == _WHOLE - 1)
    return hidden


def kept_from_training(labels: NDArray[Any], share: float) -> NDArray[np.bool_]:
    """Labelled rows whose labels training does not see: a share of those of each category, and half as many categories.

    Of five categories or more one at least is hidden as a whole, or nothing would tell how novel ones fare. None at all
    where hidden rows would be too few to tell anything. Rows count in the order in which they stand.
    """
    known = labels != UNLABELLED
    if not share or not known.any():
        return np.zeros(len(labels), dtype=bool)
    order = np.argsort(labels[known], kind="stable")
    place = np.empty(known.sum(), dtype=np.int64)
    place[order] = np.concatenate([np.arange(count) for count in np.unique(labels[known], return_counts=True)[1]])
    some, whole = place % max(2, round(1 / share)) == 1, _spread(int(labels.max()) + 1, share / 2)
    hidden = known.copy()
    hidden[known] = some | np.isin(labels[known], whole)
    return hidden if hidden.sum() >= ENOUGH else np.zeros(len(labels), dtype=bool)


def _spread(n_known: int, share: float) -> NDArray[np.int64]:
    """A share of the categories, evenly spread: one at least of five or more, none of fewer."""
    many = max(1, round(n_known * share)) if n_known >= _ENOUGH_KNOWN else 0
    return np.arange(1, many + 1) * (n_known // max(1, many)) - 1


def numbered(labels: NDArray[Any], group: Group = ALONE) -> NDArray[Any]:
    """The categories that are left in any process, numbered from 0 on."""
    found: NDArray[Any] = np.searchsorted(present(np.append(labels, UNLABELLED), group), labels) - 1
    return found


def present(labels: NDArray[Any], group: Group) -> NDArray[Any]:
    """The numbers among the labels of all processes."""
    here = torch.from_numpy(np.unique(labels).astype(np.int64))
    return np.unique(group.gather(here).numpy())
