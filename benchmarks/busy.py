"""A short training run on digits, alone and next to busy processes: what idle OpenMP threads cost.

Each setting runs in its own process with its own environment variables, which OpenMP reads when torch is loaded.
Settings alternate, and each time is compared with torch's default in the same turn, so that other load on the machine
affects all of them alike.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from common import save
from selex import Config, discover
from selex.__main__ import PATIENT
from selex.cli import demo

WAYS = {"as torch does": {}, "waiting threads sleep": PATIENT, "one thread": {"OMP_NUM_THREADS": "1"}}
Times = list[tuple[float, float]]
OWN = {*PATIENT, "OMP_NUM_THREADS"}


def write_photos(folder: Path, count: int = 200) -> None:
    """Digits as images; every second one of the first five is labelled by its folder."""
    digits = load_digits()
    for row, (image, digit) in enumerate(zip(digits.images[:count], digits.target, strict=False)):
        place = folder / (str(digit) if digit < 5 and row % 2 else "unlabelled")
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray((255 - image * 15).astype(np.uint8)).save(place / f"{row}.png")


def work(folder: Path) -> None:
    """What is measured: an epoch of SelEx and the clustering. Prints seconds of the clock, and of all cores."""
    config = Config.of(str(folder / "photos"), preset="paper", categories=10, backbone="tiny-vit")
    config = config.change(method="selex", **demo.TRAINING | {"epochs": 1})
    start, cores = time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory() as out:
        discover(config, Path(out, "run"), store=folder / "store")
    print(json.dumps([time.perf_counter() - start, time.process_time() - cores]))


def spin() -> None:
    """Keep a core busy."""
    while True:
        pass


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Beside so many processes that want a core each."""
    others = [multiprocessing.Process(target=spin, daemon=True) for _ in range(count)]
    for other in others:
        other.start()
    try:
        yield
    finally:
        for other in others:
            other.kill()


def measured(folder: Path, way: dict[str, str]) -> tuple[float, float]:
    """Wall and CPU seconds of a process of its own."""
    environment = {name: value for name, value in os.environ.items() if name not in OWN} | way
    command = [sys.executable, __file__, "--work", str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    wall, cores = json.loads(done.stdout.splitlines()[-1])
    return wall, cores


def turns(folder: Path, others: int, repeats: int) -> list[dict[str, object]]:
    """Every way, beside so many busy processes."""
    found: dict[str, Times] = {name: [] for name in WAYS}
    loads = []
    with busy(others):
        for turn in range(repeats):
            loads.append(round(os.getloadavg()[0], 1))
            for name in list(WAYS)[:: 1 if turn % 2 else -1]:
                found[name].append(measured(folder, WAYS[name]))
                print(others, name, *found[name][-1], file=sys.stderr, flush=True)
    return [row(name, others, found[name], found["as torch does"]) | {"load": loads} for name in WAYS]


def row(name: str, others: int, ours: Times, torchs: Times) -> dict[str, object]:
    """Medians of seconds, and of what they are to torch's own way in the same turn."""
    about: dict[str, object] = {"threads": name, "busy_processes": others, "turns": len(ours)}
    for column, what in enumerate(("wall", "cpu")):
        ratios = sorted(our[column] / theirs[column] for our, theirs in zip(ours, torchs, strict=True))
        about[f"{what}_s"] = round(statistics.median(our[column] for our in ours), 1)
        about[f"{what}_ratio"] = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
    return about


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--busy", type=int, default=2, help="number of busy processes")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work)
        return
    with tempfile.TemporaryDirectory() as folder:
        write_photos(Path(folder, "photos"))
        measured(Path(folder), {})  # decodes
        rows = [line for others in sorted({0, options.busy}) for line in turns(Path(folder), others, options.turns)]
    save("busy", rows)


if __name__ == "__main__":
    main()
