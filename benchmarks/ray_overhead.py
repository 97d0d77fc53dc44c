"""What Ray costs on one machine, against the plain path, in seconds of a core, which depend little on other work there.

What is paid once, by the second and by the photo is told apart, with a network that takes nothing (`pixels`): some
photos, more of them, and the first ones again with a network that waits. A parent counts what a command and all
processes below it take. What a real network takes in an actor and in a plain process is measured in turn, batch by
batch. Medians over rounds, in each of which everything is measured once.

From these the overhead on 20,000 photos is worked out, not measured, on so many cores that both engines use entirely:
Ray's own processes take their part of them, and what is paid once is taken to keep all of them waiting. Photos are
noise of 320 × 240 as JPEG. One thread embeds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from common import save
from selex.models.backbones import load_backbone
from selex.models.network import Backbone

MANY = 20_000
FEW, MORE = 256, 1280
WAIT = 0.2
"""Seconds for each photo of a network that waits."""
BATCH = 32
CORES = (1, 2, 16)


def write_images(folder: Path, n: int) -> None:
    rng = np.random.default_rng(0)
    folder.mkdir()
    for number in range(n):
        small = Image.fromarray(rng.integers(0, 256, (30, 40, 3), dtype=np.uint8))
        small.resize((320, 240), Image.Resampling.BICUBIC).save(folder / f"{number:06d}.jpg", quality=90)


class Waiting(torch.nn.Module):
    """Another network, after a while."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Features, late."""
        time.sleep(WAIT * len(images))
        features: torch.Tensor = self.network(images)
        return features


def embed_all(engine: str, photos: Path, work: Path) -> None:
    """From a folder of photos to a file of features: what a child does whose core seconds are counted."""
    from selex.data.store import ImageStore
    from selex.data.table import read_table
    from selex.features.embed import embed
    from selex.features.ray_cluster import RayEngine
    from selex.features.ray_embed import embed_on_ray

    backbone = load_backbone("pixels")
    if engine == "local":
        embed(backbone, ImageStore.build(read_table(photos), work / "store", size=256), work / "f.npy", device="cpu")
        return
    if engine == "ray waiting":
        backbone.network = Waiting(backbone.network)
    embed_on_ray(RayEngine(workers=1), backbone, [str(photos)], None, work / "f.npy", size=256, views=1, device="cpu")


def counted(engine: str, photos: Path) -> tuple[float, float]:
    """Seconds, and seconds of a core of a child and of all processes below it, to a quarter of a second of each."""
    import psutil  # type: ignore[import-untyped]

    took: dict[tuple[int, float], float] = {}
    with tempfile.TemporaryDirectory() as work:
        command = [sys.executable, __file__, "--engine", engine, "--photos", str(photos), "--work", work]
        start = time.perf_counter()
        child = subprocess.Popen(command, env={**os.environ, "SELEX_CACHE": f"{work}/cache", "OMP_NUM_THREADS": "1"})
        top = psutil.Process(child.pid)
        while child.poll() is None:
            try:
                for process in (top, *top.children(recursive=True)):
                    took[process.pid, process.create_time()] = sum(process.cpu_times()[:2])
            except psutil.Error:
                pass  # it has just ended
            time.sleep(0.25)
    if child.returncode:
        sys.exit(f"error: {engine} failed")
    return time.perf_counter() - start, sum(took.values())


def one_round(few: Path, more: Path) -> dict[str, float]:
    """What is paid once, by the second and by the photo, in seconds of a core."""
    local, local_more = counted("local", few)[1], counted("local", more)[1]
    (time_few, ray), (time_more, ray_more) = counted("ray", few), counted("ray", more)
    time_late, ray_late = counted("ray waiting", few)
    second = (ray_late - ray) / (time_late - time_few)
    photo = (ray_more - ray - second * (time_more - time_few)) / (MORE - FEW)
    photo_local = (local_more - local) / (MORE - FEW)
    once = ray - local - second * time_few - FEW * (photo - photo_local)
    return {"once_s": once, "second": second, "photo_ms": 1000 * photo, "photo_local_ms": 1000 * photo_local}


def network_here_and_there(name: str, rounds: int) -> dict[str, float]:
    """What a photo takes of a core in the network: in this process, and in an actor of Ray that embeds, in turn."""
    import ray

    from selex.data.store import ImageStore
    from selex.features.embed import embed
    from selex.features.ray_cluster import RayEngine, running

    torch.set_num_threads(1)
    pixels = np.random.default_rng(0).integers(0, 256, (BATCH, 256, 341, 3), dtype=np.uint8)

    class Embedder:
        def __init__(self, backbone: Backbone) -> None:
            torch.set_num_threads(1)
            self.backbone = backbone

        def took(self) -> float:
            images, start = ImageStore.in_memory(list(pixels), 256), time.process_time()
            embed(self.backbone, images, device="cpu")
            return 1000 * (time.process_time() - start) / BATCH

    backbone = load_backbone(name)
    with running(RayEngine(workers=1), torch.device("cpu")):
        here, there = Embedder(backbone), ray.remote(num_cpus=1)(Embedder).remote(backbone)
        pairs = [(here.took(), ray.get(there.took.remote())) for _ in range(rounds + 1)][1:]
    ratio = statistics.median(in_actor / plain for plain, in_actor in pairs)
    return {"network_ms": statistics.median(plain for plain, _ in pairs), "network_in_actor": ratio}


def worked_out(parts: dict[str, float], network: dict[str, float], cores: int) -> dict[str, object]:
    """Seconds that 20,000 photos take on cores that do nothing else, without Ray and with it."""
    plain = MANY * (parts["photo_local_ms"] + network["network_ms"]) / 1000 / cores
    each = parts["photo_ms"] + network["network_ms"] * network["network_in_actor"]
    ray = parts["once_s"] + MANY * each / 1000 / (cores - parts["second"])
    return {"plain_s": round(plain), "ray_s": round(ray), "overhead_percent": round(100 * (ray / plain - 1), 1)}


def main(rounds: int, backbones: list[str], out: Path | None) -> None:
    entries: list[dict[str, object]] = []
    found: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as name:
        few, more = Path(name) / "few", Path(name) / "more"
        write_images(few, FEW)
        write_images(more, MORE)
        for number in range(rounds):
            found.append(one_round(few, more))
            entries.append({"what": "measured", "round": number, **_rounded(found[-1])})
            print(entries[-1], flush=True)
    parts = {key: statistics.median(one[key] for one in found) for key in found[0]}
    for backbone in backbones:
        network = network_here_and_there(backbone, 4 * rounds)
        entries.append({"what": "measured", "backbone": backbone, **_rounded(network)})
        for cores in CORES:
            result: dict[str, Any] = worked_out(parts, network, cores)
            entries.append({"what": "worked out", "backbone": backbone, "cores": cores, "images": MANY, **result})
    save("ray_overhead", entries, out)


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {key: round(value, 3) for key, value in values.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--backbones", nargs="+", default=["efficientnet-lite1", "dinov2-vits14"])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--engine", choices=["local", "ray", "ray waiting"], help=argparse.SUPPRESS)
    parser.add_argument("--photos", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.engine:
        embed_all(options.engine, options.photos, options.work)
    else:
        main(options.rounds, options.backbones, options.out)
