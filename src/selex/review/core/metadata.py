"""What else is known of photos, to filter by: folder, day and camera, columns of a table of one's own."""

from __future__ import annotations

import datetime
import os
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
from PIL import Image

from selex.data.decode import FORMATS
from selex.data.labels import FILE_COLUMNS, LABEL_FILES, read_columns
from selex.data.parquet import ROWS, text_blocks
from selex.data.table import real_path
from selex.errors import InputError
from selex.io import column
from selex.runs.run import ImagePaths, Run

Array = np.ndarray[Any, Any]

MOST_VALUES = 100
"""A column with more values is not one to filter by."""

CAMERA = "camera (EXIF)"
"""The column of what photos say they were taken with."""

_EXIF, _TAKEN, _CHANGED = 0x8769, 0x9003, 0x0132  # the part of EXIF that has the day, and where the day is
_MODEL = 0x0110


@dataclass(frozen=True)
class Where:
    """Which photos: in a folder or below it, taken from one day to another, with values in columns; "" is any.

    `columns` are texts such as `station=north`, all of which must hold.
    """

    folder: str = ""
    since: str = ""
    until: str = ""
    columns: tuple[str, ...] = ()

    @property
    def asked(self) -> bool:
        """Whether it leaves anything out."""
        return bool(self.folder or self.since or self.until or self.columns)

    @property
    def by_exif(self) -> bool:
        """Whether the photos themselves must be read for it."""
        return bool(self.since or self.until) or any(text.startswith(f"{CAMERA}=") for text in self.columns)


class Metadata:
    """Of the photos of a round. Days are read from the files in the background, from when they are first asked for."""

    def __init__(self, run: Run, paths: ImagePaths, table: str | None = None) -> None:
        self._paths = paths
        self._folders, self._folder = folders_of(paths.files)
        self.columns = _columns(run, paths.files, table)
        self._counted: tuple[object, dict[str, dict[str, int]]] | None = None
        self._days: Array | None = None
        self._started, self._reading = False, threading.Lock()

    @cached_property
    def folders(self) -> dict[str, int]:
        """How many photos each folder has, those in folders below it too; none where all are in one."""
        counts: Counter[str] = Counter()
        for folder, number in zip(self._folders, np.bincount(self._folder).tolist(), strict=True):
            while folder and folder != os.sep:
                counts[folder] += number
                folder = os.path.dirname(folder)
        return dict(sorted((name, number) for name, number in counts.items() if number < len(self._paths)))

    @property
    def values(self) -> dict[str, dict[str, int]]:
        """How many photos have each value of each column, counted once for the columns that there are."""
        columns, counted = self.columns, self._counted  # another thread may add a column in the meantime
        if counted is None or counted[0] is not columns:
            counted = columns, {name: _counts(cells) for name, cells in columns.items()}
            self._counted = counted
        return counted[1]

    @property
    def days(self) -> Array | None:
        """The day of each row, NaT where there is none; None as long as they are being read."""
        if not self._started:
            self._started = True
            threading.Thread(target=self.read_days, daemon=True).start()
        return self._days

    def read_days(self) -> Array:
        """The days, once they are read: this may take minutes, so nothing else should wait for it."""
        self._started = True
        with self._reading:
            if self._days is None:
                days, cameras = np.empty(len(self._paths), dtype="datetime64[D]"), list[str]()
                for start in range(0, len(days), ROWS):  # never all paths at once
                    found = [taken(path) for path in self._paths[start : start + ROWS]]
                    days[start : start + ROWS] = [day for day, _ in found]
                    cameras += [sys.intern(camera) for _, camera in found]
                self._add(CAMERA, cameras)
                self._days = days
        return self._days

    def _add(self, name: str, cells: list[str]) -> None:
        """One more column, if there is something to choose from."""
        if 2 <= len(set(cells)) <= MOST_VALUES and name not in self.columns:
            self.columns = {**self.columns, name: cells}

    def _has(self, rows: Array, text: str) -> Array:
        """Whether rows have the value in the column that `column=value` says; no row has one that there is not."""
        name = max((name for name in self.columns if text.startswith(f"{name}=")), key=len, default=None)
        if name is None:
            return np.zeros(len(rows), dtype=bool)
        cells, value = self.columns[name], text[len(name) + 1 :]
        return np.array([cells[row] == value for row in rows.tolist()], dtype=bool)

    def keep(self, rows: Array, where: Where) -> Array:
        """The rows that are asked for."""
        kept = np.ones(len(rows), dtype=bool)
        if where.folder:
            below = where.folder + "/"
            inside = np.array([f"{folder}/".startswith(below) for folder in self._folders], dtype=bool)
            kept &= inside[self._folder[rows]]
        if where.by_exif:
            days = self.read_days()
        for text in where.columns:
            kept &= self._has(rows, text)
        if where.since or where.until:
            first, last = _day(where.since) or datetime.date.min, _day(where.until) or datetime.date.max
            kept &= (days[rows] >= np.datetime64(first)) & (days[rows] <= np.datetime64(last))
        return rows[kept]


def folders_of(files: Sequence[str]) -> tuple[list[str], Array]:
    """The folders that files are in, and the number of each file's folder among them."""
    number, parts = dict[str, int](), [np.zeros(0, dtype=np.int32)]
    for block in text_blocks(files):
        within = pc.replace_substring_regex(block, r"[^/]*\z", "").dictionary_encode()
        found = [number.setdefault(os.path.dirname(text), len(number)) for text in within.dictionary.to_pylist()]
        parts.append(np.array(found, dtype=np.int32)[within.indices.to_numpy()])
    return list(number), np.concatenate(parts)


def taken(path: str) -> tuple[str | None, str]:
    """The day a photo was taken, as 2024-05-31, and with which camera; None and "" where its EXIF does not say."""
    try:
        with Image.open(path, formats=FORMATS) as image:
            exif = image.getexif()
            told = str(exif.get_ifd(_EXIF).get(_TAKEN) or exif.get(_CHANGED) or "")
            camera = " ".join(str(exif.get(_MODEL) or "").replace("\0", " ").split())
    except Exception:  # damaged files raise nearly anything; a photo without a day is nothing unusual
        return None, ""
    day = _day(told[:10].replace(":", "-"))
    return day.isoformat() if day else None, camera


def _day(text: str) -> datetime.date | None:
    try:
        return datetime.date.fromisoformat(text)
    except ValueError:
        return None


def read_named(path: str) -> tuple[dict[str, list[Any]], str]:
    """The columns of a table, and which of them names the file; refuses one that has none."""
    columns = read_columns(path)
    header = list(columns)
    return columns, header[column(Path(path), header, FILE_COLUMNS)]


def _columns(run: Run, files: Sequence[str], table: str | None) -> dict[str, list[str]]:
    """Columns to filter by: of the table that is given, else of those the run was made from."""
    if table is not None:
        return _joined(run, files, table)
    found: dict[str, list[str]] = {}
    for path in (run.config.data.photos, run.config.data.labels):
        if path and path.lower().endswith(LABEL_FILES) and os.path.isfile(path):
            try:
                found |= _joined(run, files, path)
            except InputError:
                continue  # the run is made, whatever became of its table since
    return found


def _joined(run: Run, files: Sequence[str], path: str) -> dict[str, list[str]]:
    """The columns of a table, in row order; "" for photos that it does not name."""
    columns, key = read_named(path)
    root, beside = str(run.root), os.path.dirname(os.path.abspath(path))
    at = {real_path(root, file): row for row, file in enumerate(files)}
    places = [at.get(real_path(root, str(name)), at.get(real_path(beside, str(name)), -1)) for name in columns[key]]
    found = {}
    for name, cells in columns.items():
        values = [""] * len(files)
        for row, cell in zip(places, cells, strict=True):
            if row >= 0 and cell is not None:
                values[row] = str(cell)
        if name not in (*FILE_COLUMNS, "label") and 2 <= len(set(values)) <= MOST_VALUES:
            found[name] = values
    return found


def _counts(cells: list[str]) -> dict[str, int]:
    """How often each value occurs, in order; numbers by size, if all are."""
    counts = Counter(cells)
    try:
        return dict(sorted(counts.items(), key=lambda item: float(item[0]) if item[0] else -inf))
    except ValueError:
        return dict(sorted(counts.items()))
