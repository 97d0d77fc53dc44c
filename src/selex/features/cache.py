"""Features on disk: a mapped `.npy` file that is there once all rows are done, and work that can be resumed.

Beside `OUT` are `OUT.part` (the rows so far, until all are done) and `OUT.json` (what they are of, how many are done,
and their digest: rows that are not what they were are made anew).
"""

from __future__ import annotations

import hashlib
import os
import warnings
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.lib.format import open_memmap

from selex.checksums import check_stamp, read_object, stamped
from selex.errors import InputError, Note
from selex.io import atomic_path, is_plain_file, reported

_BLOCK = 4096  # rows whose digest is made at a time

Features = np.ndarray[tuple[int, int], np.dtype[np.float32]]


@dataclass(frozen=True)
class Standing:
    """How far features are: what they are of, their shape, how many rows are done, in batches of which size, and the
    digest of those rows.
    """

    key: str
    rows: int
    dim: int
    batch_size: int
    done: int = 0
    rows_sha256: str = ""


class FeatureFile:
    """The features at `out`; resumes what is there if it is of the same `key` and shape, else starts anew."""

    def __init__(self, out: Path, wanted: Standing) -> None:
        self.out, self.part = out, out.with_name(out.name + ".part")
        self._note = out.with_name(out.name + ".json")
        self._digest, self._digested = hashlib.sha256(), 0
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
            self._rows = _mapped(self.part, "r+")
            return self._rows
        with self._reported():
            self.out.parent.mkdir(parents=True, exist_ok=True)
            self._note.unlink(missing_ok=True)  # it must never speak of another file
            self.part.unlink(missing_ok=True)  # nor a link lead to one
            shape = (self.standing.rows, self.standing.dim)
            self._rows = cast(Features, open_memmap(self.part, mode="w+", dtype=np.float32, shape=shape))
            _claim_disk(self.part)
        self.save(0)
        return self._rows

    def save(self, done: int) -> None:
        """Note that so many rows are done, once they are on disk."""
        if isinstance(self._rows, np.memmap):
            self._rows.flush()
        self._digest.update(self._rows[self._digested : done].tobytes())
        self._digested = done
        self.standing = replace(self.standing, done=done, rows_sha256=self._digest.hexdigest())
        with self._reported(), atomic_path(self._note) as partial:
            partial.write_text(stamped(asdict(self.standing)))

    def finish(self) -> Features:
        """Put the complete features in their place."""
        with self._reported():
            os.replace(self.part, self.out)
        return self.read()

    def _resumable(self, wanted: Standing) -> Standing:
        try:
            standing = self._noted()
        except (InputError, TypeError):
            _made_anew(self._note)
            return wanted
        if standing is None or (standing.key, standing.rows, standing.dim) != (wanted.key, wanted.rows, wanted.dim):
            return wanted
        path = self.part if is_plain_file(self.part) else self.out
        if not is_plain_file(path) or (path == self.out and standing.done < standing.rows):
            return wanted
        if not self._holds(path, wanted) or not self._is_as_noted(path, standing):
            _made_anew(path)
            return wanted
        return standing

    def _noted(self) -> Standing | None:
        if not is_plain_file(self._note):
            return None
        values = read_object(self._note)
        check_stamp(self._note, values)
        return Standing(**{field.name: values[field.name] for field in fields(Standing) if field.name in values})

    def _is_as_noted(self, path: Path, standing: Standing) -> bool:
        """Whether the rows that are done are what they were; the digest goes on from them."""
        rows, digest = _mapped(path, "r"), hashlib.sha256()
        for start in range(0, standing.done, _BLOCK):
            digest.update(rows[start : min(start + _BLOCK, standing.done)].tobytes())
        if digest.hexdigest() != standing.rows_sha256:
            return False
        self._digest, self._digested = digest, standing.done
        return True

    @staticmethod
    def _holds(path: Path, standing: Standing) -> bool:
        try:
            found = _mapped(path, "r")
        except (OSError, EOFError, ValueError):
            return False
        return found.shape == (standing.rows, standing.dim) and found.dtype == np.float32

    def _reported(self) -> AbstractContextManager[None]:
        return reported(f"cannot write features to {self.out}")


def _mapped(path: Path, mode: Literal["r", "r+"]) -> Features:
    features: Any = np.load(path, mmap_mode=mode)
    return cast(Features, features)


def _made_anew(path: Path) -> None:
    warnings.warn(f"{path}: is damaged; features are computed again", Note, stacklevel=2)


def _claim_disk(path: Path) -> None:
    """Take a sparse file's space now: a disk that fills up under a mapped file kills the process."""
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
