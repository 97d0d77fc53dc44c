"""The categories as they stand: what a run found and the decisions made since, as arrays in row order.

`apply` changes the arrays and returns a patch that `revert` takes back, so that neither a decision nor its undoing
needs a look at anything but the rows it is about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from selex.errors import counted
from selex.review.core.decisions import Decision, Refused, alike_key, clean_name
from selex.runs.naming import last_number
from selex.runs.results import Results

Array = np.ndarray[Any, Any]

UNDECIDED, CONFIRMED, UNSURE, SET_ASIDE = range(4)
"""What is known of a row: nothing was decided, its category is decided, nobody can say, it is to be left out."""

MARKS = ("undecided", "confirmed", "unsure", "set_aside")


@dataclass(frozen=True, eq=False)
class Patch:
    """What a decision changed, as it was before; which categories it was about; how a person would say it."""

    rows: Array
    category: Array
    mark: Array
    names: dict[int, tuple[str, bool]]
    added: int
    last: int
    restored: frozenset[tuple[int, int]]
    touched: frozenset[int]
    summary: str


@dataclass
class _Change:
    """What a decision is going to change."""

    rows: Array
    category: Array | int | None = None
    mark: Array | int | None = None
    names: dict[int, str] = field(default_factory=dict)
    new: list[tuple[str, bool, int]] = field(default_factory=list)
    restored: tuple[tuple[int, int], ...] = ()
    about: tuple[int, ...] = ()
    summary: str = ""


class State:
    """Categories and marks of all rows. A category without rows is gone; its number is not given to another.

    Attributes:
        category: category of every row.
        mark: `UNDECIDED`, `CONFIRMED`, `UNSURE` or `SET_ASIDE` for every row.
        names: name of every category there ever was.
        named: whether a person gave that name.
        origin: the category of the run that a category came from.
        last: the last number that a `novel-…` of the run or of this review ever had.
        restored: photos that earlier rounds left out and the next one will not, by round and row.
    """

    def __init__(self, results: Results) -> None:
        self.results = results
        self.category = results.category.astype(np.int32)
        self.mark = np.where(results.labelled, CONFIRMED, UNDECIDED).astype(np.uint8)
        self.names = list(results.names)
        self.named = [False] * len(self.names)
        self.origin = list(range(len(self.names)))
        self.last = last_number(self.names, results.last_number)
        self.restored = frozenset[tuple[int, int]]()

    def known(self, category: int) -> bool:
        """Whether the run knew the category by labels."""
        return category < self.results.n_known

    def sizes(self) -> Array:
        """Images of every category, those set aside among them."""
        return np.bincount(self.category, minlength=len(self.names))

    def next_best(self) -> Array:
        """The next best category of every row, -1 where there is none but its own."""
        found = self.results.runner_up
        now = self._heirs()[found]
        return np.where((found < 0) | (now == self.category), -1, now)

    def _heirs(self) -> Array:
        """Where each category is now: itself, or what most of its images are in if none are left in it."""
        count, heirs = len(self.names), np.arange(len(self.names))
        moved = np.flatnonzero(self.category != self.results.category)
        keys = self.results.category[moved].astype(np.int64) * count + self.category[moved]
        pairs, often = np.unique(keys, return_counts=True)
        pairs = pairs[np.lexsort((-pairs, often))]  # what most are in comes last, and counts
        heirs[pairs // count] = pairs % count
        return np.where(self.sizes() > 0, np.arange(count), heirs)

    def apply(self, decision: Decision) -> Patch:
        """Make a decision; one that cannot be made is `Refused` and changes nothing."""
        change = _KINDS[decision.kind](self, decision)
        rows = change.rows
        before = self.category[rows], self.mark[rows]
        names = {number: (self.names[number], self.named[number]) for number in change.names}
        given = [*(name for name, *_ in change.new), *change.names.values()]
        last, self.last = self.last, last_number(given, self.last)
        restored, self.restored = self.restored, self.restored.union(change.restored)
        for name, named, origin in change.new:
            self.names.append(name)
            self.named.append(named)
            self.origin.append(origin)
        for number, name in change.names.items():
            self.names[number], self.named[number] = name, True
        if change.category is not None:
            self.category[rows] = change.category
        if change.mark is not None:
            self.mark[rows] = change.mark
        touched = {*change.about, *np.unique(before[0]).tolist(), *np.unique(self.category[rows]).tolist()}
        return Patch(rows, *before, names, len(change.new), last, restored, frozenset(touched), change.summary)

    def concerns(self, decision: Decision) -> frozenset[int]:
        """The categories that a decision is about: those it names and those its images are in."""
        rows = self._checked([*decision.rows, *(row for part in decision.parts for row in part)])
        named = {*decision.categories} | ({decision.category} if decision.category is not None else set())
        return frozenset({*named, *np.unique(self.category[rows]).tolist()})

    def revert(self, patch: Patch) -> None:
        """Take the latest decision back."""
        self.category[patch.rows], self.mark[patch.rows] = patch.category, patch.mark
        for number, (name, named) in patch.names.items():
            self.names[number], self.named[number] = name, named
        self.last, self.restored = patch.last, patch.restored
        if patch.added:
            del self.names[-patch.added :], self.named[-patch.added :], self.origin[-patch.added :]

    def members(self, category: int) -> Array:
        """Rows of a category; refuses one that does not exist (any more)."""
        rows = np.flatnonzero(self.category == category)
        if not len(rows):
            raise Refused(f"category {category} does not exist (any more)")
        return rows

    def free_name(self, name: str, but: Sequence[int] = ()) -> str:
        """The name itself if no category has it, except for some."""
        name = clean_name(name)
        sizes = self.sizes()
        for number, other in enumerate(self.names):
            if other == name and sizes[number] and number not in but:
                raise Refused(f"a category “{name}” already exists: merge them, or choose another name")
        return name

    def alike(self, name: str, but: Sequence[int] = ()) -> list[int]:
        """Categories whose name differs from this one in nothing but case, accents, spaces and signs."""
        key, sizes = alike_key(name), self.sizes()
        return [
            number
            for number, other in enumerate(self.names)
            if sizes[number] and number not in but and other != name and alike_key(other) == key
        ]

    def _new_names(self, count: int) -> list[str]:
        """Names for categories that nobody has named yet."""
        return [f"novel-{self.last + 1 + number}" for number in range(count)]

    def _checked(self, rows: Sequence[int]) -> Array:
        found = np.array(rows, dtype=np.int64)
        if len(found) and (found.min() < 0 or found.max() >= len(self.category)):
            raise Refused(f"there are images 0 to {len(self.category) - 1}, not {found.min()} to {found.max()}")
        if len(np.unique(found)) != len(found):
            raise Refused("an image is named twice")
        return found

    def _unmarked(self, rows: Array) -> Array:
        """Marks of rows that nothing was decided about."""
        return np.where(self.results.labelled[rows], CONFIRMED, UNDECIDED)

    def _surer_half(self, rows: Array) -> Array:
        """Marks of rows after a decision about their whole category: the surer half of the undecided is confirmed."""
        mark: Array = self.mark[rows].copy()
        free = np.flatnonzero(mark == UNDECIDED)
        surest = np.argsort(-self.results.confidence[rows[free]], kind="stable")
        mark[free[surest[: (len(free) + 1) // 2]]] = CONFIRMED
        return mark


def _name(state: State, decision: Decision) -> _Change:
    category, rows = decision.category or 0, state.members(decision.category or 0)
    name = state.free_name(decision.name or "", but=(category,))
    text = f"named {state.names[category]} “{name}”"
    return _Change(rows, None, state._surer_half(rows), {category: name}, about=(category,), summary=text)


def _merge(state: State, decision: Decision) -> _Change:
    numbers = decision.categories
    if len(set(numbers)) < 2 or len(set(numbers)) != len(numbers):
        raise Refused("merge: give two or more categories, each once")
    parts = [state.members(number) for number in numbers]
    rows, marks = np.concatenate(parts), np.concatenate([state._surer_half(part) for part in parts])
    text = f"merged {_listed(state.names[number] for number in numbers[1:])} into {state.names[numbers[0]]}"
    names = {} if decision.name is None else {numbers[0]: state.free_name(decision.name, but=numbers)}
    if names and names[numbers[0]] != state.names[numbers[0]]:
        text += f", now “{names[numbers[0]]}”"
    return _Change(rows, numbers[0], marks, names, about=numbers, summary=f"{text} ({counted(len(rows))})")


def _split(state: State, decision: Decision) -> _Change:
    category, rows = decision.category or 0, state.members(decision.category or 0)
    state._checked([row for part in decision.parts for row in part])
    parts = [np.array(part, dtype=np.int64) for part in decision.parts]
    if not all(len(part) and (state.category[part] == category).all() for part in parts):
        raise Refused(f"split: every part needs images, and they must be in {state.names[category]}")
    rest = rows[~np.isin(rows, np.concatenate(parts))]
    if not len(rest):
        raise Refused("split: some images must stay; leave one part out")
    first = len(state.names)
    numbers = np.concatenate([np.full(len(rest), category), *(np.full(len(p), first + i) for i, p in enumerate(parts))])
    marks = np.concatenate([state._surer_half(part) for part in (rest, *parts)])
    new = [(name, False, state.origin[category]) for name in state._new_names(len(parts))]
    sizes = _listed(str(len(part)) for part in (rest, *parts))
    text = f"split {state.names[category]} into parts of {sizes}"
    return _Change(np.concatenate([rest, *parts]), numbers, marks, new=new, about=(category,), summary=text)


def _move(state: State, decision: Decision) -> _Change:
    rows = state._checked(decision.rows)
    if decision.category is not None:
        state.members(decision.category)
        text = f"moved {counted(len(rows))} to {state.names[decision.category]}"
        return _Change(rows, decision.category, CONFIRMED, about=(decision.category,), summary=text)
    name, origin = state.free_name(decision.name or ""), state.origin[int(state.category[rows[0]])]
    text = f"moved {counted(len(rows))} to the new category “{name}”"
    return _Change(rows, len(state.names), CONFIRMED, new=[(name, True, origin)], summary=text)


def _confirm(state: State, decision: Decision) -> _Change:
    if decision.category is None:
        rows = state._checked(decision.rows)
        return _Change(rows, None, CONFIRMED, summary=f"confirmed {counted(len(rows))}")
    rows = state.members(decision.category)
    marks = np.where(state.mark[rows] == UNDECIDED, CONFIRMED, state.mark[rows])
    text = f"confirmed {state.names[decision.category]} ({counted(int((marks == CONFIRMED).sum()))})"
    return _Change(rows, None, marks, about=(decision.category,), summary=text)


def _marking(mark: int, words: str) -> Callable[[State, Decision], _Change]:
    def change(state: State, decision: Decision) -> _Change:
        rows, why = state._checked(decision.rows), f" ({decision.reason})" if decision.reason else ""
        return _Change(rows, None, mark, summary=words.format(counted(len(rows))) + why)

    return change


def _clear(state: State, decision: Decision) -> _Change:
    rows = state._checked(decision.rows)
    return _Change(rows, None, state._unmarked(rows), summary=f"cleared the mark of {counted(len(rows))}")


def _restore(state: State, decision: Decision) -> _Change:
    rows, photos = state._checked(decision.rows), tuple(dict.fromkeys(decision.photos))
    if len(rows) and not (state.mark[rows] == SET_ASIDE).all():
        raise Refused("one of the images to take back is not set aside (any more)")
    if not state.restored.isdisjoint(photos):
        raise Refused("one of the images to take back has already been taken back")
    text = f"took {counted(len(rows) + len(photos))} back"
    return _Change(rows, None, state._unmarked(rows), restored=photos, summary=text)


_KINDS: dict[str, Callable[[State, Decision], _Change]] = {
    "name": _name,
    "merge": _merge,
    "split": _split,
    "move": _move,
    "confirm": _confirm,
    "unsure": _marking(UNSURE, "marked {} as unsure"),
    "set_aside": _marking(SET_ASIDE, "set {} aside"),
    "clear": _clear,
    "restore": _restore,
}


def _listed(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last
