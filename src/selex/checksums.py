"""Checksums: what is read back is what was written, or one line says that it is not. Seals: which runs were made here.

A run folder is data that anybody may have written. One with our own seal, made with a key that stays in this user's
cache, may name images anywhere, as a table or a list of the user did; any other may only name what lies below its root.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import warnings
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from selex.errors import InputError, Note
from selex.folders import cache_folder
from selex.io import atomic_path, is_plain_file, locked, reported

_BLOCK = 1 << 20
_STAMP = "sha256"
_LINE_STAMP = ', "crc32": "'


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
    return _digest_of_version(path.absolute(), found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


@cache
def _digest_of_version(path: Path, *version: int) -> str:
    return file_digest(path)


def stamped(record: dict[str, Any]) -> str:
    """A record as JSON that says its own digest."""
    return json.dumps({**record, _STAMP: _digest(record)}, indent=1)


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    with reported(f"{path}: cannot be read", OSError, ValueError, RecursionError):
        values = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(values, dict):
        raise InputError(f"{path}: cannot be read (not an object)")
    return values


def check_stamp(path: Path, values: dict[str, Any]) -> None:
    """Refuse values that are not those that were stamped."""
    if values.get(_STAMP) != _digest({key: value for key, value in values.items() if key != _STAMP}):
        raise Damaged(f"{path}: is damaged or was changed: its checksum does not match")


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


_KEY, _SIZE = "seal.key", 32


def seal(root: str, files: Iterable[Sequence[str]]) -> str:
    """The seal of a run made here, whose files come in blocks; empty where no key can be kept."""
    with suppress(OSError, InputError, RuntimeError):  # a cache that cannot be written, a user without a home
        return _mac(_make_key(cache_folder()), root, files)
    return ""


def is_sealed(said: object, root: str, files: Iterable[Sequence[str]]) -> bool:
    """Whether a seal is ours, and of this root and these files, which come in blocks."""
    with suppress(OSError, RuntimeError):
        if isinstance(said, str) and (key := _read_key(cache_folder() / _KEY)):
            return hmac.compare_digest(said.encode(errors="replace"), _mac(key, root, files).encode())
    return False


def _mac(key: bytes, root: str, files: Iterable[Sequence[str]]) -> str:
    mac = hmac.new(key, root.encode(errors="surrogateescape"), hashlib.sha256)
    for block in files:
        mac.update("".join(f"\0{file}" for file in block).encode(errors="surrogateescape"))
    return mac.hexdigest()


def _make_key(folder: Path) -> bytes:
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder, wait=True):
        if key := _read_key(folder / _KEY):
            return key
        if os.path.lexists(folder / _KEY):
            _note_damage(folder / _KEY)
        key = secrets.token_bytes(_SIZE)
        with atomic_path(folder / _KEY, mode=0o600) as partial:
            partial.write_bytes(key + _check(key))
        return key


def _read_key(path: Path) -> bytes | None:
    """The key, if there is a whole one that nobody else may write."""
    if not is_plain_file(path) or os.lstat(path).st_mode & 0o022:
        return None
    held = path.read_bytes()
    return held[:_SIZE] if held[_SIZE:] == _check(held[:_SIZE]) else None


def _check(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()[:8]


def _note_damage(path: Path) -> None:
    """Say that a file which is no key gives way to a new one; what is no file of ours stays, and there is no seal."""
    if not is_plain_file(path) or os.lstat(path).st_mode & 0o022:
        raise InputError(f"{path}: is not a key")
    text = f"{path}: is damaged; a new key is made, and earlier runs count as somebody else's"
    warnings.warn(text, Note, stacklevel=3)
