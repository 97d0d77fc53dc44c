"""Where long work stands: a bar on a terminal, lines in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from math import ceil
from typing import Any, Protocol, TypeVar

SECONDS_A_LINE = 10.0
"""Where there is no terminal, work says where it stands no more often than this."""

Listener = Callable[[str, int, int], None]
Watcher = Callable[[dict[str, Any]], None]
_Either = TypeVar("_Either")
_listeners: list[Listener] = []
_watchers: list[Watcher] = []


def listening(listener: Listener) -> AbstractContextManager[None]:
    """While this lasts, `listener` is told what is done, how much of it and of how much, in place of bars and lines."""
    return _among(_listeners, listener)


def watching(watcher: Watcher) -> AbstractContextManager[None]:
    """While this lasts, `watcher` is told of every step that is done, as a run's own log is."""
    return _among(_watchers, watcher)


@contextmanager
def _among(others: list[_Either], one: _Either) -> Iterator[None]:
    others.append(one)
    try:
        yield
    finally:
        others.remove(one)


def step_done(entry: dict[str, Any]) -> None:
    """Tell who watches of a step."""
    for watcher in _watchers:
        watcher(entry)


class Advance(Protocol):
    """Says how much is done, of how much, and what else there is to say."""

    def __call__(self, done: float, total: int, note: str = "") -> None:
        """A part of one counts as under way."""


@contextmanager
def progress_bar(text: str, shown: bool = True, unit: str = "", before: int | None = 0) -> Iterator[Advance]:
    """Where work stands, while it lasts: a bar on a terminal, elsewhere lines; a listener is told in their place.

    With a `unit` it says how many a second. What was done `before` is no part of that, nor of the time left; None takes
    it from the first call.
    """
    from rich import progress as rich
    from rich.console import Console

    console = Console(stderr=True)
    if shown and _listeners:
        yield lambda done, total, note="": _listeners[-1](text, ceil(done), max(ceil(done), total))
        return
    if shown and not console.is_terminal:
        yield _lines(text, unit, before)
        return
    columns = ("{task.description}", "{task.fields[count]}", rich.BarColumn(), "{task.fields[note]}")
    times = (rich.TimeElapsedColumn(), "left:", rich.TimeRemainingColumn())
    with rich.Progress(*columns, *times, console=console, transient=True, disable=not shown) as bar:
        task = bar.add_task(text, total=None, completed=before or 0, count="", note="")

        def advance(done: float, total: int, note: str = "") -> None:
            note = f"{bar.tasks[task].speed or 0:,.0f} {unit}/s" if unit else note
            count = f"{ceil(done):,}/{max(ceil(done), total):,}"
            bar.update(task, completed=done, total=max(done, total), count=count, note=note)

        yield advance


def _lines(text: str, unit: str, before: int | None) -> Advance:
    """A line from time to time: done and total, how many a second where they have a unit, and the time left."""
    begun = told = time.monotonic()

    def advance(done: float, total: int, note: str = "") -> None:
        nonlocal told, before
        now, before = time.monotonic(), ceil(done) - 1 if before is None else before
        if now - told < SECONDS_A_LINE or done >= total:
            return
        told = now
        rate = (done - before) / (now - begun)
        part = f"{100 * (done % 1):.0f} % of it" if done % 1 else ""
        note = "".join(f", {said}" for said in (part, note) if said)
        speed = f", {rate:,.{0 if rate >= 10 else 1}f} {unit}/s" if unit else ""
        left = f", {_duration((total - done) / rate)} left" if rate else ""
        print(f"{text} {ceil(done):,} of {total:,}{note}{speed}{left}", file=sys.stderr, flush=True)

    return advance


@contextmanager
def images_bar(doing: str, total: int, done: int = 0, shown: bool = True) -> Iterator[Callable[[int], None]]:
    """Where work on images stands. Call it with how many are done; so many were `done` before."""
    with progress_bar(f"{doing}, image", shown, "images", done) as advance:
        yield lambda now: advance(now, total)


@contextmanager
def estimate_bar(shown: bool = True) -> Iterator[Callable[[int, float], None]]:
    """The line while `estimate_k` tries one count of categories after the other."""
    tries = count(1)
    with progress_bar("estimating the number of categories, try", shown) as advance:
        yield lambda n_clusters, score: advance(next(tries), 18)


@contextmanager
def training_bar(
    epochs: int, steps: int, shown: bool = True, doing: str = "training"
) -> Iterator[Callable[[int, float], None]]:
    """Where training stands. Call it after each step with the epoch and the loss; `doing` says which training it is."""
    with progress_bar(f"{doing}, epoch", shown, before=None) as advance:
        made = count(1)
        yield lambda epoch, loss: advance(epoch + ((next(made) - 1) % steps + 1) / steps, epochs, f"loss {loss:.3f}")


def _duration(seconds: float) -> str:
    """Roughly how long, in words."""
    if seconds < 90:
        return f"about {ceil(seconds) if seconds < 10 else round(seconds, -1):.0f} s"
    return f"about {seconds / 60:.0f} min" if seconds < 5400 else f"about {seconds / 3600:.1f} h"
