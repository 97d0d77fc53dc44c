r"""Names of files and labels: as text and back, and as file names that every common file system takes.

Whatever a disk holds keeps its name in every table.

A path is text as it is, but for bytes that are no UTF-8, which are spelled `\xe9`, and for a backslash that would read
as such a spelling, which is spelled `\x5c`. No two paths have the same spelling.

In a CSV cell `-1` says unlabelled and spaces around a label mean nothing. A label of which that is not true, and text
that a spreadsheet would take for a formula, has an apostrophe before it, as in spreadsheets: `'-1`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Hashable, Iterable
from itertools import count
from numbers import Real
from typing import Any

from selex.types import UNLABELLED

_SPELLED = re.compile(rb"\\x(5c|[89a-f][0-9a-f])")
_AMBIGUOUS = re.compile(r"\\(?=x(?:5c|[89a-f][0-9a-f]))")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def spell(path: str) -> str:
    """A path as text that can be shown and saved."""
    if path.isascii() and "\\" not in path:  # nearly all of them, of which there may be millions
        return path
    return _AMBIGUOUS.sub(r"\\x5c", path).encode(errors="surrogateescape").decode(errors="backslashreplace")


def unspell(text: str) -> str:
    """The path that `spell` spelled."""
    if "\\x" not in text:
        return text
    spelled = text.encode(errors="surrogateescape")
    return _SPELLED.sub(lambda found: bytes.fromhex(found[1].decode()), spelled).decode(errors="surrogateescape")


def readings(cell: str) -> list[str]:
    """The paths that a cell of a table may mean, likeliest first: as we write it, then as it stands."""
    texts = [cell[1:], cell] if is_quoted(cell) else [cell]
    return list(dict.fromkeys(path for text in texts for path in (unspell(text), text)))


def label_name(label: Any) -> str:
    """The name of a category as a program gives it; "" where it says unlabelled: None, nan, "" or the number -1."""
    if label is None or label != label or (isinstance(label, Real) and float(label) == UNLABELLED):
        return ""
    return str(label)


def label_of_cell(cell: str) -> str:
    """The name of a category as a CSV file gives it; "" where it says unlabelled: an empty cell or -1."""
    if is_quoted(cell):
        return cell[1:]
    name = cell.strip()
    return "" if name == str(UNLABELLED) else name


def text_of_cell(cell: str) -> str:
    """The text of a cell that `cell_of_label` may have put an apostrophe before."""
    return cell[1:] if is_quoted(cell) else cell


def cell_of_label(name: str) -> str:
    """The cell of a CSV file that `label_of_cell` reads as this name; no spreadsheet takes it for a formula."""
    return f"'{name}" if _needs_quote(name) else name


def is_quoted(cell: str) -> bool:
    """Whether a cell starts with an apostrophe that is not part of its text."""
    return cell.startswith("'") and _needs_quote(cell[1:])


def _needs_quote(text: str) -> bool:
    return text != text.strip() or text.startswith(_FORMULA) or is_quoted(text)


UNLABELLED_FOLDERS = ("unlabelled", "unlabeled")
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


def first_repeat(names: Iterable[Hashable]) -> tuple[int, int] | None:
    """Where the first name that comes twice is at first, and where it is again; None if all differ."""
    first: dict[Hashable, int] = {}
    for position, name in enumerate(names):
        if (other := first.setdefault(name, position)) != position:
            return other, position
    return None


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
