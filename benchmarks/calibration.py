"""Whether confidence means what it says: expected calibration error on unlabelled rows, known and novel clusters apart.

The file is one of `benchmarks/estimate_k.py`; without a file the rows are scikit-learn's digits. Which rows are
labelled is the seed's choice. Clusters are those of `fit_clusters` with K given, features not adapted, the search by
swaps, the proportional refinement, one start. A row is right where its cluster is matched to its class, one matching
over all unlabelled rows. Ten bins of equal width.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from common import save
from estimate_k import Case, draw, read_columns
from selex.cluster.pipeline import fit_clusters
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


def measure(columns: dict[str, np.ndarray], labelled: float, seed: int) -> list[dict[str, object]]:
    features, truth, labels = draw(columns, Case("", labelled=labelled), seed)
    k = int(truth.max()) + 1
    config = ClusterConfig(categories=k, adapt="off", search="swaps", refine=REFINE, levels=1, restarts=1)
    found = fit_clusters(features, labels, config, rng=seed)
    assert found.assignment
    free, clusters = labels < 0, np.asarray(found.labels)
    right = matched(truth[free], clusters[free])
    results = []
    confidence = found.assignment.confidence[free]
    for kind, part in (
        ("all", np.ones(len(right), dtype=bool)),
        ("known clusters", clusters[free] <= labels.max()),
        ("novel clusters", clusters[free] > labels.max()),
    ):
        points = diagram(confidence[part], right[part])
        row: dict[str, object] = {"rows of": kind, "labelled": labelled, "seed": seed, "rows": int(part.sum())}
        row |= {"accuracy": round(float(right[part].mean()), 4), "ECE": error(points)}
        results.append({**row, "mean confidence": round(float(confidence[part].mean()), 4), "diagram": points})
        print(row, flush=True)
    return results


def main(file: Path | None, seeds: int, labelled: list[float], out: Path | None) -> None:
    columns = read_columns(file)
    results = [row for share in labelled or [0.5] for seed in range(seeds) for row in measure(columns, share, seed)]
    save(f"calibration_{file.stem if file else 'digits'}", results, out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--labelled", type=float, action="append", default=[])
    parser.add_argument("--out", type=Path)
    main(**vars(parser.parse_args()))
