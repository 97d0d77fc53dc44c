"""Parquet files with a checksum in every page, which is looked at when they are read."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet

from selex.errors import InputError
from selex.io import first_line

Source = str | os.PathLike[str] | bytes


def write_parquet(path: Path, table: pa.Table) -> None:
    """Write a table to a file; pyarrow itself cannot open one whose name is no text."""
    path.write_bytes(pack_parquet(table))


def pack_parquet(table: pa.Table, compression: str = "snappy") -> bytes:
    """A table as the bytes of a parquet file."""
    out = io.BytesIO()
    parquet.write_table(table, out, compression=compression, write_page_checksum=True)
    return out.getvalue()


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
