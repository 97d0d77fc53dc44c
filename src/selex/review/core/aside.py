"""Photos that a person set aside: which, in all rounds, and which of the photos that are there now."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from selex.data.parquet import text_blocks
from selex.review.core.ledger import FILE, Ledger
from selex.review.core.state import JUNK, State
from selex.review.core.timeline import Timeline
from selex.runs.naming import same_images
from selex.runs.results import Results
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


class SetAside:
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
        junk = photos_of(state, state.mark == JUNK)
        self.photos = kept | dict(zip(junk, asides_of(number, timeline), strict=True))
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
    found = SetAside()
    for number in rounds:
        kinds = {event.decision.kind for event in ledger.events(number) if event.decision}
        if "junk" in kinds or (found.photos and kinds):
            found.take(number, ledger.replay(number))
    return found.photos


def rows_set_aside(
    aside: Collection[Photo], results: Results | None, files: Sequence[str], content: Array | None
) -> Array:
    """The rows of a table whose photos are set aside, by name and content, or by content where they were renamed.

    `results` are the latest ones, if there are any: a photo of these is not one that is set aside, of which it may be a
    copy.
    """
    if not aside:
        return np.arange(0)
    gone = sorted(aside)
    photos = [*(_others(aside, results) if results else ()), *gone]
    keys = np.array([photo.content for photo in photos], "S16")
    old, new = same_images([photo.file for photo in photos], files, keys, content)
    of = old >= len(photos) - len(gone)
    old, new = old[of], new[of]
    if content is None:
        return np.sort(new)
    return np.sort(new[(keys[old] == content[new]) | (keys[old] == b"") | (content[new] == b"")])


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
