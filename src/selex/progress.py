"""Where long work stands: a bar on a terminal, lines in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from typing import Any, TypeVar

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


def _heard(text: str) -> Callable[[int, int], None]:
    """Tells the listener about one piece of work."""
    return lambda done, total: _listeners[-1](text, done, max(done, total))


@contextmanager
def progress_bar(text: str, shown: bool = True) -> Iterator[Callable[[int, int], None]]:
    """Where work stands, while it lasts; call it with done and total. A bar on a terminal, elsewhere lines."""
    from rich import progress as rich
    from rich.console import Console

    console = Console(stderr=True)
    if shown and (_listeners or not console.is_terminal):
        yield _heard(text) if _listeners else _lines(text)
        return
    done = (rich.TextColumn("{task.description}"), rich.MofNCompleteColumn(), rich.BarColumn())
    times = (rich.TimeElapsedColumn(), rich.TextColumn("left:"), rich.TimeRemainingColumn())
    with rich.Progress(*done, *times, console=console, transient=True, disable=not shown) as bar:
        task = bar.add_task(text, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=max(done, total))


@contextmanager
def images_bar(doing: str, total: int, done: int = 0, shown: bool = True) -> Iterator[Callable[[int], None]]:
    """Where work on images stands: how many, images a second, time left. Call it with how many are done.

    A bar on a terminal; elsewhere, in a log, a line from time to time. `done` were done before.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if shown and (_listeners or not console.is_terminal):
        line = _heard(f"{doing}, image") if _listeners else _lines(f"{doing}:", done, "images")
        yield lambda now: line(now, total)
        return
    rate = TextColumn("{task.fields[rate]:,.0f} images/s")
    columns = (TextColumn(doing), BarColumn(), MofNCompleteColumn(), rate, TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not shown) as bar:
        task = bar.add_task("", total=total, completed=done, rate=0.0)
        begun = time.monotonic()
        yield lambda now: bar.update(task, completed=now, rate=(now - done) / max(time.monotonic() - begun, 1e-9))


def _lines(text: str, before: int = 0, unit: str = "") -> Callable[[int, int], None]:
    """A line from time to time: done and total, how many a second where they have a unit, and the time left."""
    begun = told = time.monotonic()

    def advance(done: int, total: int) -> None:
        nonlocal told
        now = time.monotonic()
        if now - told < SECONDS_A_LINE or done >= total:
            return
        told = now
        rate = (done - before) / (now - begun)
        speed = f" {unit}, {rate:,.{0 if rate >= 10 else 1}f} {unit}/s" if unit else ""
        left = f", {_duration((total - done) / rate)} left" if rate else ""
        print(f"{text} {done:,} of {total:,}{speed}{left}", file=sys.stderr, flush=True)

    return advance


@contextmanager
def estimate_bar(shown: bool = True) -> Iterator[Callable[[int, float], None]]:
    """The line while `estimate_k` tries one count of categories after the other."""
    tries = count(1)
    with progress_bar("estimating the number of categories, try", shown) as advance:
        yield lambda n_clusters, score: advance(next(tries), 18)


@contextmanager
def training_bar(
    epochs: int, steps: int, batch: int, shown: bool = True, doing: str = "training"
) -> Iterator[Callable[[int, float], None]]:
    """Where training stands: epoch, loss, images a second, time left. Call it after each step.

    A bar on a terminal; elsewhere, in a log, a line from time to time. `doing` says which training it is.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    text = doing + ", epoch {task.fields[epoch]} of " + str(epochs)
    rate = TextColumn("loss {task.fields[loss]:.3f}  {task.fields[rate]:,.0f} images/s  left:")
    console = Console(stderr=True)
    if shown and _listeners:
        heard = _heard(f"{doing}, epoch")
        yield lambda epoch, loss: heard(epoch + 1, epochs)
        return
    if shown and not console.is_terminal:
        yield _training_lines(epochs, steps, doing)
        return
    columns = (TextColumn(text), BarColumn(), rate, TimeRemainingColumn(elapsed_when_finished=True))
    with Progress(*columns, console=console, transient=True, disable=not shown) as bar:
        task = bar.add_task("", total=epochs * steps, epoch=1, loss=float("nan"), rate=0.0)

        def advance(epoch: int, loss: float) -> None:
            done = bar.tasks[task].completed
            if done < epoch * steps:  # resumed: what was done before is no part of the rate
                bar.update(task, completed=epoch * steps)
            bar.update(task, advance=1, epoch=epoch + 1, loss=loss, rate=batch * (bar.tasks[task].speed or 0))

        yield advance


def _training_lines(epochs: int, steps: int, doing: str) -> Callable[[int, float], None]:
    """A line at the end of an epoch, unless the last one is only seconds old."""
    begun = told = time.monotonic()
    done = 0

    def advance(epoch: int, loss: float) -> None:
        nonlocal done, told
        done, now = done + 1, time.monotonic()
        if done % steps or now - told < SECONDS_A_LINE:
            return
        told = now
        left = (now - begun) / done * steps * (epochs - epoch - 1)
        print(f"{doing}: epoch {epoch + 1} of {epochs}, loss {loss:.3f}, {_duration(left)} left", file=sys.stderr)

    return advance


def _duration(seconds: float) -> str:
    """Roughly how long, in words."""
    if seconds < 90:
        return f"about {round(seconds, -1):.0f} s"
    return f"about {seconds / 60:.0f} min" if seconds < 5400 else f"about {seconds / 3600:.1f} h"
