"""Features on disk: those of a run, which can be resumed, and those of all images ever seen, shared by all runs.

A run's are a mapped `.npy` file that is there once all rows are done. Beside `OUT` are `OUT.part` (the rows so far,
until all are done) and `OUT.json` (what they are of, how many are done, and their digest: rows that are not what they
were are made anew).

What a network has made of an image once is not made again: there is a folder in the cache for each way of making
features. In it are files that are written whole and never change: keys and checksums, then rows. Nobody waits for
anybody, and whoever is killed leaves nothing half-written. n images, d dims of the feature.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import time
import warnings
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.lib import format as npy
from numpy.lib.format import open_memmap

from selex.checksums import check_stamp, read_object, stamped
from selex.data.store_files import find_keys
from selex.errors import InputError, Note
from selex.folders import cache_folder, check_own_folder, own_folder, take_folder
from selex.io import atomic_path, is_plain_file, is_plain_folder, reported

_BLOCK = 4096  # rows whose digest is made at a time

Features = np.ndarray[tuple[int, int], np.dtype[np.float32]]


@dataclass(frozen=True)
class Standing:
    """How far features are."""

    key: str  # what they are of
    rows: int
    dim: int
    batch_size: int
    done: int = 0  # rows so far
    rows_sha256: str = ""  # of those


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
        done = self.standing.done == self.standing.rows
        return done and self._holds(self.out, self.standing) and not self.part.is_file()

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
    return cast(Features, np.load(path, mmap_mode=mode))


def _made_anew(path: Path) -> None:
    warnings.warn(f"{path}: is damaged; features are computed again", Note, stacklevel=2)


def _claim_disk(path: Path) -> None:
    """Take a sparse file's space now: a disk that fills up under a mapped file kills the process."""
    if hasattr(os, "posix_fallocate"):  # macOS has none
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


Array = np.ndarray[Any, Any]

FORMAT = 1
"""Changes whenever the way from pixels to features, or the files, do."""
SHARE_EVERY = 60.0
"""Seconds between two files."""
KIND = "feature cache"
_ENTRY = np.dtype([("key", "S16"), ("crc", "<u4")])
_NAME = re.compile(r"[0-9a-f]{16}\.rows")
_MANY = 64  # small files that are brought together into one
_LARGE = 4096  # rows of a file that is left alone; also rows that are read at a time


class FeatureCache:
    """Features of images by the digests of their pixels, for one way of making them.

    Attributes:
        made: how many features were made, rather than found, by whoever uses it.
    """

    def __init__(self, way: str, dim: int) -> None:
        self.dim, self.made = dim, 0
        name = hashlib.sha256(f"{FORMAT} {dim} {way}".encode()).hexdigest()[:32]
        self.folder = cache_folder() / "features" / name

    def read(self, keys: Array, features: Array, start: int = 0) -> Array:
        """Put the rows that are here into `features` `(n, d)`, from row `start` on; which of all rows are here."""
        files = [(path, *read) for path in self._paths() if (read := self._open(path)) is not None]
        if not files:
            return np.zeros(len(keys), dtype=bool)
        first = np.cumsum([0, *(len(entries) for _, entries, _ in files)])
        place = find_keys(np.concatenate([entries["key"] for _, entries, _ in files]), keys)
        for (path, entries, rows), low, high in zip(files, first, first[1:], strict=False):
            here = np.flatnonzero((place >= low) & (place < high))
            if not _copy(entries, rows, features, here[here >= start], place[here[here >= start]] - low):
                self._drop(path)
                place[here] = -1
        return place >= 0

    def add(self, keys: Array, features: Array) -> None:
        """Keep rows `(n, d)`; where that cannot be, a note says so."""
        try:
            for start in range(0, len(keys), 16 * _LARGE):
                block = slice(start, start + 16 * _LARGE)
                self._write(keys[block], np.ascontiguousarray(features[block], dtype="<f4"))
            self._bring_together()
        except (OSError, InputError, RuntimeError) as error:
            warnings.warn(f"features cannot be kept for other runs: {error}", Note, stacklevel=2)

    def _write(self, keys: Array, rows: Array) -> None:
        _own(self.folder)
        entries = np.zeros(len(keys), dtype=_ENTRY)
        entries["key"], entries["crc"] = keys, [zlib.crc32(row) for row in rows]
        with atomic_path(self.folder / f"{secrets.token_hex(8)}.rows") as partial, partial.open("wb") as file:
            npy.write_array(file, entries, version=(1, 0))
            npy.write_array(file, rows, version=(1, 0))

    def _bring_together(self) -> None:
        """One file in place of many small ones. Who is reading those has them open; who is not, makes rows again."""
        opened = [(path, read) for path in self._paths() if (read := self._open(path)) is not None]
        small = [(path, read) for path, read in opened if len(read[0]) < _LARGE]
        if len(small) <= _MANY:
            return
        entries = np.concatenate([read[0] for _, read in small])
        kept = np.unique(entries["key"], return_index=True)[1]
        rows = np.concatenate([read[1] for _, read in small])
        sound = np.array([zlib.crc32(rows[row]) == entries["crc"][row] for row in kept], dtype=bool)
        self._write(entries["key"][kept[sound]], rows[kept[sound]])
        for path, _ in small:
            path.unlink(missing_ok=True)

    def _paths(self) -> Iterator[Path]:
        """The files that are here; a link is none."""
        if is_plain_folder(self.folder.parent) and is_plain_folder(self.folder):
            for name in sorted(filter(_NAME.fullmatch, os.listdir(self.folder))):
                if is_plain_file(self.folder / name):
                    yield self.folder / name

    def _open(self, path: Path) -> tuple[Array, Array] | None:
        """Entries and mapped rows `(n, d)` of a file; one that is damaged is removed."""
        try:
            with path.open("rb") as file:
                entries = npy.read_array(file, allow_pickle=False)
                npy.read_magic(file)
                shape, _, kind = npy.read_array_header_1_0(file)
                if entries.dtype != _ENTRY or kind != np.dtype("<f4") or shape != (len(entries), self.dim):
                    raise ValueError("not what we write")
                return entries, np.memmap(file, dtype=kind, mode="r", offset=file.tell(), shape=shape)
        except FileNotFoundError:  # brought together with others just now
            return None
        except Exception:  # a damaged file fails in many ways
            self._drop(path)
            return None

    def _drop(self, path: Path) -> None:
        warnings.warn(f"{path}: is damaged; its features are computed again", Note, stacklevel=3)
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _own(folder: Path) -> None:
    """The folder, made where it is not there; a link in its place is refused."""
    folder.parent.parent.mkdir(parents=True, exist_ok=True)
    own_folder(folder.parent)
    check_own_folder(folder)
    take_folder(folder, KIND)


def _copy(entries: Array, rows: Array, features: Array, targets: Array, sources: Array) -> bool:
    """Copy rows from a file to their places; False if one of them is not what it was."""
    for start in range(0, len(targets), _LARGE):
        some = sources[start : start + _LARGE]
        block = np.ascontiguousarray(rows[some])
        if [zlib.crc32(row) for row in block] != entries["crc"][some].tolist():
            return False
        features[targets[start : start + _LARGE]] = block
    return True


class SharedRows:
    """Rows of features that the cache has, `found`; others are put there as they are made. Without a cache, none."""

    def __init__(self, cache: FeatureCache | None, images: Any, features: Array, start: int) -> None:
        self.cache, self.features, self.at = cache, features, time.monotonic()
        self.found = np.zeros(len(features), dtype=bool)
        if self.cache is not None:
            self.keys: Array = images.digests
            self.found = self.cache.read(self.keys, features, start)

    def add(self, done: int, last: bool = False) -> None:
        """Keep the rows up to `done` that were not found, now and then and at the end."""
        if self.cache is None or (not last and time.monotonic() - self.at < SHARE_EVERY):
            return
        rows = np.flatnonzero(~self.found[:done])
        self.cache.made += len(rows)
        self.found[rows], self.at = True, time.monotonic()
        rows = rows[np.unique(self.keys[rows], return_index=True)[1]]
        if len(rows):
            self.cache.add(self.keys[rows], self.features[rows])
