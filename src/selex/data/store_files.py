"""The files of an image store: the index that says where each image lies, and the data file that it is decoded into.

Many images are decoded at a time, on all cores; whatever stops us leaves a good store.
"""

from __future__ import annotations

import hashlib
import io
import os
import queue
import threading
import time
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from selex.data.decode import Pixels, Unreadable, decode
from selex.data.table import ImageTable
from selex.errors import InputError, Note
from selex.folders import MARK, take_folder
from selex.io import atomic_path
from selex.io import locked as file_locked
from selex.progress import images_bar

Array = np.ndarray[Any, Any]

VERSION = 4
KIND = "image store"
DATA, INDEX = "images.u8", "index.npz"
PLACE = [("offset", "<i8"), ("height", "<i4"), ("width", "<i4"), ("crc", "<u4"), ("digest", "S16")]
STORED = np.dtype([("key", "S16"), *PLACE, ("content", "S16")])
UNREADABLE = np.dtype([("key", "S16"), ("reason", "<U200")])


@dataclass(frozen=True)
class Index:
    """The stored and the unreadable images, each with the key of its file; no key appears twice.

    Files of the same `content` share their place in the data file.
    """

    stored: Array
    unreadable: Array

    @property
    def places(self) -> dict[bytes, tuple[int, int, int, int, bytes]]:
        """Where the image of each content lies: offset, height, width, checksum and digest of its pixels."""
        entries = self.stored[self.stored["content"] != b""]
        return dict(zip(entries["content"].tolist(), entries[[name for name, _ in PLACE]].tolist(), strict=True))

    @property
    def end(self) -> int:
        """First byte of the data file after every stored image; what lies beyond was never finished."""
        last = self.stored["offset"] + 3 * self.stored["height"].astype(np.int64) * self.stored["width"]
        return int(last.max(initial=0))

    def with_more(self, stored: Sequence[Any], unreadable: Sequence[Any]) -> Index:
        """The same index with new entries added."""
        return Index(
            np.concatenate([self.stored, np.array(stored, dtype=STORED)]),
            np.concatenate([self.unreadable, np.array(unreadable, dtype=UNREADABLE)]),
        )

    def save(self, folder: Path) -> None:
        """Replace the index of a store whose data is on disk already: all of it, or nothing if we die on the way."""
        with atomic_path(folder / INDEX) as draft, open(draft, "wb") as handle:
            np.savez(handle, version=np.array(VERSION), stored=self.stored, unreadable=self.unreadable)


def load_index(folder: Path) -> Index:
    """The last good index of a store; an empty one where there is none that fits its data file."""
    found = _read_index(folder)
    if found is None and (folder / INDEX).exists():
        warnings.warn(f"{folder}: is damaged, or of another version; images are decoded again", Note, stacklevel=2)
    return found or Index(np.zeros(0, STORED), np.zeros(0, UNREADABLE))


def _read_index(folder: Path) -> Index | None:
    try:
        data = (folder / INDEX).read_bytes()
        room = os.path.getsize(folder / DATA) if (folder / DATA).exists() else 0
    except FileNotFoundError:
        return None
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            version, index = int(file["version"]), Index(file["stored"], file["unreadable"])
        kinds = index.stored.dtype, index.unreadable.dtype
    except Exception:  # a damaged archive fails in many ways
        return None
    return index if version == VERSION and kinds == (STORED, UNREADABLE) and index.end <= room else None


def find_keys(keys: Array, wanted: Array) -> Array:
    """Where each wanted key is among `keys`, -1 where it is not."""
    if not len(keys):
        return np.full(len(wanted), -1)
    order = np.argsort(keys)
    position = order[np.searchsorted(keys, wanted, sorter=order).clip(max=len(keys) - 1)]
    return np.where(keys[position] == wanted, position, -1)


SAVE_EVERY = 5.0
"""Seconds of decoding that a kill -9 may cost; also how often pixels go to disk while others are decoded."""


@contextmanager
def lock_store(folder: Path) -> Iterator[None]:
    """Be the only one who writes to a store, after whoever does now; the folder is taken, or refused, as one."""
    take_folder(folder, KIND)
    with file_locked(folder / MARK) as free:
        if free:
            yield
            return
    warnings.warn(f"{folder}: waiting for another selex command that is decoding into it", Note, stacklevel=2)
    with file_locked(folder / MARK, wait=True):
        yield


class Filler:
    """Adds images to the store in `folder`, which the caller has locked.

    Threads, not processes: Pillow decodes and resizes outside the interpreter's lock, pixels need not travel between
    processes, and nobody lives on to write after a kill -9.
    """

    def __init__(
        self, table: ImageTable, folder: Path, size: int, index: Index, strict: bool, boxes: Any = None
    ) -> None:
        self.table, self.folder, self.size, self.index, self.strict = table, folder, size, index, strict
        self.boxes = boxes
        self.passing: dict[int, str] = {}
        self._stored: list[tuple[bytes, int, int, int, int, bytes, bytes]] = []
        self._places = index.places
        self._unreadable: list[tuple[bytes, str]] = []
        self._end = index.end
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._jobs: queue.SimpleQueue[tuple[int, bytes]] = queue.SimpleQueue()

    def run(self, rows: Sequence[int], keys: Sequence[bytes], workers: int, progress: bool) -> Index:
        """Decode the given rows, each with its key; what is done stays done on Ctrl-C, errors and a full disk."""
        if not rows:
            return self.index
        for job in zip(rows, keys, strict=True):
            self._jobs.put(job)
        with _open_data(self.folder, self.index) as file, warnings.catch_warnings():
            # Pillow warns of odd metadata and of large images; we read the first and have a limit for the second.
            warnings.filterwarnings("ignore", module=r"PIL\.")
            try:
                with images_bar("decoding", len(rows), shown=progress) as advance:
                    self._decode_all(file.fileno(), min(workers, len(rows)), advance, len(rows))
            finally:
                self._save(file.fileno())
        return self.index

    def _decode_all(self, file: int, workers: int, advance: Callable[[int], None], total: int) -> None:
        saved = time.monotonic()
        with ThreadPoolExecutor(workers) as pool:
            futures = [pool.submit(self._work, file) for _ in range(workers)]
            try:
                while wait(futures, timeout=0.2, return_when=FIRST_EXCEPTION).not_done and not self._stop.is_set():
                    advance(total - self._jobs.qsize())
                    if time.monotonic() - saved > SAVE_EVERY:
                        self._save(file)
                        saved = time.monotonic()
            finally:
                self._stop.set()
        for future in futures:
            future.result()
        advance(total)

    def _work(self, file: int) -> None:
        """What each thread does until there is no job left or one thread has failed."""
        try:
            while not self._stop.is_set():
                self._add(file, *self._jobs.get_nowait())
        except queue.Empty:
            return
        finally:
            self._stop.set()

    def _add(self, file: int, row: int, key: bytes) -> None:
        source = self.table.source(row)
        box = None if self.boxes is None else tuple(self.boxes[row].tolist())
        content = _content(source, f"{self.size} {box}") if isinstance(source, str) else b""
        if place := self._places.get(content):  # the same file under another name
            self._stored.append((key, *place, content))
            return
        try:
            pixels = decode(source, self.size, box)
        except Unreadable as error:
            if self.strict:
                raise InputError(f"{self.table.files[row]}: {error.reason}") from None
            if error.passing:
                self.passing[row] = error.reason
            else:
                self._unreadable.append((key, error.reason))
            return
        with self._lock:
            offset = self._end
            self._end += pixels.nbytes
        _write(file, pixels.data.cast("B"), offset)
        height, width = pixels.shape[:2]
        place = (offset, height, width, zlib.crc32(pixels.data), pixel_digest(pixels))
        self._stored.append((key, *place, content))
        if content:
            self._places[content] = place

    def _save(self, file: int) -> None:
        """Publish what is complete: pixels on disk first, then the index that speaks of them."""
        stored, unreadable = self._stored.copy(), self._unreadable.copy()
        if not stored and not unreadable:
            return
        os.fsync(file)
        self.index = self.index.with_more(stored, unreadable)
        self.index.save(self.folder)
        del self._stored[: len(stored)], self._unreadable[: len(unreadable)]


def _content(path: str, way: str) -> bytes:
    """The same for files with the same bytes, decoded in the same way; to read them takes far less than to decode."""
    digest = hashlib.blake2b(digest_size=16, salt=hashlib.blake2b(way.encode(), digest_size=16).digest())
    try:
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError:  # whoever decodes it will say why
        return b""
    return digest.digest().rstrip(b"\0")  # as numpy gives it back


def pixel_digest(pixels: Pixels) -> bytes:
    """The same for the same image, whatever its file is called."""
    return hashlib.blake2b(pixels.data, digest_size=16, salt=str(pixels.shape[:2]).encode()[:16]).digest()


def _open_data(folder: Path, index: Index) -> IO[bytes]:
    """The data file, to be written after what the index knows; a new one where it knows nothing.

    A reader may still hold the file of an index that no longer counts, so that file is left to it, not overwritten.
    """
    if not index.end:
        (folder / INDEX).unlink(missing_ok=True)
        (folder / DATA).unlink(missing_ok=True)
    return os.fdopen(os.open(folder / DATA, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666), "r+b", buffering=0)


def _write(file: int, pixels: memoryview, offset: int) -> None:
    while pixels:
        done = os.pwrite(file, pixels, offset)
        pixels, offset = pixels[done:], offset + done
