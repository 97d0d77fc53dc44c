"""Parquet files with a checksum in every page, which is looked at when they are read."""

from __future__ import annotations

import io
import os
import threading
import weakref
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import lru_cache
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as parquet
from numpy.typing import NDArray

from selex.io import reported

Source = str | os.PathLike[str] | bytes


ROWS = 1 << 16
"""Rows of a row group: what is read, and written, at a time."""
_GROUPS = 32  # row groups of a column that are kept once they were read


def pack_parquet(blocks: Iterable[pa.Table]) -> bytes:
    """Tables below each other as the bytes of a parquet file, each as a row group."""
    out, blocks = io.BytesIO(), iter(blocks)
    first = next(blocks)
    with parquet.ParquetWriter(out, first.schema, compression="zstd", write_page_checksum=True) as writer:
        for table in chain([first], blocks):
            writer.write_table(table)
    return out.getvalue()


class TextColumn(Sequence[str]):
    """A column of text in a parquet file, or in its bytes: read when it is asked for, a row group at a time.

    The file stays open: if another takes its place, this is still the one that was there.
    """

    def __init__(self, source: Source, name: object, column: str) -> None:
        self._name, self._column, self._lock = name, column, threading.Lock()
        with _reading(name):
            opened = _opened(source)
            weakref.finalize(self, opened.close)
            self._file = parquet.ParquetFile(opened, page_checksum_verification=True)
        groups = (self._file.metadata.row_group(number).num_rows for number in range(self._file.num_row_groups))
        self._starts: list[int] = [0, *accumulate(groups)]
        self._group = lru_cache(_GROUPS)(self._read)

    @property
    def there(self) -> list[str]:
        """Names of all columns of the file."""
        return list(self._file.schema_arrow.names)

    def blocks(self) -> Iterator[pa.Array]:
        """All of it, a row group at a time."""
        for table in self.beside([self._column]):
            if len(table):
                yield table[self._column].combine_chunks()

    def beside(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Other columns of the same file, a row group at a time."""
        for number in range(self._file.num_row_groups):
            with self._lock, _reading(self._name):
                table = self._file.read_row_group(number, list(columns))
                table.validate(full=True)  # text that is no UTF-8
            yield table

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return self._slice(*row.indices(len(self)))
        row = range(len(self))[row]  # from the end, or out of range
        number = bisect_right(self._starts, row) - 1
        with self._lock:
            return self._group(number)[row - self._starts[number]].as_py()

    def _slice(self, start: int, stop: int, step: int) -> list[str]:
        if step != 1:
            return [self[one] for one in range(start, stop, step)]
        found = list[str]()
        for number in range(bisect_right(self._starts, start) - 1, self._file.num_row_groups):
            first = self._starts[number]
            if first >= stop:
                break
            with self._lock:
                values = self._group(number)
            found += values.slice(max(start - first, 0), stop - max(start, first)).to_pylist()
        return found

    def __iter__(self) -> Iterator[str]:
        for number in range(self._file.num_row_groups):
            with self._lock:
                values = self._read(number)
            yield from values.to_pylist()

    def _read(self, number: int) -> pa.ChunkedArray:
        with _reading(self._name):
            values = self._file.read_row_group(number, [self._column])[self._column]
            values.validate(full=True)  # text that is no UTF-8
            return values


def text_blocks(texts: Sequence[str]) -> Iterator[pa.Array]:
    """Texts as arrays of a limited size, which need no object for each text."""
    if isinstance(texts, TextColumn):
        yield from texts.blocks()
    else:
        yield from (pa.array(texts[start : start + ROWS], pa.string()) for start in range(0, len(texts), ROWS))


def with_words(texts: Sequence[str], words: str) -> NDArray[np.bool_]:
    """Which texts have the words in them, in whatever case."""
    words, found = words.casefold(), [np.zeros(0, dtype=bool)]
    for block in text_blocks(texts):
        if pc.all(pc.string_is_ascii(block)).as_py():  # as nearly all file names are: there the case is that of letters
            found.append(pc.match_substring(pc.ascii_lower(block), words).to_numpy(zero_copy_only=False))
        else:
            found.append(np.array([words in text.casefold() for text in block.to_pylist()], dtype=bool))
    return np.concatenate(found)


def as_row_groups(path: Path, blocks: Iterable[dict[str, list[Any]]]) -> Iterator[dict[str, list[Any]]]:
    """The same blocks of columns; on its way each is written to a file as a row group, the last ends the file."""
    # opened here: pyarrow itself cannot open a file whose name is no text
    with path.open("wb") as file, ExitStack() as ended:
        writer = None
        for block in blocks:
            table = pa.table(block)
            if writer is None:
                made = parquet.ParquetWriter(file, table.schema, compression="snappy", write_page_checksum=True)
                writer = ended.enter_context(made)
            writer.write_table(table)
            yield block


def read_blocks(path: Path, columns: Sequence[str] | None = None, size: int = ROWS) -> Iterator[pa.Table]:
    """The rows of a file, or those of its columns, in tables of a limited size: the file is never all in memory."""
    with _reading(path), path.open("rb") as file:
        reader = parquet.ParquetFile(file, page_checksum_verification=True)
        for batch in reader.iter_batches(size, columns=None if columns is None else list(columns)):
            batch.validate(full=True)
            yield pa.Table.from_batches([batch])


def read_parquet(source: Source, name: object, columns: Sequence[str] | None = None) -> pa.Table:
    """The table in a file or in its bytes, or those of its columns; `name` is what a message calls it."""
    with _reading(name), _opened(source) as file:
        reader = parquet.ParquetFile(file, page_checksum_verification=True)
        wanted = None if columns is None else [column for column in columns if column in reader.schema_arrow.names]
        table = reader.read(wanted)
        table.validate(full=True)  # text that is no UTF-8
        return table


def read_header(path: str | os.PathLike[str]) -> list[str]:
    """Names of a file's columns; empty where it is no parquet file."""
    try:
        with _opened(path) as file:
            return list(parquet.ParquetFile(file).schema_arrow.names)
    except (pa.ArrowException, OSError, ValueError):
        return []


def _reading(name: object) -> AbstractContextManager[None]:
    return reported(f"{name}: not a readable parquet file", pa.ArrowException, OSError, ValueError)


def _opened(source: Source) -> io.BufferedIOBase:
    return io.BytesIO(source) if isinstance(source, bytes) else open(source, "rb")
