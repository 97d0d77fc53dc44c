"""Official files as people have them on disk: where they are, what their lines say, what is still packed.

CIFAR's python batches are pickles, read by a reader that knows arrays of bytes and plain values and nothing else.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from PIL import Image

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


def find_path(root: Path, *places: str) -> Path:
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
    archives = [name for name in visible_names(folder) if name.lower().endswith(ARCHIVES)]
    more = f" (and {len(archives) - 1} more)" if archives[1:] else ""
    return f"unpack {archives[0]}{more}, which lies there" if archives else ""


def read_lines(path: Path) -> list[str]:
    """The lines of a text file that say something: neither blank nor a comment."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(path, error) from None
    return [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]


def read_pairs(path: Path) -> list[tuple[str, str]]:
    """The first word of every line and the rest of it."""
    found = []
    for line in read_lines(path):
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


def image_names(folder: Path) -> list[str]:
    """Names of the images of a folder, sorted; hidden files, which some systems leave, are none."""
    return [name for name in visible_names(folder) if name.lower().endswith(PICTURES)]


def visible_names(folder: Path) -> list[str]:
    """Names of what a folder holds, sorted, without hidden files and folders."""
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def unreadable(path: Path, error: Exception) -> InputError:
    """One line about a file that is missing or damaged."""
    if isinstance(error, FileNotFoundError):
        return InputError(f"{path}: no such file; unpack the official archive again")
    words = " ".join(str(error).split()) or type(error).__name__
    return InputError(f"{path}: damaged or not the official file ({words[:120]})")


SIDE = 32
Pixels = np.ndarray[Any, np.dtype[np.uint8]]


class _Type:
    """Stands for `numpy.dtype` in a pickle: remembers its code, such as "u1"."""

    def __init__(self, code: object, *_: object) -> None:
        self.code = code

    def __setstate__(self, state: object) -> None:
        """Byte order and the like, which bytes do not have."""


class _Array:
    """Stands for a numpy array in a pickle: remembers what it says, so that numpy's own reader is never called."""

    def __init__(self, *_: object) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def pixels(self) -> Pixels:
        """The array, if it is one of bytes; anything else fails in one way or another."""
        _, shape, kind, by_column, raw = self.state
        if kind.code != "u1":
            raise ValueError(f"an array of {kind.code}")
        values = np.frombuffer(raw.encode("latin1"), dtype=np.uint8)
        return values.reshape(shape, order="F" if by_column else "C")


ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no CIFAR batch needs")
        return ALLOWED[module, name]


def read_pickle(path: Path) -> dict[str, Any]:
    """The dictionary of a batch or meta file; a file that asks for anything else than arrays is refused, not run."""
    try:
        with path.open("rb") as file:
            content = _Unpickler(file, encoding="latin1").load()
    except Exception as error:  # a damaged pickle fails in any way
        raise unreadable(path, error) from None
    if not isinstance(content, dict):
        raise InputError(f"{path}: damaged or not the official file (no dictionary)")
    return content


def read_names(path: Path, key: str) -> list[str]:
    """The names of the classes in a meta file."""
    names = read_pickle(path).get(key)
    if not isinstance(names, list):
        raise InputError(f"{path}: damaged or not the official file (no {key})")
    return [str(name) for name in names]


def read_batch(path: Path, key: str) -> tuple[list[Image.Image], list[int]]:
    """The images of a batch, and their labels under `key`."""
    content = read_pickle(path)
    try:
        # planes of red, green and blue, each row by row
        planes = content["data"].pixels().reshape(-1, 3, SIDE, SIDE)
        labels = [int(label) for label in content[key]]
    except Exception as error:  # whatever else the file holds instead
        raise unreadable(path, error) from None
    if len(labels) != len(planes):
        raise InputError(f"{path}: damaged or not the official file ({len(labels)} labels, {len(planes)} images)")
    return [Image.fromarray(image) for image in np.ascontiguousarray(planes.transpose(0, 2, 3, 1))], labels
