"""One SelEx step on a CPU, alternating with and without the view bank: ViT-B/16, random weights, 224 pixels."""

from __future__ import annotations

import argparse
import statistics
from functools import partial
from pathlib import Path

import numpy as np
import torch

from common import save, seconds
from selex.config import PAPER
from selex.data.crops import DeviceImages
from selex.training.batches import Data
from selex.training.devices import start_fabric
from selex.training.loop import Loop
from selex.training.methods import METHODS, Task
from train_gpu import backbone, patterns

N, BATCH, TURNS = 32, 16, 5


def loop(view_bank: int) -> Loop:
    labels = np.where(np.arange(N) % 4 == 0, np.arange(N) % 8 // 4, -1)
    settings = PAPER.change(epochs=1, batch=BATCH, view_bank=view_bank).train
    method = METHODS["selex"](backbone(torch.device("cpu")), Task(4, 2), settings)
    made = Loop(method, Data(DeviceImages(patterns(N), "cpu"), labels, [], 224), 0, start_fabric("cpu"))
    made.prepare(0)
    return made


def step(made: Loop) -> None:
    made.steps.step(next(iter(made.batches.epoch(0))))


def main(out: Path | None) -> None:
    without, bank = loop(0), loop(2)
    times: dict[str, list[float]] = {"without": [], "bank": []}
    for _ in range(TURNS):
        for name, made in (("without", without), ("bank", bank)):
            times[name] += seconds(partial(step, made), 1, 0)
    ratios = [one / other for one, other in zip(times["without"], times["bank"], strict=True)]
    results: list[dict[str, object]] = [
        {"what": f"{BATCH} images × 2 views, times faster with the view bank (median of {TURNS} turns)"}
        | {"value": round(statistics.median(ratios), 2), "least": round(min(ratios), 2), "most": round(max(ratios), 2)}
    ]
    save("view_bank_cpu", results, out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    main(parser.parse_args().out)
