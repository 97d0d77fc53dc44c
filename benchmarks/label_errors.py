"""How many planted label errors the report finds, reading its list from the top.

The file is one of `benchmarks/estimate_k.py`; without one, scikit-learn's digits are used. Half of the classes are
known, and half of their rows labelled. `--count` of these rows get the label of another known class: a random one, or,
as a person would confuse them, the one with the most similar mean feature. In the third case, rows of novel classes get
that label. Clusters come from `fit_clusters` with K given, without adaptation, with `swaps` search, proportional
refinement and one start. The table gives the mean over draws and the range: how many planted errors are among the first
`count` entries of the list, the first 2 × `count`, and the whole list; the length of the list; and for how many planted
errors the suggested cluster is right, that is, their class or, if it is novel, the cluster with most of its rows.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from common import Lines, save
from estimate_k import Case, draw, read_columns
from selex import ClusterConfig, fit_clusters
from selex.report.categories import find_label_errors
from selex.report.facts import Facts
from selex.runs.predictor import Model

PLANTED = ("known row, any class", "known row, most similar class", "novel row, most similar class")


def planted(
    features: np.ndarray, truth: np.ndarray, labels: np.ndarray, kind: str, count: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Rows whose label is wrong now, and all labels. No class loses its last label."""
    rng, known = np.random.default_rng([seed, 2]), int(labels.max()) + 1
    means = np.stack([features[truth == number].mean(0) for number in range(int(truth.max()) + 1)])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    alike = (means @ means.T - 2 * np.eye(len(means)))[:, :known].argmax(1)
    first = np.unique(labels, return_index=True)[1]
    those = np.setdiff1d(np.flatnonzero(labels >= 0), first) if kind in PLANTED[:2] else np.flatnonzero(truth >= known)
    rows, wrong = rng.choice(those, count, replace=False), labels.copy()
    wrong[rows] = alike[truth[rows]]
    if kind == PLANTED[0]:
        wrong[rows] = (truth[rows] + rng.integers(1, known, count)) % known
    return rows, wrong


def facts_of(features: np.ndarray, labels: np.ndarray, k: int, seed: int) -> Facts:
    """What a report would be made from, without a run."""
    config = ClusterConfig(categories=k, adapt="off", search="swaps", refine="proportional", levels=1, restarts=1)
    found = fit_clusters(features, labels, config, rng=seed)
    assert found.assigner
    assert found.assignment
    names, n_known = [str(number) for number in range(k)], int(labels.max()) + 1
    return Facts(
        files=(files := [str(row) for row in range(len(labels))]),
        names=names,
        n_known=n_known,
        category=np.asarray(found.labels),
        labelled=labels >= 0,
        confidence=found.assignment.confidence,
        runner_up=found.assignment.runner_up,
        distance=found.assignment.distances.astype(np.float64),
        title="",
        paths=files,
        features=features,
        model=Model(found.assigner, names, n_known, "", None, "", 0, 0, maps=found.maps),
        tree={},
        metrics=[],
        skipped=[],
    )


def measure(columns: dict[str, np.ndarray], kind: str, count: int, seed: int) -> dict[str, Any]:
    """The list of one draw, read from the top."""
    features, truth, labels = draw(columns, Case("all classes"), seed)
    rows, wrong = planted(features, truth, labels, kind, count, seed)
    facts = facts_of(features, wrong, int(truth.max()) + 1, seed)
    errors = find_label_errors(facts)
    hits = np.isin([error.row for error in errors], rows)
    novel = range(facts.n_known, len(facts.names))
    classes = [*range(facts.n_known), *(np.bincount(truth[facts.category == number]).argmax() for number in novel)]
    right = [bool(classes[error.suggested] == truth[error.row]) for error in errors if error.row in rows]
    return {
        "labels": int((wrong >= 0).sum()),
        "first": int(hits[:count].sum()),
        "twice": int(hits[: 2 * count].sum()),
        "listed": int(hits.sum()),
        "length": len(errors),
        "suggested": sum(right),
    }


def summary(kind: str, count: int, lines: list[dict[str, Any]]) -> dict[str, object]:
    """A row of the table: all draws of a kind."""

    def text(name: str) -> str:
        values = [line[name] for line in lines]
        return f"{np.mean(values):.1f} ({min(values)} to {max(values)})"

    return {
        "wrong label": kind,
        "planted": count,
        "labels": lines[0]["labels"],
        "draws": len(lines),
        f"among the first {count}": text("first"),
        f"among the first {2 * count}": text("twice"),
        "in the list": text("listed"),
        "length of the list": text("length"),
        "its class suggested": text("suggested"),
    }


def main(options: argparse.Namespace) -> None:
    columns, kept, results = read_columns(options.file), Lines(options.lines), []
    seeds = range(options.first, options.first + options.seeds)
    for kind in PLANTED:
        key = {"kind": kind, "count": options.count}
        lines = [
            kept.once({**key, "seed": seed}, partial(measure, columns, kind, options.count, seed)) for seed in seeds
        ]
        results.append(summary(kind, options.count, lines))
    save(f"label_errors_{options.file.stem if options.file else 'digits'}", results, options.out, lines=kept)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--count", type=int, default=15)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="first seed; seeds from 100 on are for development")
    parser.add_argument("--lines", type=Path, help="save every measurement here, and continue from those saved")
    parser.add_argument("--out", type=Path)
    main(parser.parse_args())
