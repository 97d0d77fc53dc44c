"""What the workers of a Ray cluster do for features: an actor embeds pieces of units, which it or a task decodes."""

from __future__ import annotations

import io
import os
import pickle
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from selex.data.crops import to_device
from selex.data.decode import Unreadable, decode
from selex.data.store import ImageStore
from selex.errors import InputError
from selex.features.attention_crop import attention_boxes, saliency
from selex.features.embed import embed
from selex.features.sources import PIECE
from selex.io import first_line
from selex.models.network import Backbone
from selex.models.trunk import fold_norms

DEATHS = 4
"""How often a worker is killed, with nothing embedded in between, before it is given up."""
_THREADS = 2  # that decode: there is one worker for every two cores, unless more are asked for


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


def decoded(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """In a task: the images of a unit, decoded, a piece at a time, to be sent to an actor."""
    for piece in _pieces(row):
        yield {**piece, "content": pickle.dumps(piece["content"])}


def _pieces(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The images of a unit, decoded, a piece at a time; pieces that are on disk are passed over."""
    unit, have, size, whole = pickle.loads(row["work"])
    about = {"number": row["number"], "error": "", "content": []}
    try:
        images = unit.read()
        waiting, piece = list(islice(images, PIECE)), 0
        while waiting or not piece:
            following = list(islice(images, PIECE))
            if piece not in have or not following:  # the last is made again, if another came before it was known to be
                with ThreadPoolExecutor(_THREADS) as pool:
                    content = list(pool.map(lambda image: _pixels(image, size, whole), waiting))
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

    They are counted in a file: a byte for each start after the first, until something is embedded. It is in the job's
    own temporary folder, which is gone at its end; on a node that does not see that folder, in the node's.
    """

    def __init__(self, folder: str) -> None:
        import ray

        here = ray.get_runtime_context()
        place = folder if os.access(folder, os.W_OK) else tempfile.gettempdir()
        self.file = Path(place, f"selex-deaths-{here.get_actor_id()}")
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


class Embedder:
    """An actor: holds the backbone, makes images into shards of features, a piece at a time."""

    def __init__(self, how: Any, folder: str) -> None:
        import ray

        self.deaths = _Deaths(folder)
        given: Way = ray.get(how)
        torch.set_num_threads(given.threads if given.device == "cpu" else torch.get_num_threads())
        self.how, self.device = given.on(given.device).folded(), torch.device(given.device)
        self.eye = saliency(self.how.eye) if self.how.eye else None

    def __call__(self, row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Rows with a shard, or an error: of the pieces of a unit, decoded here, or of a piece that a task sent."""
        given = _pieces(row) if "work" in row else [{**row, "content": pickle.loads(row["content"])}]
        return map(self._made, given)

    def _made(self, piece: dict[str, Any]) -> dict[str, Any]:
        if piece["error"]:
            return {**piece, "content": b""}
        try:
            content = self._shard(piece["content"])
            self.deaths.forget()
            return {**piece, "content": content}
        except (InputError, MemoryError, OSError) as error:
            return {**piece, "content": b"", "error": f"a worker cannot embed: {first_line(error)}"}

    def _shard(self, images: list[tuple[str, str, Any, str, bytes]]) -> bytes:
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
