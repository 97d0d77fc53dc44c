"""Is confidence calibrated? Expected calibration error (ECE) on unlabelled rows of known and of novel clusters.

Input files are those of `benchmarks/estimate_k.py`; without one, scikit-learn's digits are used. The seed decides which
rows are labelled, unless the file does: `labelled` marks the rows whose labels are given, for example to the training
run that produced the features, and `hidden` those among them that training did not see. With five labels each, every
known category has as many labels, however large it is. Clusters come from
`fit_clusters` with K given, without adaptation, with `swaps` search, proportional refinement and one start. ECE uses
ten bins of equal width.

*By name*: a row in a known cluster counts as correct if it belongs to that category. Novel clusters have no name; there
a row is correct if it belongs to the majority class of the cluster's unlabelled rows. *Not lowered* is the confidence
in known clusters without the correction for novel rows that end up there. *Matched* is an alternative definition: a row
is correct if its cluster is matched to its class, with one matching over all unlabelled rows. By that definition a
known cluster full of a novel class counts as correct.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np

from common import save
from estimate_k import Case, draw, read_columns
from selex.cluster.pipeline import FittedClusters, fit_clusters
from selex.config import ClusterConfig
from selex.metrics import matched

BINS = 10


def diagram(confidence: np.ndarray, right: np.ndarray) -> list[dict[str, float]]:
    """Rows, mean confidence and accuracy of each bin that has rows."""
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    parts = [bins == number for number in range(BINS) if (bins == number).any()]
    return [
        {
            "rows": int(part.sum()),
            "confidence": round(float(confidence[part].mean()), 4),
            "accuracy": round(float(right[part].mean()), 4),
        }
        for part in parts
    ]


def error(points: list[dict[str, float]]) -> float:
    """Expected calibration error."""
    total = sum(point["rows"] for point in points)
    return round(sum(point["rows"] * abs(point["confidence"] - point["accuracy"]) for point in points) / total, 4)


def clustered(features: np.ndarray, labels: np.ndarray, k: int, seed: int, hidden: np.ndarray | None) -> FittedClusters:
    config = ClusterConfig(categories=k, adapt="off", search="swaps", refine="proportional", levels=1, restarts=1)
    return fit_clusters(features, labels, config, rng=seed, held_out=hidden)


def of_majority(truth: np.ndarray, clusters: np.ndarray) -> np.ndarray:
    """Whether each row is of the class that most rows of its cluster are of."""
    numbers, places = np.unique(clusters, return_inverse=True)
    most = np.array([np.bincount(truth[clusters == number]).argmax() for number in numbers])
    return np.asarray(truth == most[places])


def not_lowered(found: FittedClusters, features: np.ndarray) -> np.ndarray:
    """Confidence without what is taken off in known clusters."""
    assert found.assigner
    plain = replace(found.assigner, n_known=0)
    return plain(found.transform(features), found.labels).confidence


def some_of_each(labels: np.ndarray, number: int, seed: int) -> np.ndarray:
    """So many labels of each category, or all that it has."""
    rng, kept = np.random.default_rng([seed, 4]), np.full_like(labels, -1)
    for category in range(int(labels.max()) + 1):
        kept[rng.permutation(np.flatnonzero(labels == category))[:number]] = category
    return kept


def drawn(
    columns: dict[str, np.ndarray], case: Case, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
    """Features, truth, labels, and which labels had no part in making the features."""
    if "labelled" not in columns:
        features, truth, labels = draw(columns, case, seed)
        if case.labelled >= 1:
            labels = some_of_each(labels, int(case.labelled), seed)
        return features, truth, labels if case.labelled else np.full_like(labels, -1), None
    order = np.argsort(~columns["known"], kind="stable")
    names = list(dict.fromkeys(columns["classes"][order].tolist()))
    truth = np.array([names.index(name) for name in columns["classes"].tolist()])
    return columns["features"], truth, np.where(columns["labelled"], truth, -1), columns.get("hidden")


def measure(columns: dict[str, np.ndarray], case: Case, seed: int) -> list[dict[str, object]]:
    features, truth, labels, hidden = drawn(columns, case, seed)
    start = time.perf_counter()
    found = clustered(features, labels, int(truth.max()) + 1, seed, hidden)
    seconds = round(time.perf_counter() - start, 1)
    assert found.assignment
    clusters, confidence, free = np.asarray(found.labels), found.assignment.confidence, labels < 0
    known, right, pairs = clusters <= labels.max(), clusters == truth, np.zeros(len(truth), dtype=bool)
    right[free & ~known] = of_majority(truth[free & ~known], clusters[free & ~known])
    pairs[free] = matched(truth[free], clusters[free])
    kinds = {
        "all": (free, confidence, right),
        "known clusters, by name": (free & known, confidence, right),
        "novel clusters": (free & ~known, confidence, right),
        "known clusters, by name, not lowered": (free & known, not_lowered(found, features), right),
        "known clusters, matched": (free & known, confidence, pairs),
        "novel clusters, matched": (free & ~known, confidence, pairs),
    }
    about = {"case": case.name, "labelled": case.labelled, "seed": seed, "seconds": seconds}
    results = []
    for kind, (part, sure, good) in kinds.items():
        if not part.any():
            continue
        points = diagram(sure[part], good[part])
        row: dict[str, object] = {"rows of": kind, **about, "rows": int(part.sum())}
        row |= {"accuracy": round(float(good[part].mean()), 4), "ECE": error(points)}
        results.append({**row, "mean confidence": round(float(sure[part].mean()), 4), "diagram": points})
        print(row, flush=True)
    return results


CASES = {
    "all classes": {},
    "a fifth labelled": {"labelled": 0.2},
    "a tenth labelled": {"labelled": 0.1},
    "a twentieth labelled": {"labelled": 0.05},
    "long tail, ratio 10": {"tail": 10, "some": 100},
    "a fifth known": {"known": 0.2},
    "five labels each": {"labelled": 5},
    "long tail, five labels each": {"tail": 10, "some": 100, "labelled": 5},
    "no labels": {"labelled": 0.0},
}


def main(files: list[Path], name: str | None, seeds: int, first: int, case: list[str], out: Path | None) -> None:
    cases = [Case(one, **CASES[one]) for one in case or ["all classes"]]  # type: ignore[arg-type]
    results = []
    for file in files or (None,):
        columns, stem = read_columns(file), file.stem if file else "digits"
        for one, seed in product(cases, range(first, first + seeds)):
            results += [{"features": stem, **row} for row in measure(columns, one, seed)]
    save(f"calibration_{name or stem}", results, out, quiet=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", type=Path, nargs="*")
    parser.add_argument("--name", help="name of the result; default: that of the last file")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=0, help="first seed; seeds from 100 on are for development")
    parser.add_argument("--case", action="append", default=[], choices=CASES)
    parser.add_argument("--out", type=Path)
    main(**vars(parser.parse_args()))
