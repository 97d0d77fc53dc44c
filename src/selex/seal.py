"""Which runs were made here: a seal on the files that a run names, made with a key that stays in this user's cache.

A run folder is data that anybody may have written. One with our own seal may name images anywhere, as a table or a list
of the user did; any other may only name what lies below its root.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import warnings
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from selex.errors import InputError, Note
from selex.folders import cache_folder
from selex.io import is_plain_file, locked, whole

_KEY, _SIZE = "seal.key", 32


def seal(root: str, files: Iterable[str]) -> str:
    """The seal of a run made here; empty where no key can be kept."""
    with suppress(OSError, InputError, RuntimeError):  # a cache that cannot be written, a user without a home
        return _digest(_make_key(cache_folder()), root, files)
    return ""


def is_sealed(said: object, root: str, files: Iterable[str]) -> bool:
    """Whether a seal is ours, and of this root and these files."""
    with suppress(OSError, RuntimeError):
        if isinstance(said, str) and (key := _read_key(cache_folder() / _KEY)):
            return hmac.compare_digest(said.encode(errors="replace"), _digest(key, root, files).encode())
    return False


def _digest(key: bytes, root: str, files: Iterable[str]) -> str:
    held = "\0".join([root, *files]).encode(errors="surrogateescape")
    return hmac.new(key, held, hashlib.sha256).hexdigest()


def _make_key(folder: Path) -> bytes:
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder, wait=True):
        if key := _read_key(folder / _KEY):
            return key
        if os.path.lexists(folder / _KEY):
            _note_damage(folder / _KEY)
        key = secrets.token_bytes(_SIZE)
        with whole(folder / _KEY, mode=0o600) as partial:
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
    text = f"{path}: is damaged; a new key is made, and runs of before count as somebody else's"
    warnings.warn(text, Note, stacklevel=3)
