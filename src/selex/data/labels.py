r"""Labels in files: names of images and categories as text and back, and the one reader of label files, CSV or parquet.

Whatever a disk holds keeps its name in every table.

A path is text as it is, but for bytes that are no UTF-8, which are spelled `\xe9`, and for a backslash that would read
as such a spelling, which is spelled `\x5c`. No two paths have the same spelling.

In a CSV cell `-1` says unlabelled and spaces around a label mean nothing. A label of which that is not true, and text
that a spreadsheet would take for a formula, has an apostrophe before it, as in spreadsheets: `'-1`.

A label file says which image, or which row of features, has which label. Where a label becomes a folder, `Names` gives
it a name that every common file system takes.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from selex.errors import InputError
from selex.io import column, read_csv
from selex.types import UNLABELLED

_SPELLED = re.compile(rb"\\x(5c|[89a-f][0-9a-f])")
_AMBIGUOUS = re.compile(r"\\(?=x(?:5c|[89a-f][0-9a-f]))")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def spell(path: str) -> str:
    """A path as text that can be shown and saved."""
    if path.isascii() and "\\" not in path:  # nearly all of them, of which there may be millions
        return path
    return _AMBIGUOUS.sub(r"\\x5c", path).encode(errors="surrogateescape").decode(errors="backslashreplace")


def unspell(text: str) -> str:
    """The path that `spell` spelled."""
    if "\\x" not in text:
        return text
    spelled = text.encode(errors="surrogateescape")
    return _SPELLED.sub(lambda found: bytes.fromhex(found[1].decode()), spelled).decode(errors="surrogateescape")


def readings(cell: str) -> list[str]:
    """The paths that a cell of a table may mean, likeliest first: as we write it, then as it stands."""
    texts = [cell[1:], cell] if is_quoted(cell) else [cell]
    return list(dict.fromkeys(path for text in texts for path in (unspell(text), text)))


def label_name(label: Any) -> str:
    """The name of a category as a program gives it; "" where it says unlabelled: None, nan, "" or the number -1."""
    if label is None or label != label or (isinstance(label, Real) and float(label) == UNLABELLED):
        return ""
    return str(label)


def label_of_cell(cell: str) -> str:
    """The name of a category as a CSV file gives it; "" where it says unlabelled: an empty cell or -1."""
    if is_quoted(cell):
        return cell[1:]
    name = cell.strip()
    return "" if name == str(UNLABELLED) else name


def text_of_cell(cell: str) -> str:
    """The text of a cell that `cell_of_label` may have put an apostrophe before."""
    return cell[1:] if is_quoted(cell) else cell


def cell_of_label(name: str) -> str:
    """The cell of a CSV file that `label_of_cell` reads as this name; no spreadsheet takes it for a formula."""
    return f"'{name}" if _needs_quote(name) else name


def is_quoted(cell: str) -> bool:
    """Whether a cell starts with an apostrophe that is not part of its text."""
    return cell.startswith("'") and _needs_quote(cell[1:])


def _needs_quote(text: str) -> bool:
    return text != text.strip() or text.startswith(_FORMULA) or is_quoted(text)


UNLABELLED_FOLDERS = ("unlabelled", "unlabeled")
LONGEST = 200
"""Bytes in a name: file systems stop at 255, and some ending may follow."""

# Separators and what Windows refuses; control characters; halves of characters, which have no bytes in UTF-8.
_UNSAFE = re.compile(r'[/\\:*?"<>|\x00-\x1f\x7f\ud800-\udfff]')
_DEVICES = ("con", "prn", "aux", "nul", *(f"{port}{digit}" for port in ("com", "lpt") for digit in range(10)))


def safe_name(name: str) -> str:
    """The name with `_` for what a file system may refuse, hide or take for something else; other characters stay."""
    name = _UNSAFE.sub("_", name).strip(" ").rstrip(". ")
    name = re.sub(r"^\.+", "_", name) or "_"
    # Windows knows devices by what is before the first dot; a folder of unlabelled images is no category
    reserved = name.lower().split(".")[0].rstrip(" ") in _DEVICES or name.lower() in UNLABELLED_FOLDERS
    return _shorten(f"_{name}" if reserved else name, LONGEST)


def first_repeat(names: Iterable[Hashable]) -> tuple[int, int] | None:
    """Where the first name that comes twice is at first, and where it is again; None if all differ."""
    first: dict[Hashable, int] = {}
    for position, name in enumerate(names):
        if (other := first.setdefault(name, position)) != position:
            return other, position
    return None


class Names:
    """The names in one folder: no two that differ only in case or in how their accents are written."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def take(self, name: str, ending: str = "") -> str:
        """A safe name that is not taken yet: the name itself, else with `-2`, `-3`, ... before the ending."""
        stem, ending = safe_name(name), _UNSAFE.sub("_", ending)
        for number in count(1):
            more = (f"-{number}" if number > 1 else "") + ending
            found = _shorten(stem, LONGEST - len(more.encode())) + more
            key = unicodedata.normalize("NFC", unicodedata.normalize("NFC", found).casefold())
            if key not in self._taken:
                break
        self._taken.add(key)
        return found


def _shorten(name: str, n_bytes: int) -> str:
    return name.encode()[: max(n_bytes, 1)].decode(errors="ignore").rstrip(". ") or "_"


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
