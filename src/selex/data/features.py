"""Features, labels and cluster tables in files: one clear line when something is wrong, written whole or not."""

from __future__ import annotations

import csv
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selex.errors import InputError
from selex.types import Hierarchy

ROW_COLUMNS = ("row", "file", "file_name")
LABEL_COLUMNS = ("label", "category", "class")


@dataclass(frozen=True)
class Features:
    """A table of features and what its rows are called: row numbers, or file names where the file holds them."""

    values: NDArray[Any]
    ids: list[str]
    id_column: str


@dataclass(frozen=True)
class Clusters:
    """A clusters table read back: one entry a row, in the order of the file."""

    ids: list[str]
    id_column: str
    clusters: list[str]
    known_categories: set[str]
    labelled: NDArray[np.bool_]


def load_features(path: Path) -> Features:
    """Features from `.npy` (memory-mapped) or `.npz` (`features`, and `files` with a name for each row)."""
    try:
        loaded = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; give a .npy or .npz file of features") from None
    except (ValueError, OSError, EOFError) as error:
        why = "not numpy's format" if "pickle" in str(error) else _first_line(error)
        raise InputError(f"{path}: not a readable .npy or .npz file ({why})") from None
    values, names = (loaded, None) if isinstance(loaded, np.ndarray) else _from_archive(path, loaded)
    if values.ndim != 2:
        raise InputError(f"{path}: features must be a table, rows × dimensions, not of shape {values.shape}")
    if names is None:
        return Features(values, [str(row) for row in range(len(values))], "row")
    if names.shape != (len(values),):
        raise InputError(f"{path}: 'files' has shape {names.shape} for {len(values)} rows of features")
    ids = [str(name) for name in names.tolist()]
    _refuse_repeats(ids, lambda index: f"{path}: 'files' names {ids[index]!r} twice, again in row {index}")
    return Features(values, ids, "file")


def read_labels(path: Path, features: Features) -> list[str]:
    """The label of every row of `features`, "" where the CSV gives none.

    The CSV has a column `row` (0 is the first) or `file`, and a column `label`; rows that it leaves out are unlabelled.
    """
    return _labels_of(path, features.ids, features.id_column)


def read_truth(path: Path, clusters: Clusters) -> list[str]:
    """The true category of every row of a clusters table, "" where the CSV gives none; it may name other rows too."""
    return _labels_of(path, clusters.ids, clusters.id_column, may_name_others=True)


def _labels_of(path: Path, ids: list[str], kind: str, may_name_others: bool = False) -> list[str]:
    lines = _read_csv(path)
    header = lines[0][1]
    id_column, label_column = _column(path, header, ROW_COLUMNS), _column(path, header, LABEL_COLUMNS)
    if kind == "row" and header[id_column] != "row":
        raise InputError(
            f"{path}: names rows by {header[id_column]!r}, but the other file only numbers them; use 'row'"
        )
    by_number = kind != "row" and header[id_column] == "row"
    position = {str(row) if by_number else name: row for row, name in enumerate(ids)}
    labels, seen = [""] * len(ids), dict[str, int]()
    for number, line in lines[1:]:
        name, label = line[id_column].strip(), line[label_column].strip()
        row = f"{path}, line {number}: {header[id_column]} {name!r}"
        if name in seen:
            raise InputError(f"{row} is there twice, first in line {seen[name]}")
        seen[name] = number
        if name in position:
            labels[position[name]] = "" if label == "-1" else label
        elif not may_name_others:
            raise InputError(f"{row} is not among the features' rows")
    return labels


def write_clusters(
    path: Path, features: Features, hierarchy: Hierarchy, names: Sequence[str], labelled: Any, distances: Any
) -> None:
    """The clusters table: a line a row with its cluster, category and distance, and its cluster at each level."""
    base = hierarchy.levels[0]
    levels = [f"level_{number}" for number in range(1, len(hierarchy.levels) + 1)]
    header = [features.id_column, "cluster", "category", "known", "labelled", "distance", *levels]
    columns = [np.asarray(level.labels).tolist() for level in hierarchy.levels]
    lines = (
        [name, cluster, names[cluster], int(cluster < base.n_known), int(held), f"{distance:.6g}", *at_levels]
        for name, held, distance, cluster, at_levels in zip(
            features.ids, labelled, distances, columns[0], zip(*columns, strict=True), strict=True
        )
    )
    _write_csv(path, header, lines)


def read_clusters(path: Path) -> Clusters:
    """A clusters table as `write_clusters` leaves it."""
    lines = _read_csv(path)
    header, body = lines[0][1], [line for _, line in lines[1:]]
    ids = _column(path, header, ROW_COLUMNS)
    cluster, category, known, labelled = (
        _column(path, header, (name,)) for name in ("cluster", "category", "known", "labelled")
    )
    return Clusters(
        ids=[line[ids] for line in body],
        id_column=header[ids],
        clusters=[line[cluster] for line in body],
        known_categories={line[category] for line in body if line[known] == "1"},
        labelled=np.array([line[labelled] == "1" for line in body], dtype=bool),
    )


def category_names(classes: Sequence[Any], n_clusters: int) -> list[str]:
    """A name for every cluster: the known categories' own, then `novel-1`, `novel-2`, ... (none that is taken)."""
    names = [str(name) for name in classes]
    taken, number = set(names), 0
    while len(names) < n_clusters:
        number += 1
        if f"novel-{number}" not in taken:
            names.append(f"novel-{number}")
    return names


def check_target(path: Path, inputs: Iterable[Path], is_ours: Callable[[Path], bool]) -> None:
    """Refuse to write over an input, into a missing folder, or over a file that is not the like of what we write."""
    if not path.parent.is_dir():
        raise InputError(f"{path}: the folder {path.parent} does not exist; make it first")
    if path.is_dir():
        raise InputError(f"{path}: is a folder; give a file")
    if any(path.exists() and source.exists() and path.samefile(source) for source in inputs):
        raise InputError(f"{path}: is an input of this command; choose another --out")
    if path.exists() and path.stat().st_size and not is_ours(path):
        raise InputError(f"{path}: exists and is not what this command writes; choose another --out or remove it")


def is_clusters_table(path: Path) -> bool:
    """Whether a file starts as `write_clusters` starts it."""
    with path.open(encoding="utf-8", errors="replace") as file:
        start = file.readline().split(",")
    return start[0] in ROW_COLUMNS and start[1:2] == ["cluster"]


def _from_archive(path: Path, archive: Any) -> tuple[NDArray[Any], NDArray[Any] | None]:
    with archive:
        if "features" not in archive:
            raise InputError(f"{path}: has no array 'features', only {', '.join(archive.files) or 'nothing'}")
        try:
            return archive["features"], archive.get("files")
        except ValueError as error:  # an array of Python objects
            raise InputError(f"{path}: {_first_line(error)}") from None


def _read_csv(path: Path) -> list[tuple[int, list[str]]]:
    """Lines with their numbers, the header first."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            lines = [(reader.line_num, line) for line in reader if line]
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: not a readable CSV file ({_first_line(error)})") from None
    if not lines:
        raise InputError(f"{path}: is empty; its first line must name the columns")
    for number, line in lines:
        if len(line) != len(lines[0][1]):
            raise InputError(f"{path}, line {number}: has {len(line)} columns, the first line has {len(lines[0][1])}")
    return lines


def _column(path: Path, header: list[str], names: Sequence[str]) -> int:
    for name in names:
        if name in header:
            return header.index(name)
    wanted = " or ".join(repr(name) for name in names)
    raise InputError(f"{path}: has no column {wanted}; its columns are {', '.join(header)}")


def _write_csv(path: Path, header: Sequence[str], lines: Iterable[Sequence[Any]]) -> None:
    """Write beside the target, then put it in place: a reader sees the old file or the new one, never a part."""
    try:
        handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerow(header)
                writer.writerows(lines)
            os.chmod(partial, 0o666 & ~_umask())
            os.replace(partial, path)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(partial)
            raise
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _refuse_repeats(names: list[str], message: Any) -> None:
    seen = set[str]()
    for index, name in enumerate(names):
        if name in seen:
            raise InputError(message(index))
        seen.add(name)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
