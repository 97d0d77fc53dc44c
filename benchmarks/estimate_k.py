"""How many categories? `estimate_k` compared with Brent's search on labelled accuracy, silhouette and gap statistic.

The file is an `.npz` with the arrays `features` (n × d), `classes` and `known` (whether the class of a row is known);
every other array is an alternative grouping of the rows. Without a file, scikit-learn's digits are used. In a long tail
of ratio r, the largest class has r times as many rows as the smallest, which has two. The file decides which classes
are known if all classes take part and half of them are known; otherwise the seed does. The seed also decides which rows
are labelled.

*From true sizes* is the count if novel categories are taken to be as large, on average, as known ones, whose true sizes
are given. Its error comes from known categories that are larger or smaller than the others.

The other three methods are run with seed 0 only, with one clustering per K, on the first 128 principal components.
"""

from __future__ import annotations

import argparse
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

from common import Lines, save
from selex import bssk, estimate_k
from selex.errors import Note

DIMS = 128
REFERENCES = 2  # uniform samples of the gap statistic
GRID = 10  # counts that the gap statistic tries


class Case(NamedTuple):
    """Which rows, which share of the classes is known, and which share of their rows is labelled."""

    name: str
    by: str = "classes"
    some: int | None = None
    tail: int = 1
    known: float = 0.5
    labelled: float = 0.5


def cases(columns: dict[str, np.ndarray]) -> list[Case]:
    k = len(np.unique(columns["classes"]))
    found = [Case("all classes"), *(Case(f"{some} classes", some=some) for some in (100, 50, 20) if some < k)]
    found += [Case(f"{ratio:.0%} of known rows labelled", labelled=ratio) for ratio in (0.2, 0.1, 0.05)]
    found += [Case(f"long tail, ratio {r}", some=min(k, 100), tail=r) for r in (10, 100)]
    found += [Case(f"{share:.0%} of classes known", known=share) for share in (0.2, 0.1) if share * k >= 2]
    others = [name for name in columns if name not in ("features", "classes", "known")]
    return found + [Case(f"by {name}", by=name) for name in others]


def draw(columns: dict[str, np.ndarray], case: Case, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, categories and labels of a case; known categories come first."""
    rng = np.random.default_rng([seed, 1])
    names = columns[case.by]
    part = np.isin(names, classes := rng.permutation(np.unique(names))[: case.some])
    for place, name in enumerate(classes if case.tail > 1 else ()):
        index = rng.permutation(np.flatnonzero(names == name))
        part[index[max(2, round(len(index) * case.tail ** (-place / (len(classes) - 1)))) :]] = False
    names = names[part]
    known = rng.permutation(np.unique(names))[: max(2, round(case.known * len(classes)))]
    if case.by == "classes" and case.some is None and case.known == 0.5:
        known = np.unique(names[columns["known"][part]])
    order = {name: number for number, name in enumerate([*np.sort(known), *np.setdiff1d(names, known)])}
    truth = np.array([order[name] for name in names])
    labels = np.where((truth < len(known)) & (rng.random(len(truth)) < case.labelled), truth, -1)
    for number in np.setdiff1d(np.arange(len(known)), labels):
        labels[rng.choice(np.flatnonzero(truth == number))] = number
    return columns["features"][part], truth, labels


def gap(rows: np.ndarray, low: int, high: int, seed: int) -> int:
    """The gap statistic of Tibshirani et al., by its rule of one standard error."""
    rng = np.random.default_rng(seed)
    ends = rows.min(0), rows.max(0)
    uniform = [rng.uniform(*ends, rows.shape).astype(np.float32) for _ in range(REFERENCES)]
    counts = np.unique(np.geomspace(low, high, GRID).round().astype(int)).tolist()
    gaps, errors = [], []
    for k in counts:
        logs = [np.log(bssk(x, None, k, balanced=False, n_iter=5, rng=seed).inertia) for x in (rows, *uniform)]
        gaps.append(np.mean(logs[1:]) - logs[0])
        errors.append(np.std(logs[1:]) * np.sqrt(1 + 1 / REFERENCES))
    for k, here, following, error in zip(counts, gaps, gaps[1:], errors[1:], strict=False):
        if here >= following - error:
            return int(k)
    return int(counts[-1])


def others(features: np.ndarray, labels: np.ndarray, seed: int) -> dict[str, object]:
    rows = PCA(DIMS, random_state=0).fit_transform(features) if features.shape[1] > DIMS else features
    rows, n_known = rows.astype(np.float32), int(labels.max()) + 1
    found: dict[str, object] = {}
    for method in ("accuracy", "silhouette"):
        one = estimate_k(rows, labels, method=method, n_init=1, rng=seed)
        found[f"{method} (interval)"] = f"{one.n_clusters} ({one.low} to {one.high})"
    found["gap"] = gap(rows, n_known, max(5 * n_known, int(2 * len(rows) ** 0.5)), seed)
    alone = estimate_k(rows, None, n_init=1, rng=seed)
    found["no labels (interval)"] = f"{alone.n_clusters} ({alone.low} to {alone.high})"
    return found


def measure(columns: dict[str, np.ndarray], case: Case, seed: int) -> dict[str, Any]:
    """The estimate of one draw."""
    features, truth, labels = draw(columns, case, seed)
    start = time.perf_counter()
    found = estimate_k(features, labels, rng=seed)
    sizes = {"rows": len(truth), "known": int(labels.max()) + 1, "categories": int(truth.max()) + 1}
    return {
        **sizes,
        "estimate": found.n_clusters,
        "low": found.low,
        "high": found.high,
        "from true sizes": round(float((labels.max() + 1) / np.mean(truth <= labels.max())), 1),
        "seconds": round(time.perf_counter() - start, 1),
    }


def _mean_error(estimates: list[float], k: int) -> float:
    """In per cent of the true number of categories."""
    return round(100 * float(np.mean(np.abs(np.array(estimates) / k - 1))), 1)


def summary(case: Case, lines: list[dict[str, Any]]) -> dict[str, Any]:
    """A row of the table: all draws of a case."""
    k, estimates = lines[0]["categories"], [line["estimate"] for line in lines]
    row = {"case": case.name, **{name: lines[0][name] for name in ("rows", "known", "categories")}}
    row |= {"estimates": estimates, "90 % intervals": [f"{line['low']} to {line['high']}" for line in lines]}
    row["that hold the truth"] = f"{sum(line['low'] <= k <= line['high'] for line in lines)} of {len(lines)}"
    row["mean error, %"] = _mean_error(estimates, k)
    row["from true sizes, %"] = _mean_error([line["from true sizes"] for line in lines], k)
    row["error of the median, %"] = round(100 * abs(float(np.median(estimates)) / k - 1), 1)
    return {**row, "seconds": round(float(np.median([line["seconds"] for line in lines])), 1)}


def read_columns(file: Path | None) -> dict[str, np.ndarray]:
    """Features, classes, which of them are known, and other groups; of the digits where there is no file."""
    if file:
        with np.load(file) as stored:
            return {name: stored[name] for name in stored}
    pixels, digit = load_digits(return_X_y=True)
    rows = pixels.astype(np.float32) - pixels.mean(0, dtype=np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return {"features": rows, "classes": digit, "known": digit < 5}


def main(options: argparse.Namespace) -> None:
    columns, kept = read_columns(options.file), Lines(options.lines)
    warnings.simplefilter("ignore", Note)
    results = []
    for case in (case for case in cases(columns) if not options.only or case.name in options.only):
        key = {"case": case.name}
        seeds = range(options.first, options.first + options.seeds)
        lines = [kept.once({**key, "seed": seed}, partial(measure, columns, case, seed)) for seed in seeds]
        results.append(summary(case, lines))
        if not options.alone:
            beside = kept.once({**key, "of others": True}, partial(others, *draw(columns, case, 0)[::2], 0))
            results[-1] |= {
                name: value for name, value in beside.items() if name not in ("case", "of others", "made by")
            }
    save(f"estimate_k_{options.file.stem if options.file else 'digits'}", results, options.out, lines=kept)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="first seed; seeds from 100 on are for development")
    parser.add_argument("--only", action="append", default=[], metavar="CASE")
    parser.add_argument("--alone", action="store_true", help="leave out the other three methods")
    parser.add_argument("--lines", type=Path, help="save every measurement here, and continue from those saved")
    parser.add_argument("--out", type=Path)
    main(parser.parse_args())
