"""What the decisions of all rounds say about photos: labels to continue with, and which to leave out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from selex.review.core.aside import Aside, Photo, SetAside, photos_of
from selex.review.core.ledger import Ledger
from selex.review.core.state import CONFIRMED, JUNK, UNDECIDED, State
from selex.review.core.timeline import Timeline
from selex.runs.naming import same_images
from selex.runs.results import Results
from selex.runs.run import Run

Array = np.ndarray[Any, Any]


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
    return Labels(told.labels, set(told.aside.photos), len(live), told.decisions)


class _Told:
    """What was decided about photos, round after round.

    Attributes:
        labels: the label of some photos.
        aside: those that are set aside.
        decisions: how many decisions count.
    """

    def __init__(self) -> None:
        self.labels, self.aside, self.decisions = dict[Photo, str](), SetAside(), 0
        self._given = set[Photo]()  # photos whose labels nobody decided
        self._seen = list[Array]()  # content of all photos so far

    def take(self, number: int, timeline: Timeline) -> None:
        """What a round says, which counts where earlier ones say otherwise."""
        state = timeline.state
        now = _names_now(self.labels, self.aside.photos, state, self._seen)
        if state.results.content is not None:
            self._seen.append(state.results.content)
        # this round has given renamed ones their labels again, or has not
        stale = {photo for photo in self._given & now.keys() if now[photo].file != photo.file}
        decided = set(photos_of(state, state.mark != UNDECIDED))
        labels = {now.get(photo, photo): name for photo, name in self.labels.items() if photo not in stale}
        self.labels = {photo: name for photo, name in labels.items() if photo not in decided} | _held(state)
        self._given = {now.get(photo, photo) for photo in self._given - stale} - decided | _given(state)
        there = {state.names[category] for category in np.unique(state.category)}
        for photo, aside in self.aside.take(number, timeline).items():
            if aside.label is not None and aside.label in there:  # taken back, with the label that it came with
                self.labels[photo] = aside.label
        for photo in self.aside.photos:
            self.labels.pop(photo, None)
        self.decisions += timeline.n_decisions


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
