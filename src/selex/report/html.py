"""The report: one HTML file that needs nothing but itself, to open from disk or to send by mail."""

from __future__ import annotations

import base64
import hashlib
import warnings
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from selex.errors import Note
from selex.io import check_target, whole
from selex.report import curves, plane
from selex.report.pictures import MOST_ERRORS, Pictures, Progress, make_pictures
from selex.report.summary import MOST_CARDS, Summary, summarise
from selex.run import Run

NAME = "report.html"
"""What the report in a run folder is called."""

_MARK = '<meta name="generator" content="selex report">'
_OPEN_LEAVES = 40  # categories up to which the tree is shown unfolded
_LINES = 200  # label errors and skipped images that are named
_PLURALS = {"category": "categories"}


def write_report(run: Run, out: Path, truth: Path | None = None, progress: Progress = lambda done, total: None) -> Path:
    """Write the report of a finished run.

    Args:
        run: the run.
        out: the file to write; another report there is replaced, any other file is not.
        truth: a CSV with `file` and `label`, as `selex evaluate` takes it; adds accuracy and confusion.
        progress: called with how many images are done, and of how many.

    Returns:
        The file.
    """
    out, truth = Path(out), Path(truth) if truth else None
    check_target(out, [truth] if truth else [], is_report)
    summary = summarise(run, truth)
    shown = [*summary.new[:MOST_CARDS], *summary.known[:MOST_CARDS]]
    pictures = make_pictures(summary.facts, shown, summary.errors, progress)
    page = render(summary, pictures)
    if pictures.missing:
        warnings.warn(f"{pictures.missing} of {len(pictures.large)} images {_why_grey(summary)}", Note, stacklevel=2)
    with whole(out) as partial:
        partial.write_text(page, encoding="utf-8", errors="replace")
    return out


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
    environment.filters.update(number=_number, count=_count, percent=_percent, score=_score)
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
        icons_on_map=len(summary.categories) <= plane.ICONS,
        frame={"curves": curves, "plane": plane},
        gone=_why_grey(summary),
    )


def _why_grey(summary: Summary) -> str:
    return _OUTSIDE if "" in summary.facts.paths else _GONE


def is_report(path: Path) -> bool:
    """Whether a file is a report that we wrote."""
    with path.open(encoding="utf-8", errors="replace") as file:
        return _MARK in file.read(2000)


def _text(name: str) -> str:
    return (files("selex.report") / "templates" / name).read_text(encoding="utf-8")


def _number(value: int) -> str:
    return f"{value:,}"


def _count(value: int, noun: str) -> str:
    return f"{value:,} {noun if value == 1 else _PLURALS.get(noun, noun + 's')}"


def _percent(value: float) -> str:
    return "–" if value != value else f"{100 * value:.0f} %"


def _score(value: float) -> str:
    """A probability; never rounded up to 1, which would say more than we know."""
    return f"{min(value, 0.99):.2f}"
