"""Files that say which image has which label: CSV or parquet with the columns `file_name` and `label`."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from selex.data.names import first_repeat, label_name, label_of_cell
from selex.errors import InputError
from selex.io import read_csv
from selex.types import UNLABELLED

LABEL_FILES = (".csv", ".parquet")
FILE_COLUMNS = ("file_name", "file")  # the second is what our own tables have


@dataclass(frozen=True)
class LabelFile:
    """What a label file says: `names[i]` has the label `labels[i]` ("" = unlabelled), read at `places[i]`."""

    path: str
    names: list[str]
    labels: list[str]
    places: Sequence[int]

    @property
    def folder(self) -> str:
        """The folder the file is in."""
        return os.path.dirname(os.path.abspath(self.path))

    def place(self, row: int) -> str:
        """Where a row stands in the file, for messages."""
        word = "line" if self.path.lower().endswith(".csv") else "row"
        return f"{self.path}, {word} {self.places[row]}"

    def check_unique(self, keys: Sequence[Hashable]) -> None:
        """Refuse two rows about the same image; `keys[i]` says which image row `i` is about."""
        if twice := first_repeat(keys):
            first, row = twice
            raise InputError(f"{self.place(row)}: {self.names[row]} appears twice, first at {self.places[first]}")

    def check_present(self, absent: Sequence[int]) -> None:
        """Refuse rows about images that do not exist."""
        if absent:
            more = f" (and {len(absent) - 1} more)" if len(absent) > 1 else ""
            raise InputError(f"{self.place(absent[0])}: no such image: {self.names[absent[0]]}{more}")


class NoLabelColumn(InputError):
    """A file names images but has no column `label`."""


def read_label_file(path: str) -> LabelFile:
    """Read a CSV or parquet file with the columns `file_name` (or `file`) and `label`."""
    if not os.path.isfile(path):
        raise InputError(f"{path}: no such file")
    is_csv = path.lower().endswith(".csv")
    header, columns, places = _read_csv(path) if is_csv else _read_parquet(path)
    read = label_of_cell if is_csv else label_name
    file_column = next((name for name in FILE_COLUMNS if name in header), None)
    if file_column is None:
        raise InputError(f"{path}: no column 'file_name' (there is: {', '.join(header) or 'nothing'})")
    if "label" not in header:
        raise NoLabelColumn(f"{path}: no column 'label' (there is: {', '.join(header)}); it may be empty")
    names = [str(name) if name is not None else "" for name in columns[file_column]]
    labels = [read(label) for label in columns["label"]]
    file = LabelFile(path, names, labels, places)
    if "" in names:
        raise InputError(f"{file.place(names.index(''))}: {file_column} is empty")
    return file


def read_columns(path: str) -> dict[str, list[Any]]:
    """All columns of a CSV or parquet file, by name."""
    if not os.path.isfile(path):
        raise InputError(f"{path}: no such file")
    if path.lower().endswith(".csv"):
        return _read_csv(path)[1]
    from selex.data.parquet import read_parquet

    columns: dict[str, list[Any]] = read_parquet(path, path).to_pydict()
    return columns


def encode(names: Iterable[str]) -> tuple[np.ndarray[Any, np.dtype[np.int64]], list[str]]:
    """Labels as numbers, and the sorted categories they count; "" becomes `UNLABELLED`."""
    names = list(names)
    categories = sorted(set(names) - {""})
    number = {name: position for position, name in enumerate(categories)} | {"": UNLABELLED}
    return np.array([number[name] for name in names], dtype=np.int64), categories


def _read_csv(path: str) -> tuple[list[str], dict[str, list[Any]], Sequence[int]]:
    (_, first), *lines = read_csv(Path(path), padded=True)
    header = [name.strip() for name in first]
    columns = {name: [line[i] for _, line in lines] for i, name in enumerate(header)}
    return header, columns, [number for number, _ in lines]


def _read_parquet(path: str) -> tuple[list[str], dict[str, list[Any]], Sequence[int]]:
    from selex.data.parquet import read_header, read_parquet

    table = read_parquet(path, path, (*FILE_COLUMNS, "label"))
    return read_header(path), table.to_pydict(), range(1, len(table) + 1)
