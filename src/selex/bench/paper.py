"""The paper's own numbers, from `paper.toml`, to stand beside ours."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from selex.types import Scores

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

BACKBONE = "dino-vitb16"
"""The backbone of the paper's ablations."""

MAIN = ("fine-grained", "pets", "coarse-grained", "long-tailed")
"""The tables that compare methods on datasets."""


@dataclass(frozen=True)
class PaperRow:
    """One row of one table of the paper."""

    section: str  # the table's name in `paper.toml`
    label: str  # the table's label in the paper's source
    row: str  # as printed
    method: str  # in small letters
    backbone: str
    at: str  # the row of our suite that asks the same question
    scores: Mapping[str, Scores]  # by dataset, as fractions
    more: Mapping[str, Any]  # what else the row holds: epoch seconds, an estimated count, a note


@cache
def paper_rows() -> tuple[PaperRow, ...]:
    """Every row of every table, in the paper's order."""
    tables = tomllib.loads(files("selex.bench").joinpath("paper.toml").read_text(encoding="utf-8"))
    return tuple(_row(name, table, entry) for name, table in tables.items() for entry in table["rows"])


def scores_of(key: str | None, method: str, dataset: str, backbone: str = BACKBONE) -> Scores | None:
    """The paper's scores under a key: `main` for the tables that compare methods, else as `find` has it."""
    if key == "main":
        return main_rows().get((method, backbone), {}).get(dataset)
    row = find_row(key, method, backbone)
    return row.scores.get(dataset) if row else None


def find_row(key: str | None, method: str, backbone: str = BACKBONE) -> PaperRow | None:
    """The row that a key such as `components/HSSK+USE` or `long-tailed` names, for a method; None if there is none."""
    section, _, at = (key or "").partition("/")
    asked = (section, method, at, backbone)
    return next((row for row in paper_rows() if (row.section, row.method, row.at, row.backbone) == asked), None)


def main_rows() -> dict[tuple[str, str], dict[str, Scores]]:
    """Scores by dataset of each (method, backbone) of the tables that compare methods, in the paper's order."""
    merged: dict[tuple[str, str], dict[str, Scores]] = {}
    for row in paper_rows():
        if row.section in MAIN:
            scores = {name: scores for name, scores in row.scores.items() if name != "average"}
            merged.setdefault((row.method, row.backbone), {}).update(scores)
    return merged


def method_names() -> dict[str, str]:
    """Methods as the paper spells them."""
    return {row.method: row.row for row in reversed(paper_rows()) if row.section in MAIN}


def _row(section: str, table: Mapping[str, Any], entry: Mapping[str, Any]) -> PaperRow:
    pairs = zip(table["columns"], entry["scores"], strict=True)
    scores = {column: Scores(*(value / 100 for value in triple)) for column, triple in pairs if triple}
    more = {key: value for key, value in entry.items() if key not in ("row", "method", "backbone", "at", "scores")}
    if "counts" in table and entry.get("at") == "K=auto" and entry["method"] not in ("dccl", "gca"):
        more["counts"] = table["counts"]
    own = (entry["row"], entry["method"], entry["backbone"], entry.get("at", ""))
    return PaperRow(section, table["label"], *own, scores, more)
