"""Clustering by processes that communicate through NCCL, one GPU each, compared with a single process.

Started by `torchrun`. The whole pipeline (whitening, BSSK at all levels, swaps, soft refinement, confidence) runs on
rows around random directions, once in the group and once in the first process alone; do both find the same clusters? A
group of one process also sends its sums through NCCL, which is all that a single GPU can test.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from common import embeddings, half_labelled, save, wait
from selex.cluster.distributed.group import Group, Processes, connect
from selex.cluster.distributed.shards import Shard
from selex.cluster.pipeline import FittedClusters, fit_clusters
from selex.config import ClusterConfig


def main(how: argparse.Namespace) -> None:
    on_gpu = how.device == "cuda"
    if on_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    connect("nccl" if on_gpu else "gloo")
    group = Processes()
    rows, truth = embeddings(how.rows, how.dim, how.clusters, how.device)
    labels = half_labelled(truth, how.clusters // 2).cpu().numpy()
    first, last = (how.rows * edge // group.size for edge in (group.rank, group.rank + 1))
    fixed: dict[str, Any] = {"search": "swaps", "adapt": "off", "refine": "proportional", "restarts": 1}
    config = replace(ClusterConfig(categories=how.clusters), **fixed)

    def fit(own: slice, who: Group) -> tuple[float, FittedClusters]:
        wait()
        start = time.perf_counter()
        found = fit_clusters(Shard(rows[own], who), labels[own], config, rng=0)
        wait()
        return time.perf_counter() - start, found

    alone, plain = fit(slice(None), Group())  # in every process
    took, found = fit(slice(first, last), group)
    own = slice(first, last)
    same = group.all(np.array_equal(_host(found.labels), _host(plain.labels)[own]))
    assert found.assignment is not None  # as confidence is calibrated
    assert plain.assignment is not None
    apart = float(np.abs(_host(found.assignment.confidence) - _host(plain.assignment.confidence)[own]).max())
    entry: dict[str, Any] = {"backend": dist.get_backend(), "processes": group.size, "n": how.rows, "d": how.dim}
    entry |= {"k": how.clusters, "alone_s": round(alone, 2), "s": round(took, 2), "same_labels": same}
    if group.rank == 0:
        save("scale_nccl", [{**entry, "confidence_apart": apart}], how.out)
    dist.destroy_process_group()


def _host(values: Any) -> Any:
    return values.cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--clusters", type=int, default=200)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path)
    main(parser.parse_args())
