"""The clusters table: a line a row with its cluster, its category, the confidence in it, its cluster at each level."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selex.data.labels import ROW_COLUMNS, cell_of_label, first_repeat, text_of_cell
from selex.errors import InputError
from selex.io import column, read_csv, write_csv
from selex.types import Hierarchy

DOUBTFUL = 0.5
"""Confidence below which it is doubtful where an image belongs."""

Columns = dict[str, list[Any]]


@dataclass(frozen=True)
class ClustersTable:
    """A clusters table read back: one entry a row, in the order of the file."""

    ids: list[str]
    id_column: str
    clusters: list[str]
    known_categories: set[str]
    labelled: NDArray[np.bool_]


def cluster_columns(
    id_column: str,
    ids: Sequence[str],
    hierarchy: Hierarchy,
    names: Sequence[str],
    labelled: Iterable[Any],
    more: Columns,
) -> Columns:
    """The columns of a clusters table, in order; `more` holds what a command adds about each row."""
    base = hierarchy.levels[0]
    at_levels = [np.asarray(level.labels).tolist() for level in hierarchy.on_host().levels]
    return {
        id_column: list(ids),
        "cluster": at_levels[0],
        "category": [names[cluster] for cluster in at_levels[0]],
        "known": [int(cluster < base.n_known) for cluster in at_levels[0]],
        "labelled": [int(held) for held in labelled],
        **more,
        **{f"level_{number}": labels for number, labels in enumerate(at_levels, 1)},
    }


def write_columns(path: Path, columns: Columns) -> None:
    """A table as CSV; numbers that are not whole with six digits, text that no spreadsheet takes for a formula."""
    write_blocks(path, iter([columns]))


def write_blocks(path: Path, blocks: Iterator[Columns]) -> None:
    """The same of a table that comes in blocks, at least one; a block at a time is in memory."""
    first = next(blocks)
    lines = (zip(*map(_cells, block.values()), strict=True) for block in chain([first], blocks))
    write_csv(path, list(first), chain.from_iterable(lines))


def _cells(values: list[Any]) -> list[Any]:
    """A column as it is written; a text that comes often, as names of categories do, is looked at once."""
    kinds = set(map(type, values))
    if kinds <= {int}:
        return values
    texts = {text: cell_of_label(text) for text in set(values)} if kinds == {str} else {}
    return [texts[value] for value in values] if texts else list(map(_cell, values))


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        return cell_of_label(value)
    return f"{value:.6g}" if isinstance(value, float) else value


def read_clusters(path: Path) -> ClustersTable:
    """A clusters table from its CSV file."""
    lines = read_csv(path)
    header, body = lines[0][1], [line for _, line in lines[1:]]
    ids = column(path, header, ROW_COLUMNS)
    if twice := first_repeat(line[ids] for line in body):
        (first, _), (number, line) = (lines[1 + row] for row in twice)
        raise InputError(f"{path}, line {number}: {header[ids]} {line[ids]!r} appears twice, first in line {first}")
    cluster, category, known, labelled = (
        column(path, header, (name,)) for name in ("cluster", "category", "known", "labelled")
    )
    return ClustersTable(
        ids=[text_of_cell(line[ids]) for line in body],
        id_column=header[ids],
        clusters=[line[cluster] for line in body],
        known_categories={text_of_cell(line[category]) for line in body if line[known] == "1"},
        labelled=np.array([line[labelled] == "1" for line in body], dtype=bool),
    )


def is_clusters_table(path: Path) -> bool:
    """Whether a file starts as a clusters table does."""
    start = _first_line(path).split(",")
    return start[0] in ROW_COLUMNS and start[1:5] == ["cluster", "category", "known", "labelled"]


def is_predictions_table(path: Path) -> bool:
    """Whether a file starts as a table of predictions does."""
    return _first_line(path).startswith("file,category,known,confidence,")


def _first_line(path: Path) -> str:
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.readline()


def category_names(classes: Sequence[Any], n_clusters: int) -> list[str]:
    """A name for every cluster: the known categories' own, then `novel-1`, `novel-2`, ... (none that is taken)."""
    names = [str(name) for name in classes]
    taken, number = set(names), 0
    while len(names) < n_clusters:
        number += 1
        if f"novel-{number}" not in taken:
            names.append(f"novel-{number}")
    return names
