"""Clustering on a GPU: the paper's hierarchy at the size of CUB, a million rows, and scaling with N and K."""

from __future__ import annotations

import argparse
import statistics
from functools import partial
from pathlib import Path

import torch

from common import embeddings, half_labelled, save, seconds, spread
from selex.cluster.hierarchy import hssk
from selex.cluster.kmeans import bssk


def hierarchy(device: str) -> list[dict[str, object]]:
    x, truth = embeddings(5994, 768, 200, device)
    labels = half_labelled(truth, 100)
    sizes = hssk(x, labels, 200, rng=0).n_clusters
    times = seconds(lambda: hssk(x, labels, 200, rng=0), repeats=15, warmups=3)
    return [{"what": "whole hierarchy", "n": 5994, "d": 768, "levels": sizes, **spread(times)}]


def million(device: str, n: int = 1_000_000, k: int = 1_000) -> list[dict[str, object]]:
    x, truth = embeddings(n, 768, k, device, noise=4.0)
    labels = half_labelled(truth, k // 2)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    times = seconds(lambda: bssk(x, labels, k, rng=0), repeats=3)
    level = bssk(x, labels, k, rng=0)
    above = torch.cuda.max_memory_allocated() - before
    row = {"what": "balanced, 10 + 10 iterations", "n": n, "d": 768, "k": k, "iterations": level.n_iter}
    return [{**row, **spread(times), "gb_above_input": round(above / 1e9, 2)}]


def growth(device: str) -> list[dict[str, object]]:
    """Time against N at K = 1,000, and against K at N = 100,000: seeds and 2 + 2 iterations, too few to end early.

    `times_linear` is time a row and cluster, against the case before it: at most 1 where growth is linear in N · K.
    """
    results: list[dict[str, object]] = []
    by_n = [(n, 1_000) for n in (10_000, 30_000, 100_000, 300_000, 1_000_000)]
    by_k = [(100_000, k) for k in (100, 300, 1_000, 3_000, 10_000)]
    for series in (by_n, by_k):
        before = None
        for n, k in series:
            x, truth = embeddings(n, 768, k, device, noise=4.0)
            labels = half_labelled(truth, k // 2)
            times = seconds(partial(bssk, x, labels, k, n_iter=2, rng=0), repeats=5)
            row: dict[str, object] = {"what": "growth", "n": n, "d": 768, "k": k, **spread(times)}
            each = statistics.median(times) / (n * k)
            row["times_linear"] = round(each / before, 2) if before else None
            before = each
            results.append(row)
            print(row, flush=True)
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=["hierarchy", "million", "growth"])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    for name, measure in {"hierarchy": hierarchy, "million": million, "growth": growth}.items():
        if options.only in (None, name):
            save(f"cluster_gpu_{name}", measure(options.device), options.out)
