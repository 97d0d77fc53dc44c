"""What Ray costs on one machine: images decoded and embedded by the plain path and by a local Ray with one worker.

Two numbers of images tell what is paid once (Ray starts, actors load) and what every image takes; from these the
overhead on 20,000 images is worked out, which the last rows say is not measured. Images are noise of 320 × 240 as JPEG.
Each measurement is a process of its own with a cache of its own; one thread embeds in both. `cpu_s` are the seconds of
a core that all processes took, Ray's own among them, and `worker_cpu_s` those of the one that decodes and embeds, which
hardly depend on what else the machine does. Ray's other processes work beside it, on another core, for as long as it
runs: `others_cores` is how many cores they take, apart from what they take once, and `alone_cpu_s` what all would take
on a machine that does nothing else, where embedding is over as soon as its core seconds are.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

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


def embed_all(engine: str, photos: Path, backbone_name: str, work: Path) -> tuple[float, float, float]:
    """Seconds, and seconds of a core, of all and of who embeds, from a folder of images to a file of features.

    Imports of torch are not counted in this process.
    """
    import torch

    from selex.data.store import ImageStore
    from selex.data.table import read_table
    from selex.features.embed import embed
    from selex.features.ray_cluster import RayEngine, running
    from selex.features.ray_embed import embed_on_ray
    from selex.models.backbones import load_backbone

    torch.set_num_threads(1)
    backbone, device = load_backbone(backbone_name), torch.device("cpu")
    start, before = time.perf_counter(), time.process_time()
    if engine == "ray":
        with running(RayEngine(workers=1), device):  # which stays until its processes have been counted
            how: dict[str, Any] = {"size": 256, "views": 1, "device": device}
            embed_on_ray(RayEngine(workers=1), backbone, [str(photos)], None, work / "features.npy", **how)
            others, worker = cpu_of_children(), cpu_of_children("MapWorker")
    else:
        images = ImageStore.build(read_table(photos), work / "store", size=256)
        embed(backbone, images, work / "features.npy", device="cpu")
        others, worker = 0.0, time.process_time() - before
    return time.perf_counter() - start, time.process_time() - before + others, worker


def cpu_of_children(name: str = "") -> float:
    """Seconds of a core of processes below this one with this name, and of those that they have outlived."""
    import psutil  # type: ignore[import-untyped]

    found = [one for one in psutil.Process().children(recursive=True) if name in " ".join(one.cmdline())]
    return float(sum(sum(process.cpu_times()[:4]) for process in found))


def measure(engine: str, photos: Path, backbone: str) -> tuple[float, ...]:
    with tempfile.TemporaryDirectory() as work:
        command = [sys.executable, __file__, "--photos", str(photos), "--engine", engine, "--backbone", backbone]
        environment = {**os.environ, "SELEX_CACHE": f"{work}/cache", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [*command, "--work", work], env=environment, stdout=subprocess.PIPE, text=True, check=True
        )
    return tuple(map(float, done.stdout.split()[-3:]))


def worked_out(counts: list[int], times: list[float]) -> tuple[float, float, float]:
    """What is paid once, what for every image, and what many images take."""
    each = (times[1] - times[0]) / (counts[1] - counts[0])
    once = times[0] - each * counts[0]
    return once, each, once + each * MANY


def main(counts: list[int], backbone: str, out: Path | None) -> None:
    entries: list[dict[str, object]] = []
    took: dict[str, list[tuple[float, ...]]] = {"local": [], "ray": []}
    with tempfile.TemporaryDirectory() as name:
        for n in counts:
            photos = Path(name) / str(n)
            write_images(photos, n)
            for engine, times in took.items():
                times.append(measure(engine, photos, backbone))
                found = dict(zip(("s", "cpu_s", "worker_cpu_s"), (round(time, 2) for time in times[-1]), strict=True))
                entries.append({"what": "measured", "engine": engine, "images": n, **found})
                print(entries[-1], flush=True)
    ways = [{engine: worked_out(counts, [one[i] for one in took[engine]]) for engine in took} for i in range(3)]
    others = [cpu - worker for _, cpu, worker in took["ray"]]
    cores = (others[1] - others[0]) / (took["ray"][1][0] - took["ray"][0][0])
    embedding = ways[2]["ray"][2]
    alone = embedding * (1 + cores) + others[0] - cores * took["ray"][0][0]
    for engine in took:
        entry: dict[str, object] = {"what": "worked out", "engine": engine, "images": MANY}
        for kind, way in zip(("", "cpu_", "worker_cpu_"), ways, strict=True):
            once, each, total = way[engine]
            entry |= {
                f"{kind}s": round(total),
                f"{kind}once_s": round(once, 2),
                f"{kind}ms_an_image": round(1000 * each, 2),
            }
            if engine == "ray":
                entry[f"{kind}overhead_percent"] = round(100 * (total / way["local"][2] - 1), 1)
        entries.append(entry)
    entries[-1] |= {
        "others_cores": round(cores, 3),
        "alone_cpu_s": round(alone),
        "alone_overhead_percent": round(100 * (alone / ways[1]["local"][2] - 1), 1),
    }
    save("ray_overhead", [{"backbone": backbone, **entry} for entry in entries], out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, nargs=2, default=[256, 1280])
    parser.add_argument("--backbone", default="efficientnet-lite1")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--engine", choices=["local", "ray"], help=argparse.SUPPRESS)
    parser.add_argument("--photos", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.engine:
        print(*embed_all(options.engine, options.photos, options.backbone, options.work))
    else:
        main(options.images, options.backbone, options.out)
