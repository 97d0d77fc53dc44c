"""What the decisions of all rounds say about photos: labels to continue with, and which are set aside."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from selex.data.parquet import text_blocks
from selex.review.core.ledger import Ledger
from selex.review.core.state import CONFIRMED, JUNK, UNDECIDED, State
from selex.review.core.timeline import Timeline
from selex.runs.naming import same_images
from selex.runs.results import Results
from selex.runs.run import Run

Array = np.ndarray[Any, Any]


class Photo(NamedTuple):
    """An image by the name that its file had last, and by its content, "" where that is not known.

    The name alone does not tell: another image may have it by now.
    """

    file: str
    content: bytes


class Aside(NamedTuple):
    """How a photo was set aside: the row of a round that was marked, its category then, when, and why if that was said.

    `label` is the label that it came with in that round.
    """

    round: int
    row: int
    category: str
    label: str | None
    time: float
    reason: str | None


@dataclass(frozen=True)
class Labels:
    """What decisions say about images: the category of some, and which are to be left out.

    `categories` is how many categories there are now, known, named and nameless together.
    """

    decided: dict[Photo, str]
    left_out: set[Photo]
    categories: int
    decisions: int


def labels_of(run: Run) -> Labels:
    """Labels from the decisions about a run, those of earlier rounds too; later ones count where they differ.

    Confirmed images are labelled with the name of their category: those labelled to begin with, those that a person
    moved or confirmed, and the surer half of a category that was named, merged or split. Junk is left out, also if it
    was junk rounds ago, until a person takes it back: then it has the label that it came with, if any. An image that
    was renamed has the name it has in the latest results.
    """
    results, ledger = Results.read(run), Ledger.of(run.folder)
    if ledger is None:
        return Labels(_held(State(results)), set(), len(results.names), 0)
    try:
        current, told = ledger.round(results), _Told()
        for number in sorted(ledger.rounds(), key=lambda number: (number == current, number)):
            timeline = ledger.replay(number)
            told.take(number, timeline)
    finally:
        ledger.close()
    live = np.unique(timeline.state.category[timeline.state.mark != JUNK])
    return Labels(told.labels, set(told.junk), len(live), told.decisions)


def set_aside_before(ledger: Ledger, number: int) -> dict[Photo, Aside]:
    """The photos that were left out of a round because they had been set aside in earlier ones."""
    earlier, told = [other for other in ledger.rounds() if other < number], _Told()
    junk = (event.decision for other in earlier for event in ledger.events(other))
    if any(decision is not None and decision.kind == "junk" for decision in junk):  # or there is nothing to go through
        for other in earlier:
            told.take(other, ledger.replay(other))
    return told.junk


class _Told:
    """What was decided about photos, round after round.

    Attributes:
        labels: the label of some photos.
        junk: those that are set aside.
        decisions: how many decisions count.
    """

    def __init__(self) -> None:
        self.labels, self.junk, self.decisions = dict[Photo, str](), dict[Photo, Aside](), 0
        self._given = set[Photo]()  # photos whose labels nobody decided
        self._seen = list[Array]()  # content of all photos so far

    def take(self, number: int, timeline: Timeline) -> None:
        """What a round says, which counts where earlier ones say otherwise."""
        state = timeline.state
        now = _names_now(self.labels, self.junk, state, self._seen)
        if state.results.content is not None:
            self._seen.append(state.results.content)
        # this round has given renamed ones their labels again, or has not
        stale = {photo for photo in self._given & now.keys() if now[photo].file != photo.file}
        decided = set(photos_of(state, state.mark != UNDECIDED))
        labels = {now.get(photo, photo): name for photo, name in self.labels.items() if photo not in stale}
        self.labels = {photo: name for photo, name in labels.items() if photo not in decided} | _held(state)
        self._given = {now.get(photo, photo) for photo in self._given - stale} - decided | _given(state)
        junk = {now.get(photo, photo): aside for photo, aside in self.junk.items()}
        self.junk = {photo: aside for photo, aside in junk.items() if photo not in decided} | _junk(number, timeline)
        self._restore(state)
        self.decisions += timeline.n_decisions

    def _restore(self, state: State) -> None:
        """Photos that were taken back have the label that they came with, if there is still such a category."""
        there = {state.names[category] for category in np.unique(state.category)}
        for photo in [photo for photo, aside in self.junk.items() if aside[:2] in state.restored]:
            label = self.junk.pop(photo).label
            if label is not None and label in there:
                self.labels[photo] = label


def photos_of(state: State, rows: Array) -> Iterator[Photo]:
    """Some rows of the results that a state is about; all are read in order, which is much faster than one by one."""
    done, content = 0, state.results.content
    for block in text_blocks(state.results.files):
        part = rows[done : done + len(block)]
        keys = content[done : done + len(block)][part].tolist() if content is not None else [b""] * int(part.sum())
        yield from map(Photo, block.filter(pa.array(part)).to_pylist(), keys)
        done += len(block)


def asides_of(number: int, timeline: Timeline) -> list[Aside]:
    """How the photos of a round that are junk were set aside, in the order of rows."""
    state, events = timeline.state, timeline.set_aside
    results = state.results

    def label(row: int) -> str | None:
        """As its category is called now; a photo that was moved has the label that it came with."""
        if not results.labelled[row]:
            return None
        given, category = results.category[row], state.category[row]
        return state.names[category] if category == given else results.names[given]

    return [
        Aside(
            number,
            row,
            state.names[state.category[row]],
            label(row),
            events[row].time,
            events[row].decided.reason,
        )
        for row in sorted(events)
    ]


def _junk(number: int, timeline: Timeline) -> dict[Photo, Aside]:
    state = timeline.state
    return dict(zip(photos_of(state, state.mark == JUNK), asides_of(number, timeline), strict=True))


def _names_now(
    labels: dict[Photo, str], junk: dict[Photo, Aside], state: State, seen: list[Array]
) -> dict[Photo, Photo]:
    """How later results call images that decisions of earlier rounds are about, of those that are there.

    `seen` is the content of all images of these rounds.
    """
    photos, results = [*labels, *sorted(junk)], state.results
    if not photos:
        return {}
    content = np.array([photo.content for photo in photos], "S16")
    left_out, others = np.arange(len(photos)) >= len(labels), np.concatenate(seen) if seen else None
    old, new = same_images([photo.file for photo in photos], results.files, content, results.content, left_out, others)
    there = np.zeros(len(results), dtype=bool)
    there[new] = True
    return dict(zip((photos[row] for row in old[new.argsort()].tolist()), photos_of(state, there), strict=True))


def _given(state: State) -> set[Photo]:
    """The images whose labels were there before anybody decided about them."""
    first = State(state.results)
    same = (state.mark == first.mark) & (state.category == first.category)
    return set(photos_of(state, same & (first.mark != UNDECIDED)))


def _held(state: State) -> dict[Photo, str]:
    """The label of every confirmed row."""
    held = state.mark == CONFIRMED
    names = (state.names[category] for category in state.category[held].tolist())
    return dict(zip(photos_of(state, held), names, strict=True))
