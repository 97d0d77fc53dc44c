"""Folders that are ours: taken when new or empty, marked, and cleared by exact names; nobody else's is touched."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from platformdirs import user_cache_dir

from selex.errors import InputError
from selex.io import TEMPORARY, atomic_path, is_plain_file, is_plain_folder, remove_leftovers, reported

MARK = ".selex"
"""The file that says that a folder is ours, and what it holds."""


def cache_folder() -> Path:
    """Our folder in the platform's cache folder; `SELEX_CACHE` overrides it."""
    given = os.environ.get("SELEX_CACHE")
    return Path(given).expanduser() if given else Path(user_cache_dir("selex", appauthor=False))


def check_name(path: Path) -> None:
    """Refuse a name that nothing can have, before any work is done: from Python 3.14 on, it is merely not there."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None


def take_folder(path: Path, kind: str) -> None:
    """Make a folder ours, or refuse: it must be new, empty, or marked as one of this kind.

    A mark that another process has made in the meantime stays: it may hold a lock on that file.
    """
    check_folder(path, kind)
    with reported(f"{path}: cannot be created"):
        path.mkdir(parents=True, exist_ok=True)
    if not is_marked(path, kind):
        with atomic_path(path / MARK, over=False) as partial:
            partial.write_text(f"selex {kind}\nThis folder is written by selex: keep nothing of your own in it.\n")
        check_folder(path, kind)


def check_folder(path: Path, kind: str) -> None:
    """Refuse a folder that `take_folder` would refuse, and change nothing."""
    if os.path.lexists(path) and not path.is_dir():
        raise InputError(f"{path}: is a file; give a folder")
    if not (is_vacant(path) or is_marked(path, kind)):
        raise InputError(f"{path}: is not empty and not a selex {kind}; give a new folder (nothing in it was changed)")


def check_outside(path: Path, photos: Any, option: str) -> None:
    """Refuse a place that is the folder of photos, or in it: photos are only read."""
    check_name(path)
    folder = isinstance(photos, (str, os.PathLike)) and os.fspath(photos) and os.path.isdir(photos)
    if folder and Path(os.path.realpath(path)).is_relative_to(os.path.realpath(photos)):
        raise InputError(
            f"{path}: is inside the folder of photos, which is only read; choose {option} outside {photos}"
        )


def is_vacant(path: Path) -> bool:
    """Whether a folder is not there yet or has nothing in it, but for temporary files of ours."""
    with reported(f"{path}: cannot be read"):
        return not path.is_dir() or all(TEMPORARY.fullmatch(name) for name in os.listdir(path))


def is_marked(path: Path, kind: str) -> bool:
    """Whether a folder has our mark for this kind of content."""
    if not is_plain_file(path / MARK):
        return False
    with (path / MARK).open("rb") as file:
        return file.readline(100) == f"selex {kind}\n".encode()


def own_folder(path: Path) -> None:
    """Make a folder of ours inside another, unless it is there; a link in its place is refused, not followed."""
    check_own_folder(path)
    with suppress(FileExistsError):
        os.mkdir(path)


def check_own_folder(path: Path) -> None:
    """Refuse what is in the place of a folder of ours and is none."""
    if os.path.lexists(path) and not is_plain_folder(path):
        raise InputError(f"{path}: selex needs a folder there; remove what is in its place")


def remove(folder: Path, names: Iterable[str]) -> None:
    """Remove files of ours by their exact names, and what killed commands left."""
    remove_leftovers(folder)
    for name in names:
        with suppress(FileNotFoundError, IsADirectoryError):
            os.unlink(folder / name)


def remove_folder(folder: Path, names: Iterable[str]) -> None:
    """Remove a folder of ours with the files of these names; it stays if there is anything else in it."""
    if is_plain_folder(folder):
        remove(folder, names)
        with suppress(OSError):
            os.rmdir(folder)
