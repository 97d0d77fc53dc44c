"""What labels and balancing add without training: four clusterings of CUB's train images, frozen backbone.

The folder holds `images/` and a `labels.csv` with the columns file, class and known, one row per image, as `selex
bench` reads it, with its labelled half and its way of scoring. *swallowed* is the share of unlabelled images of novel
classes that end up in a known category. Mean ± standard deviation over seeds; also the estimated number of categories.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from common import photo_arguments, save
from selex import Config, bssk, discover, estimate_k, split_accuracy
from selex.bench.datasets.splits import own_dataset

SEEDS = range(10)
WAYS = {
    "k-means": {"labels": False, "balanced": False},
    "k-means, balanced": {"labels": False, "balanced": True},
    "semi-supervised k-means": {"labels": True, "balanced": False},
    "BSSK": {"labels": True, "balanced": True},
}


def main(root: Path, backbone: str, crop: int | None, device: str, out: Path | None) -> None:
    data = own_dataset(root / "labels.csv")
    k, labels = len(data.classes), np.asarray(data.table.labels)
    free, novel = labels < 0, ~data.known
    with tempfile.TemporaryDirectory() as folder:
        config = Config.of(str(root), categories=k, backbone=backbone, crop=crop, levels=1, restarts=1, refine="none")
        run = discover(config, Path(folder) / "run", photos=data.table, device=device, progress=True)
        features = np.array(run.embeddings)
    results: list[dict[str, object]] = []
    for name, way in WAYS.items():
        scores = []
        for seed in SEEDS:
            given = labels if way["labels"] else None
            found = np.asarray(bssk(features, given, k, balanced=way["balanced"], n_init=10, rng=seed).labels)
            swallowed = (found[novel] < data.n_known).mean() if way["labels"] else np.nan
            scores.append([*split_accuracy(data.truth[free], found[free], data.known[free]), swallowed])
        row: dict[str, object] = {"what": name, "seeds": len(SEEDS)}
        for part, values in zip(("All", "Known", "Novel", "swallowed"), 100 * np.array(scores).T, strict=True):
            row[part] = "-" if np.isnan(values[0]) else f"{values.mean():.1f} ± {values.std(ddof=1):.1f}"
        print(row, flush=True)
        results.append(row)
    for method in ("accuracy", "silhouette"):
        found_k = estimate_k(features, labels, method=method, rng=0)
        results.append(
            {"what": f"estimated K by {method}", "All": f"{found_k.n_clusters} ({found_k.low} to {found_k.high})"}
        )
    save(f"cub_frozen_{backbone.replace(':', '_')}", results, out)


if __name__ == "__main__":
    parser = photo_arguments(__doc__)
    main(**vars(parser.parse_args()))
