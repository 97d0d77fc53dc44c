"""Features by the workers of a Ray cluster: tasks read and decode units of images, a pool of actors embeds them.

Shards of features come back as they are done and are kept on this machine's disk: a worker or a node that is lost is
Ray's to replace, and what is on disk is not made again. Nothing but images and features travels: the backbone is sent
once, so that all workers have the same weights.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from selex.data.crops import to_device
from selex.data.decode import Unreadable, decode
from selex.data.labels import encode
from selex.data.store import ImageStore
from selex.data.table import ImageTable, read_table
from selex.errors import InputError
from selex.features.attention_crop import attention_boxes, saliency
from selex.features.cache import FeatureFile, Standing
from selex.features.embed import CPU_BATCH, embed
from selex.features.ray_cache import Shards, read_shard, shards_in_use, trim
from selex.features.ray_cluster import RayEngine, last_line, running, threads_each, with_threads
from selex.features.sources import PIECE, Files, Unit, find_units, key_of
from selex.io import first_line
from selex.models.network import Backbone
from selex.models.trunk import fold_norms
from selex.progress import images_bar

DEATHS = 4
"""How often a worker is killed, with nothing embedded in between, before it is given up."""
_THREADS = 2  # that decode in a task: there is one worker for every two cores, unless more are asked for


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


@dataclass(frozen=True)
class Way:
    """How images become features."""

    backbone: Backbone
    eye: Backbone | None
    size: int
    views: int
    device: str
    threads: int = 1

    def on(self, device: str) -> Way:
        """The same with backbones on a device."""
        return replace(self, backbone=self.backbone.to(device), eye=self.eye.to(device) if self.eye else None)

    def folded(self) -> Way:
        """The same with norms folded, once for all pieces."""
        return replace(self, backbone=fold_norms(self.backbone.eval()))


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
    items = [{"number": number, "work": pickle.dumps(work)} for number, work in zip(todo, given, strict=True)]
    on_gpu = torch.device(how.device).type == "cuda"
    options = with_threads(how.threads)  # the same for both, else Ray does not do them in one place
    pieces = ray.data.from_items(items, override_num_blocks=len(items)).flat_map(_decoded, **options)
    rows = pieces.map(
        _Embedder,
        fn_constructor_args=(ray.put(how.on("cpu")),),
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


def _decoded(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """In a task: the images of a unit, decoded, a piece at a time; pieces that are on disk are passed over."""
    unit, have, size, whole = pickle.loads(row["work"])
    about = {"number": row["number"], "error": "", "content": b""}
    try:
        images = unit.read()
        waiting, piece = list(islice(images, PIECE)), 0
        while waiting or not piece:
            following = list(islice(images, PIECE))
            if piece not in have or not following:  # the last is made again, if another came before it was known to be
                with ThreadPoolExecutor(_THREADS) as pool:
                    content = pickle.dumps(list(pool.map(lambda image: _pixels(image, size, whole), waiting)))
                yield {**about, "piece": piece, "last": not following, "content": content}
            waiting, piece = following, piece + 1
    except Exception as error:  # whatever is wrong with a unit, or with what reads it
        yield {**about, "piece": -1, "last": True, "error": f"{unit.place}: cannot be read: {first_line(error)}"}


def _pixels(image: Any, size: int, whole: bool) -> tuple[str, str, Any, str, bytes]:
    """Name, label, pixels and, where there are none, the reason; with `whole` the file too, to cut from."""
    if image.data is None:
        return image.name, image.label, None, image.reason, b""
    try:
        return image.name, image.label, decode(image.data, size), "", image.data if whole else b""
    except Unreadable as error:
        return image.name, image.label, None, error.reason, b""


class _Deaths:
    """Ends a worker that is killed again and again: Ray Data would start it for ever, and has no limit of its own.

    They are counted in a file of this node: a byte for each start after the first, until something is embedded.
    """

    def __init__(self) -> None:
        import ray

        here = ray.get_runtime_context()
        self.file = Path(tempfile.gettempdir(), f"selex-deaths-{here.get_actor_id()}")
        if here.was_current_actor_reconstructed and self._more() >= DEATHS:
            self.forget()
            raise InputError(f"a worker was killed {DEATHS} times, perhaps for lack of memory")

    def _more(self) -> int:
        with suppress(OSError), self.file.open("ab") as file:
            file.write(b".")
            return file.tell()
        return 0

    def forget(self) -> None:
        """The worker works."""
        with suppress(OSError):
            self.file.unlink()


class _Embedder:
    """An actor: holds the backbone, makes pieces of pixels into shards of features."""

    def __init__(self, how: Any) -> None:
        import ray

        self.deaths = _Deaths()
        given: Way = ray.get(how)
        torch.set_num_threads(given.threads if given.device == "cpu" else torch.get_num_threads())
        self.how, self.device = given.on(given.device).folded(), torch.device(given.device)
        self.eye = saliency(self.how.eye) if self.how.eye else None

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        if row["error"]:
            return row
        try:
            content = self._shard(row["content"])
            self.deaths.forget()
            return {**row, "content": content}
        except (InputError, MemoryError, OSError) as error:
            return {**row, "content": b"", "error": f"a worker cannot embed: {first_line(error)}"}

    def _shard(self, content: bytes) -> bytes:
        images = pickle.loads(content)
        names, labels, pixels, reasons, data = zip(*images, strict=True) if images else ((), (), (), (), ())
        shown = [image for image in pixels if image is not None]
        features = np.zeros((0, self.how.backbone.dim), np.float32)
        boxes = np.zeros((0, 4))
        if shown:
            features, boxes = self._features(shown, [file for file in data if file])
        file = io.BytesIO()
        told: dict[str, Any] = {"names": _text(names), "labels": _text(labels), "reasons": _text(reasons)}
        np.savez(file, features=features, **told | ({"boxes": boxes} if self.eye else {}))
        return file.getvalue()

    def _features(self, shown: list[Any], files: list[bytes]) -> tuple[Any, Any]:
        """Features of decoded images, and where their attention crops are, which are cut from the files."""
        how, stored, cut, boxes = self.how, ImageStore.in_memory(shown, self.how.size), None, np.zeros((0, 4))
        if self.eye:
            boxes = attention_boxes(self.eye, stored, device=self.device)
            sides: list[tuple[float, float, float, float]] = [(a, b, c, d) for a, b, c, d in boxes.tolist()]
            parts = [decode(file, how.size, box) for file, box in zip(files, sides, strict=True)]
            cut = ImageStore.in_memory(parts, how.size)
        made = embed(how.backbone, to_device(stored, self.device, cut), device=self.device, views=how.views)
        return np.asarray(made), boxes


def _text(values: Sequence[str]) -> np.ndarray[Any, Any]:
    return np.array(values, dtype=str) if values else np.zeros(0, dtype="<U1")
