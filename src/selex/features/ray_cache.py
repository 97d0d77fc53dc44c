"""What jobs on a Ray cluster keep on a machine's disk: shards of features, and copies of photos that are elsewhere.

They may take so much room and no more: what was used longest ago goes first, and what a running job uses stays. A job
has a locked temporary folder in each folder that it uses; whatever was used since the first of these was made may still
be needed. A cache that cannot be written is read, and nobody is told.
"""

from __future__ import annotations

import io
import math
import os
import re
import time
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from selex.errors import InputError
from selex.features.sources import Unit, key_of
from selex.folders import MARK, cache_folder, is_marked, own_folder, remove, take_folder
from selex.io import (
    TEMPORARY,
    atomic_path,
    first_line,
    is_plain_file,
    is_plain_folder,
    locked,
    remove_leftovers,
    temporary_folder,
    to_disk,
)

LIMIT = 100
"""GB that all of it may take; `SELEX_CACHE_LIMIT` overrides it."""

KINDS = {"shards": "feature shards", "photos": "photos"}
"""The folders in the cache that hold ours, and what the mark of each of those says."""

LONGEST = 30 * 24 * 3600
"""Seconds that a job may take on a file system without locks, where a killed one cannot be told from one that runs."""

_SHARD, _PHOTO = re.compile(r"[0-9a-f]{32}-\d{6,}(-last)?\.npz"), re.compile(r"\d{9,}")


@dataclass(frozen=True)
class InUse:
    """A folder of ours while a job uses it: the `names` of files in it that it wants, and where new ones are made.

    Without such a `stage` the folder can only be read.
    """

    folder: Path
    names: list[str]
    stage: Path | None

    def check_writable(self) -> None:
        """Refuse to make what could not be kept."""
        if self.stage is None:
            where = "set SELEX_CACHE to a folder that can be written"
            raise InputError(f"{self.folder}: the cache is read-only, and something is missing in it; {where}")

    def put(self, name: str, content: bytes, used: float | None = None) -> None:
        """Write a file, whole or not at all, `used` at that time; the folder, which may be huge, is not listed."""
        self.check_writable()
        assert self.stage is not None
        with atomic_path(self.stage / name) as partial:
            partial.write_bytes(content)
            if used is not None:
                os.utime(partial, (used, used))
        try:
            os.replace(self.stage / name, self.folder / name)
            to_disk(self.folder)
        except OSError as error:
            raise InputError(f"{self.folder / name}: cannot be written ({error.strerror or error})") from None


class Shards:
    """Shards of features in a folder in use, one for each piece of a unit; those that are there, by their names."""

    def __init__(self, place: InUse) -> None:
        self.folder, self.stage = place.folder, place.stage
        self._place, self._names = place, defaultdict[str, set[str]](set)
        for name in place.names:
            self._names[_key(name)].add(name)

    def check_writable(self) -> None:
        """Refuse to make shards that could not be kept."""
        self._place.check_writable()

    def have(self, unit: Unit) -> list[int]:
        """The pieces of a unit that are there."""
        return sorted(int(Path(name).stem.split("-")[1]) for name in self._names[key_of(unit)])

    def complete(self, unit: Unit) -> bool:
        """Whether all pieces are there; the name of the last one says that it is."""
        have = self.have(unit)
        return have == list(range(len(have))) and any(name.endswith("-last.npz") for name in self._names[key_of(unit)])

    def keep(self, unit: Unit, piece: int, last: bool, content: bytes) -> int:
        """Write a piece, whole or not at all; how many features it holds."""
        name = f"{key_of(unit)}-{piece:06}{'-last' if last else ''}.npz"
        self._place.put(name, content)
        self._names[key_of(unit)].add(name)
        return len(read_shard(io.BytesIO(content), "features")[0])

    def paths(self, unit: Unit) -> list[Path]:
        """The pieces of a unit, in order."""
        return [self.folder / name for name in sorted(self._names[key_of(unit)])]


@contextmanager
def shards_in_use(name: str, units: Iterable[Unit]) -> Iterator[Shards]:
    """The folder of shards of this name; those of the units stay while this lasts."""
    folder, keys = cache_folder() / "shards" / name, {key_of(unit) for unit in units}
    with _in_use(folder, lambda name: _SHARD.fullmatch(name) is not None and _key(name) in keys) as place:
        yield Shards(place)


@contextmanager
def photos_in_use(name: str) -> Iterator[InUse]:
    """The folder of copied photos of this name; all of them stay while this lasts."""
    folder = cache_folder() / "photos" / name
    # none is wanted by name: their own times tell decoded images whether a photo has changed
    with _in_use(folder, lambda name: False) as place:
        yield place


@contextmanager
def _in_use(folder: Path, wanted: Callable[[str], bool]) -> Iterator[InUse]:
    """Use a folder of ours, made where it is not there; the wanted files in it."""
    _limit()  # what cannot be understood is refused before any work is done
    if is_plain_folder(folder) and is_marked(folder, KINDS[folder.parent.name]) and not _writable(folder):
        yield InUse(folder, list(filter(wanted, os.listdir(folder))), None)
        return
    _take(folder)
    with ExitStack() as stack:
        with locked(folder / MARK, wait=True):  # nobody removes anything meanwhile
            stage = stack.enter_context(temporary_folder(folder)) / "new"
            stage.mkdir()  # what is made in it leaves the time of the one around it, when the job began, as it is
            there = list(filter(wanted, os.listdir(folder)))
            for name in (MARK, *there):
                with suppress(OSError):  # of another user, whose job will say so when it is used
                    os.utime(folder / name)
        yield InUse(folder, there, stage)


def _take(folder: Path) -> None:
    try:
        folder.parent.parent.mkdir(parents=True, exist_ok=True)
        own_folder(folder.parent)
    except OSError as error:
        raise InputError(
            f"{folder.parent}: cannot be created ({error.strerror}); set SELEX_CACHE to another folder"
        ) from None
    take_folder(folder, KINDS[folder.parent.name])


def _writable(folder: Path) -> bool:
    """Whether files can be made in a folder, and locked."""
    return all(os.access(path, os.W_OK, effective_ids=True) for path in (folder, folder / MARK))


class _Entry(NamedTuple):
    """What is removed as one: when it was used last, its bytes, and its files; `mark` is the one whose time counts."""

    used: int
    size: int
    folder: Path
    mark: str
    names: list[str]


def trim() -> None:
    """Remove what was used longest ago, until all of it takes no more room than it may."""
    with suppress(OSError):
        entries = [entry for folder in _folders() for entry in _entries(folder)]
        over, chosen = sum(entry.size for entry in entries) - _limit(), defaultdict[Path, list[_Entry]](list)
        since = {folder: _in_use_since(folder) for folder in {entry.folder for entry in entries}}
        for entry in sorted(entries):
            if over > 0 and entry.used < since[entry.folder]:
                chosen[entry.folder].append(entry)
                over -= entry.size
        for folder, some in chosen.items():
            _remove(folder, some)


def _remove(folder: Path, entries: list[_Entry]) -> None:
    """Remove files, unless somebody has begun to use them."""
    with suppress(OSError), locked(folder / MARK) as free:
        if free:
            since = _in_use_since(folder)
            there = set(os.listdir(folder))  # another process may have removed some
            unused = [e for e in entries if e.mark in there and (folder / e.mark).stat().st_mtime_ns < since]
            remove(folder, [name for entry in unused for name in entry.names])


def _folders() -> Iterator[Path]:
    """Folders in the cache that are ours; no link is followed."""
    for parent, kind in KINDS.items():
        if is_plain_folder(cache_folder() / parent):
            for name in os.listdir(cache_folder() / parent):
                folder = cache_folder() / parent / name
                if is_plain_folder(folder) and is_marked(folder, kind):
                    yield folder


def _entries(folder: Path) -> Iterator[_Entry]:
    """Shards one by one, photos all together."""
    shards = folder.parent.name == "shards"
    names = [
        name
        for name in os.listdir(folder)
        if (_SHARD if shards else _PHOTO).fullmatch(name) and is_plain_file(folder / name)
    ]
    for some in [[name] for name in names] if shards else [names]:
        mark = some[0] if shards else MARK
        size = sum((folder / name).stat().st_size for name in some)
        yield _Entry((folder / mark).stat().st_mtime_ns, size, folder, mark, some)


def _in_use_since(folder: Path) -> float:
    """When the first job began that uses the folder and still runs; infinity where there is none."""
    remove_leftovers(folder)  # of killed jobs
    marks = [folder / name for name in os.listdir(folder) if TEMPORARY.fullmatch(name)]
    return min(map(_runs_since, marks), default=math.inf)


def _runs_since(mark: Path) -> float:
    """When the job of a mark began; infinity where it does not run any more, as far as can be told."""
    with suppress(FileNotFoundError):  # it has just ended
        begun = mark.stat().st_mtime_ns
        runs = time.time() - begun / 1e9 < LONGEST  # also where there are no locks
        with suppress(PermissionError), locked(mark) as free:  # nobody but its user can lock a mark
            runs = runs or not free
        if runs:
            return begun
    return math.inf


def _limit() -> float:
    """Bytes that all of it may take."""
    given = os.environ.get("SELEX_CACHE_LIMIT") or str(LIMIT)
    try:
        gigabytes = float(given)
    except ValueError:
        gigabytes = math.nan
    if not gigabytes >= 0:
        raise InputError(f"SELEX_CACHE_LIMIT must be a number of GB, at least 0, not {given!r}")
    return gigabytes * 1e9


def _key(name: str) -> str:
    return name.partition("-")[0]


def read_shard(file: Any, *names: str) -> list[np.ndarray[Any, Any]]:
    """Arrays of a shard."""
    try:
        with file.open("rb") if isinstance(file, Path) else file as stream, np.load(stream) as arrays:
            return [arrays[name] for name in names]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{file}: is damaged ({first_line(error)}); remove it, and it is made again") from None
