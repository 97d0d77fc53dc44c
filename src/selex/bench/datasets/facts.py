"""What is published about the benchmark datasets: their sizes, and which of their classes are known."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from selex.errors import unknown

Count = int | str
"""A number of rows, or the rounded one that was published, such as "2.0K"."""


@dataclass(frozen=True)
class Facts:
    """One dataset as `splits.json` has it; a size that nobody published is None."""

    title: str  # the dataset's own name
    classes: int  # how many classes there are, known and novel
    known: frozenset[int]  # the known classes, counted from 0 in the dataset's official order
    labelled: Count  # training images that keep their label
    unlabelled: Count  # the other training images
    test: int
    train: int | None = None
    file_list: str | None = None  # SHA-256 of the sorted names of the training images, one a line
    md5: dict[str, str] = field(default_factory=dict)  # of official files, by name
    synsets: tuple[str, ...] = ()  # for ImageNet-100, the folders that make it up


def facts(name: str) -> Facts:
    """What is published about a dataset; a name that does not exist is answered with the nearest one."""
    published = _published()
    if name not in published:
        raise unknown("dataset", name, published)
    entry = dict(published[name])
    known, synsets = _numbers(entry.pop("known")), tuple(entry.pop("synsets", "").split())
    return Facts(known=known, synsets=synsets, **entry)


def agrees(found: int, published: Count | None) -> bool:
    """Whether a number of rows is the published one, as exactly as that was published."""
    if isinstance(published, str):
        return abs(found - 1000 * float(published.removesuffix("K"))) <= 50
    return published is None or found == published


@cache
def _published() -> dict[str, dict[str, Any]]:
    text = files("selex.bench.datasets").joinpath("splits.json").read_text(encoding="utf-8")
    published: dict[str, dict[str, Any]] = json.loads(text)
    return published


def _numbers(text: str) -> frozenset[int]:
    """The numbers of a list such as "0-4 7 9-10"."""
    ends = [(first, last or first) for first, _, last in (part.partition("-") for part in text.split())]
    return frozenset(number for first, last in ends for number in range(int(first), int(last) + 1))
