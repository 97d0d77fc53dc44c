"""Stored images on a GPU, and crops of many of them cut in one operation there.

Shapes: n images of a batch, flat pixels of all images one after the other as height × width × 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from selex.data.store import ImageStore

_BLOCK = 256 << 20  # bytes copied to the device at a time


def cut(pixels: Tensor, offsets: Tensor, widths: Tensor, top: Tensor, left: Tensor, crop: int) -> Tensor:
    """Crops `(n, 3, crop, crop)` of the images that start at `offsets`, from the corners `top`, `left`."""
    side = torch.arange(crop, device=pixels.device)
    row = (top[:, None] + side) * widths[:, None]  # n × crop
    pixel = row[:, :, None] + (left[:, None] + side)[:, None, :]  # n × crop × crop
    channel = torch.arange(3, device=pixels.device)[None, :, None, None]
    return pixels[offsets[:, None, None, None] + 3 * pixel[:, None] + channel]


class DeviceImages:
    """The images of a store in a device's memory: cropping costs no copy from the host. Same use as the store."""

    def __init__(self, store: ImageStore, device: str | torch.device) -> None:
        self.key, self.size = store.key, store.size
        lengths = 3 * store.shapes.astype(np.int64).prod(1)
        starts = np.cumsum(lengths) - lengths
        self.pixels = torch.empty(int(lengths.sum()), dtype=torch.uint8, device=device)
        for first, last in _blocks(lengths):
            block = np.concatenate([store[i].reshape(-1) for i in range(first, last)])
            self.pixels[starts[first] : starts[first] + len(block)] = torch.from_numpy(block).to(device)
        self.offsets = torch.from_numpy(starts).to(device)
        self.shapes = torch.from_numpy(store.shapes.astype(np.int64)).to(device)

    def __len__(self) -> int:
        return len(self.offsets)

    def centre_crops(self, rows: Sequence[int] | np.ndarray[Any, Any], crop: int = 224) -> Tensor:
        """The middle of some images: uint8 `(n, 3, crop, crop)` on the device."""
        index = torch.as_tensor(np.asarray(rows)).to(self.pixels.device)
        corner = (self.shapes[index] - crop).double().div(2).round().long()  # as the store does
        return cut(self.pixels, self.offsets[index], self.shapes[index, 1], corner[:, 0], corner[:, 1], crop)

    @staticmethod
    def fit(store: ImageStore, device: torch.device) -> bool:
        """Whether the images take less than half the memory that the device has free."""
        if device.type != "cuda":
            return False
        free, _ = torch.cuda.mem_get_info(device)
        return int(3 * store.shapes.astype(np.int64).prod(1).sum()) < free // 2


def _blocks(lengths: np.ndarray[Any, Any]) -> list[tuple[int, int]]:
    """Ranges of images of about `_BLOCK` bytes each."""
    block = (np.cumsum(lengths) - 1) // _BLOCK
    edges = [0, *(np.flatnonzero(np.diff(block)) + 1).tolist(), len(lengths)]
    return list(pairwise(edges))
