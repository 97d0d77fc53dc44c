"""Every image decoded once, into one memory-mapped file that later epochs, commands and runs share."""

from __future__ import annotations

import hashlib
import mmap
import os
import stat
import warnings
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from selex.data.decode import ORIENTATION, Pixels, Unreadable, as_unreadable, decode
from selex.data.store_files import DATA, KIND, Filler, Index, find_keys, load_index, lock_store
from selex.data.table import ImageTable, Source
from selex.errors import InputError, Note
from selex.folders import cache_folder, check_folder, check_outside
from selex.io import reported
from selex.types import UNLABELLED

if TYPE_CHECKING:
    import torch

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class ImageStore:
    """Decoded images in the order of `table`: the rows of the table asked for whose image could be read.

    `rows` are their rows in the table asked for; `skipped` lists the others' files, each with the reason. `key` changes
    when an image, or the order of images, does.
    `boxes` are the parts of them that were asked for, if parts were; `crcs` are checksums of their pixels, `digests`
    tell images from each other whatever their files are called.
    Image `i` is the part of the flat, memory-mapped `pixels` from `offsets[i]` on, of `shapes[i]` = (height, width).
    """

    table: ImageTable
    rows: Array
    skipped: list[tuple[str, str]]
    key: str
    size: int
    pixels: Pixels
    offsets: Array
    shapes: Array
    crcs: Array
    digests: Array
    folder: Path
    boxes: Array | None = None
    _checked: set[int] = field(default_factory=set)

    @classmethod
    def build(
        cls,
        table: ImageTable,
        folder: str | os.PathLike[str],
        *,
        size: int = 256,
        boxes: Array | None = None,
        workers: int | None = None,
        strict: bool = False,
        progress: bool = False,
    ) -> ImageStore:
        """Open the store in `folder`, after decoding what it lacks or what has changed since.

        Images come as upright RGB with the shorter side at `size`. With `boxes` `(n, 4)` it is that part of each: left,
        top, right and bottom as shares of width and height. One that cannot be read is skipped, or with `strict` an
        `InputError`. `progress` shows progress on standard error.
        """
        if not len(table):
            raise InputError("there are no images to store")
        if size < 1:
            raise InputError(f"the size of stored images must be at least 1, not {size}")
        folder = Path(folder)
        keys, absent = _keys(table, size, boxes)
        if strict:
            _refuse(table, absent)
        check_folder(folder, KIND)
        with reported(f"cannot use the image store {folder}"):
            index = load_index(folder)
            if len(_missing(index, keys)):
                with lock_store(folder):  # who had the lock may have added some
                    filler = Filler(table, folder, size, load_index(folder), strict, boxes)
                    rows = _missing(filler.index, keys)
                    index = filler.run(rows.tolist(), keys[rows].tolist(), workers or _cores(), progress)
                    absent |= filler.passing
            return _opened(table, folder, size, index, keys, absent, strict, boxes)

    @classmethod
    def in_memory(cls, images: Sequence[Pixels], size: int) -> ImageStore:
        """Decoded images that are not stored on disk: without files and without digests."""
        shapes = np.array([image.shape[:2] for image in images])
        lengths = 3 * shapes.astype(np.int64).prod(1)
        rows, digests = np.arange(len(images)), np.zeros(len(images), dtype="S16")
        table = ImageTable([""] * len(images), np.full(len(images), UNLABELLED), [])
        pixels = np.concatenate([image.reshape(-1) for image in images])
        offsets, crcs = np.cumsum(lengths) - lengths, np.zeros(len(images), dtype=np.uint32)
        checked = set(rows.tolist())
        return cls(
            table, rows, [], "", size, pixels, offsets, shapes, crcs, digests, Path(), boxes=None, _checked=checked
        )

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> Pixels:
        """Image `i` as (height, width, 3), a read-only view of the file; one that is damaged there is decoded again."""
        height, width = self.shapes[i].tolist()
        offset = int(self.offsets[i])
        pixels = self.pixels[offset : offset + 3 * height * width]
        if i not in self._checked:
            if zlib.crc32(pixels.data) != self.crcs[i]:
                self._mend(int(i))
            self._checked.add(int(i))
        return pixels.reshape(height, width, 3)

    def advise(self, rows: Array, needed: bool) -> None:
        """Tell the system that images will be `needed` soon, so that it reads them in order, or are not any more."""
        file = self.pixels.base
        while isinstance(file, np.ndarray):
            file = file.base
        if not isinstance(file, mmap.mmap) or not hasattr(mmap, "MADV_WILLNEED"):
            return
        first = np.sort(self.offsets[rows])  # neighbours in the file become one stretch
        last = np.sort(self.offsets[rows] + 3 * self.shapes[rows].astype(np.int64).prod(1))
        gaps = np.flatnonzero(first[1:] > last[:-1])
        for start, end in zip(first[np.r_[0, gaps + 1]].tolist(), last[np.r_[gaps, -1]].tolist(), strict=True):
            start -= start % mmap.PAGESIZE
            file.madvise(mmap.MADV_WILLNEED if needed else mmap.MADV_DONTNEED, start, end - start)

    def _mend(self, i: int) -> None:
        """Decode an image anew into its place in the file, of which this is a view."""
        file = self.table.files[i]
        warnings.warn(f"{self.folder}: is damaged; {file} is decoded again", Note, stacklevel=3)
        try:
            box = None if self.boxes is None else tuple(self.boxes[i].tolist())
            pixels = decode(self.table.source(i), self.size, box)
            if pixels.shape[:2] != tuple(self.shapes[i]):
                raise Unreadable("it has changed in the meantime")
            with (self.folder / DATA).open("r+b") as data:
                data.seek(int(self.offsets[i]))
                data.write(pixels.tobytes())
        except (Unreadable, OSError) as error:
            raise InputError(f"{self.folder}: is damaged, and {file} cannot be decoded again ({error})") from None

    def centre_crops(self, rows: Sequence[int] | Array, crop: int = 224) -> torch.Tensor:
        """The middle of some images of this store: uint8 (n, 3, crop, crop), channels last in memory."""
        import torch

        if crop > self.size:
            raise ValueError(f"a crop of {crop} does not fit in images stored with a shorter side of {self.size}")
        crops = np.empty((len(rows), crop, crop, 3), dtype=np.uint8)
        for out, i in zip(crops, rows, strict=True):
            image = self[i]
            top, left = round((image.shape[0] - crop) / 2), round((image.shape[1] - crop) / 2)
            out[:] = image[top : top + crop, left : left + crop]
        return torch.from_numpy(crops).permute(0, 3, 1, 2)


def _opened(
    table: ImageTable,
    folder: Path,
    size: int,
    index: Index,
    keys: Array,
    absent: dict[int, str],
    strict: bool,
    boxes: Array | None,
) -> ImageStore:
    """The images of a table that a store holds, mapped; those that it does not hold are skipped, or refused."""
    stored, unreadable = (find_keys(entries["key"], keys) for entries in (index.stored, index.unreadable))
    rows, bad = np.flatnonzero(stored >= 0), np.flatnonzero(unreadable >= 0)
    reasons = absent | {int(row): str(index.unreadable["reason"][unreadable[row]]) for row in bad}
    if strict or not len(rows):
        _refuse(table, reasons, "" if strict else f"none of the {len(table)} images can be read; the first is ")
    entries = index.stored[stored[rows]]
    return ImageStore(
        table=table.take(rows),
        rows=rows,
        skipped=[(table.files[row], reasons[row]) for row in sorted(reasons)],
        key=hashlib.sha256(keys[rows].tobytes()).hexdigest(),
        size=size,
        pixels=np.asarray(np.memmap(folder / DATA, dtype=np.uint8, mode="r")),
        offsets=entries["offset"],
        shapes=np.stack([entries["height"], entries["width"]], axis=1),
        crcs=entries["crc"],
        digests=entries["digest"],
        folder=folder,
        boxes=None if boxes is None else boxes[rows],
    )


def _keys(table: ImageTable, size: int, boxes: Array | None) -> tuple[Array, dict[int, str]]:
    """A key for each row's image as it is now, and the rows that have none (their key is empty) with the reason."""
    settings = f"1 {size}".encode()  # The number changes whenever decoding does.
    keys, absent = [], {}
    for row in range(len(table)):
        try:
            box = b"" if boxes is None else boxes[row].astype(np.float64).tobytes()
            keys.append(_key(table.source(row), settings + box))
        except Unreadable as error:
            keys.append(b"")
            absent[row] = error.reason
    return np.array(keys, dtype="S16"), absent


def _refuse(table: ImageTable, reasons: dict[int, str], prefix: str = "") -> None:
    for row in sorted(reasons):
        raise InputError(f"{prefix}{table.files[row]}: {reasons[row]}")


def _key(source: Source, settings: bytes) -> bytes:
    """Changes with the path, size or time of a file, or with the content of an image in memory, and the settings."""
    parts = _content(source) if isinstance(source, Image.Image) else _status(source)
    return hashlib.blake2b(b"\0".join([settings, *parts]), digest_size=16).digest()


def _status(path: str) -> list[bytes]:
    try:
        status = os.stat(path)
    except OSError as error:
        raise Unreadable(error.strerror or str(error)) from None
    if not stat.S_ISREG(status.st_mode):
        raise Unreadable("not a file")
    if not status.st_size:
        raise Unreadable("empty file")
    return [str(status.st_size).encode(), str(status.st_mtime_ns).encode(), os.fsencode(path)]


def _content(image: Image.Image) -> list[bytes]:
    try:
        facts = (image.mode, image.size, image.getpalette(), image.info.get("transparency"))
        return [repr((*facts, image.getexif().get(ORIENTATION))).encode(), image.tobytes()]
    except Exception as error:  # An image opened but not yet loaded can fail in every way that a file can.
        raise as_unreadable(error) from error


def _missing(index: Index, keys: Array) -> Array:
    """Rows that have a key which is not in the index; of rows with the same key the first."""
    unknown = (
        (find_keys(index.stored["key"], keys) < 0) & (find_keys(index.unreadable["key"], keys) < 0) & (keys != b"")
    )
    rows = np.flatnonzero(unknown)
    return np.sort(rows[np.unique(keys[rows], return_index=True)[1]])


def _cores() -> int:
    """The cores this process may use, which can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def store_for(store: str | Path | None, photos: Any, root: str, size: int) -> Path:
    """Where decoded images go: the folder asked for, not inside a folder of photos, else one in the cache."""
    if store is None:
        return cached_store(root, size)
    for source in photos if isinstance(photos, list) else [photos]:
        check_outside(Path(store), source, "a --store")
    return Path(store)


def cached_store(root: str, size: int) -> Path:
    """Where decoded images of a folder are kept between commands: in the cache, a store for each folder."""
    return cache_folder() / "images" / f"{hashlib.sha256(os.fsencode(root)).hexdigest()[:16]}-{size}"
