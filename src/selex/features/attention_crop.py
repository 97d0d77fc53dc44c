"""Attention crops: where a network looks in an image, and the image cut to that.

Things are often small in a photo. A backbone shows where they are, without having been told: the class token of a
vision transformer attends to them, the maps of a convolutional network respond to them.
"""

# n images, g × g places of a map

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from selex.data.fill import locked
from selex.data.store import ImageStore
from selex.errors import InputError
from selex.features.embed import embed
from selex.features.saliency import saliency
from selex.models.backbones import Backbone

Array = np.ndarray[Any, Any]

OUTSIDE = 0.05
"""Share of what is looked at that may lie beyond each side of the cut."""
MARGIN = 0.15
"""The cut is larger than what it is about by this share."""
LEAST = 0.35
"""Smallest side of a cut, as a share of the image's shorter side."""
_STEPS = 1024  # of a side, between which cuts lie


def crop_to_attention(
    backbone: Backbone, images: ImageStore, folder: Path, *, device: str | torch.device, progress: bool = False
) -> ImageStore:
    """The same images, cut from their files to what the backbone looks at, in the store in `folder`.

    Where it looks is kept there too: who looks again with the same backbone need not wait.
    """
    eye, shown = saliency(backbone), ResizedImages(images)
    name = hashlib.sha256(f"{eye.fingerprint()} {shown.key}".encode()).hexdigest()[:16]
    file = folder / f"saliency-{name}.npy"
    try:
        with nullcontext() if file.exists() else locked(folder):  # a store that lacks nothing may be read-only
            maps = embed(eye, shown, file, device=device, progress=progress, doing="looking")
    except OSError as error:
        raise InputError(f"cannot use the image store {folder}: {error.strerror or error}") from error
    side = round(maps.shape[1] ** 0.5)
    boxes = boxes_around(np.asarray(maps).reshape(-1, side, side), images.shapes)
    # Last bits differ from machine to machine: nothing is cut again for them.
    return cut_to(images, folder, (boxes * _STEPS).round() / _STEPS, progress=progress)


def cut_to(images: ImageStore, folder: Path, boxes: Array, *, progress: bool = False) -> ImageStore:
    """The same images, cut to boxes `(n, 4)`."""
    return ImageStore.build(images.table, folder, size=images.size, boxes=boxes, strict=True, progress=progress)


class ResizedImages:
    """Stored images as a whole, squeezed into a square: nothing at their sides is missed."""

    def __init__(self, store: ImageStore) -> None:
        self.store, self.key = store, f"{store.key} resized"

    def __len__(self) -> int:
        return len(self.store)

    def centre_crops(self, rows: Array, crop: int) -> Tensor:
        """Whole images: uint8 `(n, 3, crop, crop)`, channels last in memory."""

        def one(row: int) -> Array:
            return np.asarray(Image.fromarray(self.store[row]).resize((crop, crop), Image.Resampling.BICUBIC))

        with ThreadPoolExecutor() as pool:
            return torch.from_numpy(np.stack(list(pool.map(one, rows)))).permute(0, 3, 1, 2)


def boxes_around(maps: Array, shapes: Array) -> Array:
    """Boxes `(n, 4)`, left, top, right and bottom as shares of width and height, around what maps `(n, g, g)` point at.

    A box is a square in pixels, as far as the image of `shapes` (height, width) has room for one. A map that points
    nowhere gives a box of nearly the whole image.
    """
    weights = maps.astype(np.float64) + 1e-12
    size = shapes[:, ::-1].astype(np.float64)  # width, height
    low, high = (
        np.stack([_quantile(weights.sum(axis), share) for axis in (1, 2)], axis=1) * size
        for share in (OUTSIDE, 1 - OUTSIDE)
    )
    side = np.maximum((high - low).max(1) * (1 + MARGIN), LEAST * size.min(1))
    extent = np.minimum(side[:, None], size)
    corner = np.clip((low + high - extent) / 2, 0, size - extent)
    return np.concatenate([corner / size, (corner + extent) / size], axis=1).clip(0, 1)


def _quantile(weights: Array, share: float) -> Array:
    """Where, from 0 to 1, so much of weights `(n, g)` lies before it."""
    reached = weights.cumsum(1) / weights.sum(1, keepdims=True)
    cell = np.minimum((reached < share).sum(1), weights.shape[1] - 1)
    rows = np.arange(len(weights))
    before = np.where(cell > 0, reached[rows, cell - 1], 0.0)
    within = (share - before) / np.maximum(reached[rows, cell] - before, 1e-12)
    place: Array = (cell + within.clip(0, 1)) / weights.shape[1]
    return place
