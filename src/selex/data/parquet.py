"""Parquet files with a checksum in every page, which is looked at when they are read."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet

from selex.errors import InputError
from selex.io import first_line

Source = str | os.PathLike[str] | bytes


def pack_parquet(table: pa.Table, compression: str = "snappy") -> bytes:
    """A table as the bytes of a parquet file."""
    out = io.BytesIO()
    parquet.write_table(table, out, compression=compression, write_page_checksum=True)
    return out.getvalue()


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


def read_blocks(path: Path, columns: Sequence[str] | None = None, size: int = 1 << 16) -> Iterator[pa.Table]:
    """The rows of a file, or those of its columns, in tables of a limited size: the file is never all in memory."""
    try:
        with path.open("rb") as file:
            reader = parquet.ParquetFile(file, page_checksum_verification=True)
            for batch in reader.iter_batches(size, columns=None if columns is None else list(columns)):
                batch.validate(full=True)
                yield pa.Table.from_batches([batch])
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{path}: not a readable parquet file ({first_line(error)})") from None


def read_parquet(source: Source, name: object, columns: Sequence[str] | None = None) -> pa.Table:
    """The table in a file or in its bytes, or those of its columns; `name` is what a message calls it."""
    try:
        with _opened(source) as file:
            reader = parquet.ParquetFile(file, page_checksum_verification=True)
            wanted = None if columns is None else [column for column in columns if column in reader.schema_arrow.names]
            table = reader.read(wanted)
            table.validate(full=True)  # text that is no UTF-8
            return table
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{name}: not a readable parquet file ({first_line(error)})") from None


def read_header(path: str | os.PathLike[str]) -> list[str]:
    """Names of a file's columns; empty where it is no parquet file."""
    try:
        with _opened(path) as file:
            return list(parquet.ParquetFile(file).schema_arrow.names)
    except (pa.ArrowException, OSError, ValueError):
        return []


def _opened(source: Source) -> io.BufferedIOBase:
    return io.BytesIO(source) if isinstance(source, bytes) else open(source, "rb")
