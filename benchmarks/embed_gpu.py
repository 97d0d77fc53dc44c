"""Embedding throughput of a ViT-B/16 on a GPU, with the image store in GPU memory and random weights."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import numpy as np
import timm
import torch

from common import save, seconds, spread
from selex.data.crops import DeviceImages
from selex.data.store import ImageStore
from selex.features.embed import embed
from selex.models.network import Backbone

N, HEIGHT, WIDTH = 5994, 256, 340


def stored() -> ImageStore:
    """As many images as CUB's train set has, of its usual shape, as the store would hold them."""
    pixels = np.random.default_rng(0).integers(0, 256, (N, HEIGHT, WIDTH, 3), dtype=np.uint8)
    return ImageStore.in_memory(list(pixels), 256)


def vit() -> Backbone:
    network = timm.create_model("vit_base_patch16_224", num_classes=0, global_pool="token")
    mean, std = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
    return Backbone("vit-b16", network, dim=768, crop=224, mean=mean, std=std, weights=None)


def main(out: Path | None) -> None:
    backbone, store = vit().cuda(), stored()
    images = DeviceImages(store, "cuda")
    results: list[dict[str, object]] = []
    for where, source in (("gpu", images), ("host", store)):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        times = seconds(partial(embed, backbone, source, device="cuda"), repeats=5 if where == "gpu" else 2, warmups=2)
        row = {"what": "embed ViT-B/16, bf16", "images": N, "store": where, **spread(times)}
        row["images_per_s"] = round(N / sorted(times)[len(times) // 2])
        row["gb_beside_store"] = round((torch.cuda.max_memory_allocated() - before) / 1e9, 2)
        results.append(row)
        print(row, flush=True)
    save("embed_gpu", results, out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    main(parser.parse_args().out)
