"""Files that say which image, or which row of features, has which label: CSV or parquet, one reader for all."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from selex.data.names import first_repeat, label_name, label_of_cell
from selex.errors import InputError
from selex.io import column, read_csv
from selex.types import UNLABELLED

LABEL_FILES = (".csv", ".parquet")
FILE_COLUMNS = ("file_name", "file")  # the second is what our own tables have
ROW_COLUMNS = ("row", "file", "file_name")
"""What a row of features is named by: its number, or its file."""


@dataclass(frozen=True)
class LabelFile:
    """What a label file says: `names[i]`, as `column` has it, has the label `labels[i]` ("" = unlabelled).

    It was read at `places[i]`, a line of a CSV file or a row of a parquet file.
    """

    path: str
    column: str
    names: list[str]
    labels: list[str]
    places: Sequence[int]

    @property
    def folder(self) -> str:
        """The folder the file is in."""
        return os.path.dirname(os.path.abspath(self.path))

    def place(self, row: int) -> str:
        """Where a row stands in the file, for messages."""
        return f"{self.path}, {'row' if _is_parquet(self.path) else 'line'} {self.places[row]}"

    def check_unique(self, keys: Sequence[Hashable]) -> None:
        """Refuse two rows about the same thing; `keys[i]` says what row `i` is about."""
        if twice := first_repeat(keys):
            first, row = twice
            again = f"{self.place(row)}: {self.column} {self.names[row]!r} appears twice"
            raise InputError(f"{again}, first in {self.place(first).removeprefix(f'{self.path}, ')}")

    def check_present(self, absent: Sequence[int]) -> None:
        """Refuse rows about images that do not exist."""
        if absent:
            more = f" (and {len(absent) - 1} more)" if len(absent) > 1 else ""
            raise InputError(f"{self.place(absent[0])}: no such image: {self.names[absent[0]]}{more}")


class NoLabelColumn(InputError):
    """A file names images but has no column `label`."""


def read_label_file(
    path: str, named_by: Sequence[str] = FILE_COLUMNS, labelled_by: Sequence[str] = ("label",)
) -> LabelFile:
    """Read a parquet file, or else a CSV file, with one of the columns that name things, and one of labels."""
    wanted = (*named_by, *labelled_by)
    header, columns, places = _read_parquet(path, wanted) if _is_parquet(path) else _read_csv(path)
    key = header[column(Path(path), header, named_by)]
    try:
        cells = columns[header[column(Path(path), header, labelled_by)]]
    except InputError as error:
        raise NoLabelColumn(str(error)) from None
    names = [str(name) if name is not None else "" for name in columns[key]]
    file = LabelFile(path, key, names, list(map(label_name if _is_parquet(path) else label_of_cell, cells)), places)
    if "" in names:
        raise InputError(f"{file.place(names.index(''))}: {key} is empty")
    return file


def read_columns(path: str) -> dict[str, list[Any]]:
    """All columns of a CSV or parquet file, by name."""
    if not _is_parquet(path):
        return _read_csv(path)[1]
    from selex.data.parquet import read_parquet

    _check_there(path)
    return read_parquet(path, path).to_pydict()


def encode(names: Iterable[str]) -> tuple[np.ndarray[Any, np.dtype[np.int64]], list[str]]:
    """Labels as numbers, and the sorted categories they count; "" becomes `UNLABELLED`."""
    names = list(names)
    categories = sorted(set(names) - {""})
    number = {name: position for position, name in enumerate(categories)} | {"": UNLABELLED}
    return np.array([number[name] for name in names], dtype=np.int64), categories


def _is_parquet(path: str) -> bool:
    return path.lower().endswith(".parquet")


def _check_there(path: str) -> None:
    if not os.path.isfile(path):
        raise InputError(f"{path}: no such file")


def _read_csv(path: str) -> tuple[list[str], dict[str, list[Any]], Sequence[int]]:
    (_, first), *lines = read_csv(Path(path), padded=True)
    header = [name.strip() for name in first]
    first_of = {name: header.index(name) for name in header}  # of two columns with a name the first counts
    columns = {name: [line[i] for _, line in lines] for name, i in first_of.items()}
    return header, columns, [number for number, _ in lines]


def _read_parquet(path: str, wanted: Sequence[str]) -> tuple[list[str], dict[str, list[Any]], Sequence[int]]:
    from selex.data.parquet import read_header, read_parquet

    _check_there(path)
    table = read_parquet(path, path, wanted)
    return read_header(path), table.to_pydict(), range(1, len(table) + 1)
