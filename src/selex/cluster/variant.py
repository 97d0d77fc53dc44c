"""Named differences between the paper and the code published with it, for comparison. The paper is the default."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, get_args, get_type_hints

from selex.errors import InputError


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
