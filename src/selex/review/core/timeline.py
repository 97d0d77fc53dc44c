"""Decisions, undoing and redoing as one line of events that only grows. The state is what they add up to."""

from __future__ import annotations

from dataclasses import dataclass

from selex.review.core.decisions import Decision, Refused
from selex.review.core.state import SET_ASIDE, Patch, State
from selex.runs.results import Results

DECIDE, UNDO, REDO = "decide", "undo", "redo"


@dataclass(frozen=True)
class Event:
    """One line of the ledger: a decision, or that the latest one is undone or done again."""

    kind: str
    decision: Decision | None = None
    time: float = 0.0

    @property
    def decided(self) -> Decision:
        """The decision of an event that is one."""
        assert self.decision
        return self.decision


@dataclass(frozen=True)
class Played:
    """An event that has happened: which categories it touched, and what a person would say it did."""

    event: Event
    touched: frozenset[int]
    summary: str


class Timeline:
    """The state of a round and how it came about.

    Attributes:
        state: the categories as they stand.
        played: all events, in order; their number is the version of the state.
    """

    def __init__(self, results: Results) -> None:
        self.state = State(results)
        self.played: list[Played] = []
        self._done: list[tuple[Event, Patch]] = []
        self._undone: list[Event] = []

    @property
    def version(self) -> int:
        """How many events there have been."""
        return len(self.played)

    @property
    def can_undo(self) -> str | None:
        """What undoing would take back."""
        return self._done[-1][1].summary if self._done else None

    @property
    def can_redo(self) -> bool:
        """Whether something was undone last."""
        return bool(self._undone)

    @property
    def n_decisions(self) -> int:
        """How many decisions count now."""
        return len(self._done)

    @property
    def checked(self) -> set[int]:
        """Rows that somebody spoke of one by one, as decisions count now."""
        return {row for event, _ in self._done for row in event.decided.rows}

    @property
    def set_aside(self) -> dict[int, Event]:
        """Rows that are set aside, and the decision that did it."""
        found = {
            row: event for event, _ in self._done if event.decided.kind == "set_aside" for row in event.decided.rows
        }
        return {row: event for row, event in found.items() if self.state.mark[row] == SET_ASIDE}

    def play(self, event: Event) -> Played:
        """Let an event happen; one that cannot is `Refused` and changes nothing."""
        if event.kind == UNDO:
            touched, summary = self._undo()
        elif event.kind == REDO:
            touched, summary = self._redo()
        else:
            patch = self.state.apply(event.decided)
            self._done.append((event, patch))
            self._undone.clear()
            touched, summary = patch.touched, patch.summary
        self.played.append(Played(event, touched, summary))
        return self.played[-1]

    def since(self, version: int) -> list[Played]:
        """What has happened after a version."""
        return self.played[max(version, 0) :]

    def _undo(self) -> tuple[frozenset[int], str]:
        if not self._done:
            raise Refused("there is nothing to undo in this round")
        event, patch = self._done.pop()
        self.state.revert(patch)
        self._undone.append(event)
        return patch.touched, f"undone: {patch.summary}"

    def _redo(self) -> tuple[frozenset[int], str]:
        if not self._undone:
            raise Refused("there is nothing to redo in this round")
        patch = self.state.apply(self._undone[-1].decided)
        self._done.append((self._undone.pop(), patch))
        return patch.touched, f"redone: {patch.summary}"
