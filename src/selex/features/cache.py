"""Features on disk: a mapped `.npy` file that is there once all rows are done, and work that can be resumed.

Beside `OUT` are `OUT.part` (the rows so far, until all are done) and `OUT.json` (what they are of, how many are done).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.lib.format import open_memmap

from selex.errors import InputError
from selex.io import is_plain_file, whole

Features = np.ndarray[tuple[int, int], np.dtype[np.float32]]


@dataclass(frozen=True)
class Standing:
    """How far features are: what they are of, their shape, and how many rows are done in batches of which size."""

    key: str
    rows: int
    dim: int
    batch_size: int
    done: int = 0


class FeatureFile:
    """The features at `out`; resumes what is there if it is of the same `key` and shape, else starts anew."""

    def __init__(self, out: Path, wanted: Standing) -> None:
        self.out, self.part = out, out.with_name(out.name + ".part")
        self._note = out.with_name(out.name + ".json")
        self.standing = self._resumable(wanted)

    @property
    def complete(self) -> bool:
        """Whether all is done. A part file beside it means that `out` is an older one."""
        return (
            self.standing.done == self.standing.rows
            and self._holds(self.out, self.standing)
            and not self.part.is_file()
        )

    def read(self) -> Features:
        """The complete features, mapped."""
        return _mapped(self.out, "r")

    def rows(self) -> Features:
        """All rows to be written to, those done so far among them."""
        if self.standing.done:
            return _mapped(self.part, "r+")
        with self._reported():
            self.out.parent.mkdir(parents=True, exist_ok=True)
            self._note.unlink(missing_ok=True)  # it must never speak of another file
            self.part.unlink(missing_ok=True)  # nor a link lead to one
            features = open_memmap(
                self.part, mode="w+", dtype=np.float32, shape=(self.standing.rows, self.standing.dim)
            )
            _claim_disk(self.part)
        self.save(0)
        return cast(Features, features)

    def save(self, done: int) -> None:
        """Standing how many rows are done."""
        self.standing = replace(self.standing, done=done)
        with self._reported(), whole(self._note) as partial:
            partial.write_text(json.dumps(asdict(self.standing)))

    def finish(self) -> Features:
        """Put the complete features in their place."""
        with self._reported():
            os.replace(self.part, self.out)
        return self.read()

    def _resumable(self, wanted: Standing) -> Standing:
        try:
            standing = Standing(**json.loads(self._note.read_text()))
        except (OSError, ValueError, TypeError):
            return wanted
        same = (standing.key, standing.rows, standing.dim) == (wanted.key, wanted.rows, wanted.dim)
        usable = self._holds(self.part, wanted) or (standing.done == standing.rows and self._holds(self.out, wanted))
        return standing if same and usable else wanted

    @staticmethod
    def _holds(path: Path, standing: Standing) -> bool:
        try:
            return is_plain_file(path) and _mapped(path, "r").shape == (standing.rows, standing.dim)
        except (OSError, EOFError, ValueError):
            return False

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """A failure to write, reported in one line."""
        try:
            yield
        except OSError as error:
            raise InputError(f"cannot write features to {self.out}: {error.strerror or error}") from error


def _mapped(path: Path, mode: Literal["r", "r+"]) -> Features:
    features: Any = np.load(path, mmap_mode=mode)
    return cast(Features, features)


def _claim_disk(path: Path) -> None:
    """Take a sparse file's space now: a disk that fills up under a mapped file kills the process."""
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
