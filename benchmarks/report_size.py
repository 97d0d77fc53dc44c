"""Size and time of `selex report` on runs with many categories, with images that compress no better than photos.

Runs are synthetic: features around random directions, categories of equal size, half of them known. Images are JPEGs of
500 × 375 pixels with the spectrum of photographs plus noise; the rows share 300 of them.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from PIL import Image

from common import embeddings, half_labelled, save
from selex import Config, Hierarchy, Level, Run
from selex.cluster.holdout.select import Selection
from selex.cluster.pipeline import FittedClusters, calibrated
from selex.cluster.whiten import FeatureMaps
from selex.discovery_steps import publish
from selex.report.html import choose_format, write_report
from selex.report.summary import summarise
from selex.runs.writer import write_run

N_PHOTOS = 300


def make_photo(rng: np.random.Generator) -> Image.Image:
    """Noise whose strength falls with its frequency, as in photographs, and a little grain."""
    height, width = 375, 500
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    frequency[0, 0] = 1
    layers = np.fft.irfft2(np.fft.rfft2(rng.normal(size=(4, height, width))) / frequency, s=(height, width))
    layers /= layers.std((1, 2), keepdims=True)
    pixels = 55 * layers[3, ..., None] + 15 * layers[:3].transpose(1, 2, 0)  # brightness varies more than colour
    return Image.fromarray((128 + pixels + rng.normal(0, 4, pixels.shape)).clip(0, 255).astype(np.uint8))


def make_photos(folder: Path, n: int) -> list[str]:
    rng = np.random.default_rng(0)
    folder.mkdir()
    for number in range(n):
        make_photo(rng).save(folder / f"{number:05d}.jpg", quality=90)
    return [f"{number:05d}.jpg" for number in range(n)]


def make_levels(features: torch.Tensor, labels: torch.Tensor, k: int) -> Hierarchy:
    """Levels of k, k / 2, ... 2 clusters, each made of neighbouring numbers."""
    levels, size = [], k
    while size > 1:
        owners = labels * size // k
        sums = torch.zeros(size, features.shape[1]).index_add_(0, owners, features)
        centers = sums / torch.bincount(owners, minlength=size)[:, None]
        levels.append(Level(owners, centers, size // 2, 0.0, 1))
        size //= 2
    return Hierarchy(tuple(levels))


def make_run(folder: Path, n: int, k: int, photos: int = N_PHOTOS, dims: int = 384) -> Run:
    """A finished run of n images in k categories."""
    folder.mkdir()
    files = make_photos(folder / "photos", photos)
    features, truth = embeddings(n, dims, k, "cpu")
    labels = half_labelled(truth, k // 2).numpy()
    config = Config.of(str(folder / "photos"), categories=k, backbone="pixels")
    table = SimpleNamespace(
        files=[files[row % photos] for row in range(n)],
        labels=labels,
        labelled=labels >= 0,
        categories=[f"category {number:04d}" for number in range(k // 2)],
        root=str(folder / "photos"),
    )
    images = SimpleNamespace(table=table, size=256, skipped=[])
    backbone = SimpleNamespace(fingerprint=lambda: "made up", crop=224, name="pixels")
    found = FittedClusters(make_levels(features, truth, k), FeatureMaps(), Selection(False, "none"))
    with write_run(folder / "run", config, table.root) as run:
        np.save(run.features, features.numpy())
        run.features.with_name("embeddings.npy.json").write_text("{}")
        publish(run, config, images, calibrated(found, features, labels), backbone)  # type: ignore[arg-type]
    return run


def measure(n: int, k: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as temporary:
        run = make_run(Path(temporary) / "made", n, k)
        start = time.perf_counter()
        report = write_report(run, run.folder / "report.html")
        seconds = time.perf_counter() - start
        summary = summarise(run)
        form = choose_format(summary.facts, [*summary.new, *summary.known], summary.errors)
        return {
            "categories": k,
            "images": n,
            "report_mb": round(report.stat().st_size / 1e6, 2),
            "s": round(seconds, 1),
            "side_px": form.side,
            "jpeg_quality": form.quality,
            "images_a_category": form.typical + form.borderline,
        }


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    measure(400, 20)  # imports, and what libraries do on first use
    save("report_size", [measure(6_000, 200), measure(100_000, 1_000)])
