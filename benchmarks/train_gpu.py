"""One SelEx epoch on a GPU: 5,994 images of 256 × 341 pixels, ViT-B/16, 46 steps of 128 × 2 views.

Images are random patterns and weights are random, which does not change the time of a step. The lower bound is the
arithmetic of the paper's procedure at 790 TFLOP/s: 46.7 GFLOP per trained view and 35.1 per embedded image, 0.98 s in
total. The last cases interrupt training and resume it instead: weights must be identical bit for bit. `mean_s` is the
mean over the last epochs, from one update of the pseudo-labels to the next.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import timm
import torch

from common import save, seconds
from selex.config import PAPER, Config
from selex.data.crops import DeviceImages
from selex.data.store import ImageStore
from selex.models.network import Backbone
from selex.models.registry import IMAGENET_MEAN, IMAGENET_STD
from selex.training.batches import Data
from selex.training.checkpoint import Checkpoints
from selex.training.devices import start_fabric
from selex.training.loop import Loop
from selex.training.methods import METHODS, Batch, Task

N, K, KNOWN = 5994, 200, 100
FLOOR = 0.98
BANKS = {"plain": 0, "view bank of 2": 2, "view bank of 4": 4}
WAYS = {f"{what}{', compiled' if on else ''}": (bank, on) for on in (True, False) for what, bank in BANKS.items()}
BEST = "preset best, compiled"  # as long as four epochs in five need no pseudo-labels, the mean is what counts
STOPS = {"stopped": 0, "stopped, view bank of 2": 2}


def patterns(n: int) -> ImageStore:
    """Random coarse patterns, each image another: what clusters are made of matters for their time."""
    coarse = (np.random.default_rng(row).integers(0, 256, (8, 11, 3), dtype=np.uint8) for row in range(n))
    return ImageStore.in_memory([image.repeat(32, 0).repeat(31, 1) for image in coarse], 256)


def backbone(device: torch.device) -> Backbone:
    torch.manual_seed(0)
    network = timm.create_model("vit_base_patch16_224", num_classes=0)
    network.eval()
    made = Backbone("vit-b16", network, dim=768, crop=224, mean=IMAGENET_MEAN, std=IMAGENET_STD, weights=None)
    return made.to(device)


def loop(
    images: DeviceImages,
    labels: np.ndarray,
    config: Config,
    compile: bool,
    checkpoints: Checkpoints | None = None,
) -> Loop:
    fabric = start_fabric("cuda")
    task = Task(K, KNOWN, config.cluster.balanced, config.cluster.whiten)
    method = METHODS["selex"](backbone(fabric.device), task, config.train)
    data = Data(images, labels, [str(row) for row in range(len(labels))], 224)
    return Loop(method, data, 0, fabric, checkpoints, compile=compile)


class Stop(Exception):
    """In the middle of training."""


def resumed(name: str, images: DeviceImages, labels: np.ndarray, bank: int) -> dict[str, object]:
    """Three epochs, and three that are stopped in the third and gone on with."""
    config = PAPER.change(epochs=3, view_bank=bank)

    def weights(*, stop: int | None, folder: str | None) -> dict[str, torch.Tensor]:
        made = loop(images, labels, config, False, Checkpoints(Path(folder), {}, {}) if folder else None)
        work, steps = made.steps.step, iter(range(10_000))

        def step(batch: Batch) -> dict[str, torch.Tensor]:
            if next(steps) == stop:
                raise Stop
            return work(batch)

        made.steps.step = step  # type: ignore[method-assign]
        try:
            made.run()
            return {name: value.detach().clone() for name, value in made.method.trained_state().items()}
        finally:
            if made.checkpoints:
                made.checkpoints.wait()
            made.close()
            gc.collect()
            torch.cuda.empty_cache()

    whole = weights(stop=None, folder=None)
    with tempfile.TemporaryDirectory() as folder:
        with suppress(Stop):
            weights(stop=2 * (N // config.train.batch) + 20, folder=folder)
        again = weights(stop=None, folder=folder)
    result: dict[str, object] = {
        "what": name,
        "tensors": len(whole),
        "same_bits": all(torch.equal(whole[name], again[name]) for name in whole),
        "largest_difference": max(float((whole[name] - again[name]).abs().max()) for name in whole),
    }
    print(result, flush=True)
    return result


def measure(name: str, images: DeviceImages, labels: np.ndarray, config: Config, compile: bool) -> dict[str, object]:
    torch.cuda.reset_peak_memory_stats()
    made = loop(images, labels, config, compile)
    history = made.run()
    memory = torch.cuda.max_memory_allocated() / 1e9
    counted = history[3:]
    whole = statistics.median(entry["seconds"] for entry in counted)
    ready = statistics.median(entry["prepared"] for entry in counted)
    trained = sum(parameter.numel() for parameter in made.steps.trained) / 1e6
    result: dict[str, object] = {
        "what": name,
        "epoch_s": round(whole, 3),
        "fastest_s": round(min(entry["seconds"] for entry in counted), 3),
        "slowest_s": round(max(entry["seconds"] for entry in counted), 3),
        "mean_s": round(statistics.mean(entry["seconds"] for entry in history[-config.train.interval :]), 3),
        "embed_and_cluster_s": round(ready, 3),
        "share_of_floor": round(FLOOR / whole, 2),
        "memory_gb": round(memory, 2),
        "trained_parameters_m": round(trained, 2),
        "losses_share_of_step": round(share(made), 3),
        "epochs": len(counted),
    }
    print(result, flush=True)
    made.close()
    del made
    gc.collect()  # the next case is to find the memory as this one did
    torch.cuda.empty_cache()
    return result


def share(made: Loop) -> float:
    """Share of the steps' time that the losses and their gradient take: what is saved with a trivial loss instead.

    The head's last map, which only the losses use, counts with them, its update too.
    """
    real, method = made.method.losses, made.method
    times: dict[str, list[float]] = {"real": [], "trivial": []}
    for _ in range(3):
        for name, losses in (("real", real), ("trivial", lambda encoded, batch: {"loss": encoded[0].sum()})):
            method.losses = losses  # type: ignore[method-assign]
            if made.steps.graph:
                made.steps.graph.forget()
            times[name] += seconds(lambda: made.epoch(0, lambda epoch, loss: None), 1, 0)
    method.losses = real  # type: ignore[method-assign]
    return 1 - statistics.median(times["trivial"]) / statistics.median(times["real"])


def main(out: Path | None, epochs: int, cases: list[str]) -> None:
    images = DeviceImages(patterns(N), "cuda")
    truth = np.arange(N) % K
    labels = np.where((truth < KNOWN) & (np.arange(N) // K % 2 == 0), truth, -1)
    results = []
    for name in cases or (*WAYS, BEST, *STOPS):
        if name in STOPS:
            results.append(resumed(name, images, labels, STOPS[name]))
            continue
        if name == BEST:
            results.append(measure(name, images, labels, Config.of(preset="best", epochs=epochs), True))
            continue
        bank, compile = WAYS[name]
        results.append(measure(name, images, labels, PAPER.change(epochs=epochs, view_bank=bank), compile))
    save("train_gpu", results, out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--epochs", type=int, default=9)
    parser.add_argument("--case", action="append", default=[], choices=[*WAYS, BEST, *STOPS])
    arguments = parser.parse_args()
    main(arguments.out, arguments.epochs, arguments.case)
