"""How many images are embedded, and how long `selex discover` takes, after each kind of change to a collection.

A folder of photos is sorted once. Then photos are added, removed, renamed and set aside, and settings change.
CPU time hardly depends on other load on the machine. `--rows` sets the size of a test of the cache alone: looking up
that many feature rows with a few new ones among them. `--many` instead adds a few photos to that many tiny ones (8 × 8
pixels, 100 kinds, pixels as features): wall and CPU time of `selex discover RUN --add FOLDER`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from common import save
from decode import make_photos
from selex.config import Config
from selex.discovery import discover
from selex.features.cache import FeatureCache
from selex.folders import take_folder
from selex.review.core.decisions import Decision
from selex.review.core.session import Review
from selex.review.recluster import recluster
from selex.runs.run import Run


class Collection:
    """Photos, runs of them, and what each change costs."""

    def __init__(self, folder: Path, images: int, new: int, backbone: str) -> None:
        self.folder, self.images, self.new, self.backbone = folder, images, new, backbone
        self.photos, self.later = folder / "photos", folder / "later"
        for place in (self.photos, self.later):
            place.mkdir()
        make_photos(self.photos, images + new)
        self.files = sorted(self.photos.iterdir())
        for file in self.files[images:]:
            file.rename(self.later / file.name)

    def sort(self, out: str = "run", categories: int = 8) -> Run:
        """Sort the photos as they are now."""
        return discover(Config.of(str(self.photos), categories=categories, backbone=self.backbone), self.folder / out)

    def add(self) -> Run:
        """A few more come."""
        for file in sorted(self.later.iterdir()):
            shutil.copy2(file, self.photos / file.name)
        return self.sort()

    def remove(self) -> Run:
        """The first few go."""
        for file in self.files[: self.new]:
            file.unlink()
        return self.sort()

    def rename(self) -> Run:
        """The next few get another name."""
        for file in self.files[self.new : 2 * self.new]:
            file.rename(self.photos / f"renamed {file.name}")
        return self.sort()

    def aside(self) -> Run:
        """One is set aside, and the run done again."""
        review = Review(self.folder / "run")
        review.decide(Decision("set_aside", rows=(0,)), review.version)
        review.ledger.close()
        return recluster(self.folder / "run").run


def measure(change: str, work: Callable[[], Run]) -> dict[str, object]:
    start, spent = time.perf_counter(), time.process_time()
    run = work()
    took, spent = time.perf_counter() - start, time.process_time() - spent
    made = [entry["made"] for entry in run.metrics if entry["step"] == "embed"][-1]
    found = {"change": change, "images": len(run.clusters), "embedded": made, "seconds": round(took, 1)}
    return {**found, "seconds of a core": round(spent, 1)}


def changes(images: int, new: int, backbone: str) -> list[dict[str, object]]:
    with tempfile.TemporaryDirectory() as temporary:
        os.environ["SELEX_CACHE"] = f"{temporary}/cache"
        one = Collection(Path(temporary), images, new, backbone)
        return [
            measure("first run", one.sort),
            measure("the same again", one.sort),
            measure("another --out", lambda: one.sort("other")),
            measure("another K", lambda: one.sort(categories=9)),
            measure(f"{new} added", one.add),
            measure(f"{new} removed", one.remove),
            measure(f"{new} renamed", one.rename),
            measure("one set aside", one.aside),
        ]


def lookups(n: int, dim: int, new: int) -> list[dict[str, object]]:
    """Seconds to find n rows in the cache, and to add a few."""
    with tempfile.TemporaryDirectory() as temporary:
        os.environ["SELEX_CACHE"] = temporary
        rng = np.random.default_rng(0)
        keys = rng.integers(1, 256, (n + new, 16), dtype=np.uint8).view("S16")[:, 0]
        rows = rng.standard_normal((n + new, dim), dtype=np.float32)
        cache, found = FeatureCache("benchmark", dim), np.empty_like(rows)
        times = [time.perf_counter()]
        cache.add(keys[:n], rows[:n])
        times.append(time.perf_counter())
        here = cache.read(keys, found)
        times.append(time.perf_counter())
        cache.add(keys[n:], rows[n:])
        times.append(time.perf_counter())
    assert here.sum() == n
    assert np.array_equal(found[:n], rows[:n])
    steps = (f"{n:,} rows of {dim} kept", f"{n:,} found among {n + new:,}", f"{new} more kept")
    took = np.diff(times)
    return [{"change": step, "seconds": round(float(s), 2)} for step, s in zip(steps, took, strict=True)]


def tiny_photos(folder: Path, numbers: range, kinds: int = 100) -> None:
    """Photos of a few pixels: noise around one picture for each kind, one in five of half of the kinds labelled."""
    usual = np.random.default_rng(0).integers(0, 256, (kinds, 8, 8, 3))
    rng = np.random.default_rng(numbers.start + 1)
    for number in numbers:
        kind = number % kinds
        labelled = kind < kinds // 2 and number // kinds % 5 == 0
        place = folder / (f"kind {kind:02d}" if labelled else f"unlabelled/{number // 1000:03d}")
        place.mkdir(parents=True, exist_ok=True)
        pixels = (usual[kind] + rng.normal(0, 40, (8, 8, 3))).clip(0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(place / f"{number:06d}.bmp")


def among_many(n: int, new: int, folder: Path) -> list[dict[str, object]]:
    """A few more photos among n; where the folder has a run of them already, nothing else is measured."""
    take_folder(folder, "benchmark of a growing collection")  # photos are added there: never among somebody's own
    os.environ["SELEX_CACHE"] = str(folder / "cache")
    photos, later, run, rows = folder / "photos", folder / "later", folder / "run", []
    config = Config.of(
        str(photos), categories=100, backbone="pixels", restarts=1, refine="none", search="bssk", adapt="off"
    )

    def add() -> Run:
        command = [sys.executable, "-m", "selex", "discover", str(run), "--add", str(later)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return Run.open(run)

    if not run.exists():
        tiny_photos(photos, range(n))
        rows.append(measure("first run", lambda: discover(config, run)))
    there = 1 + max(int(path.stem) for place in (photos, later) for path in place.rglob("*.bmp"))
    tiny_photos(later, range(there, there + new))
    before = os.times()
    found = measure(f"{new} added", add)
    after = os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return [*rows, {**found, "seconds of a core": round(spent, 1)}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=240)
    parser.add_argument("--new", type=int, default=24)
    parser.add_argument("--backbone", default="efficientnet-lite1")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--many", type=int, help="add to this many tiny photos, and measure nothing else")
    parser.add_argument("--folder", type=Path, help="keep the tiny photos and their run here; a second call only adds")
    options = parser.parse_args()
    if options.many:
        with tempfile.TemporaryDirectory() as temporary:
            save("growing_many", among_many(options.many, options.new, options.folder or Path(temporary)))
        return
    kept = lookups(options.rows, 384, options.new)
    save("growing", [*changes(options.images, options.new, options.backbone), *kept])


if __name__ == "__main__":
    main()
