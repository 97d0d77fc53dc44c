"""What was found against the truth, on unlabelled images: accuracy, and what was taken for what."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from selex.data.clusters import read_clusters
from selex.data.features import read_truth
from selex.errors import InputError
from selex.metrics import ari, contingency, matched, nmi, split_accuracy
from selex.report.facts import Facts
from selex.runs.run import Run
from selex.types import Scores

MOST_CONFUSIONS = 15
MOST_FAILURES = 8  # of known categories, and of novel ones
MOST_CELLS = 30  # true categories, and found ones, up to which the whole table is shown
SHADES = 5


@dataclass(frozen=True)
class Cell:
    """A count of the table of true and found categories: how dark it is, and whether the two are matched."""

    count: int
    shade: int
    matched: bool


@dataclass(frozen=True)
class Confusion:
    """Images of a true category that went to a found category that is not its own."""

    true: str
    found: int
    own: int | None
    count: int
    share: float


@dataclass(frozen=True)
class Failure:
    """An image in the wrong category: which one it is, and what it truly shows."""

    row: int
    true: str
    known: bool


@dataclass(frozen=True)
class Truth:
    """The comparison."""

    rows: int  # how many images were scored
    left_out: int  # how many unlabelled images have no true category
    scores: Scores  # accuracy on all images, on those of known and of novel categories
    nmi: float  # normalised mutual information
    ari: float  # adjusted Rand index
    sides: list[list[int]]  # images by true side (known, novel) and by found side (known, new)
    confusions: list[Confusion]  # the most frequent mistakes
    failures: list[Failure]  # images in the wrong category, the surest first: of known categories, then of novel ones
    true_names: list[str]  # true categories, in the order of `table`
    found_numbers: list[int]  # found categories, in the order of `table`; matched ones have the same position
    table: list[list[Cell]]  # counts, true × found; empty where there are too many categories
    mostly: dict[int, tuple[str, float]]  # found category: the true one that most of its images have, and their share


def compare_with_truth(run: Run, facts: Facts, path: Path) -> Truth:
    """Score a run against a truth file as `selex evaluate` does, and say where they differ."""
    table = read_clusters(run.folder / "clusters.csv")
    if len(table.ids) != len(facts.files):
        raise InputError(f"{run.folder}: clusters.csv has {len(table.ids)} rows, clusters.parquet {len(facts.files)}")
    true = np.array(read_truth(path, table), dtype=object)
    free = ~facts.labelled
    scored = free & (true != "")
    if not scored.any():
        raise InputError(f"{path}: has no true category for any unlabelled image of {run.folder}; nothing to score")
    names, found = true[scored].astype(str), facts.category[scored]
    known = np.isin(names, facts.names[: facts.n_known])
    return Truth(
        rows=int(scored.sum()),
        left_out=int((free & ~scored).sum()),
        scores=split_accuracy(names, found, known),
        nmi=nmi(names, found),
        ari=ari(names, found),
        sides=_sides(known, found < facts.n_known),
        **_confusion(names, found),
        failures=_failures(facts, np.flatnonzero(scored), names, known),
        mostly=_mostly(facts, true),
    )


def _sides(true: NDArray[np.bool_], found: NDArray[np.bool_]) -> list[list[int]]:
    """Images that are known or novel, by whether they were found in a known category or in a new one."""
    return [[int((side & place).sum()) for place in (found, ~found)] for side in (true, ~true)]


def _failures(facts: Facts, rows: NDArray[np.int64], names: NDArray[Any], known: NDArray[np.bool_]) -> list[Failure]:
    """The images that are wrong and were thought most surely right."""
    wrong = np.flatnonzero(~matched(names, facts.category[rows]))
    surest = wrong[np.argsort(-facts.confidence[rows[wrong]], kind="stable")]
    found = [Failure(int(rows[one]), str(names[one]), bool(known[one])) for one in surest]
    sides = ([failure for failure in found if failure.known == side] for side in (True, False))
    return [failure for side in sides for failure in side[:MOST_FAILURES]]


def _confusion(names: NDArray[Any], found: NDArray[np.int64]) -> dict[str, Any]:
    """The table, its columns in the order of the rows that they are matched to, and the largest mistakes in it."""
    categories, numbers = np.unique(names).tolist(), np.unique(found).tolist()
    counts = contingency(names, found)
    partner = dict(zip(*(part.tolist() for part in linear_sum_assignment(counts, maximize=True)), strict=True))
    order = [*partner.values(), *(column for column in range(len(numbers)) if column not in partner.values())]
    rows = [*partner, *(row for row in range(len(categories)) if row not in partner)]
    small = max(len(rows), len(order)) <= MOST_CELLS
    mistakes = [
        Confusion(
            categories[row],
            numbers[column],
            numbers[partner[row]] if row in partner else None,
            int(counts[row, column]),
            float(counts[row, column] / counts[row].sum()),
        )
        for row, column in np.argwhere(counts).tolist()
        if partner.get(row) != column
    ]
    return {
        "confusions": sorted(mistakes, key=lambda mistake: -mistake.count)[:MOST_CONFUSIONS],
        "true_names": [categories[row] for row in rows],
        "found_numbers": [numbers[column] for column in order],
        "table": [[_cell(counts, row, column, partner) for column in order] for row in rows] if small else [],
    }


def _cell(counts: NDArray[np.int64], row: int, column: int, partner: dict[int, int]) -> Cell:
    share = counts[row, column] / counts[row].sum()
    return Cell(int(counts[row, column]), int(np.ceil(share * SHADES)), partner.get(row) == column)


def _mostly(facts: Facts, true: NDArray[Any]) -> dict[int, tuple[str, float]]:
    """Of the images whose true category is given."""
    found = {}
    for number, rows in enumerate(facts.members):
        names, counts = np.unique(true[rows][true[rows] != ""].astype(str), return_counts=True)
        if len(names):
            found[number] = (str(names[counts.argmax()]), float(counts.max() / counts.sum()))
    return found
