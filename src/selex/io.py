"""Files that are whole or not there, CSV with line numbers, and never writing over what is not ours.

What a killed command leaves are temporary files with a name that nothing else has; the next command that writes beside
them removes them.
"""

from __future__ import annotations

import csv
import fcntl
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, count
from pathlib import Path
from typing import IO, Any

from selex.errors import InputError

TEMPORARY = re.compile(r"\.selex-[0-9a-f]{16}\.tmp(\.\w{1,16})?")
_SUFFIX = re.compile(r"\.\w{1,16}")  # of a temporary file: some writers go by the ending


@contextmanager
def atomic_path(path: Path, mode: int = 0o666, over: bool = True) -> Iterator[Path]:
    """A path to write to, beside the target and put in its place at the end: a reader never sees a part of a file.

    With `over` off, a file that somebody else has put there in the meantime stays.
    """
    suffix = path.suffix if _SUFFIX.fullmatch(path.suffix) else ""
    with reported(f"{path}: cannot be written"), _temporary(path.parent, suffix, _make_file) as partial:
        yield partial
        os.chmod(partial, mode & ~_umask())
        to_disk(partial)
        if over:
            os.replace(partial, path)
        else:
            _link(partial, path)
        to_disk(path.parent)


def _link(source: Path, path: Path) -> None:
    """Give a file another name, unless there is something of that name; on a disk without hard links, move it there."""
    try:
        os.link(source, path)
    except FileExistsError:
        return
    except OSError:
        if not os.path.lexists(path):
            os.replace(source, path)


@contextmanager
def temporary_folder(parent: Path) -> Iterator[Path]:
    """A folder that is gone at the end; if this process is killed, the next one that works in `parent` removes it."""
    with _temporary(parent, "", _make_folder) as folder:
        yield folder


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, beside the target and put in its place at the end: all of it is there, or none."""
    target = Path(os.path.abspath(path))
    with reported(f"{path}: cannot be written"), _temporary(target.parent, "", _make_folder) as stage:
        yield stage
        os.chmod(stage, 0o777 & ~_umask())
        for made in (*stage.rglob("*"), stage):
            if made.is_dir() or made.stat().st_nlink == 1:  # what a hard link leads to is on the disk
                to_disk(made)
        os.replace(stage, target)
        to_disk(target.parent)


def to_disk(path: Path) -> None:
    """Wait until a file or folder is on the disk: a power cut can take what is not."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def locked(path: Path, wait: bool = False) -> Iterator[bool]:
    """Whether nobody else has a folder, or a file of ours, while this lasts. The lock goes with the process."""
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_NOFOLLOW)
    try:
        try:
            ours = _lock(handle, wait)
        except OSError:  # a file system without locks: then it is for people to run one command at a time
            ours = True
        yield ours
    finally:
        os.close(handle)


def is_locked(folder: Path) -> bool:
    """Whether another process writes to a folder now."""
    if not folder.is_dir():
        return False
    with locked(folder) as ours:
        return not ours


def is_plain_file(path: Path) -> bool:
    """Whether there is a file itself, not a link to one."""
    return _kind(path) == stat.S_IFREG


def last_bytes(path: Path, count: int) -> bytes:
    """The end of a file."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - count))
        return file.read(count)


def is_plain_folder(path: Path) -> bool:
    """Whether there is a folder itself, not a link to one."""
    return _kind(path) == stat.S_IFDIR


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files and folders that a killed command left; one that still works holds its own locked."""
    with suppress(OSError):
        for name in filter(TEMPORARY.fullmatch, os.listdir(folder)):
            if is_plain_file(folder / name) or is_plain_folder(folder / name):
                with suppress(OSError):
                    _remove_unless_locked(folder / name)


def write_csv(path: Path, header: Sequence[str], lines: Iterable[Sequence[Any]]) -> None:
    """A CSV file, whole or not at all."""
    with (
        atomic_path(path) as partial,
        partial.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file,
    ):
        writer = csv.writer(_Lines(file))
        writer.writerow(header)
        writer.writerows(lines)


class _Lines:
    """Lines that end as Unix has it, in which a cell with a carriage return is quoted all the same."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, line: str) -> None:
        """One line, ended by what the csv module ends it with."""
        self._file.write(line.removesuffix("\r\n") + "\n")


def read_csv(path: Path, padded: bool = False) -> list[tuple[int, list[str]]]:
    """Lines with their numbers, the header first; where they are `padded`, a short one ends with empty cells."""
    check_regular(path)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            # spreadsheets in many countries write semicolons where others write commas
            delimiter = max(",;\t", key=file.readline().count)
            file.seek(0)
            reader = csv.reader(file, delimiter=delimiter, strict=True)
            lines = [(reader.line_num, line) for line in reader if line]
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: not a readable CSV file ({first_line(error)})") from None
    if not lines:
        raise InputError(f"{path}: is empty; its first line must name the columns")
    width = len(lines[0][1])
    if padded:
        lines = [(number, line + [""] * (width - len(line))) for number, line in lines]
    for number, line in lines:
        if len(line) != width:
            raise InputError(f"{path}, line {number}: has {len(line)} columns, the first line has {width}")
    return lines


def check_regular(path: Path) -> None:
    """Refuse what would be read for ever: a device, a pipe. A folder, or nothing, is for the reader to tell."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise InputError(f"{path}: is a device or a pipe, not a file")


def column(path: Path, header: list[str], names: Sequence[str]) -> int:
    """Position of the first of `names` that the header has."""
    for name in names:
        if name in header:
            return header.index(name)
    wanted = " or ".join(repr(name) for name in names)
    raise InputError(f"{path}: has no column {wanted}; its columns are {', '.join(header)}")


def check_target(path: Path, inputs: Iterable[Path], is_ours: Callable[[Path], bool]) -> None:
    """Refuse to write over an input, into a missing folder, or over a file that is not the like of what we write."""
    check_parent(path)
    if path.is_dir():
        raise InputError(f"{path}: is a folder; give a file")
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise InputError(f"{path}: is a link or a device, not a file; choose another --out")
    if any(path.exists() and source.exists() and path.samefile(source) for source in inputs):
        raise InputError(f"{path}: is an input of this command; choose another --out")
    if path.exists() and path.stat().st_size and not is_ours(path):
        raise InputError(f"{path}: exists and is not what this command writes; choose another --out or remove it")


def check_parent(path: Path) -> None:
    """Refuse to write into a missing folder."""
    if not path.absolute().parent.is_dir():
        raise InputError(f"{path}: the folder {path.parent} does not exist; make it first")


def free_path(path: Path) -> Path:
    """The path, or with the first number after its name under which there is nothing: what is there stays."""
    numbered = (path.with_stem(f"{path.stem}-{number}") for number in count(2))
    return next(one for one in chain([path], numbered) if not os.path.lexists(one))


def check_target_folder(path: Path) -> None:
    """Refuse to write into a missing folder, or where something is already."""
    check_parent(path)
    if os.path.lexists(path) and not path.is_dir():
        raise InputError(f"{path}: is a file; give a new folder")
    with reported(f"{path}: cannot be read"):
        empty = not path.is_dir() or not any(path.iterdir())
    if not empty:
        raise InputError(f"{path}: is not empty; choose another --out or remove it")


def first_line(error: Exception) -> str:
    """What an exception says, in one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


@contextmanager
def reported(what: str, *errors: type[Exception]) -> Iterator[None]:
    """Around what the system, or a file, may fail at: a failure (`OSError`, or one of `errors`) is an `InputError`.

    It says `what` failed, and why; what is an `InputError` already says so itself.
    """
    kinds = errors or (OSError,)
    try:
        yield
    except InputError:
        raise
    except kinds as error:
        raise InputError(f"{what} ({getattr(error, 'strerror', None) or first_line(error)})") from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _kind(path: Path) -> int:
    """What is at a path itself, 0 for nothing."""
    try:
        return stat.S_IFMT(os.lstat(path).st_mode)
    except OSError:
        return 0


@contextmanager
def _temporary(folder: Path, suffix: str, make: Callable[[Path], int]) -> Iterator[Path]:
    """A path in `folder` that is locked while it is in use, and gone at the end unless it was given its own name."""
    remove_leftovers(folder)
    while True:
        path = folder / f".selex-{secrets.token_hex(8)}.tmp{suffix}"
        handle = make(path)
        with suppress(OSError):  # a file system without locks: there, leftovers stay
            _lock(handle, wait=True)
        if os.path.lexists(path):  # else somebody took it for a leftover before it was locked
            break
        os.close(handle)
    try:
        yield path
    finally:
        _delete(path)
        os.close(handle)


def _make_file(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)


def _make_folder(path: Path) -> int:
    os.mkdir(path, 0o700)
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW)


def _remove_unless_locked(path: Path) -> None:
    handle = os.open(path, (os.O_RDWR if is_plain_file(path) else os.O_RDONLY) | os.O_NOFOLLOW)
    try:
        if _lock(handle, wait=False):
            _delete(path)
    finally:
        os.close(handle)


def _delete(path: Path) -> None:
    with suppress(OSError):
        shutil.rmtree(path) if is_plain_folder(path) else path.unlink(missing_ok=True)


def _lock(handle: int, wait: bool) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True
