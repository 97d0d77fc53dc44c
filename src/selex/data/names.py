"""Names for files and folders that every common file system takes, and that do not get in each other's way."""

from __future__ import annotations

import re
import unicodedata
from itertools import count

from selex.data.table import UNLABELLED_FOLDERS

LONGEST = 200
"""Bytes in a name: file systems stop at 255, and some ending may follow."""

# Separators and what Windows refuses; control characters; halves of characters, which have no bytes in UTF-8.
_UNSAFE = re.compile(r'[/\\:*?"<>|\x00-\x1f\x7f\ud800-\udfff]')
_DEVICES = ("con", "prn", "aux", "nul", *(f"{port}{digit}" for port in ("com", "lpt") for digit in range(10)))


def safe_name(name: str) -> str:
    """The name with `_` for what a file system may refuse, hide or take for something else; other characters stay."""
    name = _UNSAFE.sub("_", name).strip(" ").rstrip(". ")
    name = re.sub(r"^\.+", "_", name) or "_"
    # Windows knows devices by what is before the first dot; a folder of unlabelled images is no category
    reserved = name.lower().split(".")[0].rstrip(" ") in _DEVICES or name.lower() in UNLABELLED_FOLDERS
    return _shorten(f"_{name}" if reserved else name, LONGEST)


class Names:
    """The names in one folder: no two that differ only in case or in how their accents are written."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def take(self, name: str, ending: str = "") -> str:
        """A safe name that is not taken yet: the name itself, else with `-2`, `-3`, ... before the ending."""
        stem, ending = safe_name(name), _UNSAFE.sub("_", ending)
        for number in count(1):
            more = (f"-{number}" if number > 1 else "") + ending
            found = _shorten(stem, LONGEST - len(more.encode())) + more
            key = unicodedata.normalize("NFC", unicodedata.normalize("NFC", found).casefold())
            if key not in self._taken:
                break
        self._taken.add(key)
        return found


def _shorten(name: str, n_bytes: int) -> str:
    return name.encode()[: max(n_bytes, 1)].decode(errors="ignore").rstrip(". ") or "_"
