"""Official files as people have them on disk: where they are, what their lines say, what is still packed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

from selex.errors import InputError

Value = TypeVar("Value")

ARCHIVES = (".tgz", ".tar.gz", ".tar", ".zip")
PICTURES = (".jpg", ".jpeg", ".png")


class Lookup(dict[str, Value]):
    """What a file says about each key; asking for a key that it leaves out is the user's mistake, not ours."""

    def __init__(self, items: Iterable[tuple[str, Value]], where: Path) -> None:
        super().__init__(items)
        self.where = where

    def __missing__(self, key: str) -> Value:
        raise InputError(f"{self.where}: says nothing about {key!r}; unpack the official archive again")


def locate(root: Path, *places: str) -> Path:
    """The first of some files or folders that exists below the root."""
    if not root.is_dir():
        raise InputError(f"{root}: no such folder")
    for place in places:
        if (root / place).exists():
            return root / place
    advice = still_packed(root) or "give the folder that the official archive was unpacked in"
    raise InputError(f"{root}: there is no {', nor '.join(places)}; {advice}")


def still_packed(folder: Path) -> str:
    """What to do about the archives that lie in a folder, "" where there is none."""
    archives = [name for name in visible(folder) if name.lower().endswith(ARCHIVES)]
    more = f" (and {len(archives) - 1} more)" if archives[1:] else ""
    return f"unpack {archives[0]}{more}, which lies there" if archives else ""


def lines(path: Path) -> list[str]:
    """The lines of a text file that say something: neither blank nor a comment."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(path, error) from None
    return [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]


def pairs(path: Path) -> list[tuple[str, str]]:
    """The first word of every line and the rest of it."""
    found = []
    for line in lines(path):
        first, _, rest = line.partition(" ")
        if not rest:
            raise InputError(f"{path}: the line {line!r} should have two columns")
        found.append((first, rest.strip()))
    return found


def read_mat(path: Path, *names: str) -> list[Any]:
    """Variables of a MATLAB file, each as a one-dimensional array."""
    import numpy as np
    from scipy.io import loadmat

    try:
        content = loadmat(path, squeeze_me=True, variable_names=names)
        return [np.atleast_1d(content[name]) for name in names]
    except KeyError as error:
        raise InputError(f"{path}: has no variable {error}") from None
    except Exception as error:  # scipy meets damaged files with nearly every kind of exception
        raise unreadable(path, error) from None


def pictures(folder: Path) -> list[str]:
    """Names of the images of a folder, sorted; hidden files, which some systems leave, are none."""
    return [name for name in visible(folder) if name.lower().endswith(PICTURES)]


def visible(folder: Path) -> list[str]:
    """Names of what a folder holds, sorted, without hidden files and folders."""
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def unreadable(path: Path, error: Exception) -> InputError:
    """One line about a file that is missing or damaged."""
    if isinstance(error, FileNotFoundError):
        return InputError(f"{path}: no such file; unpack the official archive again")
    words = " ".join(str(error).split()) or type(error).__name__
    return InputError(f"{path}: damaged or not the official file ({words[:120]})")
