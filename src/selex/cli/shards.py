"""`selex cluster` in several processes that `torchrun` started, or of a folder of shards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from selex.cli.app import estimate_line, reported_device
from selex.config import Config
from selex.errors import InputError
from selex.launch import first_process
from selex.types import Hierarchy, KEstimate

if TYPE_CHECKING:
    from torch import Tensor

    from selex.cluster.distributed.shards import Shard
    from selex.cluster.pipeline import FittedClusters
    from selex.data.clusters import Columns

BLOCK = 1 << 16
"""Rows of the table that are written at a time."""


def cluster_shards(
    features: Path, labels: Path | None, out: Path, config: Config, device: str, normalize: bool
) -> None:
    """Cluster this process's part of the rows together with the others; the first process writes the table."""
    import torch.distributed as dist

    from selex.cluster.pipeline import fit_clusters
    from selex.data.clusters import category_names, write_blocks

    shard, known, classes = _read(features, labels, device, normalize)
    how: dict[str, Any] = {"rng": config.seed, "calibrate": False, "progress": first_process()}
    found = fit_clusters(shard, known if classes else None, config.cluster, **how)
    blocks = _blocks(shard, found, known, category_names(classes, found.hierarchy.levels[0].n_clusters))
    if first_process():
        write_blocks(out, blocks)
        _tell(found, shard, config, out)
    else:
        for _ in blocks:  # sent to the first
            pass
    if dist.is_initialized():
        dist.destroy_process_group()


def _read(features: Path, labels: Path | None, device: str, normalize: bool) -> tuple[Shard, Any, list[str]]:
    """Rows of this process, their known categories with -1 where there is none, and what those are called."""
    import numpy as np
    from torch.nn.functional import normalize as to_length_1

    from selex.cluster.blocks import open_pieces
    from selex.cluster.distributed.group import join
    from selex.cluster.distributed.shards import Shard
    from selex.cluster.inputs import encode
    from selex.data.features import read_row_labels

    pieces = open_pieces(_shards(features))
    given = read_row_labels(labels, pieces.shape[0]) if labels else {}
    classes, codes = encode(list(given.values()) or None, len(given))
    with reported_device(device):
        group = join(device)
        part = pieces.part(group.rank, group.size)
        shard = Shard(part if device == "cpu" else part.to(device), group)
    known, own = np.full(shard.n, -1), np.array(list(given), dtype=np.int64) - shard.first
    here = (own >= 0) & (own < shard.n)
    known[own[here]] = codes[here]
    rows = shard.mapped(lambda x: to_length_1(x, dim=1)) if normalize else shard
    assert isinstance(rows, Shard)  # as it was
    return rows, known, classes.tolist()


def _shards(features: Path) -> list[Path]:
    """The shards of a folder, in the order of their names; a table in one file is one."""
    if not features.is_dir():
        if features.suffix.lower() == ".npz":
            raise InputError(f"{features}: several processes need a .npy file or a folder of .npy shards")
        return [features]
    if shards := sorted(features.glob("*.npy")):
        return shards
    raise InputError(f"{features}: no .npy shard of features in this folder")


def _blocks(shard: Shard, found: FittedClusters, known: Any, names: list[str]) -> Iterator[Columns]:
    """The table in the order of rows, from whichever process has them: all take part in sending."""
    import torch

    from selex.data.clusters import cluster_columns

    levels = found.hierarchy.levels
    columns = [known >= 0, _distances(shard, found).cpu(), *(level.labels for level in levels)]
    mine = torch.stack([torch.as_tensor(column).double() for column in columns], 1)
    lengths, row = shard.group.gather(torch.tensor([shard.n])).tolist(), 0
    for rank, length in enumerate(lengths):
        for start in range(0, length, BLOCK):
            part = mine[start : start + BLOCK] if rank == shard.group.rank else mine[:0]
            sent = [min(BLOCK, length - start) if other == rank else 0 for other in range(len(lengths))]
            labelled, distances, *at_levels = shard.group.gather(part, sent).numpy().T
            ids = [str(number) for number in range(row, row + len(labelled))]
            block = (replace(level, labels=at.astype(int)) for level, at in zip(levels, at_levels, strict=True))
            more = {"distance": distances.tolist()}
            yield cluster_columns("row", ids, Hierarchy(tuple(block)), names, labelled > 0, more)
            row += len(labelled)


def _distances(shard: Shard, found: FittedClusters) -> Tensor:
    """Distance of every row of this process to the centre of its own cluster."""
    import torch

    centers, labels = torch.as_tensor(found.hierarchy.levels[0].centers).to(shard.device), torch.as_tensor(found.labels)
    out = torch.empty(shard.n, dtype=shard.dtype, device=shard.device)
    for part, x in shard.blocks(4 * shard.d):
        out[part] = (found.transform(x + shard.shift) - centers[labels[part].to(shard.device)]).norm(dim=1)
    return out


def echo_estimate(found: KEstimate) -> None:
    """Print an estimated number of categories."""
    typer.echo(estimate_line(found.n_clusters, found.low, found.high, found.method))


def echo_selected(found: FittedClusters, config: Config) -> None:
    """Print what was estimated, and what `auto` came to."""
    if found.estimate:
        echo_estimate(found.estimate)
    for line in found.selected(config.cluster):
        typer.echo(line)


def _tell(found: FittedClusters, shard: Shard, config: Config, out: Path) -> None:
    echo_selected(found, config)
    base = found.hierarchy.levels[0]
    sizes = ", ".join(map(str, found.hierarchy.n_clusters))
    found_in = f"{shard.total} rows, {shard.group.size} {'process' if shard.group.size == 1 else 'processes'}"
    typer.echo(f"{found_in}: {base.n_known} known categories, {base.n_novel} novel ones; levels of {sizes}")
    typer.echo(f"wrote {out}")
