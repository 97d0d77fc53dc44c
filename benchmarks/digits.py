"""Handwritten digits as raw pixels, 0-4 known and half of them labelled: three clusterings, and estimates of K."""

from __future__ import annotations

from typing import Literal

import numpy as np
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits

from common import save
from selex import bssk, estimate_k, split_accuracy

SEEDS = range(5)


def main() -> None:
    digits = load_digits()
    x, truth = digits.data.astype(np.float32), digits.target
    scores: dict[str, list[float]] = {"k-means": [], "semi-supervised k-means, unbalanced": [], "BSSK": []}
    counts: dict[Literal["accuracy", "silhouette"], list[int]] = {"accuracy": [], "silhouette": []}
    for seed in SEEDS:
        drawn = np.random.default_rng(seed).random(len(truth)) < 0.5
        labels = np.where((truth < 5) & drawn, truth, -1)
        free = labels < 0
        found = {
            "k-means": KMeans(10, n_init=10, random_state=seed).fit(x).labels_,
            "semi-supervised k-means, unbalanced": bssk(x, labels, 10, balanced=False, n_init=10, rng=seed).labels,
            "BSSK": bssk(x, labels, 10, n_init=10, rng=seed).labels,
        }
        for name, clusters in found.items():
            scores[name].append(100 * split_accuracy(truth[free], clusters[free], truth[free] < 5).all)
        for method in counts:
            counts[method].append(estimate_k(x, labels, method=method, rng=seed).n_clusters)
    rows: list[dict[str, object]] = [
        {"what": f"All: {name}", "mean": round(float(np.mean(s)), 1), "by_seed": [round(v, 1) for v in s]}
        for name, s in scores.items()
    ]
    rows += [
        {"what": f"estimated K by {method} (there are 10)", "mean": round(float(np.mean(k)), 1), "by_seed": k}
        for method, k in counts.items()
    ]
    save("digits", rows)


if __name__ == "__main__":
    main()
