"""Small frozen records that travel between the layers. Everything per row is in row order, always."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args, get_type_hints

from selex.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    import torch

    Array = np.ndarray[Any, Any] | torch.Tensor


UNLABELLED = -1
"""The label of a row whose category is not known."""


Refinement = Literal["none", "proportional", "balanced"]
"""How the last clustering is refined: not, as in the paper, every row in its nearest cluster; or softly, with rows that
take part in several (`cluster.refine`), each by its size, or all held to one size."""
REFINEMENTS: tuple[Refinement, ...] = get_args(Refinement)


Search = Literal["bssk", "swaps", "smoothed", "unequal", "consensus"]
"""How the base level is searched for, each in a module of `cluster.search`: as in the paper; then with swaps of novel
centres; the same among rows that were averaged with their neighbours; there for more clusters, of which those that hang
together are joined; from what many quick runs agree on."""
SEARCHES: tuple[Search, ...] = get_args(Search)
SIZED: tuple[Search, ...] = ("unequal", "smoothed")
"""Those whose clusters stay as large as they were found, which refining would undo."""


class Scores(NamedTuple):
    """Accuracy on all scored rows, on those of known and on those of novel categories, each in [0, 1] or nan."""

    all: float
    known: float
    novel: float

    def __str__(self) -> str:
        return " / ".join(f"{100 * score:.1f}" for score in self)


@dataclass(frozen=True)
class Level:
    """One level of abstraction: a cluster id for every row, in row order, and the clusters' centres.

    Clusters `0 … n_known - 1` are the known ones, the others are novel.

    Attributes:
        labels: cluster of every row.
        centers: centre of every cluster.
        n_known: how many clusters are known ones.
        inertia: sum of squared distances of rows to their own centres.
        n_iter: iterations made.
        offsets: what is taken off squared distances to each centre before they are compared; None takes nothing.
    """

    labels: Array
    centers: Array
    n_known: int
    inertia: float
    n_iter: int
    offsets: Array | None = None

    def on_host(self) -> Level:
        """The same in the host's memory, as numpy arrays."""
        return replace(self, labels=_array(self.labels), centers=_array(self.centers), offsets=_array(self.offsets))

    @property
    def n_clusters(self) -> int:
        """How many clusters this level has."""
        return len(self.centers)

    @property
    def n_novel(self) -> int:
        """How many of them are novel."""
        return self.n_clusters - self.n_known


def _array(values: Any) -> Any:
    return values.cpu().numpy() if hasattr(values, "cpu") else values


@dataclass(frozen=True)
class Hierarchy:
    """Pseudo-labels at every level of abstraction, finest first: `levels[0]` is the base level with K clusters."""

    levels: tuple[Level, ...]

    def rows(self, part: slice) -> Hierarchy:
        """The same clusters, with the labels of some rows."""
        return Hierarchy(tuple(replace(level, labels=level.labels[part]) for level in self.levels))

    def on_host(self) -> Hierarchy:
        """The same in the host's memory, as numpy arrays."""
        return Hierarchy(tuple(level.on_host() for level in self.levels))

    @property
    def n_clusters(self) -> list[int]:
        """Number of clusters of each level, finest first."""
        return [level.n_clusters for level in self.levels]


@dataclass(frozen=True)
class KEstimate:
    """How many categories there seem to be.

    Attributes:
        n_clusters: the estimate, known and novel together.
        low: lower end of the interval around it.
        high: upper end of the interval.
        curve: `(n_clusters, score)` of every count that was tried or judged, in order; higher scores are better.
        method: what it was made of, `"combined"`, `"accuracy"` or `"silhouette"`.
    """

    n_clusters: int
    low: int
    high: int
    curve: tuple[tuple[int, float], ...]
    method: str


@dataclass(frozen=True)
class Variant:
    """Which reading of the method to follow. Every default is the paper's text.

    Attributes:
        seeding: novel centres are drawn `"apart"` (algorithm 1: outside the C nearest rows of chosen centres) or
            `"spread"` (plain D² sampling, as the published code does).
        balancing: rows are moved until the matching is `"stable"`, or in a `"growing"` number of single sweeps of
            algorithm 3: none in the first iteration, one in the second, and so on.
        grouping: the known clusters of a level are groups of those of the `"level"` below it, or of the `"base"` level.
        level_order: labels of levels 2 and up stay with their `"rows"`; or rows are listed labelled ones first, labels
            come back with those of known clusters before the others (`"known-first"`) and are read by position, so that
            most unlabelled rows carry another row's label.
        crops: features of `"centre"` crops, or of `"augmented"` ones. Features come from outside this package's
            clustering, so this is read by what computes them.
    """

    seeding: Literal["apart", "spread"] = "apart"
    balancing: Literal["stable", "growing"] = "stable"
    grouping: Literal["level", "base"] = "level"
    level_order: Literal["rows", "known-first"] = "rows"
    crops: Literal["centre", "augmented"] = "centre"

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(type(self)).items():
            if getattr(self, name) not in get_args(kind):
                words = " or ".join(map(repr, get_args(kind)))
                raise InputError(f"{name} must be {words}, not {getattr(self, name)!r}")


_QUIRKS = {
    "order": ("level_order",),
    "grouping": ("grouping",),
    "crops": ("crops",),
    "clustering": ("seeding", "balancing"),
}


def published() -> Variant:
    """Everything the way the published code does it."""
    return Variant("spread", "growing", "base", "known-first", "augmented")


def variant_for(quirks: Iterable[str]) -> Variant:
    """The paper's text, but for some quirks of the published code: of `order`, `grouping`, `crops`, `clustering`."""
    code, followed = published(), [name for quirk in quirks for name in _QUIRKS.get(quirk, ())]
    return replace(Variant(), **{name: getattr(code, name) for name in followed})
