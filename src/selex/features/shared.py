"""Features by image, shared by all runs: what a network has made of an image once is not made again.

There is a folder in the cache for each way of making features. In it are files that are written whole and never change:
keys and checksums, then rows. Nobody waits for anybody, and whoever is killed leaves nothing half-written.
"""

# n images, d dims of the feature

from __future__ import annotations

import hashlib
import os
import re
import secrets
import time
import warnings
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from selex.data.store_files import find_keys
from selex.errors import InputError, Note
from selex.folders import cache_folder, check_own_folder, own_folder, take_folder
from selex.io import atomic_path, is_plain_file, is_plain_folder

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
            text = f"features cannot be kept for other runs: {error}"
            warnings.warn(text, Note, stacklevel=2)

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
