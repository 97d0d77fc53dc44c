"""Names that a novel category could have: of a word list by a text-image model, of file names, of what it is like.

They are suggestions, and nothing is named by them.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from selex.runs.results import Results

Array = np.ndarray[Any, Any]

FILE = "suggested-names.json"
"""Where `selex names` keeps what a text-image model said, in the run folder."""

_SHARE, _LIFT = 0.5, 3.0  # of a category's files so many have the word, and so many times as often as others
_PLAIN = {"img", "dsc", "dscn", "dcim", "image", "images", "photo", "photos", "pic", "jpg", "jpeg", "png", "unlabelled"}


@dataclass(frozen=True)
class Suggested:
    """A name, where it comes from, and how much speaks for it, from 0 to 1."""

    name: str
    source: str
    score: float


def from_files(files: Sequence[str], rows: Array, everywhere: Counter[str]) -> list[Suggested]:
    """Words that most file names of a category have, and few others."""
    counts = Counter(word for row in rows.tolist() for word in words_of(files[row]))
    found = []
    for word, count in counts.items():
        share, elsewhere = count / len(rows), (everywhere[word] - count) / max(1, len(files) - len(rows))
        if count > 1 and share >= _SHARE and share >= _LIFT * elsewhere:
            found.append(Suggested(word, "file names", share))
    return sorted(found, key=lambda one: (-one.score, one.name))


def words_of(file: str) -> set[str]:
    """The words of a file's name and of the folder that it is in."""
    last = "/".join(file.split("/")[-2:]).rpartition(".")[0]
    return {word for word in re.findall(r"[^\W\d_]{3,}", last.casefold()) if word not in _PLAIN}


def write_suggested(folder: Path, results: Results, model: str, names: dict[str, list[tuple[str, float]]]) -> Path:
    """Keep what a model said of the categories of these results."""
    from selex.io import whole

    path = folder / FILE
    with whole(path) as partial:
        partial.write_text(json.dumps({"results": results.digest, "model": model, "names": names}, indent=1))
    return path


def read_suggested(folder: Path, results: Results) -> dict[str, list[Suggested]]:
    """What a model said of these results, by category; nothing where it was about others, or cannot be read."""
    try:
        record = json.loads((folder / FILE).read_text())
        if record["results"] != results.digest:
            return {}
        return {
            category: [Suggested(str(word), "word list", float(score)) for word, score in found]
            for category, found in record["names"].items()
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}
