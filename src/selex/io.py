"""Files that are whole or not there, CSV with line numbers, and never writing over what is not ours."""

from __future__ import annotations

import csv
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from selex.errors import InputError


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A path to write to, beside the target and put in its place at the end: a reader never sees a part of a file."""
    partial: Path | None = None
    try:
        try:
            handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
            os.close(handle)
            partial = Path(name)
            yield partial
            os.chmod(partial, 0o666 & ~_umask())
            os.replace(partial, path)
        except BaseException:
            if partial:
                with suppress(FileNotFoundError):
                    partial.unlink()
            raise
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from None


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, beside the target and put in its place at the end: all of it is there, or none."""
    target = Path(os.path.abspath(path))
    stage: Path | None = None
    try:
        try:
            stage = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
            yield stage
            os.chmod(stage, 0o777 & ~_umask())
            os.replace(stage, target)
        except BaseException:
            if stage:
                shutil.rmtree(stage, ignore_errors=True)
            raise
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from None


def write_csv(path: Path, header: Sequence[str], lines: Iterable[Sequence[Any]]) -> None:
    """A CSV file, whole or not at all."""
    with whole(path) as partial, partial.open("w", newline="", encoding="utf-8", errors="surrogateescape") as file:
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


def read_csv(path: Path) -> list[tuple[int, list[str]]]:
    """Lines with their numbers, the header first."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            lines = [(reader.line_num, line) for line in reader if line]
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: not a readable CSV file ({first_line(error)})") from None
    if not lines:
        raise InputError(f"{path}: is empty; its first line must name the columns")
    for number, line in lines:
        if len(line) != len(lines[0][1]):
            raise InputError(f"{path}, line {number}: has {len(line)} columns, the first line has {len(lines[0][1])}")
    return lines


def column(path: Path, header: list[str], names: Sequence[str]) -> int:
    """Position of the first of `names` that the header has."""
    for name in names:
        if name in header:
            return header.index(name)
    wanted = " or ".join(repr(name) for name in names)
    raise InputError(f"{path}: has no column {wanted}; its columns are {', '.join(header)}")


def check_target(path: Path, inputs: Iterable[Path], is_ours: Callable[[Path], bool]) -> None:
    """Refuse to write over an input, into a missing folder, or over a file that is not the like of what we write."""
    if not path.parent.is_dir():
        raise InputError(f"{path}: the folder {path.parent} does not exist; make it first")
    if path.is_dir():
        raise InputError(f"{path}: is a folder; give a file")
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise InputError(f"{path}: is a link or a device, not a file; choose another --out")
    if any(path.exists() and source.exists() and path.samefile(source) for source in inputs):
        raise InputError(f"{path}: is an input of this command; choose another --out")
    if path.exists() and path.stat().st_size and not is_ours(path):
        raise InputError(f"{path}: exists and is not what this command writes; choose another --out or remove it")


def check_target_folder(path: Path) -> None:
    """Refuse to write into a missing folder, or where something is already."""
    if not path.absolute().parent.is_dir():
        raise InputError(f"{path}: the folder {path.parent} does not exist; make it first")
    if os.path.lexists(path) and not path.is_dir():
        raise InputError(f"{path}: is a file; give a new folder")
    try:
        empty = not path.is_dir() or not any(path.iterdir())
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    if not empty:
        raise InputError(f"{path}: is not empty; choose another --out or remove it")


def first_line(error: Exception) -> str:
    """What an exception says, in one line."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
