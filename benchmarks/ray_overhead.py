"""Ray on one machine against the plain path: `selex discover` of the same photos with both engines, in turn.

Each starts with an empty cache and uses all cores (or `OMP_NUM_THREADS`). What is counted is the whole command, less
the step that clusters, which is the same in both. Some photos and all of them tell the start from the rate. Seconds of
a core, with clustering, and memory are those of all processes of a command together, looked at twice a second; memory
that is shared counts once, mapped files do not.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from common import save
from decode import make_photos
from selex.folders import cache_folder
from selex.models.backbones import load_backbone
from selex.runs.run import METRICS

FEW = 256
ENGINES = ("local", "ray")


class Tree:
    """What a process and all below it take."""

    def __init__(self, pid: int) -> None:
        self.top, self.peak_kb = psutil.Process(pid), 0
        self.cores: dict[psutil.Process, float] = {}

    def look(self) -> None:
        """Once more: what is taken now, and what was taken so far."""
        now = 0
        for process in (self.top, *self.top.children(recursive=True)):
            try:
                self.cores[process] = sum(process.cpu_times()[:2])
                told = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
            except (psutil.Error, OSError):
                continue  # it has just ended
            now += sum(int(kb) for kb in re.findall(r"Pss_(?:Anon|Shmem): +(\d+)", told))
        self.peak_kb = max(self.peak_kb, now)


def measure(engine: str, photos: Path, backbone: str) -> dict[str, object]:
    """What one command takes."""
    with tempfile.TemporaryDirectory() as work:
        clustering = ["--categories", "10", "--refine", "none", "--set", "cluster.search=bssk"]
        command = [sys.executable, "-m", "selex", "discover", str(photos), "--engine", engine, "--device", "cpu"]
        command += ["--backbone", backbone, *clustering, "--out", f"{work}/run"]
        weights = os.environ.get("SELEX_WEIGHTS") or str(cache_folder() / "weights")
        start = time.perf_counter()
        env = {**os.environ, "SELEX_CACHE": f"{work}/cache", "SELEX_WEIGHTS": weights}
        with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL) as child:
            tree = Tree(child.pid)
            while child.poll() is None:
                tree.look()
                time.sleep(0.5)
        took = time.perf_counter() - start
        if child.returncode:
            sys.exit(f"error: {engine} failed")
        steps = [json.loads(line) for line in Path(work, "run", METRICS).read_text().splitlines()]
    took -= sum(step["seconds"] for step in steps if step.get("step") == "cluster")
    return {"s": round(took, 1), "core_s": round(sum(tree.cores.values()), 1), "peak_mib": tree.peak_kb // 1024}


def summary(found: list[dict[str, object]], images: int) -> list[dict[str, object]]:
    """Of each engine the start and the rate, medians over rounds; and how much longer Ray takes."""
    told: list[dict[str, object]] = []
    for engine in ENGINES:
        few, all_s = (
            statistics.median(float(str(one["s"])) for one in found if (one["engine"], one["images"]) == (engine, n))
            for n in (FEW, images)
        )
        each = (all_s - few) / (images - FEW)
        told.append({"what": "median", "engine": engine, "images": images, "s": round(all_s, 1)})
        told[-1] |= {"start_s": round(few - FEW * each, 1), "ms_a_photo": round(1000 * each, 2)}
    plain, ray = (float(str(one["s"])) for one in told)
    told[-1]["overhead_percent"] = round(100 * (ray / plain - 1), 1)
    return told


def main(images: int, rounds: int, backbone: str, out: Path | None) -> None:
    load_backbone(backbone)  # fetches weights that are not here
    found: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as name:
        folders = {n: Path(name) / str(n) for n in (FEW, images)}
        for n, folder in folders.items():
            folder.mkdir()
            make_photos(folder, n)
        for number in range(rounds):
            for n, folder in folders.items():
                for engine in ENGINES:
                    about = {"round": number, "engine": engine, "images": n, "cores": os.cpu_count()}
                    found.append({"what": "measured", **about, **measure(engine, folder, backbone)})
                    print(found[-1], flush=True)
            entries = [{"backbone": backbone, **one} for one in (*found, *summary(found, images))]
            save("ray_overhead", entries, out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=20_000, help=f"more than {FEW}")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--backbone", default="efficientnet-lite1")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    main(options.images, options.rounds, options.backbone, options.out)
