"""What the page starts: exports, and clustering again in a process of its own, so that the page stays quick."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal

from selex.data.names import spell
from selex.errors import InputError
from selex.export import FORMATS, export
from selex.folders import own_folder
from selex.io import first_line
from selex.review.core.decisions import Refused
from selex.review.core.outcome import corrected
from selex.review.core.session import Review
from selex.review.core.state import JUNK
from selex.review.server.schema import ContinueOut, Written
from selex.run import Run

Condition = Literal["idle", "running", "done", "failed"]


class Job:
    """At most one clustering at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._state: Condition = "idle"
        self._lines: list[str] = []
        self._lock = threading.Lock()
        self._process: multiprocessing.process.BaseProcess | None = None
        self._began = 0.0

    @property
    def running(self) -> bool:
        """Whether it is at work."""
        return self._state == "running"

    def start(self) -> ContinueOut:
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
            self._state, self._lines, self._began = "running", [], time.time()
            threading.Thread(target=self._listen, args=(here,), daemon=True).start()
        return self.status()

    def status(self) -> ContinueOut:
        """How it is going."""
        lines = list(self._lines)
        if self.running and lines and lines[-1].startswith("training"):
            lines += self._epochs()
        return ContinueOut(state=self._state, lines=lines)

    def stop(self) -> None:
        """End it; what it has done so far is kept, and the same again resumes from there."""
        if self._process is not None and self._process.is_alive():
            self._process.terminate()
            self._process.join(5)

    def _epochs(self) -> list[str]:
        """How far training is: it may take hours, and says nothing until it is done."""
        run, began = Run(self._folder), round(self._began, 3)  # as times in metrics are
        done = [entry for entry in run.metrics if entry.get("step") == "epoch" and entry["time"] >= began]
        of = run.config.train.epochs
        return [f"epoch {entry['epoch'] + 1} of {of}, loss {entry['loss']:.3f}" for entry in done[-1:]]

    def _listen(self, pipe: Connection) -> None:
        end: Condition = "failed"
        try:
            while True:
                kind, line = pipe.recv()
                self._lines.append(line)
                end = "done" if kind == "done" else end
        except EOFError:
            pass
        if end == "failed" and not self._lines:
            self._lines.append("it ended without a word")
        self._state = end


def work(folder: Path, pipe: Connection) -> None:
    """What the process does: lines of progress go through the pipe, at the end `done` or `failed`."""
    import torch

    from selex.review.recluster import again

    try:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        done = again(folder, device=device, tell=lambda line: pipe.send(("line", line)))
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
    try:
        own_folder(folder)
    except OSError as error:
        raise InputError(f"{folder}: cannot be made ({error.strerror})") from None
    with review.steady():
        if (review.state.mark == JUNK).all():
            raise Refused("every image is marked as junk: there is nothing to export")
        table, run, version = corrected(review.run, review.state), review.run, review.version
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
