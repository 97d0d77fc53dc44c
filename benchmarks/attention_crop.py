"""Attention crops without training: BSSK on frozen features of whole photos, of their crops, and of both.

The folder holds `images/` and a `labels.csv` with the columns file, class and known, one row per image, as `selex
bench` reads it; `--by COLUMN` also groups the images by another column. Features are whitened as in `selex discover`.
Accuracy on All, Known and Novel, mean ± standard deviation over seeds. With all classes, the file decides which are
known; with a subset of them, or with another column, the seed does.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import normalize

from common import columns_of, labels_for, photo_arguments, save
from selex import Config, bssk, split_accuracy
from selex.bench.datasets.splits import own_dataset
from selex.cluster.whiten import fit_whitener
from selex.data.crops import to_device
from selex.data.store import ImageStore, cached_store
from selex.features.attention_crop import crop_to_attention
from selex.features.embed import embed
from selex.models.backbones import load_backbone_for

SEEDS = 6


def features_of(root: Path, backbone: str, crop: int | None, device: str) -> dict[str, np.ndarray]:
    """Features of all images in three ways."""
    network, config = load_backbone_for(Config.of(str(root), backbone=backbone, crop=crop), device)
    table = own_dataset(root / "labels.csv").table
    folder = cached_store(table.root, config.data.size or 0)
    whole = ImageStore.build(table, folder, size=config.data.size or 0, strict=True)
    cropped = crop_to_attention(network, whole, folder, device=device, progress=True)
    place = torch.device(device)
    one, two = (embed(network, to_device(images, place), device=device, progress=True) for images in (whole, cropped))
    both = normalize(torch.from_numpy(np.asarray(one) + np.asarray(two)), dim=1).numpy()
    return {"whole": np.asarray(one), "crop": np.asarray(two), "both": both}


def score(features: np.ndarray, names: np.ndarray, known: np.ndarray, ratio: float, seed: int) -> tuple[float, ...]:
    """Accuracy with labels on this share of the images of known classes."""
    order = [*known, *np.setdiff1d(names, known)]
    truth = np.array([order.index(name) for name in names])
    labels = labels_for(truth, len(known), ratio, seed)
    whitener, free = fit_whitener(features, labels, 0.5), labels < 0
    found = np.asarray(
        bssk(whitener(features) if whitener else features, labels, len(order), n_init=3, rng=seed).labels
    )
    return split_accuracy(truth[free], found[free], truth[free] < len(known))


def main(root: Path, backbone: str, crop: int | None, by: list[str], device: str, out: Path | None) -> None:
    columns, data = columns_of(root / "labels.csv", by), own_dataset(root / "labels.csv")
    names = columns["class"]
    chosen = np.unique(names[data.known])
    features, results = features_of(root, backbone, crop, device), []
    cases = [("class", 0, 0.5), ("class", 0, 0.1), ("class", 20, 0.5), ("class", 10, 0.5)]
    cases += [(name, 0, 0.5) for name in by]
    for name, some, ratio in cases:
        for images, rows in features.items():
            scores = []
            for seed in range(SEEDS):
                classes = np.random.default_rng([seed, 1]).permutation(np.unique(columns[name]))[: some or None]
                part = np.isin(columns[name], classes)
                known = chosen if name == "class" and not some else np.sort(classes[: len(classes) // 2])
                scores.append(score(rows[part], columns[name][part], known, ratio, seed))
            mean, spread = 100 * np.mean(scores, 0), 100 * np.std(scores, 0, ddof=1)
            row: dict[str, object] = {"by": name, "categories": len(classes), "labelled": ratio, "images": images}
            row["seeds"] = SEEDS
            for what, m, s in zip(("All", "Known", "Novel"), mean, spread, strict=True):
                row[what] = f"{m:.1f} ± {s:.1f}"
            print(row, flush=True)
            results.append(row)
    save(f"attention_crop_{root.name.lower()}_{backbone}", results, out)


if __name__ == "__main__":
    parser = photo_arguments(__doc__)
    parser.add_argument("--by", action="append", default=[])
    main(**vars(parser.parse_args()))
