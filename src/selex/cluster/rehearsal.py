"""Labels that are hidden once and looked for again: they tell what suits the data, and how sure one may be of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from selex.cluster.assign import likeliest_temperature
from selex.cluster.kmeans import bssk, prepare
from selex.cluster.mixture import soften
from selex.cluster.rows import DEFAULT_MEMORY, Rows
from selex.cluster.scatter import evening
from selex.errors import Note
from selex.metrics import matched
from selex.types import UNLABELLED, Level, Sizes

UNTOLD: Sizes = "unequal"
"""What suits where labels cannot tell: it costs little where sizes are equal and gains much where they are not."""
_FORMS: tuple[Sizes, ...] = (UNTOLD, "any", "equal", "paper")  # where two are as good, the first
_ENOUGH = 20  # hidden rows from which on they tell
_WHOLE = 4  # of every so many categories one is hidden as a whole: it has to be discovered


@dataclass(frozen=True)
class Rehearsal:
    """What hidden labels told.

    Attributes:
        sizes: how to end, see `soften`: what sorted them best.
        temperature: that of confidence, under which they are likeliest to be where they belong; None if unknown.
    """

    sizes: Sizes
    temperature: float | None


def rehearse(
    features: Any,
    labels: Any,
    n_clusters: int,
    *,
    sizes: Sizes | Literal["auto"] = "auto",
    whiten: float = 0.0,
    balanced: bool = True,
    rng: np.random.Generator | int | None = None,
    memory: int = DEFAULT_MEMORY,
    progress: Callable[[int, int], None] | None = None,
) -> Rehearsal:
    """Hide labels, cluster without them, and see where the hidden rows went.

    Labels shape clusters, and features where these are evened out: only rows whose labels did neither tell how good a
    way of clustering is, and how often a row near a centre belongs there. To choose a way, half of the labels of each
    category are hidden and all of every fourth category, which has to be discovered. To see how sure one may be, the
    halves alone.

    Args:
        features: `n × d` features: numpy (memory-mapped too) or torch on any device.
        labels: per row a known category `0 … n_known - 1` or -1; None if no row is labelled.
        n_clusters: K, known and novel together.
        sizes: how to end, see `soften`; `"auto"` finds out what is best.
        whiten: how far features are evened out, see `evening`.
        balanced: limit cluster sizes.
        rng: generator or seed.
        memory: bytes that temporaries may take.
        progress: called before each step with the steps done and the steps in all.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Note)  # who clusters will say it
        known = _array(prepare(features, labels, memory)[1])
    generator = np.random.default_rng(rng)
    halves, more = _hidden(known)
    chooses = sizes == "auto" and n_clusters > 1 and more.sum() >= _ENOUGH
    steps = (1 + len(_FORMS) if chooses else 0) + 1

    def without(hidden: NDArray[np.bool_]) -> tuple[Any, NDArray[Any], Level]:
        """Features and labels as if these were not there, and clusters made of them."""
        left = _numbered(np.where(hidden, UNLABELLED, known))
        even = evening(features, left, whiten, memory)
        rows = even(features) if even else features
        return rows, left, bssk(rows, left, n_clusters, balanced=balanced, rng=generator, memory=memory)

    def advance(done: int) -> None:
        if progress:
            progress(done, steps)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Note)  # of what is hidden
        ending = UNTOLD if sizes == "auto" else sizes
        if chooses:
            advance(0)
            rows, left, plain = without(more)
            right: dict[Sizes, int] = {}
            for done, form in enumerate(_FORMS, 1):
                advance(done)
                found = _array(soften(rows, left, plain, form, memory).labels)
                right[form] = int(matched(known[more], found[more]).sum())
            ending = max(right, key=lambda form: right[form])
        if n_clusters < 2 or not halves.any():
            return Rehearsal(ending, None)
        advance(steps - 1)
        rows, left, plain = without(halves)
        level, seen = soften(rows, left, plain, ending, memory), Rows(rows, memory)
    if level.n_clusters < 2:
        return Rehearsal(ending, None)
    index, own = (torch.from_numpy(ids).to(seen.device) for ids in (np.flatnonzero(halves), known[halves]))
    return Rehearsal(ending, likeliest_temperature(seen, level, index, own))


def _hidden(labels: NDArray[Any]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Every second labelled row of each category, the first of it never; and besides, all of every fourth category."""
    order = np.argsort(labels, kind="stable")
    sizes = np.unique(labels, return_counts=True)[1]
    place = np.empty(len(labels), dtype=np.int64)
    place[order] = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    given, whole = labels != UNLABELLED, labels % _WHOLE == _WHOLE - 1
    return given & (place % 2 == 1), given & (whole | (place % 2 == 1))


def _numbered(labels: NDArray[Any]) -> NDArray[Any]:
    """The categories that are left, numbered from 0 on."""
    found: NDArray[Any] = np.unique(np.append(labels, UNLABELLED), return_inverse=True)[1][:-1] - 1
    return found


def _array(values: Any) -> NDArray[Any]:
    return np.asarray(values.cpu() if isinstance(values, Tensor) else values)
