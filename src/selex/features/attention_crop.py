"""Attention crops: where a network looks in an image, and the image cut to that.

Things are often small in a photo. A backbone shows where they are, without having been told: the class token of a
vision transformer attends to them, the maps of a convolutional network respond to them.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from selex.data.crops import digest_of
from selex.data.store import ImageStore
from selex.errors import InputError
from selex.features.cache import FeatureCache
from selex.features.embed import embed, feature_cache
from selex.models.network import Backbone
from selex.models.trunk import VitStem, only_class_token

if TYPE_CHECKING:
    from timm.models.vision_transformer import VisionTransformer


class Attention(nn.Module):
    """How much the class token attends to each patch in the last block of a vision transformer, mean over heads."""

    def __init__(self, network: VisionTransformer) -> None:
        super().__init__()
        self.stem = VitStem(network, len(network.blocks) - 1)
        self.block: Any = network.blocks[-1]
        self.prefix = network.num_prefix_tokens

    def forward(self, images: Tensor) -> Tensor:
        """Maps of scaled images."""
        tokens = self.block.norm1(self.stem(images))
        attention = self.block.attn
        n, t = tokens.shape[:2]
        query, key, _ = attention.qkv(tokens).view(n, t, 3, attention.num_heads, -1).transpose(1, 3).unbind(2)
        query, key = attention.q_norm(query[:, :, :1]), attention.k_norm(key)
        shares: Tensor = (query @ key.transpose(-1, -2) * attention.scale).float().softmax(-1)
        return shares.mean(1)[:, 0, self.prefix :]


class Response(nn.Module):
    """How strongly a convolutional network's last maps respond at each place, beyond their mean; squared."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network: Any = network

    def forward(self, images: Tensor) -> Tensor:
        """Maps of scaled images."""
        strength: Tensor = self.network.forward_features(images).float().norm(dim=1).flatten(1)
        return (strength - strength.mean(1, keepdim=True)).clamp(min=0).square()


def saliency(backbone: Backbone) -> Backbone:
    """A backbone whose feature is the map of where the given one looks; they share their weights."""
    network = _saliency_of(backbone)
    with torch.no_grad():
        dim = network(backbone.mean.new_zeros(1, 3, backbone.crop, backbone.crop)).shape[1]
    mean, std = (tuple(tensor.flatten().tolist()) for tensor in (backbone.mean, backbone.std))
    name = f"saliency of {backbone.name}"
    eye = Backbone(name, network, dim=dim, crop=backbone.crop, mean=mean, std=std, weights=backbone.weights)
    return eye.to(backbone.mean.device).eval()


def _saliency_of(backbone: Backbone) -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer

    network: Any = backbone.network
    if type(network) is VisionTransformer and backbone.weights is not None and only_class_token(network):
        return Attention(network)
    if backbone.layout is torch.channels_last and _has_maps(backbone):
        return Response(network)
    raise InputError(f"backbone {backbone.name} does not show what it attends to; leave --attention-crop out")


@torch.no_grad()
def _has_maps(backbone: Backbone) -> bool:
    """Whether what the network pools are maps (n, d, g, g): some that convolve end with tokens, or several outputs."""
    network: Any = backbone.network
    if not hasattr(network, "forward_features"):
        return False
    maps = network.forward_features(backbone.mean.new_zeros(1, 3, backbone.crop, backbone.crop))
    return isinstance(maps, Tensor) and maps.ndim == 4 and maps.shape[2] == maps.shape[3]


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

    Where it looks is kept in the cache, image by image: who looks again with the same backbone need not wait.
    """
    eye = saliency(backbone)
    boxes = attention_boxes(eye, images, device=device, progress=progress, cache=feature_cache(eye, device))
    return cut_to(images, folder, boxes, progress=progress)


def attention_boxes(
    eye: Backbone,
    images: ImageStore,
    *,
    device: str | torch.device,
    progress: bool = False,
    cache: FeatureCache | None = None,
) -> Array:
    """Boxes `(n, 4)` around what is looked at in each image; `eye` is the `saliency` of a backbone."""
    shown = ResizedImages(images)
    maps = embed(eye, shown, device=device, progress=progress, doing="locating", cache=cache)
    side = round(maps.shape[1] ** 0.5)
    boxes = boxes_around(np.asarray(maps).reshape(-1, side, side), images.shapes)
    return (boxes * _STEPS).round() / _STEPS  # last bits differ by machine: nothing is cut again for them


def cut_to(images: ImageStore, folder: Path, boxes: Array, *, progress: bool = False) -> ImageStore:
    """The same images, cut to boxes `(n, 4)`."""
    return ImageStore.build(images.table, folder, size=images.size, boxes=boxes, strict=True, progress=progress)


class ResizedImages:
    """Stored images as a whole, squeezed into a square: nothing at their sides is missed."""

    def __init__(self, store: ImageStore) -> None:
        self.store, self.key = store, f"{store.key} resized"
        self.digests = digest_of(b"resized", store.digests)

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
    return (cell + within.clip(0, 1)) / weights.shape[1]
