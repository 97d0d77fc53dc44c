"""Two processes compared with one on a CPU: BSSK over memory-mapped shards, one thread each; do labels agree?

Rows are those of `scale_gpu.py`, written to disk before the clock starts. Each process is started afresh and reads its
own part.
"""

from __future__ import annotations

import argparse
import os
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.multiprocessing.spawn import spawn

from common import half_labelled, save
from scale_gpu import generate
from selex.cluster.blocks import open_pieces
from selex.cluster.distributed.group import join
from selex.cluster.distributed.shards import Shard
from selex.cluster.kmeans import bssk


def work(rank: int, size: int, port: int, folder: Path, k: int, iterations: int) -> None:
    """One of the processes: cluster together, leave labels and seconds."""
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(size))
    group = join()
    whole = open_pieces(sorted(folder.glob("*.npy")))
    labels = half_labelled(torch.arange(whole.shape[0]) % k, k // 2)
    first, last = (whole.shape[0] * edge // size for edge in (rank, rank + 1))
    group.all(True)  # every process is there
    start = time.perf_counter()
    level = bssk(Shard(whole.part(rank, size), group), labels[first:last], k, n_iter=iterations, rng=0)
    seconds = time.perf_counter() - start
    np.savez(folder / f"{size}-{rank}", labels=level.labels, seconds=seconds, iterations=level.n_iter)


def measure(size: int, folder: Path, options: argparse.Namespace) -> tuple[dict[str, Any], np.ndarray]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = (size, port, folder, options.clusters, options.iterations)
    spawn(work, arguments, size)  # type: ignore[no-untyped-call]
    parts = [np.load(folder / f"{size}-{rank}.npz") for rank in range(size)]
    took = max(float(part["seconds"]) for part in parts)
    entry = {"processes": size, "n": options.rows, "d": options.dim, "k": options.clusters}
    entry |= {"iterations": int(parts[0]["iterations"]), "seconds": round(took, 2)}
    return entry, np.concatenate([part["labels"] for part in parts])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--clusters", type=int, default=1_000)
    parser.add_argument("--iterations", type=int, default=2, help="iterations of each of the two stages")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--noise", type=float, default=1.5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    entries: list[dict[str, Any]] = []
    first = np.zeros(0)
    with tempfile.TemporaryDirectory() as name:
        generate(Path(name), options.rows, options.dim, options.clusters, options.noise, "cpu")
        for size in options.processes:
            entry, labels = measure(size, Path(name), options)
            first = first if entries else labels
            entry["times_faster"] = round((entries or [entry])[0]["seconds"] / entry["seconds"], 2)
            entry["same_labels"] = bool(np.array_equal(labels, first))
            entries.append(entry)
            save("scale_cpu", entries, options.out)
