"""Features and their labels from files, with one clear line when something is wrong."""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from selex.data.clusters import ClustersTable
from selex.data.labels import ROW_COLUMNS, LabelFile, first_repeat, read_label_file, spell, text_of_cell
from selex.errors import InputError
from selex.io import check_regular, first_line

LABEL_COLUMNS = ("label", "category", "class")
_DAMAGED = (ValueError, OSError, EOFError, BadZipFile, zlib.error, RuntimeError, MemoryError, OverflowError, KeyError)


@dataclass(frozen=True)
class Features:
    """A table of features and what its rows are called: row numbers, or file names where the file holds them."""

    values: NDArray[Any]
    ids: list[str]
    id_column: str


def load_features(path: Path) -> Features:
    """Features from `.npy` (memory-mapped) or `.npz` (`features`, and `files` with a name for each row)."""
    check_regular(path)
    try:
        loaded = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; give a .npy or .npz file of features") from None
    except _DAMAGED as error:
        why = "not numpy's format" if "pickle" in str(error) else first_line(error)
        raise InputError(f"{path}: not a readable .npy or .npz file ({why})") from None
    values, names = (loaded, None) if isinstance(loaded, np.ndarray) else _from_archive(path, loaded)
    if values.ndim != 2:
        raise InputError(f"{path}: features must be a table, rows × dimensions, not of shape {values.shape}")
    if not values.size:  # of no dimensions there can be any number of rows
        raise InputError(f"{path}: features are empty: {values.shape[0]} rows × {values.shape[1]} dimensions")
    if names is None:
        return Features(values, [str(row) for row in range(len(values))], "row")
    if names.shape != (len(values),):
        raise InputError(f"{path}: 'files' has shape {names.shape} for {len(values)} rows of features")
    ids = [spell(os.fsdecode(name)) if isinstance(name, bytes) else str(name) for name in names.tolist()]
    if twice := first_repeat(ids):
        raise InputError(f"{path}: 'files' names {ids[twice[1]]!r} twice, again in row {twice[1]}")
    return Features(values, ids, "file")


def read_labels(path: Path, features: Features) -> list[str]:
    """The label of every row of `features`, "" where the file gives none.

    It has a column `row` (0 is the first) or `file`, and a column `label`; rows that it leaves out are unlabelled.
    """
    return _labels_of(path, features.ids, features.id_column)


def read_row_labels(path: Path, n: int) -> dict[int, str]:
    """The labels of a file with columns `row` (0 is the first) and `label`, of n rows; few may be labelled."""
    file = read_label_file(str(path), ("row",), LABEL_COLUMNS)
    cells = [name.strip() for name in file.names]
    _check_among(file, [row for row, cell in enumerate(cells) if not cell.isdecimal() or int(cell) >= n])
    numbers = [int(cell) for cell in cells]
    file.check_unique(numbers)
    return {number: label for number, label in zip(numbers, file.labels, strict=True) if label}


def read_truth(path: Path, clusters: ClustersTable) -> list[str]:
    """The true category of every row of a clusters table, "" where the file gives none; it may name other rows too."""
    return _labels_of(path, clusters.ids, clusters.id_column, may_name_others=True)


def _labels_of(path: Path, ids: list[str], kind: str, may_name_others: bool = False) -> list[str]:
    file = read_label_file(str(path), ROW_COLUMNS, LABEL_COLUMNS)
    if kind == "row" and file.column != "row":
        raise InputError(f"{path}: names rows by {file.column!r}, but the other file only numbers them; use 'row'")
    by_number = kind != "row" and file.column == "row"
    position = {str(row) if by_number else name: row for row, name in enumerate(ids)}
    names = [next((one for one in (text_of_cell(name), name) if one in position), name.strip()) for name in file.names]
    file.check_unique(names)
    if not may_name_others:
        _check_among(file, [row for row, name in enumerate(names) if name not in position])
    labels = dict(zip(names, file.labels, strict=True))
    return [labels.get(name, "") for name in position]


def _check_among(file: LabelFile, absent: list[int]) -> None:
    if absent:
        row = absent[0]
        raise InputError(f"{file.place(row)}: {file.column} {file.names[row]!r} is not among the features' rows")


def _from_archive(path: Path, archive: Any) -> tuple[NDArray[Any], NDArray[Any] | None]:
    with archive:
        if "features" not in archive:
            raise InputError(f"{path}: has no array 'features', only {', '.join(archive.files) or 'nothing'}")
        try:
            _check_room(archive)
            return archive["features"], archive.get("files")
        except _DAMAGED as error:
            raise InputError(f"{path}: {first_line(error)}") from None


def _check_room(archive: Any) -> None:
    """Refuse an archive that unpacks to more than the machine has memory for."""
    unpacked = sum(member.file_size for member in archive.zip.infolist())
    if unpacked > os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
        raise MemoryError(f"it unpacks to {unpacked / 1e9:,.0f} GB, more than this machine's memory")
