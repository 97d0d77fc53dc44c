"""What a job needs before it starts: its backbone, the size of stored images, and where these are stored."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import torch

from selex.config import Config
from selex.errors import InputError
from selex.features.attention_crop import saliency
from selex.folders import cache_folder, check_outside
from selex.models.backbones import default_backbone, load_backbone
from selex.models.network import Backbone


def load_backbone_for(config: Config, device: str | torch.device) -> tuple[Backbone, Config]:
    """The backbone of a config, and the config with what follows from it: pixels it looks at, size of stored images."""
    asked = config.features
    name = asked.backbone or default_backbone(device)
    backbone = load_backbone(name, device, asked.weights, asked.crop)
    if asked.attention_crop:
        saliency(backbone)  # one that does not show where it looks is refused before any work is done
    size = config.data.size or _stored_size(backbone)
    if size < backbone.crop:
        raise InputError(f"size {size} is less than the {backbone.crop} pixels that {backbone.name} needs")
    return backbone, config.change(backbone=name, crop=backbone.crop, size=size)


def _stored_size(backbone: Backbone) -> int:
    """Shorter side at which images are stored: 256 for a crop of 224 as in the paper, and in proportion."""
    if not any(True for _ in backbone.parameters()):
        return backbone.crop  # pixels are compared as they are
    return 256 if 224 <= backbone.crop <= 256 else round(backbone.crop * 8 / 7)


def store_for(store: str | Path | None, photos: Any, root: str, size: int) -> Path:
    """Where decoded images go: the folder asked for, not inside a folder of photos, else one in the cache."""
    if store is None:
        return cached_store(root, size)
    for source in photos if isinstance(photos, list) else [photos]:
        check_outside(Path(store), source, "a --store")
    return Path(store)


def cached_store(root: str, size: int) -> Path:
    """Where decoded images of a folder are kept between commands: in the cache, a store for each folder."""
    return cache_folder() / "images" / f"{hashlib.sha256(os.fsencode(root)).hexdigest()[:16]}-{size}"
