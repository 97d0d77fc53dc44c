"""Clusters by processes that talk through NCCL, a GPU each, against one process without any: `torchrun` starts it.

The whole pipeline (whitening, BSSK of all levels, swaps, soft refinement, confidence) on rows around random directions,
once by the group and once by the first process alone; whether they find the same. One process is a group too: its sums
go through NCCL all the same, which is what a single GPU can say of it.
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
