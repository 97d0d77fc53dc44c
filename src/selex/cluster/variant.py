"""Named differences between the paper and the code published with it, for comparison. The paper is the default."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from selex.errors import InputError

_CHOICES = {
    "seeding": ("apart", "spread"),
    "balancing": ("stable", "growing"),
    "scoring": ("final", "before-balancing"),
    "level_order": ("rows", "known-first"),
    "crops": ("centre", "augmented"),
}


@dataclass(frozen=True)
class Variant:
    """Which reading of the method to follow. Every default is the paper's text.

    Attributes:
        seeding: novel centres are drawn `"apart"` (algorithm 1: outside the C nearest rows of chosen centres) or
            `"spread"` (plain D² sampling, as the published code does).
        balancing: rows are moved until the matching is `"stable"`, or in a `"growing"` number of single sweeps of
            algorithm 3: iteration i makes i of them.
        scoring: restarts are compared by the inertia of the labels they return (`"final"`), or by that of the last
            nearest-centre assignment `"before-balancing"`.
        level_order: labels of levels 2 and up stay with their `"rows"`, or come back `"known-first"` and are read by
            position, so that most rows carry another row's label.
        crops: features of `"centre"` crops, or of `"augmented"` ones. Features come from outside this package's
            clustering, so this is read by what computes them.
    """

    seeding: Literal["apart", "spread"] = "apart"
    balancing: Literal["stable", "growing"] = "stable"
    scoring: Literal["final", "before-balancing"] = "final"
    level_order: Literal["rows", "known-first"] = "rows"
    crops: Literal["centre", "augmented"] = "centre"

    def __post_init__(self) -> None:
        for field in fields(self):
            value, allowed = getattr(self, field.name), _CHOICES[field.name]
            if value not in allowed:
                raise InputError(f"{field.name} must be {' or '.join(map(repr, allowed))}, not {value!r}")


def published() -> Variant:
    """Everything the way the published code does it."""
    return Variant("spread", "growing", "before-balancing", "known-first", "augmented")
