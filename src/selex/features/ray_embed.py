"""Features by the workers of a Ray cluster: a pool of actors reads, decodes and embeds units of images.

Actors on GPUs are faster than what one process decodes, so for them tasks on all cores read and decode.

Shards of features come back as they are done and are kept on this machine's disk: a worker or a node that is lost is
Ray's to replace, and what is on disk is not made again. The backbone is sent once, so that all workers have the same
weights.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from selex.data.labels import encode
from selex.data.table import ImageTable, read_table
from selex.errors import InputError
from selex.features.cache import FeatureFile, Standing
from selex.features.embed import CPU_BATCH
from selex.features.ray_cache import Shards, read_shard, shards_in_use, trim
from selex.features.ray_cluster import RayEngine, last_line, running, threads_each, with_threads
from selex.features.ray_worker import Embedder, Way, decoded
from selex.features.sources import PIECE, Files, Unit, find_units, key_of
from selex.models.network import Backbone
from selex.progress import images_bar


@dataclass(frozen=True)
class Embedded:
    """Images that were embedded elsewhere: the table of those that could be read, and the others with the reason.

    `units` are what they were read from, `key` changes when an image does, and `boxes` are the attention crops, if any.
    """

    table: ImageTable
    skipped: list[tuple[str, str]]
    size: int
    made: int
    units: list[Unit]
    key: str
    boxes: np.ndarray[Any, Any] | None = None

    def __len__(self) -> int:
        return len(self.table)


def embed_on_ray(
    engine: RayEngine,
    backbone: Backbone,
    sources: Sequence[str],
    labels: Any,
    out: Path,
    *,
    size: int,
    views: int,
    device: str | torch.device,
    eye: Backbone | None = None,
    progress: bool = False,
) -> Embedded:
    """Features of all images at `out`, a `.npy` file in the order of images, and what they are of.

    With `eye`, a backbone, features are the mean over an image and the crop of what that backbone attends to.
    """
    root, units = find_units(sources, labels)
    made = 0
    with shards_in_use(way_name(backbone, size, views, device, eye), units) as shards:
        todo = [number for number, unit in enumerate(units) if not shards.complete(unit)]
        if todo:
            shards.check_writable()
            with running(engine, torch.device(device)) as workers, images_bar("embedding", 0, 0, progress) as advance:
                actors = min(workers, len(todo))
                how = Way(backbone, eye, size, views, str(device), threads_each(engine, actors))
                for number, piece, last, content in _made(units, todo, shards, how, actors):
                    made += shards.keep(units[number], piece, last, content)
                    advance(made)
        images = _joined(units, shards, root, labels, out, size, made, backbone, eye is not None)
        trim()  # of other jobs
    return images


def way_name(backbone: Backbone, size: int, views: int, device: str | torch.device, eye: Backbone | None = None) -> str:
    """What the shards of one way of making features are kept under."""
    way = f"{backbone.fingerprint()} {backbone.crop} {size} {views} {torch.device(device).type} {PIECE}"
    way += f" crops {eye.fingerprint()}" if eye else ""
    return hashlib.sha256(way.encode()).hexdigest()[:32]


def _joined(
    units: list[Unit],
    shards: Shards,
    root: str,
    labels: Any,
    out: Path,
    size: int,
    made: int,
    backbone: Backbone,
    crops: bool,
) -> Embedded:
    """All pieces as one file of features and one table; the features of one piece at a time are in memory."""
    paths = [shards.paths(unit) for unit in units]
    told = [_told(unit, there) for unit, there in zip(units, paths, strict=True)]
    names, given, reasons = ([value for unit in told for value in unit[kind]] for kind in range(3))
    _check_names(names)
    table = read_table(ImageTable(names, *encode(given), root), labels)
    rows = [row for row, reason in enumerate(reasons) if not reason]
    skipped = [(name, reason) for name, reason in zip(names, reasons, strict=True) if reason]
    if not rows:
        first = "; the first is {}: {}".format(*skipped[0]) if skipped else ""
        raise InputError(f"none of the {len(names)} images can be read{first}")
    of = hashlib.sha256("\n".join([*map(key_of, units), *(names[row] for row in rows)]).encode()).hexdigest()
    standing = Standing(f"{backbone.name} {shards.folder.name} {of}", len(rows), backbone.dim, CPU_BATCH)
    flat = [path for there in paths for path in there]
    _fill(FeatureFile(out, standing), flat)
    boxes = np.concatenate([read_shard(path, "boxes")[0] for path in flat]) if crops else None
    return Embedded(table.take(rows), skipped, size, made, units, of, boxes)


def _told(unit: Unit, paths: list[Path]) -> tuple[list[str], list[str], list[str]]:
    """Names, labels and reasons of a unit; files have the labels of today, which are no part of what is on disk."""
    pieces = [read_shard(path, "names", "labels", "reasons") for path in paths]
    names, labels, reasons = ([str(value) for piece in pieces for value in piece[kind]] for kind in range(3))
    return names, list(unit.labels) if isinstance(unit, Files) else labels, reasons


def _fill(file: FeatureFile, paths: list[Path]) -> None:
    if file.complete:
        return
    rows, done = file.rows(), 0
    for path in paths:
        (features,) = read_shard(path, "features")
        rows[done : done + len(features)] = features
        done += len(features)
    file.save(done)
    file.finish()


def _check_names(names: list[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InputError(f"two images are called {name}: names must differ")
        seen.add(name)


def _made(
    units: list[Unit], todo: list[int], shards: Shards, how: Way, actors: int
) -> Iterator[tuple[int, int, bool, bytes]]:
    """Pieces that are not on disk, as they are done: unit, piece, whether it is the unit's last, and a `.npz` file."""
    import ray

    given = [(units[number], shards.have(units[number]), how.size, how.eye is not None) for number in todo]
    items = [{"number": number, "work": pickle.dumps(one)} for number, one in zip(todo, given, strict=True)]
    on_gpu = torch.device(how.device).type == "cuda"
    options = with_threads(how.threads)
    work = ray.data.from_items(items, override_num_blocks=len(items))
    # many cores feed a GPU; on CPUs whoever embeds decodes, and no pixels are copied
    ready = work.flat_map(decoded, **options) if on_gpu else work
    rows = ready.flat_map(
        Embedder,
        fn_constructor_args=(ray.put(how.on("cpu")), str(shards.stage)),
        concurrency=actors,
        num_gpus=1 if on_gpu else 0,
        **options,
    ).iter_rows()
    with _refused():
        for row in rows:
            if row["error"]:
                raise InputError(row["error"])
            yield int(row["number"]), int(row["piece"]), bool(row["last"]), row["content"]


@contextmanager
def _refused() -> Iterator[None]:
    """Where Ray gives up, or a worker has no room, one line; an error in our own code shows as it is."""
    from ray.exceptions import RayError, RayTaskError

    try:
        yield
    except RayError as error:
        known = (InputError, MemoryError, OSError, RayError)
        if isinstance(error, RayTaskError) and not isinstance(error.cause, known):
            raise
        raise InputError(f"embedding on the Ray cluster failed: {last_line(error)}") from error
