"""What decisions come to: a corrected table to export, what a new round changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from selex.data.clusters import Columns
from selex.data.parquet import TextColumn
from selex.errors import InputError, counted
from selex.review.core.ledger import Ledger
from selex.review.core.state import MARKS, SET_ASIDE, State
from selex.review.core.timeline import Timeline
from selex.runs.naming import Shared, match, same_images
from selex.runs.results import Results
from selex.runs.run import Run

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Part:
    """A category of which most images, `images` of `of`, are in another now, or were in it before."""

    name: str
    other: str
    images: int
    of: int


@dataclass(frozen=True, eq=False)
class Changes:
    """What is otherwise than before: rows that went elsewhere, categories that came, went, or are now known.

    Of those that went, `merged` are those of which most images are in one other category; of those that came, `split`
    are those of which most images were in one other.
    """

    rows: Array
    images: int
    came: list[str]
    went: list[str]
    now_known: list[str]
    before: Array
    old_names: list[str]
    sizes: dict[str, int]
    merged: list[Part]
    split: list[Part]
    aside: int
    lost: int

    def was(self, row: int) -> str | None:
        """The category that a row was in, None for an image that was not there."""
        return self.old_names[self.before[row]] if self.before[row] >= 0 else None

    def __str__(self) -> str:
        added = int((self.before < 0).sum())
        counts = ((added, "new"), (self.aside, "set aside"), (self.lost, "gone"))
        parts = [f"{counted(count)} {word}" for count, word in counts if count]
        parts.append(f"{counted(self.images)} in another category")
        apart = {part.name for part in (*self.merged, *self.split)}
        came, went = ([self._counted(c) for c in names if c not in apart] for names in (self.came, self.went))
        merged = [f"{part.name} into {part.other} ({part.images} of {part.of} images)" for part in self.merged]
        split = [f"{part.name} from {part.other} ({part.images} of {part.of} images)" for part in self.split]
        lists = {"now known": self.now_known, "new": came, "gone": went, "merged": merged, "split": split}
        return "; ".join([*parts, *(f"{word}: {_some(names)}" for word, names in lists.items() if names)])

    def _counted(self, name: str) -> str:
        return f"{name} ({counted(self.sizes[name])})"


def reviewed(run: Run) -> tuple[Iterator[Columns], int] | None:
    """The table as decided, in blocks, without images set aside, and the number of decisions; None if there are none.

    `cluster`, `category` and runners-up are as decided, `known` is 1 for what was known or named by a person, and a
    column `review` says what was decided of each image: `confirmed`, `unsure`, or `undecided`.
    """
    timeline = _timeline(run)
    return (corrected(timeline.state), timeline.n_decisions) if timeline and timeline.n_decisions else None


def count_decisions(run: Run) -> int:
    """How many decisions count about the results that a run has now."""
    timeline = _timeline(run)
    return timeline.n_decisions if timeline else 0


def _timeline(run: Run) -> Timeline | None:
    """The decisions about the results that a run has now, None where nobody has looked at them."""
    ledger = Ledger.of(run.folder)
    if ledger is None:
        return None
    try:
        results = Results.read(run)
        number = ledger.find(results)
        return ledger.replay(number, results) if number is not None else None
    finally:
        ledger.close()


def corrected(state: State) -> Iterator[Columns]:
    """The clusters table of a run as a state of its results has it now, a block at a time; see `reviewed`."""
    if (state.mark == SET_ASIDE).all():
        raise InputError("every image is set aside: nothing is left")
    table = state.results.files
    assert isinstance(table, TextColumn)  # of the table itself, which stays open: no new results get into it
    known = [int(state.known(number) or state.named[number]) for number in range(len(state.names))]
    # copied now: no new decisions get into it
    return _corrected_blocks(table, state.category.copy(), state.next_best(), state.mark.copy(), [*state.names], known)


def _corrected_blocks(
    table: TextColumn, category: Array, next_best: Array, mark: Array, names: list[str], known: list[int]
) -> Iterator[Columns]:
    done = 0
    for block in table.beside(table.there):
        kept = np.flatnonzero(mark[done : done + len(block)] != SET_ASIDE)
        rows, done = kept + done, done + len(block)
        if len(kept):
            own = category[rows].tolist()
            columns: Columns = block.take(kept).to_pydict()
            columns |= {"cluster": own, "category": [names[c] for c in own], "known": [known[c] for c in own]}
            columns["runner_up"] = [names[c] if c >= 0 else "" for c in next_best[rows].tolist()]
            yield {**columns, "review": [MARKS[one] for one in mark[rows].tolist()]}


def compare(before: State, results: Results) -> Changes:
    """What new results changed, against how things stood when they were asked for.

    An old category without a name of its own is taken for the new one that has its images, see `match`.
    """
    found, aside = before.results, before.mark == SET_ASIDE
    old, new = same_images(found.files, results.files, found.content, results.content, aside)
    partner = _partners(before.category[old], results.category[new], before, results)
    expected = np.array([partner.get(category, -1) for category in range(len(before.names))])[before.category[old]]
    changed = np.zeros(len(results), dtype=bool)
    changed[new] = expected != results.category[new]
    earlier = np.full(len(results), -1, before.category.dtype)
    earlier[new] = before.category[old]
    lived = set(np.unique(before.category[old]).tolist())
    known_before = {before.names[c] for c in lived if before.known(c)}
    came = sorted(set(np.unique(results.category).tolist()) - {partner.get(c) for c in lived})
    went = [c for c in sorted(lived) if c not in partner]
    shared = Shared.of(before.category[old], results.category[new])
    sizes = np.bincount(results.category, minlength=len(results.names))
    stayed = np.bincount(before.category[old], minlength=len(before.names))
    most_of, most_from = shared.largest(0), shared.largest(1)
    gone = {before.names[c]: (*most_of[c], int(stayed[c])) for c in went}
    split = {results.names[c]: (*most_from[c], int(sizes[c])) for c in came if c in most_from}
    return Changes(
        changed,
        int(changed.sum()),
        [results.names[c] for c in came],
        [before.names[c] for c in went],
        [name for name in results.names[: results.n_known] if name not in known_before],
        earlier,
        before.names,
        {results.names[c]: int(sizes[c]) for c in came} | {name: of for name, (_, _, of) in gone.items()},
        _parts(gone, results.names, set(partner.values())),
        _parts(split, before.names, set(partner)),
        int(aside.sum() - aside[old].sum()),
        int((~aside).sum() - (~aside)[old].sum()),
    )


def _parts(categories: dict[str, tuple[int, int, int]], others: list[str], lasting: set[int]) -> list[Part]:
    """Those of some categories, each with the other that has most of its images, that are for the most part one."""
    found = ((name, *most) for name, most in categories.items())
    return [Part(name, others[c], n, of) for name, c, n, of in found if c in lasting and 2 * n > of]


def _partners(old: Array, new: Array, before: State, results: Results) -> dict[int, int]:
    """The new category of each old one: of the same name if that is known now, else by their common images."""
    by_name = {name: number for number, name in enumerate(results.names[: results.n_known])}
    lived = np.unique(old).tolist()
    partner = {c: by_name[before.names[c]] for c in lived if before.names[c] in by_name}
    rest = sorted(set(np.unique(new).tolist()) - set(partner.values()))
    return partner | match(old, new, [c for c in lived if c not in partner], rest)


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
