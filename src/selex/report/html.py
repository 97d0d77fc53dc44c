"""The report: one HTML file with its images, which needs nothing but itself, to open from disk or to send by mail."""

from __future__ import annotations

import base64
import hashlib
import os
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from selex.data.decode import thumbnail
from selex.errors import InputError, Note, counted
from selex.folders import check_outside
from selex.io import atomic_path, check_target
from selex.report import curves
from selex.report import map as drawn_map
from selex.report.categories import MOST_TYPICAL, CategoryCard, LabelError
from selex.report.facts import Facts
from selex.report.summary import MOST_CARDS, STEPS, Summary, summarise
from selex.report.truth import Failure
from selex.runs.run import Run

Progress = Callable[[float, int], None]

LIMIT = 8_500_000
"""Bytes that images and what is written about them may take together, so that a page can go by mail."""

MOST_ERRORS = 24
"""Label errors that are shown with their image; more are only named."""

MOST_SMALL, SMALL_SIDE = 1200, 64
"""Small images that a page has room for, to see all of a category, and their side in pixels."""

ICON_SIDE = 40
_ICON_QUALITY = 60
_SMALL_BYTES = 2400  # of a small image, at most about
_SAMPLE = 24  # images whose encoded size stands for all
_WORDS, _MORE_WORDS = 200, 2800  # bytes of text about an image beside its name, and about a category


@dataclass(frozen=True)
class PictureFormat:
    """Side of an image in pixels, quality of its JPEG, and how many images a category shows of each kind."""

    side: int
    quality: int
    typical: int
    borderline: int
    most: int = LIMIT  # bytes; a larger page is not worth these images


FORMATS = (
    PictureFormat(320, 76, 8, 4, 3_000_000),
    PictureFormat(224, 74, 8, 4, 3_000_000),
    PictureFormat(144, 72, 8, 4, 3_000_000),
    PictureFormat(128, 70, 8, 4, 4_000_000),
    PictureFormat(112, 70, 8, 4, 5_500_000),
    PictureFormat(96, 70, 6, 3),
    PictureFormat(96, 60, 6, 3),
    PictureFormat(80, 60, 5, 2),
    PictureFormat(72, 50, 4, 2),
    PictureFormat(64, 50, 3, 1),
    PictureFormat(56, 45, 2, 1),
    PictureFormat(48, 40, 1, 0),
)
"""From the best to the smallest; the first that a page has room for is taken."""


@dataclass(frozen=True)
class Pictures:
    """Images as `data:` addresses by row, small ones for the tree and the map, and how many could not be read.

    `small` are all images of each category, or as many as a page has room for: rows and addresses, typical ones first.
    """

    form: PictureFormat
    large: dict[int, str]
    icons: dict[int, str]
    missing: int
    small: dict[int, list[tuple[int, str]]]


def choose_format(
    facts: Facts, categories: Sequence[CategoryCard], errors: Sequence[LabelError], failures: Sequence[Failure] = ()
) -> PictureFormat:
    """The best format whose images leave the page small, judged by some of them."""
    rows = [row for category in categories for row in (*category.typical, *category.borderline)]
    sample = rows[:: -(-len(rows) // _SAMPLE)]
    words = _WORDS + 2 * sum(len(facts.files[row].encode(errors="replace")) for row in sample) / len(sample)
    small = sum(map(len, _every(facts, categories).values())) * (words + _SMALL_BYTES)
    for form in FORMATS:
        count = len(shown_rows(categories, errors, form, failures))
        each = sum(len(_data(facts.paths[row], form.side, form.quality)) for row in sample) / len(sample)
        most = min(form.most, LIMIT - small)
        if count * (each + words) + len(categories) * _MORE_WORDS <= most:
            return form
    return FORMATS[-1]


def shown_rows(
    categories: Sequence[CategoryCard],
    errors: Sequence[LabelError],
    form: PictureFormat,
    failures: Sequence[Failure] = (),
) -> list[int]:
    """Rows whose images the page shows, each once."""
    rows = [error.row for error in errors[:MOST_ERRORS]] + [failure.row for failure in failures]
    for category in categories:
        rows += category.typical[: form.typical] + category.borderline[: form.borderline]
    return list(dict.fromkeys(rows))


def make_pictures(
    facts: Facts,
    categories: Sequence[CategoryCard],
    errors: Sequence[LabelError],
    progress: Progress,
    failures: Sequence[Failure] = (),
) -> Pictures:
    """Encode the images that the page shows."""
    form = choose_format(facts, categories, errors, failures)
    rows = shown_rows(categories, errors, form, failures)
    first = [category.typical[0] for category in categories]
    every = _every(facts, categories)
    jobs = [(row, form.side, form.quality) for row in rows] + [(row, ICON_SIDE, _ICON_QUALITY) for row in first]
    jobs += [(row, SMALL_SIDE, _ICON_QUALITY) for rows_of in every.values() for row in rows_of]
    done: list[str] = []
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        for picture in pool.map(lambda job: _data(facts.paths[job[0]], *job[1:]), jobs):
            done.append(picture)
            progress(len(done), len(jobs))
    large = dict(zip(rows, done, strict=False))
    grey = _data("", form.side, form.quality)
    icons, rest = done[len(rows) : len(rows) + len(first)], iter(done[len(rows) + len(first) :])
    small = {number: [(row, next(rest)) for row in rows_of] for number, rows_of in every.items()}
    return Pictures(form, large, dict(zip(first, icons, strict=True)), list(large.values()).count(grey), small)


def _every(facts: Facts, categories: Sequence[CategoryCard]) -> dict[int, list[int]]:
    """All rows of each category, typical ones first, or as many as there is room for; none where that is but a few."""
    room = MOST_SMALL // len(categories)
    if room < MOST_TYPICAL:
        return {}
    members = {category.number: facts.members[category.number] for category in categories}
    return {
        number: rows[np.argsort(facts.distance[rows], kind="stable")[:room]].tolist()
        for number, rows in members.items()
    }


def _data(path: str, side: int, quality: int) -> str:
    return "data:image/jpeg;base64," + base64.b64encode(thumbnail(path, side, quality)).decode()


NAME = "report.html"
"""What the report in a run folder is called."""

_MARK = '<meta name="generator" content="selex report">'
_OPEN_LEAVES = 40  # categories up to which the tree is shown unfolded
_LINES = 200  # label errors and skipped images that are named


def write_report(
    run: Run,
    out: Path,
    truth: Path | None = None,
    progress: Progress = lambda done, total: None,
    title: str | None = None,
) -> Path:
    """Write the report of a finished run.

    Args:
        run: the run.
        out: the file to write; another report there is replaced, any other file is not.
        truth: a CSV with `file` and `label`, as `selex evaluate` takes it; adds accuracy and confusion.
        progress: called with how many steps are done, and of how many; the last one is images, each a part of it.
        title: of the page; None for what the photos are called.

    Returns:
        The file.
    """
    out, truth = Path(out), Path(truth) if truth else None
    if out.absolute().parent != run.folder.absolute():
        for photos in run.config.data.sources:
            check_outside(out, photos, "an --out")
    check_target(out, [truth] if truth else [], is_report)
    summary = summarise(run, truth, lambda step: progress(step, STEPS + 1))
    if title is not None:
        summary = replace(summary, facts=replace(summary.facts, title=_one_line(title)))
    shown = [*summary.new[:MOST_CARDS], *summary.known[:MOST_CARDS]]
    failures = summary.truth.failures if summary.truth else []
    pictures = make_pictures(
        summary.facts, shown, summary.errors, lambda done, total: progress(STEPS + done / total, STEPS + 1), failures
    )
    page = render(summary, pictures)
    if pictures.missing:
        warnings.warn(f"{pictures.missing} of {len(pictures.large)} images {_why_grey(summary)}", Note, stacklevel=2)
    with atomic_path(out) as partial:
        partial.write_text(page, encoding="utf-8", errors="replace")
    return out


def _one_line(title: str) -> str:
    words = " ".join(title.split())
    if not words:
        raise InputError("a report needs a title: leave --title out for the name of the photos")
    return words


_GONE = "that the report shows could not be read and are grey: they have moved, or changed, since the run"
_OUTSIDE = "that the report shows are grey: they are not below the run's folder of photos, and it was not made here"


def render(summary: Summary, pictures: Pictures) -> str:
    """The page as text."""
    environment = Environment(
        loader=PackageLoader("selex.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number="{:,}".format, count=counted, percent=_percent, score=_score)
    script = _text("report.js")
    return environment.get_template("report.html.j2").render(
        summary=summary,
        facts=summary.facts,
        names=summary.facts.names,
        pictures=pictures,
        mark=_MARK,
        style=_text("report.css"),
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        limits={"cards": MOST_CARDS, "errors": MOST_ERRORS, "lines": _LINES, "leaves": _OPEN_LEAVES},
        gallery=_gallery(summary),
        icons_on_map=len(summary.categories) <= drawn_map.ICONS,
        frame={"curves": curves, "map": drawn_map},
        gone=_why_grey(summary),
    )


_GALLERY, _OF_NEW = 12, 8  # categories that the first screen shows a photo of, and how many of them are new


def _gallery(summary: Summary) -> list[CategoryCard]:
    """Categories for the first screen: new ones first, then known ones, the largest."""
    new = summary.new[: max(_OF_NEW, _GALLERY - len(summary.known))]
    return [*new, *sorted(summary.known, key=lambda category: -category.size)][:_GALLERY]


def _why_grey(summary: Summary) -> str:
    return _OUTSIDE if "" in summary.facts.paths else _GONE


def is_report(path: Path) -> bool:
    """Whether a file is a report that we wrote."""
    with path.open(encoding="utf-8", errors="replace") as file:
        return _MARK in file.read(2000)


def _text(name: str) -> str:
    return (files("selex.report") / "templates" / name).read_text(encoding="utf-8")


def _percent(value: float) -> str:
    return "–" if value != value else f"{100 * value:.0f} %"


def _score(value: float) -> str:
    """A probability; never rounded up to 100 %, which would say more than we know."""
    return f"{100 * min(value, 0.99):.0f} %"
