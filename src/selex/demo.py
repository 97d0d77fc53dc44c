"""The demonstration: scikit-learn's handwritten digits as image files, five of them known, five to discover."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import typer
from PIL import Image
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits

from selex.config import Config
from selex.data.clusters import write_columns
from selex.discovery import discover
from selex.errors import InputError
from selex.metrics import split_accuracy
from selex.model import NOTHING, load
from selex.report.plots import plot_examples
from selex.run import Run

N_KNOWN, N_CATEGORIES, N_NEW = 5, 10, 197


def run(out: Path, seed: int = 0) -> None:
    """Write the digits as images, discover their categories, sort held-out ones, and picture what was found."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        truth = _write_images(out, seed)
    except OSError as error:
        raise InputError(f"{out}: cannot be written ({error.strerror})") from None
    config = Config(
        str((out / "photos").absolute()), categories=N_CATEGORIES, backbone="pixels", restarts=10, seed=seed
    )
    found = discover(config, out / "run", store=out / "store", tell=typer.echo)
    _compare(found, truth)
    new = load(out / "run").predict(out / "new", store=out / "store")
    write_columns(out / "predictions.csv", new)
    strange = new["category"].count(NOTHING)
    typer.echo(f"{len(new['file'])} new images sorted, {strange} of them fit no category")
    _picture(found, out)
    typer.echo(f"table:   {out / 'run' / 'clusters.csv'}   predictions: {out / 'predictions.csv'}")
    typer.echo(f"score:   selex evaluate {out / 'run' / 'clusters.csv'} --truth {out / 'truth.csv'}")
    typer.echo(f"review:  selex review {out / 'run'}")
    typer.echo(f"picture: {out / 'categories.png'}   <- open this: example images of each category")


def _write_images(out: Path, seed: int) -> dict[str, int]:
    """Half of the digits 0-4 in folders that name them, the rest unlabelled, the last ones held out; their truth."""
    digits = load_digits()
    labelled = np.random.default_rng(seed).random(len(digits.target)) < 0.5
    for name in ("photos", "new"):
        shutil.rmtree(out / name, ignore_errors=True)
    truth: dict[str, int] = {}
    for row, (image, digit) in enumerate(zip(digits.images, digits.target.tolist(), strict=True)):
        name = f"{row:04d}.png"
        if row >= len(digits.target) - N_NEW:
            path = out / "new" / name
        else:
            part = str(digit) if digit < N_KNOWN and labelled[row] else "unlabelled"
            path = out / "photos" / part / name
            truth[f"{part}/{name}"] = digit
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((255 - image * 15.9375).astype(np.uint8)).save(path)
    with (out / "truth.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([("file", "label"), *truth.items()])
    return truth


def _compare(found: Run, truth: dict[str, int]) -> None:
    """Accuracy on unlabelled images of plain k-means and of the categories found, on the same features."""
    table = found.clusters.to_pydict()
    true = np.array([truth[file] for file in table["file"]])
    free = np.array(table["labelled"]) == 0
    plain = KMeans(N_CATEGORIES, n_init=10, random_state=0).fit(found.embeddings).labels_
    typer.echo(f"{len(true)} digit images, 0-4 known with {np.sum(~free)} labels, 5-9 to discover")
    typer.echo(f"{'accuracy, unlabelled images':<30}  All / Known / Novel")
    ways: dict[str, Any] = {"k-means": plain, "BSSK": np.array(table["cluster"])}
    for name, clusters in ways.items():
        typer.echo(f"{name:<30}  {split_accuracy(true[free], clusters[free], true[free] < N_KNOWN)}")


def _picture(found: Run, out: Path) -> None:
    table = found.clusters.to_pydict()
    images = np.stack([np.asarray(Image.open(found.root / file)) for file in table["file"]])
    names = found.hierarchy["names"]
    plot_examples(images, table["cluster"], table["distance"], names, N_KNOWN, out / "categories.png")
