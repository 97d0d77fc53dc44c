"""The paper to hold ours against: its numbers, from `paper.toml`, and its ablations: what each row of a suite changes.

Where the paper draws a curve without printing its values (alpha, lambda, label ratio, frozen blocks), the values here
are the ones its text names and some between them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from selex.bench.datasets.splits import FOLDS
from selex.config.groups import QUIRKS
from selex.errors import InputError, unknown
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


DEPTH = 12
"""Blocks of a ViT-S or ViT-B."""

TAIL = 10.0
"""How much larger the largest class of the long-tailed subsample is than the smallest."""


@dataclass(frozen=True)
class Row:
    """One row of a suite: what it changes."""

    label: str  # its name in tables and result files
    settings: Mapping[str, Any] = field(default_factory=dict)  # those that it changes, by name
    categories: Literal["true", "auto"] = "true"  # how many there are: given, or estimated
    label_ratio: float = 0.5  # share of the known classes' training images that is labelled
    long_tail: float | None = None  # thin the classes to a long tail of this imbalance; None leaves them
    paper: str | None = None  # key into the paper's numbers (see `scores_of`), None where it has none
    method: str | None = None  # where the suite is about methods; None takes the one asked for
    value: float | None = None  # where on the axis of a figure the row stands
    fold: int | None = None  # hold out this fold of the labels and score it alone; None scores the unlabelled images
    shuffled: bool = False  # shuffle the rows, which the dataset lists by class


@dataclass(frozen=True)
class Suite:
    """Rows that belong together, and the datasets on which the paper has them."""

    name: str
    title: str
    rows: tuple[Row, ...]
    datasets: tuple[str, ...] = ("cub",)
    axis: str = ""

    def row(self, label: str) -> Row:
        """The row of that label."""
        for row in self.rows:
            if row.label == label:
                return row
        if len(self.rows) == 1:
            raise InputError(f"suite {self.name} has one row: leave --row out")
        raise unknown(f"row of {self.name}", label, [row.label for row in self.rows])


def find_suite(name: str) -> Suite:
    """A suite by name; a name that does not exist is answered with the nearest one."""
    if name not in SUITES:
        raise unknown("suite", name, SUITES)
    return SUITES[name]


def _components() -> tuple[Row, ...]:
    """The eight rows in the paper's order."""
    names = ("none", "HSSK", "USE", "SSE", "HSSK+USE", "HSSK+SSE", "USE+SSE", "HSSK+USE+SSE")
    return tuple(Row(name, _parts(name), paper=f"components/{name}") for name in names)


def _parts(name: str) -> dict[str, Any]:
    """What is off is replaced by what it grew from: without HSSK clusters are not balanced, in the end too; with the
    losses of GCD alone rows are compared as there.
    """
    settings: dict[str, Any] = {part.lower(): part in name.split("+") for part in ("HSSK", "USE", "SSE")}
    settings |= {} if settings["hssk"] else {"balanced": False}
    return settings | ({} if settings["use"] or settings["sse"] else {"kind": "cosine"})


def _levels() -> tuple[Row, ...]:
    # The paper's baseline has the numbers of HSSK alone: labels are the only supervision. The seventh is CUB's last.
    counts: tuple[int | None, ...] = (1, 2, 3, 4, 5, 6, None)
    baseline = Row("levels=0", _parts("HSSK"), paper="levels/levels=0", value=0)
    more = (
        Row(f"levels={n}", {"loss_levels": count}, paper=f"levels/levels={n}", value=n)
        for n, count in enumerate(counts, start=1)
    )
    return (baseline, *more)


def _sweep(word: str, setting: str, values: tuple[float, ...], paper_at: float) -> tuple[Row, ...]:
    """A row for each value of one setting; at the paper's own value stands its main result."""
    return tuple(
        Row(f"{word}={value:g}", {setting: value}, paper="main" if value == paper_at else None, value=value)
        for value in values
    )


def _ratio(ratio: float) -> Row:
    key = {0.5: "main", 0.2: "label-ratio/label_ratio=0.2"}.get(ratio)
    return Row(f"label_ratio={ratio:g}", label_ratio=ratio, paper=key, value=ratio)


def _frozen(blocks: int) -> Row:
    paper = "main" if blocks == 10 else None
    return Row(f"frozen={blocks}", {"trained_blocks": DEPTH - blocks}, paper=paper, value=blocks)


def _published() -> tuple[Row, ...]:
    """The text, each difference of the published code alone, two together, and all."""
    some = (*QUIRKS, "order+crops")
    return (Row("text"), *(Row(name, {"published_quirks": name}) for name in some), Row("all", {"published": True}))


def _tail(balanced: bool, tail: float | None) -> Row:
    words = [f"balanced={'on' if balanced else 'off'}", *([f"tail={tail:g}"] if tail else [])]
    paper = None if balanced or tail else "long-tailed"
    return Row(" ".join(words), {"balanced": balanced}, long_tail=tail, paper=paper)


OF_DATASET: dict[str, dict[str, Any]] = {
    "cars": {"trained_blocks": 3},
    "cifar10": {"alpha": 0.1},
    "cifar100": {"alpha": 0.1},
    "imagenet100": {"alpha": 0.1},
    "herbarium19": {"balanced": False},
}
"""Where the paper, or the README of its code, has other settings for a dataset."""

_FINE = ("cub", "aircraft", "cars", "pets")
_ALL = (*_FINE, "cifar10", "cifar100", "imagenet100", "herbarium19")

_SUITES = (
    Suite("main", "Comparison of methods", (Row("", paper="main"),), _ALL),
    Suite("components", "Effect of each component", _components()),
    Suite("levels", "Effect of hierarchy levels", _levels(), axis="levels of the hierarchy"),
    Suite(
        "alpha",
        "Smoothing of the targets, alpha",
        _sweep("alpha", "alpha", (0, 0.1, 0.25, 0.5, 0.75, 1), 0.5),
        _FINE,
        axis="alpha",
    ),
    Suite(
        "lambda",
        "Balance of supervised and unsupervised self-expertise, lambda",
        _sweep("lambda", "sup_weight", (0, 0.1, 0.2, 0.35, 0.5, 0.75, 1), 0.35),
        axis="lambda",
    ),
    Suite(
        "label-ratio",
        "Share of labelled images of known categories",
        tuple(map(_ratio, (0.1, 0.2, 0.35, 0.5, 0.75, 1.0))),
        axis="share of labelled images",
    ),
    Suite("frozen-blocks", "Frozen blocks", tuple(map(_frozen, (0, 4, 8, 9, 10, 11, 12))), axis="frozen blocks"),
    Suite(
        "estimated-k",
        "Number of categories known and estimated",
        (Row("K=true", paper="estimated-k/K=true"), Row("K=auto", categories="auto", paper="estimated-k/K=auto")),
        ("cub", "cars"),
    ),
    Suite(
        "long-tail",
        "Balanced clusters on long tails",
        tuple(_tail(balanced, tail) for tail in (None, TAIL) for balanced in (True, False)),
        ("herbarium19", "cub"),
    ),
    Suite("published", "Differences of the published code, one by one", _published()),
    Suite(
        "row-order",
        "Level labels out of order: rows listed by class, and shuffled",
        (Row("by class", {"published": True}), Row("shuffled", {"published": True}, shuffled=True)),
    ),
    Suite(
        "holdout",
        "Settings compared by held-out labels",
        tuple(Row(f"fold={fold}", fold=fold) for fold in range(FOLDS)),
    ),
    Suite(
        "time",
        "Time, computation and parameters",
        tuple(Row(method, method=method, paper=f"time/{method}") for method in ("gcd", "selex")),
    ),
)

SUITES: dict[str, Suite] = {entry.name: entry for entry in _SUITES}
