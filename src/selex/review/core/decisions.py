"""What a person decides: immutable records, each of them a row of the ledger.

| kind | what it says | fields |
| --- | --- | --- |
| `name` | this category is called so | `category`, `name` |
| `merge` | these are one category, the first, perhaps by another name | `categories`, perhaps `name` |
| `split` | these images of a category are categories of their own | `category`, `parts` |
| `move` | these images belong there | `rows`, and `category` or the `name` of a new one |
| `confirm` | these images are right where they are | `rows`, or `category` for all of it |
| `unsure` | nobody can say | `rows` |
| `set_aside` | these images are set aside, out of clusters and exports | `rows`, perhaps the `reason` |
| `clear` | forget what was said of these images | `rows` |
| `restore` | these images are not to be left out any more | `rows`, or `photos` of earlier rounds, or both |
"""

from __future__ import annotations

import json
import unicodedata
from dataclasses import asdict, dataclass
from typing import Any

from selex.errors import InputError

FIELDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "name": (("category", "name"),),
    "merge": (("categories",), ("categories", "name")),
    "split": (("category", "parts"),),
    "move": (("rows", "category"), ("rows", "name")),
    "confirm": (("category",), ("rows",)),
    "unsure": (("rows",),),
    "set_aside": (("rows",), ("rows", "reason")),
    "clear": (("rows",),),
    "restore": (("rows",), ("photos",), ("rows", "photos")),
}
"""The fields that a decision of each kind must have, one way or the other."""

LONGEST_NAME = 200
_ACCENTS = {chr(number) for number in range(0x300, 0x370)}  # marks of other scripts are letters of their own
_TURNING = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"  # would turn the text around a name, too


class Refused(InputError):
    """A decision that cannot be made, and why."""


@dataclass(frozen=True)
class Decision:
    """One decision; which fields it has depends on its kind. `photos` are pairs: a round, and a row of it."""

    kind: str
    category: int | None = None
    categories: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()
    parts: tuple[tuple[int, ...], ...] = ()
    name: str | None = None
    photos: tuple[tuple[int, int], ...] = ()
    reason: str | None = None

    def __post_init__(self) -> None:
        given = {field for field, value in asdict(self).items() if field != "kind" and value not in (None, ())}
        ways = FIELDS.get(self.kind)
        if ways is None:
            raise Refused(f"{self.kind!r} is not a kind of decision: {', '.join(FIELDS)}")
        if not any(set(way) == given for way in ways):
            needed = " or ".join(" and ".join(way) for way in ways)
            raise Refused(f"{self.kind}: give {needed}, not {' and '.join(sorted(given)) or 'nothing'}")

    def to_json(self) -> str:
        """The decision as the ledger keeps it."""
        return json.dumps({field: value for field, value in asdict(self).items() if value not in (None, ())})

    @classmethod
    def from_json(cls, text: str) -> Decision:
        """A decision from the ledger."""
        values: dict[str, Any] = json.loads(text)
        return cls(
            values["kind"],
            values.get("category"),
            tuple(values.get("categories", ())),
            tuple(values.get("rows", ())),
            tuple(map(tuple, values.get("parts", ()))),
            values.get("name"),
            tuple((number, row) for number, row in values.get("photos", ())),
            values.get("reason"),
        )


def alike_key(name: str) -> str:
    """The same for names that differ in nothing but case, accents, spaces and signs: Siamese cat, siamese-cat."""
    plain = unicodedata.normalize("NFKD", name).casefold()
    kept = (letter for letter in plain if letter.isalnum() or unicodedata.category(letter)[0] == "M")
    return "".join(letter for letter in kept if letter not in _ACCENTS) or name


def clean_name(name: str) -> str:
    """A name as it is kept: one line, no spaces around it; refuses what no category may be called."""
    name = " ".join(name.split())
    if not name or name == "-1":  # in label files both mean that there is no label
        raise Refused("a category needs a name")
    if len(name) > LONGEST_NAME:
        raise Refused(f"a name may have {LONGEST_NAME} characters, this one has {len(name)}")
    if any(unicodedata.category(letter) in ("Cc", "Cs") or letter in _TURNING for letter in name):
        raise Refused("a name must be text, without control characters")
    return name
