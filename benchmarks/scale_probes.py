"""Complete clusterings with very many clusters: each row compared with all centres, or with a few groups of them.

Generated rows of length 1 lie around random directions, which have no coarse structure and are the worst case, or
around directions in 100 families. `--features` takes your own rows from `.npz` files: all arrays in them, for example
features of several views of the same photos, are stacked and reduced to their first principal components, of length 1.
For these only the loss in inertia can be measured. One thread on a CPU; all methods start from the same seeds.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from common import half_labelled, save, wait
from scale_gpu import scores
from selex.cluster.kmeans import Problem, Settings, novel_clusters, prepare

FAMILIES = 100
WITHIN = 0.7  # length of what tells categories of a family apart, beside the family's own direction of length 1


def made(kind: str, n: int, d: int, k: int, noise: float) -> tuple[Tensor, Tensor]:
    """Rows, and the category of each."""
    generator = torch.Generator().manual_seed(0)
    centers = normalize(torch.randn(k, d, generator=generator), dim=1)
    if kind == "families":
        families = normalize(torch.randn(FAMILIES, d, generator=generator), dim=1)
        centers = normalize(families[torch.arange(k) % FAMILIES] + WITHIN * centers, dim=1)
    truth = torch.arange(n) % k
    return normalize(centers[truth] + torch.randn(n, d, generator=generator) * (noise / d**0.5), dim=1), truth


def stacked(files: list[Path], d: int) -> Tensor:
    """All tables of some `.npz` files, one below the other: their first d principal components, of length 1."""
    tables = [array for file in files for array in np.load(file).values() if array.ndim == 2]
    x = torch.from_numpy(np.concatenate(tables)).double()
    x -= x.mean(0)
    return normalize((x @ torch.linalg.svd(x.T @ x / len(x))[0][:, :d]).float(), dim=1)


def measure(rows: Tensor, labels: Tensor | None, probes: int | None, how: argparse.Namespace) -> tuple[Any, Any]:
    """Seconds of each stage, and what they give."""
    data, known, n_known = prepare(rows, labels, 1 << 30)
    novel = novel_clusters(how.clusters, n_known, known, data)
    problem = Problem(data, known, n_known, novel, Settings(n_iter=how.iterations, probes=probes))
    clock = [_now()]
    centers = problem.seed(np.random.default_rng(0))
    clock.append(_now())
    centers, refined = problem.refine(centers)
    clock.append(_now())
    level = problem.ended(centers, refined)
    clock.append(_now())
    stages = zip(("seeds_s", "balanced_s", "final_s"), np.diff(clock), strict=True)
    return {name: round(float(took), 1) for name, took in stages} | {"s": round(clock[-1] - clock[0], 1)}, level


def _now() -> float:
    wait()
    return time.perf_counter()


def compare(kind: str, rows: Tensor, truth: Tensor | None, how: argparse.Namespace) -> list[dict[str, Any]]:
    """An entry for every way, the exact one first."""
    rows, truth = rows.to(how.device), None if truth is None else truth.to(how.device)
    labels = None if truth is None else half_labelled(truth, how.clusters // 2)
    entries: list[dict[str, Any]] = []
    for probes in (None, *how.probes):
        took, level = measure(rows, labels, probes, how)
        about = {"rows": kind, "n": len(rows), "d": rows.shape[1], "k": how.clusters, "iterations": level.n_iter}
        if truth is not None and labels is not None:
            found = torch.as_tensor(level.labels)
            took |= scores(truth[labels < 0], found[labels < 0], how.clusters)
        entries.append({**about, "probes": probes or "all", **took, "inertia": level.inertia})
        first = entries[0]
        entries[-1]["times_faster"] = round(first["s"] / took["s"], 2)
        entries[-1]["inertia_lost_percent"] = round(100 * (level.inertia / first["inertia"] - 1), 2)
        print(entries[-1], flush=True)
    return entries


def main(how: argparse.Namespace) -> None:
    found = []
    if how.features:
        found += compare(" ".join(file.stem for file in how.features), stacked(how.features, how.dim), None, how)
    else:
        for kind in how.kinds:
            found += compare(kind, *made(kind, how.rows, how.dim, how.clusters, how.noise), how)
    save("scale_probes", found, how.out, quiet=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--clusters", type=int, default=10_000)
    parser.add_argument("--iterations", type=int, default=5, help="iterations of each of the two stages")
    parser.add_argument("--noise", type=float, default=1.0)
    parser.add_argument("--probes", type=int, nargs="+", default=[5, 10, 20])
    parser.add_argument("--kinds", nargs="+", default=["random", "families"])
    parser.add_argument("--features", type=Path, nargs="+", help="your own rows, as .npz files")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    main(options)
