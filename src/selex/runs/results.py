"""What a run found, as arrays in row order and without torch: what the report shows and decisions stand on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from selex.data.parquet import ROWS, TextColumn, pack_parquet, read_parquet, text_blocks
from selex.errors import InputError
from selex.io import reported
from selex.runs.run import Run
from selex.runs.stage import CONTENT

Array = np.ndarray[Any, Any]
_PACKED = ("category", "labelled", "confidence", "runner_up")
_COLUMNS = ("file", "cluster", "labelled", "confidence", "runner_up", "distance")


@dataclass(frozen=True, eq=False)
class Results:
    """The clusters table of a run."""

    files: Sequence[str]  # name of every row's image
    names: list[str]  # name of every category; the first `n_known` are the known ones
    n_known: int
    category: Array  # of every row
    labelled: Array  # rows whose label was given
    confidence: Array  # in the category of a row
    runner_up: Array  # the next best category of a row, -1 where there is none
    distance: Array | None = None  # of a row to the centre of its category; None where it was not asked for
    last_number: int = 0  # the last number that a `novel-…` of this run ever had
    content: Array | None = None  # tells images from each other whatever their files are called; None: not known

    def __len__(self) -> int:
        return len(self.files)

    @cached_property
    def digest(self) -> str:
        """Of all that is here: other results, another digest, whatever file they are in."""
        digest, between = hashlib.sha256(b"[["), ""
        for block in text_blocks(self.files):  # as one JSON text, without ever having it
            digest.update(f"{between}{json.dumps(block.to_pylist())[1:-1]}".encode())
            between = ", "
        # a number that no name shows was that of a category that is gone, and is not used again
        gone = f", {self.last_number}" if self.last_number and f"novel-{self.last_number}" not in self.names else ""
        digest.update(f"], {json.dumps(self.names)}, {self.n_known}{gone}]".encode())
        for numbers in (self.category, self.labelled, self.confidence, self.runner_up):
            digest.update(numbers.tobytes())
        return digest.hexdigest()

    @classmethod
    def read(cls, run: Run, distances: bool = False) -> Results:
        """The results of a finished run, with distances if these are asked for."""
        tree, path = run.hierarchy, run.result("clusters.parquet")
        names, n_known = tree["names"], tree["levels"][0]["n_known"]
        files = TextColumn(path, path, "file")
        columns = _read_columns(files, path, names, distances)
        content = _read_content(run.result(CONTENT), len(files)) if run.has(CONTENT) else None
        found = cls(files, names, n_known, **columns, last_number=tree["last_number"], content=content)
        if not 0 <= found.category.min() <= found.category.max() < len(names):
            raise InputError(f"{path}: names a category that is not in hierarchy.json")
        return found

    def pack(self) -> bytes:
        """The same as bytes, to be kept beside decisions: those mean nothing without it."""
        about = {"names": json.dumps(self.names), "n_known": str(self.n_known), "last_number": str(self.last_number)}
        numbers = {name: getattr(self, name) for name in _PACKED}

        def block(part: slice) -> pa.Table:
            columns = {"file": pa.array(self.files[part], pa.string())}
            columns |= {name: pa.array(values[part]) for name, values in numbers.items()}
            if self.content is not None:
                columns["content"] = pa.array(self.content[part].tolist(), pa.binary())
            return pa.table(columns).replace_schema_metadata(about)

        starts = range(0, max(len(self), 1), ROWS)
        return pack_parquet(block(slice(start, start + ROWS)) for start in starts)

    @classmethod
    def read_if_any(cls, run: Run, distances: bool = False) -> Results | None:
        """The results of a run, None where there are none or they cannot be read."""
        try:
            return cls.read(run, distances) if run.complete else None
        except InputError:  # damaged: the run is done again for that
            return None

    @classmethod
    def unpack(cls, data: bytes, name: object) -> Results:
        """What `pack` packed; `name` is what a message calls it."""
        table = read_parquet(data, name, (*_PACKED, "content"))
        about = table.schema.metadata
        numbers = [table[name].to_numpy() for name in _PACKED]
        names, n_known, last = json.loads(about[b"names"]), int(about[b"n_known"]), int(about[b"last_number"])
        category, labelled, confidence, runner_up = numbers
        files = TextColumn(data, name, "file")
        content = np.array(table["content"].to_pylist(), "S16") if "content" in table.column_names else None
        return cls(files, names, n_known, category, labelled, confidence, runner_up, None, last, content)


def _read_columns(files: TextColumn, path: Path, names: list[str], distances: bool) -> dict[str, Array]:
    """What the table says of every row in numbers, read a block at a time."""
    missing = [name for name in _COLUMNS if name not in files.there]
    if missing or not files:
        raise InputError(f"{path}: has no {missing[0] if missing else 'row'}")
    kinds = {"category": np.int32, "labelled": bool, "confidence": np.float64, "runner_up": np.int32}
    kinds |= {"distance": np.float64} if distances else {}
    columns: dict[str, Array] = {name: np.empty(len(files), kind) for name, kind in kinds.items()}
    number = {name: position for position, name in enumerate(names)}
    done = 0
    for block in files.beside([column for column in _COLUMNS if column == "cluster" or column in kinds]):
        part = slice(done, done + len(block))
        for name, column in columns.items():
            values = block["cluster" if name == "category" else name]
            column[part] = _numbers(values, number) if name == "runner_up" else values.to_numpy()
        done += len(block)
    return columns


def _read_content(path: Path, rows: int) -> Array:
    with reported(f"{path}: cannot be read", OSError, ValueError, EOFError):
        content: Array = np.load(path)
    if content.shape != (rows,) or content.dtype != "S16":
        raise InputError(f"{path}: does not belong to the table of this run")
    return content


def _numbers(column: pa.ChunkedArray, number: dict[str, int]) -> Array:
    """The number of each row's category among names, -1 where there is none of that name."""
    coded = column.combine_chunks().dictionary_encode()
    numbers = np.array([number.get(name, -1) for name in coded.dictionary.to_pylist()], dtype=np.int32)
    return numbers[coded.indices.to_numpy()]


_BLOCK = 8192  # rows whose features are looked at together


def directions(rows: Any) -> Array:
    """Rows with length 1."""
    rows = np.asarray(rows, dtype=np.float32)
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


def mean_direction(features: Array, rows: Array) -> Array:
    """The mean of some rows' features, with length 1: categories whose cosine is largest are most alike."""
    total = np.zeros(features.shape[1])
    for start in range(0, len(rows), _BLOCK):
        total += features[np.sort(rows[start : start + _BLOCK])].sum(axis=0, dtype=np.float64)
    return directions(total[None])[0]


def most_alike(means: Array, category: int, live: Array, count: int) -> list[tuple[int, float]]:
    """The categories most like one, and the cosines of their means: unit rows of which `live` are those with images."""
    others = live[live != category]
    cosine = means[others] @ means[category]
    best = np.argsort(-cosine, kind="stable")[:count]
    return [(int(others[i]), float(cosine[i])) for i in best]
