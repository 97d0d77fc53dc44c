"""Labels that are hidden and looked for again: they tell which ending suits the data, and how sure one may be of it.

Labels shape clusters, and features where these are whitened: only rows whose labels did neither tell how good a way
of clustering is, and how often a row near a centre belongs there.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from selex.cluster.assign import likeliest_temperature
from selex.cluster.kmeans import bssk, prepare
from selex.cluster.refine import of_one_length, soften
from selex.cluster.rows import DEFAULT_MEMORY, Rows
from selex.cluster.whiten import fit_whitener
from selex.errors import Note
from selex.metrics import matched
from selex.types import UNLABELLED, Level, Refinement

UNTOLD: Refinement = "proportional"
"""What suits where labels cannot tell: it costs little where sizes are equal and gains much where they are not."""
_FORMS: tuple[Refinement, ...] = (UNTOLD, "uniform", "balanced", "none")  # where two are as good, the first
_ENOUGH = 20  # hidden rows from which on they tell
_WHOLE = 4  # of every so many categories one is hidden as a whole: it has to be discovered


def select_refinement(
    features: Any,
    labels: Any,
    n_clusters: int,
    *,
    whiten: float = 0.0,
    balanced: bool = True,
    rng: np.random.Generator | int | None = None,
    memory: int = DEFAULT_MEMORY,
    progress: Callable[[int, int], None] | None = None,
) -> Refinement:
    """The ending that sorts hidden rows best, see `soften`.

    Half of the labels of each category are hidden and all of every fourth category, which has to be discovered. Fewer
    than twenty rows tell nothing: then it is `"proportional"`. Rows of different length can only end as in the paper.

    Args:
        features: `n × d` features: numpy (memory-mapped too) or torch on any device.
        labels: per row a known category `0 … n_known - 1` or -1; None if no row is labelled.
        n_clusters: K, known and novel together.
        whiten: how far features are whitened, see `fit_whitener`.
        balanced: limit cluster sizes.
        rng: generator or seed.
        memory: bytes that temporaries may take.
        progress: called before each step with the steps done and the steps in all.
    """
    known = _known(features, labels, memory)
    hidden = _halves(known) | _wholes(known)
    if n_clusters < 2 or hidden.sum() < _ENOUGH:
        return UNTOLD

    def advance(done: int) -> None:
        if progress:
            progress(done, len(_FORMS) + 1)

    right: dict[Refinement, int] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Note)  # of what is hidden
        advance(0)
        rows, left, level = _without(hidden, features, known, n_clusters, whiten, balanced, rng, memory)
        if not of_one_length(Rows(rows, memory)):
            return "none"
        for done, form in enumerate(_FORMS, 1):
            advance(done)
            found = np.asarray(soften(rows, left, level, form, memory).on_host().labels)
            right[form] = int(matched(known[hidden], found[hidden]).sum())
    return max(right, key=lambda form: right[form])


def held_out_temperature(
    features: Any,
    labels: Any,
    n_clusters: int,
    *,
    refine: Refinement = "none",
    whiten: float = 0.0,
    balanced: bool = True,
    rng: np.random.Generator | int | None = None,
    memory: int = DEFAULT_MEMORY,
) -> float | None:
    """The temperature of confidence under which hidden rows are likeliest to be where they belong.

    Half of the labels of each category are hidden. None where no category has two, or where one cluster is left.

    Args:
        features: `n × d` features: numpy (memory-mapped too) or torch on any device.
        labels: per row a known category `0 … n_known - 1` or -1; None if no row is labelled.
        n_clusters: K, known and novel together.
        refine: how clustering ends, see `soften`.
        whiten: how far features are whitened, see `evening`.
        balanced: limit cluster sizes.
        rng: generator or seed.
        memory: bytes that temporaries may take.
    """
    known = _known(features, labels, memory)
    hidden = _halves(known)
    if n_clusters < 2 or not hidden.any():
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Note)  # of what is hidden
        rows, left, level = _without(hidden, features, known, n_clusters, whiten, balanced, rng, memory)
        if of_one_length(Rows(rows, memory)):  # too few labels to whiten by may be left
            level = soften(rows, left, level, refine, memory)
    if level.n_clusters < 2:
        return None
    seen = Rows(rows, memory)
    index, own = (torch.from_numpy(ids).to(seen.device) for ids in (np.flatnonzero(hidden), known[hidden]))
    return likeliest_temperature(seen, level, index, own)


def _known(features: Any, labels: Any, memory: int) -> NDArray[Any]:
    """Labels, checked."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Note)  # who clusters will say it
        known: NDArray[Any] = prepare(features, labels, memory)[1].cpu().numpy()
    return known


def _without(
    hidden: NDArray[np.bool_],
    features: Any,
    known: NDArray[Any],
    n_clusters: int,
    whiten: float,
    balanced: bool,
    rng: np.random.Generator | int | None,
    memory: int,
) -> tuple[Any, NDArray[Any], Level]:
    """Features and labels as if hidden ones were not there, and clusters made of them."""
    left = _numbered(np.where(hidden, UNLABELLED, known))
    whitener = fit_whitener(features, left, whiten, memory)
    rows = whitener(features) if whitener else features
    return rows, left, bssk(rows, left, n_clusters, balanced=balanced, rng=rng, memory=memory)


def _halves(labels: NDArray[Any]) -> NDArray[np.bool_]:
    """Every second labelled row of each category, the first of it never."""
    order = np.argsort(labels, kind="stable")
    sizes = np.unique(labels, return_counts=True)[1]
    place = np.empty(len(labels), dtype=np.int64)
    place[order] = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    hidden: NDArray[np.bool_] = (labels != UNLABELLED) & (place % 2 == 1)
    return hidden


def _wholes(labels: NDArray[Any]) -> NDArray[np.bool_]:
    """All labelled rows of every fourth category."""
    hidden: NDArray[np.bool_] = (labels != UNLABELLED) & (labels % _WHOLE == _WHOLE - 1)
    return hidden


def _numbered(labels: NDArray[Any]) -> NDArray[Any]:
    """The categories that are left, numbered from 0 on."""
    found: NDArray[Any] = np.unique(np.append(labels, UNLABELLED), return_inverse=True)[1][:-1] - 1
    return found
