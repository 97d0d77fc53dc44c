"""Whitening without training: BSSK on frozen features, by amount of whitening, share of labels and known classes.

The folder holds `images/` and a `labels.csv` with the columns file, class and known, one row per image, as `selex
bench` reads it; without a folder, scikit-learn's handwritten digits are used, as pixels. A fifth of the rows is held
out and assigned to the nearest centre. Accuracy on All, Known and Novel, mean ± standard deviation over seeds.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

from common import save
from selex import Config, bssk, discover, split_accuracy
from selex.bench.datasets.splits import own_dataset
from selex.cluster.whiten import fit_whitener

AMOUNTS = (0.0, 0.3, 0.5, 0.7, 0.9)
SEEDS = (0, 1, 2)


def cub(root: Path, backbone: str, crop: int | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features of all images, their classes, and which classes are known."""
    data = own_dataset(root / "labels.csv")
    config = Config.of(str(root), categories=len(data.classes), backbone=backbone, crop=crop, levels=1, restarts=1)
    with tempfile.TemporaryDirectory() as folder:
        run = discover(config, Path(folder) / "run", photos=data.table, progress=True)
        features = np.array(run.embeddings)
    known = np.unique(data.truth[data.known])
    order = [*known, *np.setdiff1d(data.truth, known)]
    return features, np.argsort(order)[data.truth], np.arange(len(order)) < len(known)


def digits() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    pixels, truth = load_digits(return_X_y=True)
    rows = pixels.astype(np.float32) - pixels.mean(0, dtype=np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True), truth, np.arange(10) < 5


def settings(n_known: int) -> Iterator[tuple[float, int]]:
    """Share of labelled images of known classes, and how many classes are known."""
    yield 0.5, n_known
    yield from ((ratio, n_known) for ratio in (0.2, 0.1))
    yield from ((0.5, n_known // part) for part in (2, 5) if n_known // part > 1)


def measure(features: np.ndarray, truth: np.ndarray, ratio: float, n_known: int) -> list[dict[str, object]]:
    k = int(truth.max()) + 1
    results: list[dict[str, object]] = []
    for amount in AMOUNTS:
        scores: dict[str, list[tuple[float, ...]]] = {"unlabelled": [], "held out": []}
        for seed in SEEDS:
            rng = np.random.default_rng(seed)
            held, known = rng.random(len(truth)) < 0.2, truth < n_known
            labels = np.where(known & ~held & (rng.random(len(truth)) < ratio), truth, -1)
            labels[[np.flatnonzero((truth == c) & ~held)[0] for c in range(n_known)]] = range(n_known)  # none without
            whitener = fit_whitener(features[~held], labels[~held], amount)
            rows = whitener(features) if whitener else features
            level = bssk(rows[~held], labels[~held], k, n_init=3, rng=seed)
            centers = np.asarray(level.centers)
            nearest = (np.square(centers).sum(1) - 2 * rows @ centers.T).argmin(1)
            found = nearest.copy()
            found[~held] = np.asarray(level.labels)
            for name, part in (("unlabelled", ~held & (labels < 0)), ("held out", held)):
                scores[name].append(split_accuracy(truth[part], found[part], known[part]))
        row: dict[str, object] = {"whiten": amount, "labelled": ratio, "known classes": n_known, "seeds": len(SEEDS)}
        for name, values in scores.items():
            mean, spread = 100 * np.mean(values, 0), 100 * np.std(values, 0, ddof=1)
            for word, m, s in zip(("All", "Known", "Novel"), mean, spread, strict=True):
                row[f"{name}: {word}"] = f"{m:.1f} ± {s:.1f}"
        print(row, flush=True)
        results.append(row)
    return results


def main(root: Path | None, backbone: str, crop: int | None, out: Path | None) -> None:
    features, truth, known = cub(root, backbone, crop) if root else digits()
    cases = [row for ratio, n in settings(int(known.sum())) for row in measure(features, truth, ratio, n)]
    save(f"whiten_cub_{backbone}" if root else "whiten_digits", cases, out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path, nargs="?")
    parser.add_argument("--backbone", default="efficientnet-lite1")
    parser.add_argument("--crop", type=int)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    main(arguments.root, arguments.backbone, arguments.crop, arguments.out)
