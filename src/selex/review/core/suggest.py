"""What to look at next: the decisions that promise to give most images their right name.

An image is settled once it is in a category that has a name, and it is that. Confidences are probabilities, so what a
decision would settle can be expected before it is made; `benchmarks/decisions.py` compares that with what it then is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import coo_array

from selex.data.clusters import DOUBTFUL
from selex.review.core.mixed import Mixture
from selex.review.core.state import CONFIRMED, SET_ASIDE, UNDECIDED, UNSURE, State

Array = np.ndarray[Any, Any]

NEXT_BEST = 0.25
"""Of images that are in the wrong category, about so many belong to their next best one."""
TWINS = 0.1
"""Two categories may be one if images of each belong to the other with this probability, in the mean."""
LARGE, AGREEMENT = 1.5, 0.3
"""A category that is so many times as large as the median may be several; it is where halves of it agree so much."""
TOGETHER, ELSE = 0.1, 0.2
"""Where images with one label are together in a part less than this, a split settles so much of what it would else."""
WRONG_LABELS = 0.02
"""Labels are wrong so often before anything is known of their images."""
_LEAST = 0.5  # images; what promises less is not suggested


@dataclass(frozen=True)
class Idea:
    """Something to decide.

    Its kind is: `name` a category, `merge` it with one that has a name (or name it), `split` one that is mixed, check
    `doubtful` images near another category or `labels` that look wrong, `confirm` what is sorted already.
    """

    kind: str
    categories: tuple[int, ...]  # those it is about
    gain: float  # images that it is expected to settle; for `confirm` those that are confirmed
    decisions: int  # how many it takes
    reason: str  # why, for a person
    rows: tuple[int, ...] = ()  # the images to look at, where it is about some
    parts: int | None = None  # into how many to split

    @property
    def images(self) -> int:
        """How many images it is expected to settle."""
        return int(self.gain + 0.5)


Look = Callable[[Array], Mixture]
"""Into how many parts some rows fall."""


def ideas(state: State, count: int, checked: Collection[int] = (), look: Look | None = None) -> list[Idea]:
    """The `count` ideas that promise most for each decision, at most one for each category.

    `checked` are rows that somebody has spoken of one by one: their labels are not doubted. Without `look` nothing is
    to be split.
    """
    seen, chosen = set[int](), list[Idea]()
    for idea in sorted(all_ideas(state, checked, look), key=_promise):
        if not seen & set(idea.categories):
            chosen.append(idea)
            seen |= set(idea.categories)
        if len(chosen) == count:
            break
    return chosen


def all_ideas(state: State, checked: Collection[int] = (), look: Look | None = None) -> list[Idea]:
    """Every idea that promises to settle something."""
    figures = _Figures(state)
    found = [*figures.names(), *figures.borders(), *figures.labels(checked), *(figures.mixed(look) if look else ())]
    return [*(idea for idea in found if idea.gain >= _LEAST), *figures.confirmations()]


def _promise(idea: Idea) -> tuple[bool, float, tuple[int, ...]]:
    return idea.kind == "confirm", -idea.gain / idea.decisions, idea.categories


class _Figures:
    """What ideas are made of: for each row whether it is right where it is, for each category how many are."""

    def __init__(self, state: State) -> None:
        self.state, results, count = state, state.results, len(state.names)
        self.category, self.sure = state.category, results.confidence
        self.undecided = state.mark == UNDECIDED
        there = state.mark != SET_ASIDE
        self.sizes = self._count(there)
        right = np.where(state.mark == CONFIRMED, 1.0, self.sure)
        self.right = self._count(there & (state.mark != UNSURE), right)
        self.left = self._count(self.undecided)
        self.wrong = self._count(self.undecided, 1 - self.sure)
        self.named = np.array([state.known(c) or state.named[c] for c in range(count)])
        self.live = np.flatnonzero(self.sizes)
        self.next_best = state.next_best()

    def names(self) -> list[Idea]:
        """Categories without a name; one that may be the same as a named one can be merged with that instead."""
        found, twins = [], self._twins()
        for c in self.live[~self.named[self.live]].tolist():
            kind, both = ("merge", (twins[c], c)) if c in twins else ("name", (c,))
            why = f"may be the same as {self.state.names[both[0]]}" if c in twins else "no name yet"
            found.append(Idea(kind, both, self.right[c], 1, f"{why}, {_confidence(self.right[c] / self.sizes[c])}"))
        return found

    def mixed(self, look: Look) -> list[Idea]:
        """Large categories with a name whose images fall into parts.

        Of what is wrong in one, splitting it settles as much as halves of it agree about the parts; far less where
        images with one label are in all parts.
        """
        usual = float(np.median(self.sizes[self.live])) if len(self.live) else 0.0
        large = self.live[self.named[self.live] & (self.sizes[self.live] > LARGE * usual)]
        found = []
        for c in large[np.argsort(-self.wrong[large], kind="stable")].tolist():
            if AGREEMENT * self.wrong[c] < _LEAST:
                break
            parts, agreement, together = look(np.flatnonzero((self.category == c) & (self.state.mark != SET_ASIDE)))
            if agreement >= AGREEMENT:
                share = agreement if together is None or together >= TOGETHER else ELSE * agreement
                text = f"{self.sizes[c] / usual:.1f} times as large as usual: looks like {parts} categories"
                found.append(Idea("split", (c,), share * self.wrong[c], parts, text, parts=parts))
        return found

    def borders(self) -> list[Idea]:
        """Doubtful images of a category near another one that has a name."""
        rows = np.flatnonzero(self.undecided & (self.sure < DOUBTFUL) & (self.next_best >= 0))
        rows = rows[self.named[self.next_best[rows]] & self.named[self.category[rows]]]
        found = []
        for (a, b), few in self._grouped(rows, _LEAST / NEXT_BEST).items():
            gain = NEXT_BEST * float((1 - self.sure[few]).sum())
            text = f"{len(few):,} unsure, near {self.state.names[b]}"
            found.append(Idea("doubtful", (a, b), gain, 1, text, tuple(few.tolist())))
        return found

    def labels(self, checked: Collection[int]) -> list[Idea]:
        """Labels that look wrong: what is known of the image speaks against them more than labels are usually right."""
        given = self.state.results.labelled & (self.state.mark == CONFIRMED) & (self.next_best >= 0)
        given &= self.category == self.state.results.category
        given[list(checked)] = False
        wrong = WRONG_LABELS * (1 - self.sure)
        wrong = wrong / (wrong + (1 - WRONG_LABELS) * self.sure)
        rows = np.flatnonzero(given & (wrong >= _LEAST))
        found = []
        for category in np.unique(self.category[rows]).tolist():
            few = rows[self.category[rows] == category]
            text = f"{len(few):,} {'label looks' if len(few) == 1 else 'labels look'} wrong"
            found.append(Idea("labels", (category,), float(wrong[few].sum()), len(few), text, tuple(few.tolist())))
        return found

    def confirmations(self) -> list[Idea]:
        """Categories with a name that have undecided images."""
        some = self.live[(self.left[self.live] > 0) & self.named[self.live]]
        sure = 1 - self.wrong[some] / self.left[some]
        return [
            Idea("confirm", (c,), float(self.left[c]), 1, f"{self.left[c]:,.0f} undecided, {_confidence(share)}")
            for c, share in zip(some.tolist(), sure.tolist(), strict=True)
        ]

    def _count(self, rows: Array, weights: Array | None = None) -> Array:
        return np.bincount(
            self.category[rows], None if weights is None else weights[rows], minlength=len(self.state.names)
        )

    def _twins(self) -> dict[int, int]:
        """For categories without a name the one with a name that they may be the same as, if there is one."""
        rows, count = np.flatnonzero(self.undecided & (self.next_best >= 0)), len(self.state.names)
        pairs = coo_array((1 - self.sure[rows], (self.category[rows], self.next_best[rows])), shape=(count, count))
        doubt = pairs.tocsr().tocoo()  # summed, in order
        a, b = (numbers.astype(np.int64) for numbers in (doubt.row, doubt.col))
        share, key = doubt.data / self.sizes[a], a * count + b
        back = np.searchsorted(key, b * count + a, side="right") - 1
        mutual = np.where(key[back] == b * count + a, np.minimum(share, share[back]), 0)
        alike = np.flatnonzero((mutual >= TWINS) & ~self.named[a] & self.named[b])
        order = alike[np.argsort(share[alike], kind="stable")]  # the most likely one last
        return dict(zip(a[order].tolist(), b[order].tolist(), strict=True))

    def _grouped(self, rows: Array, least: float) -> dict[tuple[int, int], Array]:
        """Rows by their category and the next best one, where `least` images are expected to be wrong."""
        count = len(self.state.names)
        pairs = self.category[rows].astype(np.int64) * count + self.next_best[rows]
        order = np.argsort(pairs, kind="stable")
        rows, (keys, starts) = rows[order], np.unique(pairs[order], return_index=True)
        wrong = np.add.reduceat(1 - self.sure[rows], starts) if len(keys) else np.zeros(0)
        ends = np.append(starts[1:], len(rows))
        return {
            (int(keys[i] // count), int(keys[i] % count)): rows[starts[i] : ends[i]]
            for i in np.flatnonzero(wrong >= (1 - 1e-9) * least)
        }


def _confidence(share: float) -> str:
    """As the page writes it: never rounded up to 100 %."""
    return f"confidence {100 * min(share, 0.99):.0f} %"
