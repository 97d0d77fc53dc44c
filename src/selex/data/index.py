"""What a store holds: where each decoded image lies in its data file, and which images could not be read."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from selex.errors import Note
from selex.folders import is_marked
from selex.io import whole

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
        with whole(folder / INDEX) as draft, open(draft, "wb") as handle:
            np.savez(handle, version=np.array(VERSION), stored=self.stored, unreadable=self.unreadable)


def load_index(folder: Path) -> Index:
    """The last good index of a store; an empty one where there is none that fits its data file."""
    found = _read(folder)
    if found is None and (folder / INDEX).exists():
        warnings.warn(f"{folder}: is damaged, or of another version; images are decoded again", Note, stacklevel=2)
    return found or Index(np.zeros(0, STORED), np.zeros(0, UNREADABLE))


def is_store(folder: Path) -> bool:
    """Whether a folder is a store of ours, perhaps a damaged one."""
    return is_marked(folder, KIND)


def _read(folder: Path) -> Index | None:
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


def find(keys: Array, wanted: Array) -> Array:
    """Where each wanted key is among `keys`, -1 where it is not."""
    if not len(keys):
        return np.full(len(wanted), -1)
    order = np.argsort(keys)
    position = order[np.searchsorted(keys, wanted, sorter=order).clip(max=len(keys) - 1)]
    return np.where(keys[position] == wanted, position, -1)
