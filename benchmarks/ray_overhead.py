"""Ray on one machine compared with the plain path: `selex discover` of the same photos with both engines, in turn.

Each run starts with an empty cache and uses all cores (or `OMP_NUM_THREADS`). Time is that of the whole command except
clustering, which is the same for both; measuring a part of the photos and all of them separates the start-up from the
rate. CPU seconds (with clustering) and memory are summed over all processes of a command; shared memory counts once,
mapped files do not count. Since reading memory takes longer the more processes there are, it is read just so often that
it costs a hundredth of a core with either engine.
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
from contextlib import suppress
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from common import save
from decode import make_photos
from selex.folders import cache_folder
from selex.models.backbones import load_backbone
from selex.runs.run import METRICS

FEW = 256
ENGINES = ("local", "ray")
SHARE = 0.01
"""Of a core, for looking at memory."""


class Tree:
    """What a process and all below it take."""

    def __init__(self, pid: int) -> None:
        self.top, self.peak_kb = psutil.Process(pid), 0
        self.cores: dict[psutil.Process, float] = {}
        self.since, self.spent = time.perf_counter(), 0.0

    def look(self) -> None:
        """Once more: what is taken now, and what was taken so far."""
        processes = (self.top, *self.top.children(recursive=True))
        for process in processes:
            with suppress(psutil.Error):  # it has just ended
                self.cores[process] = sum(process.cpu_times()[:2])
        if self.spent <= SHARE * (time.perf_counter() - self.since):
            before = time.process_time()
            self.peak_kb = max(self.peak_kb, sum(memory_kb(process.pid) for process in processes))
            self.spent += time.process_time() - before


def memory_kb(pid: int) -> int:
    """What a process holds, its share of what it shares; 0 if it has just ended."""
    try:
        told = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return sum(int(kb) for kb in re.findall(r"Pss_(?:Anon|Shmem): +(\d+)", told))


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
                with suppress(subprocess.TimeoutExpired):
                    child.wait(1)
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
