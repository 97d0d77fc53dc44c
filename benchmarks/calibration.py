"""Whether confidence means what it says: expected calibration error on unlabelled rows, known and novel clusters apart.

The file is one of `benchmarks/estimate_k.py`; without a file the rows are scikit-learn's digits. Which rows are
labelled is the seed's choice. Clusters are those of `fit_clusters` with K given, features not adapted, the search by
swaps, the proportional refinement, one start. Ten bins of equal width.

There are two readings of "right". *Matched*: a row is right where its cluster is matched to its class, one matching
over all unlabelled rows; a known cluster full of a novel class is matched to that class. *By name*: a row in a known
cluster is right where it is of that known category. `--mend` also shows confidence by name after a shift and a slope of
its log-odds, learned from labels alone: half of the labels and every fourth category are hidden, clusters are made
without them, and hidden rows in known clusters tell how often the name is right. Rows of hidden categories count as
many times as there are rows of novel categories for each, if these are as large as known ones.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression

from common import save
from estimate_k import Case, draw, read_columns
from selex.cluster.holdout import halves, numbered, wholes
from selex.cluster.pipeline import fit_clusters
from selex.cluster.rows import Rows
from selex.config import ClusterConfig
from selex.metrics import matched
from selex.types import Refinement

BINS = 10
REFINE: Refinement = "proportional"


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


def clustered(features: np.ndarray, labels: np.ndarray, k: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Cluster and confidence of every row."""
    config = ClusterConfig(categories=k, adapt="off", search="swaps", refine=REFINE, levels=1, restarts=1)
    found = fit_clusters(features, labels, config, rng=seed)
    assert found.assignment
    return np.asarray(found.labels), found.assignment.confidence


def log_odds(confidence: np.ndarray) -> np.ndarray:
    inside = np.clip(confidence.astype(float), 1e-4, 1 - 1e-4)
    return np.asarray(np.log(inside / (1 - inside))[:, None])


def by_hidden(features: np.ndarray, labels: np.ndarray, k: int, seed: int, confidence: np.ndarray) -> np.ndarray:
    """Confidence in the names of known clusters, as rows of hidden labels and of hidden categories have it."""
    whole = wholes(labels, seed)
    hidden = whole | halves(labels, Rows(features))
    left = np.where(hidden, -1, labels)
    clusters, sure = clustered(features, numbered(left), k, seed)
    seen = hidden & (clusters < len(np.unique(left[left >= 0])))
    right = np.unique(left[left >= 0])[clusters[seen]] == labels[seen]
    n_known, labelled = int(labels.max()) + 1, int((labels >= 0).sum())
    novel = len(labels) * (1 - n_known / k)
    weights = {True: novel / whole.sum(), False: max(len(labels) - novel - labelled, 1) / (hidden & ~whole).sum()}
    fit = LogisticRegression(C=1e6).fit(log_odds(sure[seen]), right, np.vectorize(weights.get)(whole[seen]))
    return np.asarray(fit.predict_proba(log_odds(confidence))[:, 1])


def measure(columns: dict[str, np.ndarray], labelled: float, seed: int, mended: bool) -> list[dict[str, object]]:
    features, truth, labels = draw(columns, Case("", labelled=labelled), seed)
    k = int(truth.max()) + 1
    clusters, confidence = clustered(features, labels, k, seed)
    free, known = labels < 0, clusters <= labels.max()
    right, named = np.zeros(len(truth), dtype=bool), clusters == truth
    right[free] = matched(truth[free], clusters[free])
    kinds = {
        "all": (free, confidence, right),
        "known clusters": (free & known, confidence, right),
        "novel clusters": (free & ~known, confidence, right),
        "known clusters, by name": (free & known, confidence, named),
    }
    if mended:
        inner = by_hidden(features, labels, k, seed, confidence)
        kinds["known clusters, by name, mended"] = (free & known, inner, named)
    results = []
    for kind, (part, sure, good) in kinds.items():
        points = diagram(sure[part], good[part])
        row: dict[str, object] = {"rows of": kind, "labelled": labelled, "seed": seed, "rows": int(part.sum())}
        row |= {"accuracy": round(float(good[part].mean()), 4), "ECE": error(points)}
        results.append({**row, "mean confidence": round(float(sure[part].mean()), 4), "diagram": points})
        print(row, flush=True)
    return results


def main(file: Path | None, seeds: int, first: int, labelled: list[float], mend: bool, out: Path | None) -> None:
    columns, drawn = read_columns(file), range(first, first + seeds)
    results = [row for share in labelled or [0.5] for seed in drawn for row in measure(columns, share, seed, mend)]
    save(f"calibration_{file.stem if file else 'digits'}", results, out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=0, help="the first seed; from 100 on are those to develop with")
    parser.add_argument("--mend", action="store_true", help="also by name after a shift and a slope")
    parser.add_argument("--labelled", type=float, action="append", default=[])
    parser.add_argument("--out", type=Path)
    main(**vars(parser.parse_args()))
