"""faiss k-means compared with BSSK on a CPU: the same rows, clusters and iterations, one thread each.

faiss (`pip install faiss-cpu`) is plain k-means from random seeds, without labels or limits on sizes, on which BSSK
spends its seeding and matching. Accuracy is over unlabelled rows of all categories, against the classes the rows were
generated from. `swaps` is the search that `fit_clusters` uses by default, from the same start as BSSK. `--only WAY`
selects methods.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from common import embeddings, half_labelled, save
from selex import bssk, hssk
from selex.metrics import split_accuracy


def run_faiss(rows: np.ndarray, labels: np.ndarray, k: int, iterations: int) -> tuple[np.ndarray, float]:
    """Labels and mean squared distance of faiss."""
    import faiss

    faiss.omp_set_num_threads(1)
    most = -(-len(rows) // k)
    kmeans = faiss.Kmeans(rows.shape[1], k, niter=iterations, seed=0, max_points_per_centroid=most)
    kmeans.train(rows)
    distances, found = kmeans.index.search(rows, 1)
    return found[:, 0], float(distances.mean())


def run_bssk(rows: np.ndarray, labels: np.ndarray, k: int, iterations: int, balanced: bool) -> tuple[np.ndarray, float]:
    """The same of BSSK, half of whose iterations are of each stage."""
    level = bssk(rows, labels, k, balanced=balanced, n_iter=iterations // 2, rng=0)
    return np.asarray(level.labels), level.inertia / len(rows)


def run_swaps(
    rows: np.ndarray, labels: np.ndarray, k: int, iterations: int, balanced: bool
) -> tuple[np.ndarray, float]:
    """The same of the search by swaps, after BSSK or Ward's linkage."""
    found = hssk(rows, labels, k, n_levels=1, search="swaps", balanced=balanced, n_iter=iterations // 2, rng=0)
    return np.asarray(found.levels[0].labels), found.levels[0].inertia / len(rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--clusters", type=int, default=1_000)
    parser.add_argument("--iterations", type=int, default=4)
    parser.add_argument("--noise", type=float, default=1.5)
    parser.add_argument("--only", action="append", metavar="WAY")
    parser.add_argument("--name", default="scale_faiss", help="name of the results")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    made, truth = embeddings(options.rows, options.dim, options.clusters, "cpu", noise=options.noise)
    rows, labels = made.numpy(), half_labelled(truth, options.clusters // 2).numpy()
    free, known = labels < 0, truth.numpy() < options.clusters // 2
    ways: dict[str, Any] = {
        "faiss k-means": run_faiss,
        "BSSK, unbalanced": partial(run_bssk, balanced=False),
        "BSSK": partial(run_bssk, balanced=True),
        "swaps, unbalanced": partial(run_swaps, balanced=False),
        "swaps": partial(run_swaps, balanced=True),
    }
    entries: list[dict[str, object]] = []
    for what in options.only or ways:
        start = time.perf_counter()
        found, mean = ways[what](rows, labels, options.clusters, options.iterations)
        entry = {"what": what, "n": options.rows, "d": options.dim, "k": options.clusters}
        entry |= {"iterations": options.iterations, "seconds": round(time.perf_counter() - start, 2)}
        scores = split_accuracy(truth.numpy()[free], found[free], known[free])
        entries.append({**entry, "mean_squared_distance": round(mean, 4), "accuracy": round(scores.all, 4)})
        print(entries[-1], flush=True)
    save(options.name, entries, options.out, quiet=True)
