"""The demonstration: scikit-learn's handwritten digits as image files, five of them known, five to discover."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import typer
from matplotlib.figure import Figure
from PIL import Image
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits

from selex.config import Config
from selex.data.clusters import write_columns
from selex.data.table import read_table
from selex.discovery import discover
from selex.errors import InputError
from selex.folders import own_folder, take_folder
from selex.io import reported, write_csv
from selex.metrics import split_accuracy
from selex.report.curves import BLUE, ORANGE, save_figure
from selex.report.html import write_report
from selex.runs.predictor import NOTHING, load
from selex.runs.run import Run
from selex.training.devices import fabric_library
from selex.training.fit import TrainOptions
from selex.types import Scores

N_KNOWN, N_CATEGORIES, N_NEW = 5, 10, 197
TITLE = "Handwritten digits"
TRAINING = {"epochs": 24, "batch": 64, "lr": 0.05, "temperature": 0.1, "alpha": 0.1, "flip": False, "affine": 0.15}
"""Chosen with seed 0. From scratch a low temperature is needed. A mirrored digit is another digit."""

Results = dict[str, Scores]


def run_demo(out: Path, seed: int = 0, progress: bool = False) -> Results:
    """Write the digits as images, discover their categories by pixels and by SelEx, sort new ones, show the result."""
    fabric_library()  # so that it is not missed after the first half
    take_folder(out, "demonstration")
    with reported(f"{out}: cannot be written"):
        truth = _write_images(out, seed)
    known = sum(not file.startswith("unlabelled") for file in truth)
    typer.echo(f"{len(truth)} images of digits: {known} of 0-4 are labelled; 5-9 are to be discovered\n")
    photos = str((out / "photos").absolute())
    paper = Config.of(photos, preset="paper", categories=N_CATEGORIES, seed=seed)
    typer.echo("1. clustering the pixels as they are, in seconds")
    pixels = paper.change(backbone="pixels", method="frozen")
    found = {"pixels": _discover(pixels, out / "pixels", out, progress)}
    typer.echo("\n2. training a small network from scratch with SelEx: one to four minutes on two cores")
    selex = paper.change(backbone="tiny-vit", method="selex", **TRAINING)
    found["selex"] = _discover(selex, out / "run", out, progress)
    results = _compare(found, truth)
    _sort_new(out)
    _picture(found["selex"], out)
    report = write_report(found["selex"], out / "run" / "report.html", out / "truth.csv", title=TITLE)
    typer.echo(f"next:    selex review {out / 'run'}            name, merge and split what was found")
    typer.echo(f"picture: {out / 'categories.png'}")
    typer.echo(f"report:  {report}   <- open this")
    return results


def _discover(config: Config, folder: Path, out: Path, progress: bool) -> Run:
    options = TrainOptions(progress=progress)
    return discover(config, folder, store=out / f"store-{config.features.backbone}", options=options, tell=typer.echo)


def _write_images(out: Path, seed: int) -> dict[str, int]:
    """Half of the digits 0-4 in folders that name them, the rest unlabelled, the last ones held out; their truth."""
    digits = load_digits()
    labelled = np.random.default_rng(seed).random(len(digits.target)) < 0.5
    for name in ("photos", "new", *(f"photos/{part}" for part in (*range(N_KNOWN), "unlabelled"))):
        own_folder(out / name)
    truth: dict[str, int] = {}
    for row, (image, digit) in enumerate(zip(digits.images, digits.target.tolist(), strict=True)):
        name = f"{row:04d}.png"
        if row >= len(digits.target) - N_NEW:
            path = out / "new" / name
        else:
            part = str(digit) if digit < N_KNOWN and labelled[row] else "unlabelled"
            path = out / "photos" / part / name
            truth[f"{part}/{name}"] = digit
        _write_image(path, (255 - image * 15.9375).astype(np.uint8))
    if other := set(read_table(out / "photos").files).difference(truth):
        raise InputError(f"{out / 'photos' / min(other)}: was not made by the demonstration; move it elsewhere")
    write_csv(out / "truth.csv", ["file", "label"], truth.items())
    return truth


def _write_image(path: Path, pixels: Any) -> None:
    """Write an image, unless it is there already: training of unchanged images resumes. Links are replaced."""
    made = BytesIO()
    Image.fromarray(pixels).save(made, "PNG")
    if path.is_symlink() or not path.is_file() or path.read_bytes() != made.getvalue():
        path.unlink(missing_ok=True)
        path.write_bytes(made.getvalue())


def _compare(found: dict[str, Run], truth: dict[str, int]) -> Results:
    """Accuracy on unlabelled images: plain k-means on pixels and on the learned features, and what was found."""
    ways: dict[str, Any] = {
        "k-means on pixels": _kmeans(found["pixels"]),
        "BSSK on pixels": _clusters(found["pixels"]),
        "k-means on SelEx's features": _kmeans(found["selex"]),
        "SelEx": _clusters(found["selex"]),
    }
    typer.echo(f"\n{'accuracy, unlabelled images':<30}  All / Known / Novel")
    results = {}
    for name, table in ways.items():
        true = np.array([truth[file] for file in table["file"]])
        free = np.array(table["labelled"]) == 0
        clusters = np.array(table["cluster"])
        results[name] = split_accuracy(true[free], clusters[free], true[free] < N_KNOWN)
        typer.echo(f"{name:<30}  {results[name]}")
    return results


def _clusters(found: Run) -> dict[str, Any]:
    return found.clusters.select(["file", "labelled", "cluster"]).to_pydict()


def _kmeans(found: Run) -> dict[str, Any]:
    plain = KMeans(N_CATEGORIES, n_init=10, random_state=0).fit(found.embeddings).labels_
    return {**_clusters(found), "cluster": plain}


def _sort_new(out: Path) -> None:
    """Held-out images into the categories that were found."""
    new = load(out / "run").predict(out / "new", store=out / "store-tiny-vit")
    write_columns(out / "predictions.csv", new)
    strange = new["category"].count(NOTHING)
    typer.echo(f"\n{len(new['file'])} new images sorted, {strange} of them fit no category: {out / 'predictions.csv'}")


def _picture(found: Run, out: Path) -> None:
    """A row of images for each category, the most typical first; known categories blue, novel ones orange."""
    table, names = found.clusters.to_pydict(), found.hierarchy["names"]
    clusters, distances = np.array(table["cluster"]), np.array(table["distance"])
    shown = 12
    figure = Figure(figsize=(shown * 0.7 + 1.6, len(names) * 0.75 + 0.3), layout="constrained")
    for cluster, row in enumerate(figure.subplots(len(names), shown, squeeze=False)):
        members = np.flatnonzero(clusters == cluster)
        for axis in row:
            axis.axis("off")
        for axis, member in zip(row, members[np.argsort(distances[members])], strict=False):
            axis.imshow(np.asarray(Image.open(found.root / table["file"][member])), cmap="gray")
        text, color = f"{names[cluster]}\n{len(members)} images", BLUE if cluster < N_KNOWN else ORANGE
        row[0].text(-0.25, 0.5, text, transform=row[0].transAxes, ha="right", va="center", fontsize=9, color=color)
    save_figure(figure, out / "categories.png")
