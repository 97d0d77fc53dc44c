"""Ten million rows on one GPU: float16 shards from disk, balanced BSSK, time and memory of each phase.

First, a lower bound for the assignment step is calculated: `2 n k d` operations at the card's float32 rate, or its
memory traffic (rows read as float16, the product of each block written and read once) at the card's bandwidth,
whichever takes longer.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.sparse import coo_matrix, hstack, identity
from scipy.sparse.csgraph import min_weight_full_bipartite_matching

from common import half_labelled, save
from selex.cluster.blocks import open_pieces
from selex.cluster.distributed.shards import Shard
from selex.cluster.kmeans import Problem, Settings, novel_clusters, prepare

SHARD = 1_000_000  # rows of a file


def generate(folder: Path, n: int, d: int, k: int, noise: float, device: str) -> list[Path]:
    """Shards of float16 rows of length 1 around k random directions; row i belongs to direction i % k."""
    generator = torch.Generator(device).manual_seed(0)
    centers = torch.nn.functional.normalize(torch.randn(k, d, device=device, generator=generator), dim=1)
    paths = []
    for start in range(0, n, SHARD):
        truth = torch.arange(start, min(start + SHARD, n), device=device) % k
        rows = torch.empty(len(truth), d, dtype=torch.float16, device=device)
        for part in torch.split(torch.arange(len(truth), device=device), 1 << 17):
            block = torch.randn(len(part), d, device=device, generator=generator).mul_(noise / d**0.5)
            rows[part] = torch.nn.functional.normalize(block + centers[truth[part]], dim=1).half()
        paths.append(folder / f"{start:010}.npy")
        np.save(paths[-1], rows.cpu().numpy())
    return paths


class Phases:
    """Seconds and peak memory of each phase, on disk as soon as it ends."""

    def __init__(self, entry: dict[str, Any], entries: list[dict[str, Any]], options: argparse.Namespace) -> None:
        self.entry, self.entries, self.options = entry, entries, options
        self.cuda = options.device == "cuda"

    def __call__(self, name: str, work: Callable[[], Any]) -> Any:
        """Do one phase and note what it took."""
        if self.cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        made = work()
        if self.cuda:
            torch.cuda.synchronize()
            self.entry[f"{name}_gpu_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 2)
        self.entry[f"{name}_s"] = round(time.perf_counter() - start, 3)
        self.entry["host_peak_gb"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2)
        self.note()
        return made

    def note(self, **facts: Any) -> None:
        """Add facts to the entry and write all entries."""
        self.entry.update(facts)
        save("scale_gpu", self.entries, self.options.out, quiet=True)
        print(self.entry, flush=True)


def measure(n: int, options: argparse.Namespace, entries: list[dict[str, Any]]) -> None:
    d, k = options.dim, options.clusters
    entry: dict[str, Any] = {"n": n, "d": d, "k": k, "noise": options.noise, "budget_gib": options.memory}
    entries.append(entry)
    phase = Phases(entry, entries, options)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        paths = phase("generate", lambda: generate(Path(folder), n, d, k, options.noise, options.device))
        truth = torch.arange(n, device=options.device) % k
        labels = half_labelled(truth, k // 2)
        pieces = open_pieces(paths)
        data = phase("read", lambda: pieces.to(options.device) if phase.cuda else pieces)
        level, problem = cluster(data, labels, k, options, phase)
        assignment(problem, torch.as_tensor(level.centers), options, phase)
        found = torch.as_tensor(level.labels)
        phase("score", lambda: entry.update(scores(truth[labels < 0], found[labels < 0], k)))
        if find_spec("faiss"):
            phase("faiss", lambda: beside_faiss(pieces, truth, k, options, entry))


def cluster(data: Any, labels: Any, k: int, options: argparse.Namespace, phase: Phases) -> tuple[Any, Problem]:
    """`bssk(Shard(data), labels, k)`, stage by stage."""
    rows, known, n_known = phase("prepare", lambda: prepare(Shard(data, memory=options.memory << 30), labels, 0))
    settings = Settings(n_iter=options.iterations)
    n_novel = novel_clusters(k, n_known, known, rows)
    problem = phase("labelled", lambda: Problem(rows, known, n_known, n_novel, settings))
    centers = phase("seed", lambda: problem.seed(np.random.default_rng(0)))
    centers, balanced = phase("balanced", lambda: problem.refine(centers))
    level = phase("final", lambda: problem.ended(centers, balanced))
    names = ("prepare", "labelled", "seed", "balanced", "final")
    total = round(sum(phase.entry[f"{name}_s"] for name in names), 2)
    phase.note(balanced_iterations=balanced, iterations=level.n_iter, cluster_s=total, inertia=level.inertia)
    return level, problem


def assignment(problem: Problem, centers: torch.Tensor, options: argparse.Namespace, phase: Phases) -> None:
    """One assignment of all unlabelled rows, and centres' sums, beside the floor."""
    free = problem.free
    operations = 2 * free.n * problem.k * free.d / (options.peak_tflops * 1e12)
    traffic = (2 * free.n * free.d + 8 * free.n * problem.k) / (options.peak_gbs * 1e9)
    labels, _ = phase("assign", lambda: free.nearest(centers))
    phase("sums", lambda: free.sums(labels, problem.k))
    took = phase.entry["assign_s"]
    phase.note(
        assigned_rows=free.n,
        floor_arithmetic_s=round(operations, 4),
        floor_bytes_s=round(traffic, 4),
        share_of_arithmetic=round(operations / took, 3),
        share_of_bandwidth=round(traffic / took, 3),
    )


def scores(truth: torch.Tensor, found: torch.Tensor, k: int) -> dict[str, float]:
    """Purity and Hungarian accuracy of unlabelled rows, in percent, from the counts of (direction, cluster)."""
    pairs, counts = torch.unique(truth * k + found, return_counts=True)
    pairs, counts = pairs.cpu().numpy(), counts.cpu().numpy()
    table = coo_matrix((counts.astype(float), (pairs % k, pairs // k)), shape=(k, k)).tocsr()
    purity = table.max(axis=1).toarray().sum() / len(truth)
    spare = identity(k, format="csr") * (0.1 / k)  # a cluster may be left without a direction
    rows, columns = min_weight_full_bipartite_matching(hstack([table, spare], format="csr"), maximize=True)
    matched = columns < k
    accuracy = float(np.asarray(table[rows[matched], columns[matched]]).sum()) / len(truth)
    return {"purity": round(100 * float(purity), 2), "accuracy": round(100 * accuracy, 2)}


def beside_faiss(pieces: Any, truth: torch.Tensor, k: int, options: argparse.Namespace, entry: dict[str, Any]) -> None:
    """Faiss k-means of all rows, as many iterations in all, without labels and without balance."""
    import faiss

    x = np.asarray(pieces[:], dtype=np.float32)
    gpu = options.device == "cuda" and getattr(faiss, "get_num_gpus", lambda: 0)() > 0
    model = faiss.Kmeans(x.shape[1], k, niter=2 * options.iterations, seed=0, gpu=gpu, max_points_per_centroid=len(x))
    model.train(x)
    found = torch.from_numpy(model.index.search(x, 1)[1][:, 0])
    entry.update({f"faiss_{name}": value for name, value in scores(truth.cpu(), found, k).items()}, faiss_on_gpu=gpu)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 3_000_000, 10_000_000])
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--clusters", type=int, default=10_000)
    parser.add_argument("--iterations", type=int, default=10, help="iterations of each of the two stages")
    parser.add_argument("--noise", type=float, default=2.0)
    parser.add_argument("--memory", type=int, default=8, help="GiB for temporaries")
    parser.add_argument("--peak-tflops", type=float, default=66.9, help="float32 rate of the card; default: H200 SXM")
    parser.add_argument("--peak-gbs", type=float, default=4800)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--folder", help="where shards are written, 768 bytes per row")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    entries: list[dict[str, Any]] = []
    for rows in options.rows:
        measure(rows, options, entries)
