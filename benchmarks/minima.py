"""Which clustering finds the best minimum? scikit-learn's algorithms, the paper's and ours on the same features.

`features.npy` holds one row per image, such as `embeddings.npy` of a run; `labels.csv` has one line per row with the
columns class and known, and optionally others to group images by (`--by COLUMN`). Without files, scikit-learn's
handwritten digits are used, as pixels. K is given. All methods but "BSSK, not whitened" see the same features, whitened
with the available labels; inertia is measured on these. In a long tail of 100, the largest class has a hundred times as
many images as the smallest. Accuracy on All, Known and Novel is over the unlabelled rows, mean ± standard deviation
over seeds, which draw the labels, the tail, the known classes where the file does not name them, and everything random
in a method. `--classes` limits the number of classes, half of them known, and `--rows` the number of images in cases
grouped by another column. `--lines FILE` saves every measurement as it is made; what is in the file already is not
measured again.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.cluster import HDBSCAN, AgglomerativeClustering, KMeans, SpectralClustering
from sklearn.datasets import load_digits

from common import Lines, columns_of, labels_for, save
from selex import ClusterConfig, bssk, fit_clusters, split_accuracy
from selex.cluster.whiten import fit_whitener

LEAST = 10  # images of a group by another column; smaller groups are left out
FEWEST = 2  # images of a class at the end of a tail


class Case(NamedTuple):
    """Which images, how they are grouped, and the share of known ones that is labelled."""

    by: str = "class"
    labelled: float = 0.5
    tail: float = 0


class Data(NamedTuple):
    """A case with everything drawn: categories below `n_known` are known."""

    features: np.ndarray
    rows: np.ndarray
    labels: np.ndarray
    truth: np.ndarray
    n_known: int
    k: int


def cases(by: list[str]) -> dict[str, Case]:
    ratios = {f"{share:.0%} labelled": Case(labelled=share) for share in (0.5, 0.2, 0.05)}
    tails = {f"tail of {tail}": Case(tail=tail) for tail in (10, 100)}
    return {**ratios, **tails, **{f"by {name}": Case(by=name) for name in by}}


def drawn(features: np.ndarray, columns: dict[str, np.ndarray], case: Case, seed: int) -> Data:
    """The rows of a case, known categories numbered first, and their labels."""
    rng, names = np.random.default_rng([seed, 3]), columns[case.by]
    classes, sizes = np.unique(names, return_counts=True)
    if case.by == "class":
        known = np.unique(names[columns["known"] == "1"])
    else:
        classes = rng.permutation(classes[sizes >= LEAST])
        known = classes[: (len(classes) + 1) // 2]
    order = [*known, *np.setdiff1d(classes, known)]
    part = np.flatnonzero(np.isin(names, order))
    number = {name: place for place, name in enumerate(order)}
    truth = np.array([number[name] for name in names[part]])
    if case.tail:
        kept = tail(truth, case.tail, rng)
        part, truth = part[kept], truth[kept]
    labels = labels_for(truth, len(known), case.labelled, seed)
    whitener = fit_whitener(features[part], labels, 0.5)
    rows = whitener(features[part]) if whitener else features[part]
    return Data(features[part], rows, labels, truth, len(known), len(order))


def some_classes(columns: dict[str, np.ndarray], count: int) -> np.ndarray:
    """Rows of so many classes, half of them known ones, spread over all."""
    parts = [np.unique(columns["class"][columns["known"] == known]) for known in ("1", "0")]
    chosen = [part[np.linspace(0, len(part) - 1, min(count // 2, len(part))).astype(int)] for part in parts]
    return np.flatnonzero(np.isin(columns["class"], np.concatenate(chosen)))


def some_rows(n: int, count: int) -> np.ndarray:
    """So many of n rows, at random."""
    return np.sort(np.random.default_rng(5).permutation(n)[:count])


def tail(truth: np.ndarray, ratio: float, rng: np.random.Generator) -> np.ndarray:
    """Rows that are left where each class, in a random order, has fewer images than the last."""
    k = int(truth.max()) + 1
    shares = ratio ** (-rng.permutation(k) / (k - 1))
    wanted = np.maximum(FEWEST, np.round(np.bincount(truth) * shares)).astype(int)
    return np.sort(np.concatenate([rng.permutation(np.flatnonzero(truth == i))[: wanted[i]] for i in range(k)]))


def linked(linkage: str) -> Callable[[Data, int], np.ndarray]:
    return lambda data, seed: np.asarray(AgglomerativeClustering(data.k, linkage=linkage).fit_predict(data.rows))


def spectral(data: Data, seed: int) -> np.ndarray:
    way = SpectralClustering(data.k, affinity="nearest_neighbors", n_neighbors=10, n_init=3, random_state=seed)
    return np.asarray(way.fit_predict(data.rows))


def hdbscan(data: Data, seed: int) -> np.ndarray:
    """It finds its own number of clusters; what it calls noise goes to the nearest mean."""
    found = HDBSCAN(min_cluster_size=5, copy=True).fit_predict(data.rows)
    if found.max() < 0:
        return np.zeros_like(found)
    means = np.stack([data.rows[found == i].mean(0) for i in range(found.max() + 1)])
    nearest = (np.square(means).sum(1) - 2 * data.rows @ means.T).argmin(1)
    return np.asarray(np.where(found < 0, nearest, found))


def ours(**settings: Any) -> Callable[[Data, int], np.ndarray]:
    """`fit_clusters` with its defaults but for these settings."""

    def way(data: Data, seed: int) -> np.ndarray:
        config = ClusterConfig(categories=data.k, levels=1, **settings)
        found = fit_clusters(data.features, data.labels, config, rng=seed, calibrate=False)
        print("   ", found.selection.settings, flush=True)
        return np.asarray(found.labels)

    return way


WAYS: dict[str, Callable[[Data, int], np.ndarray]] = {
    "k-means++, no labels": lambda data, seed: KMeans(data.k, n_init=3, random_state=seed).fit_predict(data.rows),
    "Ward, no labels": linked("ward"),
    "average linkage, no labels": linked("average"),
    "spectral, no labels": spectral,
    "HDBSCAN, no labels or K": hdbscan,
    "semi-supervised k-means++": lambda data, seed: np.asarray(
        bssk(data.rows, data.labels, data.k, balanced=False, n_init=3, rng=seed).labels
    ),
    "BSSK, not whitened": lambda data, seed: np.asarray(
        bssk(data.features, data.labels, data.k, n_init=3, rng=seed).labels
    ),
    "BSSK": lambda data, seed: np.asarray(bssk(data.rows, data.labels, data.k, n_init=3, rng=seed).labels),
    "swaps": ours(adapt="off", search="swaps", refine="none"),
    "unequal": ours(adapt="off", search="unequal", refine="none"),
    "smoothed": ours(adapt="off", search="smoothed", refine="none"),
    "consensus": ours(adapt="off", search="consensus", refine="none"),
    "consensus, refined": ours(adapt="off", search="consensus"),
    "default, not adapted": ours(adapt="off"),
    "adapted, not chosen": ours(adapt="on", refine="proportional"),
    "default, adapted": ours(adapt="on"),
    "default": ours(),
}


def inertia(rows: np.ndarray, found: np.ndarray) -> float:
    """Sum of squared distances of rows to the means of their clusters."""
    return float(sum(np.square(rows[found == i] - rows[found == i].mean(0)).sum() for i in np.unique(found)))


def measure(data: Data, way: str, seed: int) -> dict[str, float]:
    start = time.perf_counter()
    found = WAYS[way](data, seed)
    seconds = time.perf_counter() - start
    free = data.labels < 0
    scores = split_accuracy(data.truth[free], found[free], data.truth[free] < data.n_known)
    return {**scores._asdict(), "inertia": inertia(data.rows, found), "seconds": seconds}


def summary(case: str, way: str, lines: list[dict[str, Any]]) -> dict[str, object]:
    """A row of the table: the mean over seeds, and how far they spread."""
    row: dict[str, object] = {"case": case, "way": way, "seeds": len(lines)}
    for name in ("all", "known", "novel"):
        values = 100 * np.array([line[name] for line in lines])
        spread = f" ± {values.std(ddof=1):.1f}" if len(lines) > 1 else ""
        row[name.capitalize()] = f"{values.mean():.1f}{spread}"
    row["inertia"] = round(float(np.mean([line["inertia"] for line in lines])), 1)
    row["seconds"] = round(float(np.median([line["seconds"] for line in lines])), 1)
    return row


def digits() -> tuple[np.ndarray, dict[str, np.ndarray]]:
    pixels, truth = load_digits(return_X_y=True)
    rows = pixels.astype(np.float32) - pixels.mean(0, dtype=np.float32)
    columns = {"class": truth.astype(str), "known": np.where(truth < 5, "1", "0")}
    return rows / np.linalg.norm(rows, axis=1, keepdims=True), columns


def read(features: Path, labels: Path, by: list[str]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    rows = np.load(features).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True), columns_of(labels, ["known", *by])


def main(options: argparse.Namespace) -> None:
    warnings.simplefilter("ignore")
    digital = options.features is None
    features, columns = digits() if digital else read(options.features, options.labels, options.by)
    whole, few = some_rows(len(features), options.rows), some_classes(columns, options.classes)
    every, ways = cases(options.by), options.way or list(WAYS)
    kept = Lines(options.lines)
    for case in options.case or every:
        for seed in range(options.first, options.first + options.seeds):
            part = whole if every[case].by != "class" else few
            data = drawn(features[part], {name: column[part] for name, column in columns.items()}, every[case], seed)
            for way in ways:
                kept.once({"case": case, "way": way, "seed": seed}, partial(measure, data, way, seed))
    lines = kept.lines
    found = [(case, way, [x for x in lines if (x["case"], x["way"]) == (case, way)]) for case in every for way in WAYS]
    save(f"minima_{options.name}", [summary(*one) for one in found if one[2]], options.out, lines=kept)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path, nargs="?")
    parser.add_argument("labels", type=Path, nargs="?")
    parser.add_argument("--by", action="append", default=[], help="also group by this column")
    parser.add_argument("--case", action="append", help="run only this case")
    parser.add_argument("--way", action="append", help="run only this method")
    parser.add_argument("--classes", type=int, default=1_000_000)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=0, help="first seed; seeds from 100 on are for development")
    parser.add_argument("--name", default="digits", help="name of the results")
    parser.add_argument("--lines", type=Path, help="save every measurement here, and continue from those saved")
    parser.add_argument("--out", type=Path)
    main(parser.parse_args())
