"""The images of the page: which ones, how large, encoded anew. Their size follows from how many there are."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from selex.data.decode import thumbnail
from selex.report.categories import Category, LabelError
from selex.report.facts import Facts

Progress = Callable[[int, int], None]

LIMIT = 8_500_000
"""Bytes that images and what is written about them may take together, so that a page can go by mail."""

MOST_ERRORS = 24
"""Label errors that are shown with their image; more are only named."""

ICON_SIDE = 40
_ICON_QUALITY = 60
_SAMPLE = 24  # images whose encoded size stands for all
_WORDS, _MORE_WORDS = 200, 2800  # bytes of text about an image beside its name, and about a category


@dataclass(frozen=True)
class Format:
    """Side of an image in pixels, quality of its JPEG, and how many images a category shows of each kind."""

    side: int
    quality: int
    typical: int
    borderline: int
    most: int = LIMIT  # bytes; a larger page is not worth these images


FORMATS = (
    Format(144, 72, 8, 4, 3_000_000),
    Format(128, 70, 8, 4, 4_000_000),
    Format(112, 70, 8, 4, 5_500_000),
    Format(96, 70, 6, 3),
    Format(96, 60, 6, 3),
    Format(80, 60, 5, 2),
    Format(72, 50, 4, 2),
    Format(64, 50, 3, 1),
    Format(56, 45, 2, 1),
    Format(48, 40, 1, 0),
)
"""From the best to the smallest; the first that a page has room for is taken."""


@dataclass(frozen=True)
class Pictures:
    """Images as `data:` addresses by row, small ones for the tree and the map, and how many could not be read."""

    form: Format
    large: dict[int, str]
    icons: dict[int, str]
    missing: int


def choose_format(facts: Facts, categories: Sequence[Category], errors: Sequence[LabelError]) -> Format:
    """The best format whose images leave the page small, judged by some of them."""
    rows = [row for category in categories for row in (*category.typical, *category.borderline)]
    sample = rows[:: -(-len(rows) // _SAMPLE)]
    words = _WORDS + 2 * sum(len(facts.files[row].encode(errors="replace")) for row in sample) / len(sample)
    for form in FORMATS:
        count = len(wanted(categories, errors, form))
        each = sum(len(_data(facts.paths[row], form.side, form.quality)) for row in sample) / len(sample)
        if count * (each + words) + len(categories) * _MORE_WORDS <= form.most:
            return form
    return FORMATS[-1]


def wanted(categories: Sequence[Category], errors: Sequence[LabelError], form: Format) -> list[int]:
    """Rows whose images the page shows, each once."""
    rows = [error.row for error in errors[:MOST_ERRORS]]
    for category in categories:
        rows += category.typical[: form.typical] + category.borderline[: form.borderline]
    return list(dict.fromkeys(rows))


def make_pictures(
    facts: Facts, categories: Sequence[Category], errors: Sequence[LabelError], progress: Progress
) -> Pictures:
    """Encode the images that the page shows."""
    form = choose_format(facts, categories, errors)
    rows = wanted(categories, errors, form)
    first = [category.typical[0] for category in categories]
    jobs = [(row, form.side, form.quality) for row in rows] + [(row, ICON_SIDE, _ICON_QUALITY) for row in first]
    done: list[str] = []
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for picture in pool.map(lambda job: _data(facts.paths[job[0]], *job[1:]), jobs):
            done.append(picture)
            progress(len(done), len(jobs))
    large = dict(zip(rows, done, strict=False))
    grey = _data("", form.side, form.quality)
    return Pictures(form, large, dict(zip(first, done[len(rows) :], strict=True)), list(large.values()).count(grey))


def _data(path: str, side: int, quality: int) -> str:
    return "data:image/jpeg;base64," + base64.b64encode(thumbnail(path, side, quality)).decode()
