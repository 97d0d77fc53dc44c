"""An epoch of random crops from a store on disk, with and without windows: time, and how much of the file is in memory.

The store is synthetic: one file of noise, dropped from the page cache before every epoch. Two crops are cut from each
image as in training, but no network runs on them. `mapped_mib` is the peak of what the process had mapped of the file.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from common import save
from selex.data.crops import AugmentConfig, CropParams, HostImages
from selex.data.store import ImageStore
from selex.training.batches import sample_epoch
from selex.training.windows import Windows

SIDE, CROP, BATCH = 256, 224, 128


def make_store(file: Path, n: int) -> ImageStore:
    """A store of n images of noise, mapped from a file."""
    noise = np.random.default_rng(0).integers(0, 256, (64, SIDE, SIDE, 3), dtype=np.uint8)
    with file.open("wb") as out:
        for start in range(0, n, len(noise)):
            out.write(noise[: n - start].tobytes())
    one = ImageStore.in_memory(list(noise[:1]), SIDE)
    shapes, offsets = np.full((n, 2), SIDE), np.arange(n) * noise[0].size
    pixels = np.asarray(np.memmap(file, dtype=np.uint8, mode="r"))
    return replace(one, rows=np.arange(n), pixels=pixels, shapes=shapes, offsets=offsets, _checked=set(range(n)))


def forget(file: Path) -> None:
    """Drop a file from the system's cache."""
    with file.open("rb") as stream:
        os.fsync(stream.fileno())
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def mapped(file: Path) -> int:
    """Bytes of a mapped file that this process holds."""
    held, counting = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            counting = line.endswith(str(file))
        elif counting and line.startswith("Rss:"):
            held += 1024 * int(line.split()[1])
    return held


def epoch(file: Path, n: int, window: int | None) -> dict[str, Any]:
    images = HostImages(make_store(file, n))
    forget(file)
    rng, generator, most = np.random.default_rng(0), torch.Generator().manual_seed(0), 0
    windows = Windows(images, window)
    start = time.perf_counter()
    order = windows.ordered(sample_epoch(np.full(n, -1), rng), rng)
    for step in range(n // BATCH):
        rows = order[step * BATCH : (step + 1) * BATCH]
        windows.read_ahead(rows)
        images.crops(np.tile(rows, 2), CropParams.draw(2 * BATCH, AugmentConfig(), generator), CROP)
        most = max(most, mapped(file))
    took = time.perf_counter() - start
    return {"s": round(took, 1), "images_a_s": round(n / took), "mapped_mib": most >> 20}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--windows", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--folder", help="where the file is created, 196,608 bytes per image")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found: list[dict[str, object]] = []
    for window in (None, *options.windows):
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            took = epoch(Path(folder) / "images", options.images, window)
        size = options.images * SIDE * SIDE * 3 >> 20
        found.append({"images": options.images, "file_mib": size, "window": window or "all", **took})
        print(found[-1], flush=True)
    save("stream_epoch", found, options.out, quiet=True)
