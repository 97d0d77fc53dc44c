"""Features of a network trained without some of the labels, as an input file for `benchmarks/calibration.py`.

The dataset is a CSV file as for `selex bench run`, with labels drawn as there. A fifth of the labels is hidden from
training, the same that `discover` would hold out. The features are those of the trained network, in half precision,
whether or not the held-out labels would have favoured it; `labelled` rows have a label, `hidden` ones are those that
training did not see.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from selex.bench.datasets.splits import own_dataset
from selex.cluster.holdout.split import kept_from_training
from selex.config import Config
from selex.data.labels import encode
from selex.data.table import ImageTable
from selex.discovery import discover


def main(table: Path, out: Path, config: Config, store: Path | None, device: str) -> None:
    part = own_dataset(table)
    labels, given = np.asarray(part.table.labels), part.table
    hidden = kept_from_training(labels, 0.2)
    names = [
        given.categories[label] if label >= 0 and not gone else "" for label, gone in zip(labels, hidden, strict=True)
    ]
    shown = ImageTable(given.files, *encode(names), given.root, given.sources)
    config = config.change(holdout=0.0, photos=given.root, categories=len(part.classes))
    with tempfile.TemporaryDirectory() as folder:
        run = discover(config, Path(folder) / "run", photos=shown, device=device, store=store, tell=print)
        columns: dict[str, Any] = {
            "classes": np.array(part.classes)[part.truth],
            "known": part.known,
            "labelled": labels >= 0,
        }
        features = np.asarray(run.embeddings, dtype=np.float16)
        np.savez_compressed(out, features=features, **columns, hidden=hidden)
    print(f"{out}: {len(features)} rows, {hidden.sum()} labels hidden", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--method", default="selex", choices=["frozen", "gcd", "selex"])
    parser.add_argument("--preset", default="paper")
    parser.add_argument("--backbone", default="dinov2-vits14")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--alpha", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--store", type=Path)
    parser.add_argument("--device", default="cuda")
    asked = vars(parser.parse_args())
    places = {name: asked.pop(name) for name in ("table", "out", "store", "device")}
    main(**places, config=Config.of(**asked))
