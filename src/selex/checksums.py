"""Checksums: what is read back is what was written, or one line says that it is not."""

from __future__ import annotations

import hashlib
import json
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

from selex.errors import InputError
from selex.io import first_line

_BLOCK = 1 << 20
_STAMP = "sha256"
_LINE_STAMP = ', "crc32": "'
_seen: dict[
    tuple[str, int, int, int, int], str
] = {}  # digests of files that have not changed since, so that each is read once


class Damaged(InputError):
    """A file is not what it was when it was written."""


def file_digest(path: Path) -> str:
    """sha256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def known_digest(path: Path) -> str:
    """sha256 of a file, which is not read again in this process as long as nobody writes to it."""
    found = path.stat()
    key = str(path.absolute()), found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
    if key not in _seen:
        _seen[key] = file_digest(path)
    return _seen[key]


def stamped(record: dict[str, Any]) -> str:
    """A record as JSON that says its own digest."""
    return json.dumps({**record, _STAMP: _digest(record)}, indent=1)


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: cannot be read ({first_line(error)})") from None
    if not isinstance(values, dict):
        raise InputError(f"{path}: cannot be read (not an object)")
    return values


def check_stamp(path: Path, values: dict[str, Any]) -> None:
    """Refuse values that are not those that were stamped."""
    if values.get(_STAMP) != _digest({key: value for key, value in values.items() if key != _STAMP}):
        raise Damaged(f"{path}: is damaged, or was changed: what it says does not fit its checksum")


def stamped_line(record: dict[str, Any]) -> str:
    """A record as a line of JSON that says its own checksum."""
    text = json.dumps(record)
    return f"{text[:-1]}{_line_stamp(text)}\n"


def read_lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The records of a file of stamped lines, without those that are not what was written, and how many these are."""
    lines = [line for line in path.read_text(encoding="utf-8", errors="replace").split("\n") if line]
    records = [record for line in lines if (record := _read_line(line)) is not None]
    return records, len(lines) - len(records)


def _read_line(line: str) -> dict[str, Any] | None:
    text = line.rpartition(_LINE_STAMP)[0] + "}"
    if line == text[:-1] + _line_stamp(text):
        with suppress(ValueError, RecursionError):
            record = json.loads(text)
            return record if isinstance(record, dict) else None
    return None


def _line_stamp(text: str) -> str:
    return f'{_LINE_STAMP}{zlib.crc32(text.encode()):08x}"}}'


def _digest(record: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
