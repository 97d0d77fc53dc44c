"""What the decisions of all rounds say about photos: labels to continue with, and which are set aside and left out."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from selex.data.parquet import text_blocks
from selex.errors import InputError
from selex.review.core.ledger import FILE, Ledger
from selex.review.core.state import CONFIRMED, SET_ASIDE, UNDECIDED, State
from selex.review.core.timeline import Timeline
from selex.runs.naming import same_images
from selex.runs.results import Results
from selex.runs.run import Run
from selex.runs.stage import CONFIG

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


class SetAsidePhotos:
    """The photos that are set aside, round after round, until a person takes them back.

    One that is in a run nevertheless, as those that earlier versions let in, is taken back by a decision about its row.

    Attributes:
        photos: these photos, and how each was set aside.
    """

    def __init__(self) -> None:
        self.photos = dict[Photo, Aside]()

    def take(self, number: int, timeline: Timeline) -> dict[Photo, Aside]:
        """What a round says; those of earlier rounds that it takes back."""
        state, checked = timeline.state, timeline.checked
        for row, photo, old in _there(self.photos, state.results):
            aside = self.photos.pop(old)
            if row not in checked:
                self.photos[photo] = aside
        back = {photo: aside for photo, aside in self.photos.items() if aside[:2] in state.restored}
        kept = {photo: aside for photo, aside in self.photos.items() if photo not in back}
        marked = photos_of(state, state.mark == SET_ASIDE)
        self.photos = kept | dict(zip(marked, asides_of(number, timeline), strict=True))
        return back


def set_aside_before(ledger: Ledger, number: int) -> dict[Photo, Aside]:
    """The photos that are left out of a round because they were set aside in earlier ones."""
    return _set_aside(ledger, [other for other in ledger.rounds() if other < number])


def set_aside(folder: Path) -> set[Photo]:
    """The photos that the run in a folder leaves out when it is done again; none where there is no run yet."""
    if not (os.path.lexists(folder / CONFIG) and os.path.lexists(folder / FILE)):
        return set()
    with closing(Ledger(folder)) as ledger:
        return set(_set_aside(ledger, ledger.rounds()))


def _set_aside(ledger: Ledger, rounds: Sequence[int]) -> dict[Photo, Aside]:
    """Of some rounds; those in which nothing was decided about such photos need not be gone through."""
    found = SetAsidePhotos()
    for number in rounds:
        kinds = {event.decision.kind for event in ledger.events(number) if event.decision}
        if "set_aside" in kinds or (found.photos and kinds):
            found.take(number, ledger.replay(number))
    return found.photos


def rows_kept(
    folder: Path, aside: Collection[Photo], results: Results | None, files: Sequence[str], content: Array | None
) -> Array:
    """The rows of a table but for photos that are set aside in a run; refuses where none is left.

    These are found by name and content, or by content where they were renamed. `results` are the latest ones, if there
    are any: a photo of these is not one that is set aside, of which it may be a copy.
    """
    rows = np.arange(len(files))
    kept = np.delete(rows, _rows_aside(aside, results, files, content)) if aside else rows
    if not len(kept):
        raise InputError(f"{folder}: every image is set aside: nothing is left to cluster")
    return kept


def _rows_aside(
    aside: Collection[Photo], results: Results | None, files: Sequence[str], content: Array | None
) -> Array:
    gone = sorted(aside)
    photos = [*(_others(aside, results) if results else ()), *gone]
    keys = np.array([photo.content for photo in photos], "S16")
    old, new = same_images([photo.file for photo in photos], files, keys, content)
    of = old >= len(photos) - len(gone)
    old, new = old[of], new[of]
    if content is None:
        return new
    return new[(keys[old] == content[new]) | (keys[old] == b"") | (content[new] == b"")]


def _others(photos: Collection[Photo], results: Results) -> Iterator[Photo]:
    """The photos of results but for some."""
    rows = np.ones(len(results), dtype=bool)
    rows[[row for row, _, _ in _there(photos, results)]] = False
    return photos_of(State(results), rows)


def _there(photos: Collection[Photo], results: Results) -> list[tuple[int, Photo, Photo]]:
    """Those of some photos that results have by the same name and content: row, how it is called there, and before."""
    named, found = dict[str, list[Photo]](), []
    for photo in photos:
        named.setdefault(photo.file, []).append(photo)
    rows = _rows_named(list(named), results.files) if named else np.zeros(len(results), dtype=bool)
    for row, here in zip(np.flatnonzero(rows).tolist(), photos_of(State(results), rows), strict=True):
        same = (one for one in named[here.file] if one == here or not (one.content and here.content))
        found += [(row, here, one) for one in islice(same, 1)]
    return found


def _rows_named(names: list[str], files: Sequence[str]) -> Array:
    wanted = pa.array(names, pa.string())
    return np.concatenate([pc.is_in(block, wanted).to_numpy(zero_copy_only=False) for block in text_blocks(files)])


def photos_of(state: State, rows: Array) -> Iterator[Photo]:
    """Some rows of the results that a state is about; all are read in order, which is much faster than one by one."""
    done, content = 0, state.results.content
    for block in text_blocks(state.results.files):
        part = rows[done : done + len(block)]
        keys = content[done : done + len(block)][part].tolist() if content is not None else [b""] * int(part.sum())
        yield from map(Photo, block.filter(pa.array(part)).to_pylist(), keys)
        done += len(block)


def asides_of(number: int, timeline: Timeline) -> list[Aside]:
    """How the photos of a round were set aside, those that still are, in the order of rows."""
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
    moved or confirmed, and the surer half of a category that was named, merged or split. A photo set aside is left
    out, rounds later too, until a person takes it back: then it has the label that it came with, if any. An image that
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
    live = np.unique(timeline.state.category[timeline.state.mark != SET_ASIDE])
    return Labels(told.labels, set(told.aside.photos), len(live), told.decisions)


class _Told:
    """What was decided about photos, round after round.

    Attributes:
        labels: the label of some photos.
        aside: those that are set aside.
        decisions: how many decisions count.
    """

    def __init__(self) -> None:
        self.labels, self.aside, self.decisions = dict[Photo, str](), SetAsidePhotos(), 0
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
    labels: dict[Photo, str], aside: dict[Photo, Aside], state: State, seen: list[Array]
) -> dict[Photo, Photo]:
    """How later results call images that decisions of earlier rounds are about, of those that are there.

    `seen` is the content of all images of these rounds.
    """
    photos, results = [*labels, *sorted(aside)], state.results
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
