"""One plain Lloyd iteration on a CPU, alternating with scikit-learn and faiss; peak memory of a balanced run."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from common import save
from selex.cluster.kmeans import bssk
from selex.cluster.rows import Rows

D, K = 768, 1_000
MORE = 3  # iterations beyond the first, whose mean time is the time of one


def ours(x: np.ndarray, centers: np.ndarray, iterations: int) -> None:
    rows = Rows(x)
    moving = torch.from_numpy(centers) - rows.shift
    for _ in range(iterations):
        labels, _ = rows.nearest(moving)
        sums, counts = rows.sums(labels, K)
        moving = sums / counts.clamp(min=1)[:, None]


def scikit_learn(x: np.ndarray, centers: np.ndarray, iterations: int) -> None:
    from sklearn.cluster import KMeans

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it has not converged is what we ask for
        KMeans(K, init=centers, n_init=1, max_iter=iterations, tol=0, algorithm="lloyd").fit(x)


def faiss(x: np.ndarray, centers: np.ndarray, iterations: int) -> None:
    import faiss as library

    kmeans = library.Kmeans(D, K, niter=iterations, max_points_per_centroid=len(x))
    kmeans.train(x, init_centroids=centers)


def one_iteration(work: Callable[..., None], x: np.ndarray, centers: np.ndarray) -> float:
    """Seconds of one iteration: what MORE further ones add."""
    times = []
    for iterations in (1, 1 + MORE):
        start = time.perf_counter()
        work(x, centers, iterations)
        times.append(time.perf_counter() - start)
    return (times[1] - times[0]) / MORE


def lloyd(n: int, turns: int) -> dict[str, object]:
    x = np.random.default_rng(0).standard_normal((n, D), dtype=np.float32)
    ways = {"selex": ours, "scikit-learn": scikit_learn, "faiss": faiss}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(turns):
        for name, work in ways.items():
            times[name].append(one_iteration(work, x, x[:K].copy()))
    ratios = [own / min(others) for own, *others in zip(*times.values(), strict=True)]
    return {
        "what": "one plain Lloyd iteration",
        "n": n,
        "d": D,
        "k": K,
        "times_the_faster_other": round(statistics.median(ratios), 2),
        "lowest": round(min(ratios), 2),
        "highest": round(max(ratios), 2),
        "faster_other": min(("scikit-learn", "faiss"), key=lambda name: statistics.median(times[name])),
        "turns": turns,
    }


def memory(n: int) -> dict[str, object]:
    """Peak memory of a balanced run in a process of its own, above what it has once the input is made."""
    code = f"from cluster_cpu import peak; peak({n})"
    folder = str(Path(__file__).parent)
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    return {"what": "memory of a balanced run", "n": n, "d": D, "k": K, "gib_above_input": float(done.stdout)}


def high_water() -> int:
    """The most memory this process has had, in KiB. (`ru_maxrss` would count the process that started it.)"""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])


def peak(n: int) -> None:
    x = np.random.default_rng(0).standard_normal((n, D), dtype=np.float32)
    bssk(x[:2000], None, 10, n_iter=1, rng=0)  # libraries take their own share on first use
    before = high_water()
    bssk(x, None, K, n_iter=1, rng=0)
    print(round((high_water() - before) / 2**20, 2))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    save("cluster_cpu", [lloyd(options.rows, options.turns), memory(options.rows)])
