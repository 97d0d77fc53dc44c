"""Stored images on a GPU, and crops of many of them cut in one operation there.

Shapes: n images of a batch, flat pixels of all images one after the other as height × width × 3.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from selex.data.store import ImageStore

_BLOCK = 256 << 20  # bytes copied to the device at a time


@dataclass(frozen=True)
class AugmentConfig:
    """In what random views differ besides where they are cut."""

    flip: bool = True  # half of them are mirrored
    affine: float = 0.0  # random affine maps: they are turned, stretched and sheared by up to so much
    random_crop: float = 0.0  # random resized crops: up to this share of their width and height is cut away
    color_jitter: float = 0.0  # their brightness, contrast and saturation change by up to this share
    attention: bool = False  # half of them are of the attention crop of an image, see `TwoScaleImages`


@dataclass(frozen=True)
class CropParams:
    """Where views are cut and how they are altered, n of them; None alters nothing.

    `maps` lead from places in what is made to places in what is cut, both from -1 to 1, across before down.
    """

    corners: Tensor  # (n, 2), top and left as shares of the room there is
    mirrored: Tensor  # (n,), whether to mirror
    maps: Tensor | None = None  # (n, 2, 3)
    color: Tensor | None = None  # (n, 3), factors of brightness, contrast and saturation
    close: Tensor | None = None  # (n,), whether of the attention crop

    @classmethod
    def draw(cls, n: int, augment: AugmentConfig, generator: torch.Generator) -> CropParams:
        """Random places; the generator is the host's, so that views do not depend on the device."""

        def within_one(*shape: int) -> Tensor:
            return 2 * torch.rand(n, *shape, generator=generator) - 1

        corners = torch.rand(n, 2, generator=generator)
        mirrored = (torch.rand(n, generator=generator) < 0.5) & augment.flip
        maps = torch.eye(2, 3).repeat(n, 1, 1)
        if augment.affine:
            maps[:, :, :2] += augment.affine * within_one(2, 2)
        if augment.random_crop:
            lost = augment.random_crop * torch.rand(n, 1, generator=generator)
            maps[:, :, :2] *= 1 - lost[:, :, None]
            maps[:, :, 2] = lost * within_one(2)  # without an affine map, nothing from outside
        color = 1 + augment.color_jitter * within_one(3) if augment.color_jitter else None
        close = torch.rand(n, generator=generator) < 0.5 if augment.attention else None
        return cls(corners, mirrored, maps if augment.affine or augment.random_crop else None, color, close)

    def __getitem__(self, index: slice | Tensor) -> CropParams:
        return CropParams(*(None if part is None else part[index] for part in self._parts()))  # type: ignore[arg-type]

    @classmethod
    def join(cls, *places: CropParams) -> CropParams:
        """Parameters of several batches of crops, one after the other."""
        parts = zip(*(one._parts() for one in places), strict=True)
        return cls(*(None if part[0] is None else torch.cat(part) for part in parts))  # type: ignore[arg-type]

    def alter(self, views: Tensor) -> Tensor:
        """Views `(n, 3, crop, crop)`, values from 0 to 255, as these parameters have them."""
        if self.maps is not None:
            views = affine(views, self.maps)
        return views if self.color is None else color_jitter(views, self.color)

    def _parts(self) -> tuple[Tensor | None, ...]:
        return tuple(getattr(self, entry.name) for entry in fields(self))

    def corner(self, shapes: Tensor, crop: int) -> Tensor:
        """Top and left `(n, 2)`, in pixels, of crops of images of these shapes."""
        room = shapes - crop + 1
        return torch.minimum((self.corners.to(shapes.device).double() * room).long(), room - 1)


def fixed_crops(n: int, views: int) -> list[CropParams]:
    """The places of n images in each of several views, the same every time.

    One view is the middle, two add its mirror image, ten are the middle and the four corners, each in both ways.
    """
    corners = [(0.5, 0.5)] if views < 10 else [(0.5, 0.5), (0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0)]
    ways = [(corner, mirrored) for corner in corners for mirrored in (False, True)][:views]
    return [CropParams(torch.tensor([corner]).expand(n, 2), torch.full((n,), mirrored)) for corner, mirrored in ways]


def affine(views: Tensor, maps: Tensor) -> Tensor:
    """Views `(n, 3, crop, crop)`, turned, stretched and shifted; what comes in from outside repeats the edge."""
    grid = affine_grid(maps.to(views.device), list(views.shape), align_corners=False)
    return grid_sample(views.float(), grid, padding_mode="border", align_corners=False)


def color_jitter(views: Tensor, color: Tensor) -> Tensor:
    """Views with brightness, then contrast, then saturation multiplied by their three factors."""
    brightness, contrast, saturation = color.to(views.device).T[..., None, None, None]
    bright = views.float() * brightness
    grey = bright.mean((1, 2, 3), keepdim=True)
    sharp = grey + (bright - grey) * contrast
    grey = sharp.mean(1, keepdim=True)
    full: Tensor = grey + (sharp - grey) * saturation
    return full.clamp(0, 255)


def crop_pixels(
    pixels: Tensor,
    offsets: Tensor,
    widths: Tensor,
    top: Tensor,
    left: Tensor,
    crop: int,
    mirrored: Tensor | None = None,
) -> Tensor:
    """Crops `(n, 3, crop, crop)` of the images that start at `offsets`, from the corners `top`, `left`."""
    side = torch.arange(crop, device=pixels.device)
    row = (top[:, None] + side) * widths[:, None]  # n × crop
    across = side.expand(len(top), crop)
    if mirrored is not None:
        across = torch.where(mirrored[:, None], crop - 1 - across, across)
    pixel = row[:, :, None] + (left[:, None] + across)[:, None, :]  # n × crop × crop
    channel = torch.arange(3, device=pixels.device)[None, :, None, None]
    return pixels[offsets[:, None, None, None] + 3 * pixel[:, None] + channel]


class DeviceImages:
    """The images of a store in a device's memory: cropping costs no copy from the host. Same use as the store."""

    def __init__(self, store: ImageStore, device: str | torch.device) -> None:
        self.key, self.digests, self.size = store.key, store.digests, store.size
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
        return crop_pixels(self.pixels, self.offsets[index], self.shapes[index, 1], corner[:, 0], corner[:, 1], crop)

    def crops(self, rows: Tensor | np.ndarray[Any, Any], params: CropParams, crop: int) -> Tensor:
        """Views of some images, one each: uint8 `(n, 3, crop, crop)` on the device."""
        index = torch.as_tensor(rows).to(self.pixels.device)
        corner = params.corner(self.shapes[index], crop)
        mirrored = params.mirrored.to(self.pixels.device)
        offsets, widths = self.offsets[index], self.shapes[index, 1]
        return crop_pixels(self.pixels, offsets, widths, corner[:, 0], corner[:, 1], crop, mirrored)

    @staticmethod
    def fit(stores: Sequence[ImageStore], device: torch.device) -> bool:
        """Whether the images of all stores take less than half the memory that the device has free."""
        if device.type != "cuda":
            return False
        free, _ = torch.cuda.mem_get_info(device)
        return sum(int(3 * store.shapes.astype(np.int64).prod(1).sum()) for store in stores) < free // 2


class HostImages:
    """The images of a store in the host's memory, with the same views."""

    def __init__(self, store: ImageStore) -> None:
        self.store, self.key, self.digests = store, store.key, store.digests

    def __len__(self) -> int:
        return len(self.store)

    def centre_crops(self, rows: Sequence[int] | np.ndarray[Any, Any], crop: int = 224) -> Tensor:
        """The middle of some images: uint8 `(n, 3, crop, crop)`."""
        return self.store.centre_crops(rows, crop)

    def crops(self, rows: Tensor | np.ndarray[Any, Any], params: CropParams, crop: int) -> Tensor:
        """Views of some images, one each: uint8 `(n, 3, crop, crop)`, channels last in memory."""
        index = np.asarray(rows)
        corner = params.corner(torch.from_numpy(self.store.shapes[index].astype(np.int64)), crop).tolist()
        crops = np.empty((len(index), crop, crop, 3), dtype=np.uint8)
        for out, i, (top, left), mirrored in zip(crops, index, corner, params.mirrored.tolist(), strict=True):
            view = self.store[i][top : top + crop, left : left + crop]
            out[:] = view[:, ::-1] if mirrored else view
        return torch.from_numpy(crops).permute(0, 3, 1, 2)


class TwoScaleImages:
    """Images at two scales, whole and cut to what matters: the same images, in the same order, cut in two ways."""

    def __init__(self, whole: DeviceImages | HostImages, close: DeviceImages | HostImages) -> None:
        self.scales = whole, close
        self.key = f"{whole.key} {close.key}"

    @property
    def digests(self) -> np.ndarray[Any, Any]:
        """What tells images from each other, at both scales."""
        return digest_of(b"", *(images.digests for images in self.scales))

    def __len__(self) -> int:
        return len(self.scales[0])

    def centre_crops(self, rows: Sequence[int] | np.ndarray[Any, Any], crop: int = 224) -> Tensor:
        """The middle of some images as a whole: uint8 `(n, 3, crop, crop)`."""
        return self.scales[0].centre_crops(rows, crop)

    def crops(self, rows: Tensor | np.ndarray[Any, Any], params: CropParams, crop: int) -> Tensor:
        """Views of some images, one each, of the scale that the parameters say: uint8 `(n, 3, crop, crop)`."""
        whole, close = self.scales
        if params.close is None:
            return whole.crops(rows, params, crop)
        rows, order = torch.as_tensor(rows), torch.argsort(params.close.int(), stable=True)
        n = int((~params.close).sum())
        parts = [(whole, order[:n]), (close, order[n:])]
        views = torch.cat([images.crops(rows[part], params[part], crop) for images, part in parts])
        return views[torch.argsort(order).to(views.device)]


def digest_of(way: bytes, *digests: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A digest for each row of what was made of images in some way, from the digests of the images."""
    rows = np.stack([part.view(np.uint8).reshape(-1, 16) for part in map(np.ascontiguousarray, digests)], axis=1)
    return np.array([hashlib.blake2b(row, digest_size=16, key=way).digest() for row in rows], dtype="S16")


AnyImages = DeviceImages | HostImages | TwoScaleImages


def scales(images: Any) -> tuple[Any, ...]:
    """The ways in which images are cut: whole and attention crop, or the one there is."""
    return images.scales if isinstance(images, TwoScaleImages) else (images,)


def to_device(store: ImageStore, device: torch.device, cut: ImageStore | None = None) -> AnyImages:
    """Images where training reads them fastest: on the GPU if they fit there, else in the host's memory."""
    stores = [store] if cut is None else [store, cut]
    fit = DeviceImages.fit(stores, device)  # all of them or none: views of both go into one batch
    images = [DeviceImages(store, device) if fit else HostImages(store) for store in stores]
    return images[0] if cut is None else TwoScaleImages(*images)


def _blocks(lengths: np.ndarray[Any, Any]) -> list[tuple[int, int]]:
    """Ranges of images of about `_BLOCK` bytes each."""
    block = (np.cumsum(lengths) - 1) // _BLOCK
    edges = [0, *(np.flatnonzero(np.diff(block)) + 1).tolist(), len(lengths)]
    return list(pairwise(edges))
