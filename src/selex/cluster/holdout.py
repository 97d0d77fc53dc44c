"""Labels that are hidden and looked for again: they tell which way suits the data, and how sure one may be of it.

Labels shape clusters, and features where these are whitened or adapted: only rows whose labels did neither tell how
good a way of clustering is, and how often a row near a centre belongs there.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from selex.cluster.adapt import adapt as fit_adapted
from selex.cluster.assign import likeliest_temperature
from selex.cluster.kmeans import bssk, prepare
from selex.cluster.refine import of_one_length, refine_level
from selex.cluster.rows import DEFAULT_MEMORY, Rows
from selex.cluster.whiten import Whitener, fit_whitener
from selex.errors import Note
from selex.metrics import matched
from selex.types import UNLABELLED, Level, Refinement

UNTOLD: Refinement = "proportional"
"""What suits where labels cannot tell: it costs little where sizes are equal and gains much where they are not."""
FORMS: tuple[Refinement, ...] = (UNTOLD, "uniform", "balanced", "none")  # where two are as good, the first
_ENOUGH = 20  # hidden rows from which on they tell
_WHOLE = 4  # of every so many categories one is hidden as a whole: it has to be discovered


class Selection(NamedTuple):
    """What sorts hidden rows best: whether features are adapted, and the refinement.

    `whitener` is the map that was learned without the hidden labels, None where features are clustered as they are.
    """

    adapt: bool
    refine: Refinement
    whitener: Whitener | None = None

    @property
    def settings(self) -> dict[str, str]:
        """The settings that give the same."""
        return {"adapt": "on" if self.adapt else "off", "refine": self.refine}


def select_refinement(features: Any, labels: Any, n_clusters: int, **how: Any) -> Refinement:
    """The refinement that sorts hidden rows best, see `refine_level`; `how` as in `select`."""
    return select(features, labels, n_clusters, **how).refine


def select(
    features: Any,
    labels: Any,
    n_clusters: int,
    *,
    adapt: Sequence[bool] = (False,),
    refine: Sequence[Refinement] = FORMS,
    whiten: float = 0.0,
    balanced: bool = True,
    rng: np.random.Generator | int | None = None,
    memory: int = DEFAULT_MEMORY,
    progress: Callable[[int, int], None] | None = None,
) -> Selection:
    """What sorts hidden rows best, of all that is given to choose from; of equals the first.

    Half of the labels of each category are hidden and all of every fourth category, which has to be discovered. Fewer
    than twenty rows tell nothing: then it is the first of each. Rows of different length can only end as in the paper.

    Args:
        features: `n × d` features: numpy (memory-mapped too) or torch on any device.
        labels: per row a known category `0 … n_known - 1` or -1; None if no row is labelled.
        n_clusters: K, known and novel together.
        adapt: whether features are adapted, see `cluster.adapt`: what to try.
        refine: the refinements to try, see `refine_level`.
        whiten: how far features are whitened, see `fit_whitener`.
        balanced: limit cluster sizes.
        rng: generator or seed.
        memory: bytes that temporaries may take.
        progress: called before each step with the steps done and the steps in all.
    """
    known = _known(features, labels, memory)
    hidden = _halves(known) | _wholes(known)
    if n_clusters < 2 or hidden.sum() < _ENOUGH:
        return Selection(adapt[0], refine[0])
    steps = iter(range(len(adapt) * (len(refine) + 1)))

    def advance() -> None:
        if progress:
            progress(next(steps), len(adapt) * (len(refine) + 1))

    tried: list[tuple[int, Selection]] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Note)  # of what is hidden
        for adapted in adapt:
            advance()
            way = _Way(n_clusters, whiten, adapted, balanced, memory)
            rows, left, level, whitener = way.without(hidden, features, known, rng)
            if not of_one_length(Rows(rows, memory)):
                return Selection(False, "none")
            for form in refine:
                advance()
                found = np.asarray(refine_level(rows, left, level, form, memory).on_host().labels)
                right = int(matched(known[hidden], found[hidden]).sum())
                tried.append((right, Selection(adapted, form, whitener)))
    return max(tried, key=lambda one: one[0])[1]


def held_out_temperature(
    features: Any,
    labels: Any,
    n_clusters: int,
    *,
    refine: Refinement = "none",
    adapt: bool = False,
    whitener: Whitener | None = None,
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
        refine: the refinement, see `refine_level`.
        adapt: whether features are adapted, see `cluster.adapt`.
        whitener: a map that was learned without these labels, in place of one that is learned now.
        whiten: how far features are whitened, see `fit_whitener`.
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
        way = _Way(n_clusters, whiten, adapt, balanced, memory)
        rows, left, level, _ = way.without(hidden, features, known, rng, whitener)
        if of_one_length(Rows(rows, memory)):  # too few labels to whiten by may be left
            level = refine_level(rows, left, level, refine, memory)
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


@dataclass(frozen=True)
class _Way:
    """A way of clustering."""

    n_clusters: int
    whiten: float
    adapt: bool
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
        left = _numbered(np.where(hidden, UNLABELLED, known))
        how: dict[str, Any] = {"balanced": self.balanced, "rng": rng, "memory": self.memory}
        if whitener is None:
            whitener = fit_whitener(features, left, self.whiten, self.memory)
            if self.adapt:
                whitener = fit_adapted(features, left, self.n_clusters, whitener, **how)
        rows = whitener(features) if whitener else features
        return rows, left, bssk(rows, left, self.n_clusters, **how), whitener


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
