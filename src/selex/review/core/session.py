"""A run under review: its results, its decisions, and the rule that no two people decide past each other."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from selex.errors import InputError
from selex.review.core.decisions import Decision, Refused
from selex.review.core.labels import Aside, Photo, set_aside_before
from selex.review.core.ledger import Ledger
from selex.review.core.outcome import Changes, compare
from selex.review.core.state import State
from selex.review.core.timeline import DECIDE, Event, Played, Timeline
from selex.runs.naming import same_images
from selex.runs.results import Results
from selex.runs.run import ImagePaths, Run

Array = np.ndarray[Any, Any]
_DIGITS = 20  # no version has so many, and Python refuses to read thousands


class Conflict(Exception):
    """What was to be decided has been changed by somebody else since: `missed` says how."""

    def __init__(self, missed: list[str]) -> None:
        super().__init__("this was changed in the meantime")
        self.missed = missed


@dataclass(frozen=True)
class Answer:
    """What became of a decision: what it did, and what had happened before it that its maker has not seen."""

    summary: str
    missed: list[str]


class Review:
    """The run in a folder, open for decisions. Use it inside `with review.steady():`, by one thread at a time.

    Attributes:
        run: the run.
        results: what it found.
        round: the number of this set of results.
        timeline: the decisions and what they add up to.
        changes: what is otherwise than at the end of the round before, if there was one.
    """

    def __init__(self, folder: Path) -> None:
        self.run = Run.open(folder)
        self._lock = threading.RLock()
        stamp = self._stamp()
        results = Results.read(self.run)  # before there is a ledger: nothing is made in a folder that is no run
        self.ledger = Ledger(folder)
        self.changes: Changes | None = None
        self.timeline = Timeline(results)
        try:
            self._load(self.run, results, stamp)
        except BaseException:
            self.ledger.close()
            raise

    @property
    def state(self) -> State:
        """The categories as they stand."""
        return self.timeline.state

    @property
    def version(self) -> str:
        """Names the state: decisions say which one they were made on."""
        return f"{self.round}.{self.timeline.version}"

    @cached_property
    def embeddings(self) -> Array:
        """Features of the rows, memory-mapped."""
        return self.run.embeddings

    @cached_property
    def paths(self) -> ImagePaths:
        """Where the photos of the rows are."""
        return ImagePaths(self.results.files, self.run.places())

    @cached_property
    def given(self) -> Array:
        """Which rows came with a label, before anybody decided anything."""
        first = self.ledger.rounds()[0]
        if first == self.round:
            return self.results.labelled
        before = self.ledger.results(first)
        old, new = same_images(before.files, self.results.files, before.content, self.results.content)
        found = np.zeros(len(self.results), dtype=bool)
        found[new] = before.labelled[old]
        return found

    @cached_property
    def aside(self) -> dict[Photo, Aside]:
        """Photos that were set aside in earlier rounds, and so are not in this one."""
        return set_aside_before(self.ledger, self.round)

    @contextmanager
    def steady(self) -> Iterator[None]:
        """The state as all processes know it, unchanging while this lasts."""
        with self._lock:
            self._catch_up()
            yield

    def decide(self, decision: Decision, version: str) -> Answer:
        """Make a decision that somebody took looking at `version`.

        If something was decided since about other categories, it is made and the answer says what was missed; if it
        was about the same ones, there is a `Conflict`.
        """
        return self._record(Event(DECIDE, decision, time.time()), version)

    def step(self, kind: str, version: str) -> Answer:
        """Undo or redo (`kind`), asked for by somebody looking at `version`: the latest, or there is a `Conflict`."""
        return self._record(Event(kind, None, time.time()), version)

    def _record(self, event: Event, version: str) -> Answer:
        with self.steady():
            try:
                with self.ledger.writing():
                    self._follow()
                    missed = self._missed(event, version)
                    self._check_aside(event)
                    played = self.timeline.play(event)
                    self.ledger.add(self.round, event)
            except BaseException:
                # whatever is not on the disk has not happened
                if len(self.ledger.events(self.round)) != self.timeline.version:
                    self.timeline = self.ledger.replay(self.round, self.results)
                raise
        return Answer(played.summary, [other.summary for other in missed])

    def _check_aside(self, event: Event) -> None:
        """Refuse to take back what is not set aside."""
        photos = event.decision.photos if event.decision else ()
        if photos and not {*photos} <= {aside[:2] for aside in self.aside.values()}:
            raise Refused("one of the images to take back was not set aside in an earlier round")

    def _missed(self, event: Event, version: str) -> list[Played]:
        """What has happened since `version`; a conflict if it is about the same."""
        number, _, count = version.partition(".")
        known = count.isdecimal() and len(count) < _DIGITS and int(count) <= self.timeline.version
        if number != str(self.round) or not known:
            raise Conflict(["the run was clustered again: its categories are new"])
        missed = self.timeline.since(int(count))
        unseen = frozenset[int]().union(*(other.touched for other in missed))
        if missed and (event.decision is None or unseen & self.state.concerns(event.decision)):
            raise Conflict([other.summary for other in missed])
        return missed

    def _catch_up(self) -> None:
        """Take in what other processes did: new results, more decisions."""
        stamp = self._stamp()  # before anything is read: results that come meanwhile are read the next time
        if stamp != self._read_at:
            run = Run.open(self.run.folder)
            self._load(run, Results.read(run), stamp)
        elif self.ledger.changed() != self._seen:
            self._follow()

    def _load(self, run: Run, results: Results, stamp: tuple[int, int, int]) -> None:
        """Take in results; all of this, or, where the ledger cannot be read, nothing."""
        number = self.ledger.round(results)
        timeline = self.ledger.replay(number, results)
        seen = self.ledger.changed()
        earlier = [other for other in self.ledger.rounds() if other < number]
        before = self.ledger.replay(earlier[-1]) if earlier else None
        changes = compare(before.state, results) if before else None
        self.run, self.results, self.round, self.timeline = run, results, number, timeline
        self.changes, self._seen, self._read_at = changes, seen, stamp
        for of_before in ("embeddings", "paths", "given", "aside"):
            self.__dict__.pop(of_before, None)

    def _follow(self) -> None:
        for event in self.ledger.events(self.round, self.timeline.version):
            self.timeline.play(event)
        self._seen = self.ledger.changed()

    def _stamp(self) -> tuple[int, int, int]:
        """Another one when the results are."""
        try:
            found = (self.run.folder / "clusters.parquet").stat()
        except OSError:
            raise InputError(f"{self.run.folder}: the run no longer exists") from None
        return found.st_mtime_ns, found.st_size, found.st_ino
