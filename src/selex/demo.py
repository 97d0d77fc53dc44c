"""The demonstration: scikit-learn's handwritten digits, five of them known, five to discover."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import typer
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits

from selex.cluster.hierarchy import hssk
from selex.cluster.kmeans import distances_to_own
from selex.data.features import Features, category_names, write_clusters
from selex.errors import InputError
from selex.metrics import split_accuracy
from selex.report.plots import plot_examples
from selex.types import UNLABELLED

N_KNOWN, N_CLUSTERS = 5, 10


def run(out: Path, seed: int = 0) -> None:
    """Cluster the digits' plain pixels, print k-means beside BSSK, write the table and a picture of what was found."""
    digits = load_digits()
    pixels, truth = digits.data.astype(np.float32), digits.target
    drawn = np.random.default_rng(seed).random(len(truth)) < 0.5
    labels = np.where((truth < N_KNOWN) & drawn, truth, UNLABELLED)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{out}: cannot be made ({error.strerror})") from None

    hierarchy = hssk(pixels, labels, N_CLUSTERS, n_init=10, rng=seed)
    plain = KMeans(N_CLUSTERS, n_init=10, random_state=seed).fit(pixels).labels_
    base, free = hierarchy.levels[0], labels == UNLABELLED
    typer.echo(f"{len(truth)} digit images, 0-4 known with {np.sum(~free)} labels, 5-9 to discover")
    typer.echo(f"{'accuracy, unlabelled images':<30}  All / Known / Novel")
    for name, clusters in {"k-means": plain, "BSSK": base.labels}.items():
        typer.echo(f"{name:<30}  {split_accuracy(truth[free], clusters[free], truth[free] < N_KNOWN)}")

    names = category_names(range(N_KNOWN), N_CLUSTERS)
    distances = distances_to_own(pixels, base)
    table = Features(pixels, [str(row) for row in range(len(truth))], "row")
    write_clusters(out / "clusters.csv", table, hierarchy, names, (~free).tolist(), distances.tolist())
    with (out / "truth.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([("row", "label"), *enumerate(truth.tolist())])
    plot_examples(digits.images, base.labels, distances, names, N_KNOWN, out / "categories.png")
    typer.echo(f"table:   {out / 'clusters.csv'}   (selex evaluate {out / 'clusters.csv'} --truth {out / 'truth.csv'})")
    typer.echo(f"picture: {out / 'categories.png'}   <- open this: example images of each category")
