"""Soft refinement of clusters of frozen features: none as in the paper, three kinds, and the one `auto` selects.

The folder holds `images/` and a `labels.csv` with the columns file, class and known, one row per image, as `selex
bench` reads it; `--by COLUMN` also groups the images by another column. Features are whitened as in `selex discover`.
In a long tail, the largest class has ten times as many images as the smallest. Accuracy on All and Novel, mean ±
standard deviation over seeds. With all classes, the file decides which are known; with a subset, a long tail or another
column, the seed does.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from common import columns_of, labels_for, photo_arguments, save
from selex import Config, bssk, split_accuracy
from selex.bench.datasets.splits import own_dataset
from selex.cluster.holdout.select import select
from selex.cluster.refine import refine_level
from selex.cluster.whiten import fit_whitener
from selex.data.crops import to_device
from selex.data.store import ImageStore, cached_store
from selex.features.embed import embed
from selex.models.backbones import load_backbone_for
from selex.types import REFINEMENTS, Scores

SEEDS = 4
TAIL = 10.0
LEAST = 4  # images of a class


class Case(NamedTuple):
    """Which images, and how many are labelled: a share of the known ones, or a number a class."""

    by: str = "class"
    some: int | None = None
    tail: bool = False
    labelled: float = 0.5


CASES = (
    Case(),
    Case(labelled=0.1),
    Case(some=50),
    Case(some=20),
    Case(some=10),
    Case(some=20, labelled=3),
    Case(some=10, labelled=2),
    Case(some=50, tail=True),
    Case(some=20, tail=True),
    Case(some=20, tail=True, labelled=2),
)


def features_of(root: Path, backbone: str, crop: int | None, device: str) -> np.ndarray:
    network, config = load_backbone_for(Config.of(str(root), backbone=backbone, crop=crop), device)
    table = own_dataset(root / "labels.csv").table
    folder = cached_store(table.root, config.data.size or 0)
    images = ImageStore.build(table, folder, size=config.data.size or 0, strict=True, progress=True)
    return np.asarray(embed(network, to_device(images, torch.device(device)), device=device, progress=True))


def chosen(names: np.ndarray, case: Case, seed: int) -> np.ndarray:
    """Which images take part."""
    rng = np.random.default_rng([seed, 1])
    classes = rng.permutation(np.unique(names))[: case.some]
    part = np.isin(names, classes)
    if not case.tail:
        return part
    for place, name in enumerate(classes):
        index = rng.permutation(np.flatnonzero(names == name))
        part[index[max(LEAST, int(len(index) * TAIL ** (-place / (len(classes) - 1)))) :]] = False
    return part


def scores(features: np.ndarray, truth: np.ndarray, n_known: int, case: Case, seed: int) -> dict[str, Scores]:
    """Accuracy with each refinement, from one clustering; and which was chosen."""
    labels = labels_for(truth, n_known, case.labelled, seed)
    whitener, free, k = fit_whitener(features, labels, 0.5), labels < 0, int(truth.max()) + 1
    rows = whitener(features) if whitener else features
    level = bssk(rows, labels, k, n_init=3, rng=seed)
    found = {refine: np.asarray(refine_level(rows, labels, level, refine).labels) for refine in REFINEMENTS}
    result: dict[str, Scores] = {
        refine: split_accuracy(truth[free], own[free], truth[free] < n_known) for refine, own in found.items()
    }
    return {**result, "auto": result[select(features, labels, k, search=("bssk",), whiten=0.5, rng=seed).refine]}


def main(root: Path, backbone: str, crop: int | None, by: list[str], device: str, out: Path | None) -> None:
    columns, data = columns_of(root / "labels.csv", by), own_dataset(root / "labels.csv")
    given = np.unique(columns["class"][data.known])
    features, results = features_of(root, backbone, crop, device), []
    for case in (*CASES, *(Case(by=name) for name in by)):
        made = []
        for seed in range(SEEDS):
            part = chosen(columns[case.by], case, seed)
            names = columns[case.by][part]
            classes = np.random.default_rng([seed, 2]).permutation(np.unique(names))
            known = given if case in CASES[:2] else np.sort(classes[: len(classes) // 2])
            order = [*known, *np.setdiff1d(names, known)]
            truth = np.array([order.index(name) for name in names])
            made.append(scores(features[part], truth, len(known), case, seed))
        row: dict[str, object] = {"by": case.by, "categories": len(order), "tail": "yes" if case.tail else "no"}
        row["labelled"] = case.labelled if case.labelled < 1 else f"{case.labelled:.0f} each"
        row["seeds"] = SEEDS
        for refine in (*REFINEMENTS, "auto"):
            values = 100 * np.array([score[refine] for score in made])
            row[f"{refine}: All"] = f"{values[:, 0].mean():.1f} ± {values[:, 0].std(ddof=1):.1f}"
            row[f"{refine}: Novel"] = f"{values[:, 2].mean():.1f}"
        print(row, flush=True)
        results.append(row)
    save(f"refinement_{root.name.lower()}_{backbone}", results, out)


if __name__ == "__main__":
    parser = photo_arguments(__doc__)
    parser.add_argument("--by", action="append", default=[])
    main(**vars(parser.parse_args()))
