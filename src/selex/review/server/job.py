"""What the page starts: exports, and clustering again in a process of its own, so that the page stays quick."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

from selex.data.labels import spell
from selex.errors import InputError
from selex.folders import own_folder
from selex.io import first_line, reported
from selex.progress import Listener, listening
from selex.review.core.decisions import Refused
from selex.review.core.outcome import corrected
from selex.review.core.session import Review
from selex.review.core.state import SET_ASIDE
from selex.review.server.actions import ReclusterOut, Written
from selex.runs.export import export
from selex.runs.export_formats import FORMATS
from selex.runs.run import Run

Condition = Literal["idle", "running", "done", "failed"]


class ReclusterJob:
    """At most one clustering at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._state: Condition = "idle"
        self._lines: list[str] = []
        self._lock = threading.Lock()
        self._process: multiprocessing.process.BaseProcess | None = None
        self._began = 0.0
        self._expected = self._first_word = 0.0
        self._at: _At | None = None

    @property
    def running(self) -> bool:
        """Whether it is at work."""
        return self._state == "running"

    def start(self) -> ReclusterOut:
        """Start it; refused while it runs."""
        with self._lock:
            if self.running:
                raise Refused("the run is being clustered already")
            # spawned, not forked: this process has threads, and torch is not to be in it
            context = multiprocessing.get_context("spawn")
            here, there = context.Pipe(duplex=False)
            self._process = context.Process(target=work, args=(self._folder, there), daemon=True)
            self._process.start()
            there.close()
            self._state, self._lines, self._began, self._at = "running", [], time.time(), None
            self._expected, self._first_word = seconds_last_time(Run(self._folder).metrics), 0.0
            threading.Thread(target=self._listen, args=(here,), daemon=True).start()
        return self.status()

    def status(self) -> ReclusterOut:
        """How it is going."""
        lines = list(self._lines)
        if self.running and lines and lines[-1].startswith("training"):
            lines += self._epochs()
        if not self.running:
            return ReclusterOut(state=self._state, lines=lines)
        now, at = time.time(), self._at
        expected = self._expected - (now - self._first_word) if self._first_word else 0.0  # starting took no time then
        left = max(expected, at.left(now) if at else 0.0)
        doing = f"{at.doing} {at.done:,} of {at.total:,}" if at else None
        spent = now - self._began
        return ReclusterOut(state="running", lines=lines, doing=doing, seconds=spent, seconds_left=left or None)

    def stop(self) -> bool:
        """End it, and whether it ran; what it has done so far is kept, and the same again resumes from there."""
        if self._process is None or not self._process.is_alive():
            return False
        self._process.terminate()
        self._process.join(5)
        return True

    def _epochs(self) -> list[str]:
        """How far training is: it may take hours, and says nothing until it is done."""
        run, began = Run(self._folder), round(self._began, 3)  # as times in metrics are
        steps = [entry for entry in run.metrics if entry["time"] >= began]
        last = max((at for at, entry in enumerate(steps) if entry.get("step") == "train"), default=-1)  # one is over
        done, of = [entry for entry in steps[last + 1 :] if entry.get("step") == "epoch"], run.config.train.epochs
        return [f"epoch {entry['epoch'] + 1} of {of}, loss {entry['loss']:.3f}" for entry in done[-1:]]

    def _listen(self, pipe: Connection) -> None:
        end: Condition = "failed"
        try:
            while True:
                kind, told = pipe.recv()
                self._first_word = self._first_word or time.time()
                if kind == "at":
                    self._show_progress(*told)
                    continue
                self._lines.append(told)
                self._at = None  # whatever it was at is done
                end = "done" if kind == "done" else end
        except EOFError:
            pass
        if end == "failed" and not self._lines:
            self._lines.append("it ended without a message")
        self._state = end

    def _show_progress(self, doing: str, done: int, total: int) -> None:
        at = self._at
        began = at.began if at and at.doing == doing else time.time()
        first = at.first if at and at.doing == doing else done
        self._at = _At(doing, done, total, began, first)


@dataclass(frozen=True)
class _At:
    """What the process is at: how much of it is done, and since when, counted from `first`."""

    doing: str
    done: int
    total: int
    began: float
    first: int

    def left(self, now: float) -> float:
        """Seconds that the rest of it may take, at the rate so far."""
        done = self.done - self.first
        return (now - self.began) / done * (self.total - self.done) if done else 0.0


def seconds_last_time(metrics: list[dict[str, Any]]) -> float:
    """How long the last training and clustering took, by the log; images are decoded and embedded no second time."""
    begun = max((at for at, entry in enumerate(metrics) if entry.get("step") == "decode"), default=0)
    steps = [entry for entry in metrics[begun:] if entry.get("step") in ("train", "cluster")]
    return float(sum(entry["seconds"] for entry in steps if isinstance(entry.get("seconds"), (int, float))))


_SECONDS_A_LOOK = 0.2  # the page asks no more often


def _looks(pipe: Connection) -> Listener:
    """Sends where the work stands, now and then."""
    told_at, told = 0.0, ""

    def look(doing: str, done: int, total: int) -> None:
        nonlocal told_at, told
        now = time.monotonic()
        if doing != told or now - told_at >= _SECONDS_A_LOOK:
            told_at, told = now, doing
            pipe.send(("at", (doing, done, total)))

    return look


def work(folder: Path, pipe: Connection) -> None:
    """What the process does: lines of progress go through the pipe, at the end `done` or `failed`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends this
    import torch

    from selex.review.recluster import recluster

    try:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        with listening(_looks(pipe)):
            done = recluster(folder, device=device, progress=True, tell=lambda line: pipe.send(("line", line)))
        pipe.send(("done", str(done.changes)))
    except InputError as error:
        pipe.send(("failed", str(error)))
    except Exception as error:
        pipe.send(("failed", f"it failed ({type(error).__name__}: {first_line(error)}); the server's output has more"))
        raise


FOLDER = "exports"
_ENDINGS = {"csv": ".csv", "parquet": ".parquet"}


def write_export(review: Review, to: str) -> Written:
    """Write the state in one of the formats of `selex export`, beside earlier exports."""
    folder = review.run.folder / FOLDER
    with reported(f"{folder}: cannot be created"):
        own_folder(folder)
    with review.steady():
        if (review.state.mark == SET_ASIDE).all():
            raise Refused("every image is set aside: there is nothing to export")
        table, run, version = corrected(review.state), review.run, review.version
    done = export(run, to, _new(folder, f"{to}-{version}", _ENDINGS.get(to, "")), table=table)
    path, advice = spell(str(done.out.absolute())), spell(done.advice)
    return Written(path=path, images=done.images, categories=done.categories, advice=advice)


def _new(folder: Path, stem: str, ending: str) -> Path:
    """A name that nothing has yet."""
    assert stem.rpartition("-")[0] in FORMATS
    path, number = folder / f"{stem}{ending}", 1
    while os.path.lexists(path):
        number += 1
        path = folder / f"{stem}-{number}{ending}"
    return path
