"""CIFAR's python batches: pickles, read by a reader that knows arrays of bytes and plain values and nothing else."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from selex.bench.datasets.layout import unreadable
from selex.errors import InputError

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
        shaped: Pixels = values.reshape(shape, order="F" if by_column else "C")
        return shaped


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
