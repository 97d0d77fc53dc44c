"""CUB's train images with a frozen backbone, from folder to table: accuracy of three clusterings, time of every step.

The folder holds `images/` and a `labels.csv` with the columns file, class_index and known, a line an image. Half of the
rows of known classes are labelled: the legacy generator's draw with seed 0, in the order of the file.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from sklearn.cluster import KMeans

from common import save
from selex import Config, bssk, discover, estimate_k, split_accuracy
from selex.data.splits import draw_labelled
from selex.metrics import matched

SEEDS = (0, 1, 2)


def read(root: Path) -> tuple[list[str], np.ndarray, np.ndarray]:
    with (root / "labels.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    known = np.array([row["known"] == "1" for row in rows])
    return [str(root / row["file"]) for row in rows], np.array([int(row["class_index"]) for row in rows]), known


def accuracy(features: np.ndarray, truth: np.ndarray, known: np.ndarray, labels: np.ndarray) -> list[dict[str, object]]:
    """All / Known / Novel on unlabelled rows, mean and spread over seeds."""
    k, free = len(np.unique(truth)), labels < 0
    ways = {
        "k-means": lambda seed: KMeans(k, n_init=10, random_state=seed).fit(features).labels_,
        "semi-supervised k-means, unbalanced": lambda seed: (
            bssk(features, labels, k, balanced=False, n_init=10, rng=seed).labels
        ),
        "BSSK": lambda seed: bssk(features, labels, k, n_init=10, rng=seed).labels,
    }
    results: list[dict[str, object]] = []
    for name, cluster in ways.items():
        scores = np.array([split_accuracy(truth[free], cluster(seed)[free], known[free]) for seed in SEEDS]) * 100
        row: dict[str, object] = {"what": name, "seeds": len(SEEDS)}
        for part, mean, spread in zip(("all", "known", "novel"), scores.mean(0), scores.std(0, ddof=1), strict=True):
            row[part] = f"{mean:.1f} ± {spread:.1f}"
        results.append(row)
    return results


def main(root: Path, backbone: str, device: str, out: Path | None) -> None:
    files, truth, known = read(root)
    labelled = draw_labelled(known)
    order = {c: i for i, c in enumerate([*np.unique(truth[known]), *np.unique(truth[~known])])}
    names = [f"class {order[c]:03d}" if held else None for c, held in zip(truth, labelled, strict=True)]
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        config = Config(str(root), categories=len(order), backbone=backbone)
        run = discover(
            config, Path(folder) / "run", photos=files, labels=names, device=device, store=Path(folder) / "store"
        )
        whole = time.perf_counter() - start
        features = np.array(run.embeddings)
        steps = [entry for entry in run.metrics if "step" in entry]
        table = run.clusters.to_pydict()
    results: list[dict[str, object]] = [
        {"what": f"{step['step']}: images/s", "value": round(step["count"] / step["seconds"], 1)} for step in steps
    ]
    results.append({"what": "folder to table, s", "value": round(whole, 1)})
    labels = np.where(labelled, [order[c] for c in truth], -1)
    sure = np.argsort(-np.array(table["confidence"])[labels < 0])
    right = matched(truth[labels < 0], np.array(table["cluster"])[labels < 0])[sure]
    results.append(
        {
            "what": "error, all and most confident half",
            "value": f"{1 - right.mean():.3f}, {1 - right[: len(right) // 2].mean():.3f}",
        }
    )
    results += accuracy(features, truth, known, labels)
    for method in ("accuracy", "silhouette"):
        found = estimate_k(features, labels, method=method, rng=0)
        results.append(
            {"what": f"estimated K by {method}", "value": f"{found.n_clusters} ({found.low} to {found.high})"}
        )
    name = f"cub_frozen_{backbone.replace(':', '_')}_{torch.device(device).type}"
    save(name, [{"backbone": backbone, "device": device, **row} for row in results], out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path)
    parser.add_argument("--backbone", default="efficientnet-lite1")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    main(options.root, options.backbone, options.device, options.out)
