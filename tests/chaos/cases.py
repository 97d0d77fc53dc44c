"""What a case is, how much of it is run, and the table that comes out of it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from chaos.lab import Lab

Tries = Generator[str, None, None]
"""A case yields one text a try: empty where all is well, else what was lost."""

Item = TypeVar("Item")


@dataclass(frozen=True)
class Plan:
    """How much to do: everything, in the short form a few of each case; with `limit` as many as there is time for.

    A sample is drawn with the seed, so that a short form is the same each time and a long one has no favourites.
    """

    short: bool = False
    limit: float | None = None
    seed: int = 0
    end: float | None = None

    @property
    def late(self) -> bool:
        """Whether the time of this case is over."""
        return self.end is not None and time.monotonic() > self.end

    def some(self, items: Sequence[Item], few: int = 2) -> list[Item]:
        """All of them, in an order drawn by lot where time may not do for all; or a few."""
        wanted = min(few, len(items)) if self.short else len(items)
        if wanted == len(items) and self.limit is None:
            return list(items)
        return random.Random(self.seed).sample(list(items), wanted)

    def count(self, many: int, few: int = 2) -> int:
        """So many."""
        return few if self.short else many


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    area: str
    name: str
    tries: Callable[[Lab, Plan], Tries]

    def __str__(self) -> str:
        return f"{self.area}: {self.name}"


@dataclass
class Row:
    """What came of a case."""

    case: str
    tries: int = 0
    lost: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def survived(self) -> int:
        return self.tries - len(self.lost)

    def to_json(self) -> dict[str, Any]:
        return {
            "case": self.case,
            "tries": self.tries,
            "survived": self.survived,
            "lost": len(self.lost),
            "seconds": round(self.seconds),
        }


CASES: list[Case] = []


def _named(tries: Callable[..., Tries], name: str, lab: Any, plan: Any) -> Tries:
    return tries(lab, plan, name)


def case(area: str, *names: str) -> Callable[[Callable[..., Tries]], Callable[..., Tries]]:
    """Add a case to the suite, or one for each of several names, which is then handed to the function."""

    def add(tries: Callable[..., Tries]) -> Callable[..., Tries]:
        if len(names) == 1:
            CASES.append(Case(area, names[0], tries))
        else:
            for name in names:
                CASES.append(Case(area, name, partial(_named, tries, name)))
        return tries

    return add


def run(case: Case, lab: Lab, plan: Plan) -> Row:
    """Do all tries of a case. What the suite itself does not survive is lost, too."""
    row, start = Row(str(case)), time.monotonic()
    plan, before = replace(plan, end=None if plan.limit is None else start + plan.limit), start
    try:
        with closing(case.tries(lab, plan)) as tries:
            for lost in tries:
                row.tries += 1
                row.lost += [lost] if lost else []
                if plan.late and row.tries > 1 and time.monotonic() - before > 0.01:  # what is done already is counted
                    break
                before = time.monotonic()
    except Exception as error:
        row.tries += 1
        row.lost.append(f"the case itself failed: {type(error).__name__}: {error}")
    row.seconds = round(time.monotonic() - start, 1)
    return row


def table(rows: Sequence[Row]) -> str:
    """For a terminal."""
    width = max(len(row.case) for row in rows)
    lines = [f"{'case':<{width}}  tries  survived  lost"]
    lines += [f"{row.case:<{width}}  {row.tries:>5}  {row.survived:>8}  {len(row.lost):>4}" for row in rows]
    total = Row("together", sum(row.tries for row in rows), [each for row in rows for each in row.lost])
    return "\n".join([*lines, f"{total.case:<{width}}  {total.tries:>5}  {total.survived:>8}  {len(total.lost):>4}"])
