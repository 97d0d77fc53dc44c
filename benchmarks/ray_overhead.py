"""What Ray costs on one machine: images decoded and embedded by the plain path and by a local Ray with one worker.

Two numbers of images tell what is paid once (Ray starts, actors load) and what every image takes; from these the
overhead on 20,000 images is worked out, which the last rows say is not measured. Images are noise of 320 × 240 as JPEG.
Each measurement is a process of its own with a cache of its own; one thread embeds in both.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from common import save

MANY = 20_000


def write_images(folder: Path, n: int) -> None:
    rng = np.random.default_rng(0)
    folder.mkdir()
    for number in range(n):
        small = Image.fromarray(rng.integers(0, 256, (30, 40, 3), dtype=np.uint8))
        small.resize((320, 240), Image.Resampling.BICUBIC).save(folder / f"{number:06d}.jpg", quality=90)


def embed_all(engine: str, photos: Path, backbone_name: str, work: Path) -> float:
    """Seconds from a folder of images to a file of features; imports aside."""
    import torch

    from selex.data.store import ImageStore
    from selex.data.table import read_table
    from selex.features.embed import embed
    from selex.features.ray_cluster import RayEngine
    from selex.features.ray_embed import embed_on_ray
    from selex.models.backbones import load_backbone

    torch.set_num_threads(1)
    backbone = load_backbone(backbone_name)
    start = time.perf_counter()
    if engine == "ray":
        how = {"size": 256, "views": 1, "device": "cpu"}
        embed_on_ray(RayEngine(workers=1), backbone, [str(photos)], None, work / "features.npy", **how)  # type: ignore[arg-type]
    else:
        images = ImageStore.build(read_table(photos), work / "store", size=256)
        embed(backbone, images, work / "features.npy", device="cpu")
    return time.perf_counter() - start


def measure(engine: str, photos: Path, backbone: str) -> float:
    with tempfile.TemporaryDirectory() as work:
        command = [sys.executable, __file__, "--photos", str(photos), "--engine", engine, "--backbone", backbone]
        environment = {**os.environ, "SELEX_CACHE": f"{work}/cache", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [*command, "--work", work], env=environment, stdout=subprocess.PIPE, text=True, check=True
        )
    return float(done.stdout.split()[-1])


def main(counts: list[int], backbone: str, out: Path | None) -> None:
    entries: list[dict[str, object]] = []
    took: dict[str, list[float]] = {"local": [], "ray": []}
    with tempfile.TemporaryDirectory() as name:
        for n in counts:
            photos = Path(name) / str(n)
            write_images(photos, n)
            for engine, times in took.items():
                times.append(measure(engine, photos, backbone))
                entries.append({"what": "measured", "engine": engine, "images": n, "s": round(times[-1], 2)})
                print(entries[-1], flush=True)
    for engine, times in took.items():
        each = (times[1] - times[0]) / (counts[1] - counts[0])
        once = times[0] - each * counts[0]
        more = {"once_s": round(once, 2), "images_a_s": round(1 / each, 2)}
        entries.append({"what": "worked out", "engine": engine, "images": MANY, "s": round(once + each * MANY), **more})
    plain, ray = (float(str(entry["s"])) for entry in entries[-2:])
    entries[-1]["overhead_percent"] = round(100 * (ray / plain - 1), 1)
    save("ray_overhead", [{"backbone": backbone, **entry} for entry in entries], out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, nargs=2, default=[256, 1024])
    parser.add_argument("--backbone", default="efficientnet-lite1")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--engine", choices=["local", "ray"], help=argparse.SUPPRESS)
    parser.add_argument("--photos", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.engine:
        print(embed_all(options.engine, options.photos, options.backbone, options.work))
    else:
        main(options.images, options.backbone, options.out)
