"""How stable `auto` is: which search and refinement it picks, before and after a person has named categories.

Arguments are those of `minima.py`; without them, scikit-learn's handwritten digits are used. The data of a case are
drawn once; seeds vary the held-out trials (`fit_clusters` itself uses one fixed seed for them) and the clustering. Half
of the classes are known, and half of their images labelled. `--classes` limits the number of classes, and `--rows` the
number of images in cases grouped by another column. *Named* means that up to five novel categories, and at most half of
them, have got labels on half of their images. K is given, and features are not adapted. The table shows how often each
search and refinement was picked, accuracy on unlabelled images (mean ± standard deviation over seeds), and the sizes of
the smallest and the largest category: true, and found with any seed. Cases already in the results file are not measured
again.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections import Counter
from pathlib import Path
from unittest.mock import patch

import numpy as np

from common import RESULTS, save
from minima import Case, Data, digits, drawn, read, some_classes, some_rows
from selex import ClusterConfig, fit_clusters, split_accuracy

NAMED = 5


def named(data: Data) -> Data:
    """The same after half of the images of some novel categories got a label."""
    n_known = data.n_known + min(NAMED, (data.k - data.n_known) // 2)
    half = np.random.default_rng(4).random(len(data.truth)) < 0.5
    half[[np.flatnonzero(data.truth == category)[0] for category in range(n_known)]] = True  # none without
    new = (data.truth >= data.n_known) & (data.truth < n_known) & half
    return data._replace(labels=np.where(new, data.truth, data.labels), n_known=n_known)


def measure(name: str, data: Data, seeds: int) -> dict[str, object]:
    free, scores, taken, sizes = data.labels < 0, [], [], []
    for seed in range(seeds):
        config = ClusterConfig(categories=data.k, levels=1, adapt="off")
        with patch("selex.cluster.pipeline.CHOICE", seed):
            found = fit_clusters(data.features, data.labels, config, rng=seed, calibrate=False)
        labels = np.asarray(found.labels)
        scores.append(100 * split_accuracy(data.truth[free], labels[free], data.truth[free] < data.n_known).all)
        taken.append(f"{found.selection.search}, {found.selection.refine}")
        sizes.append(np.bincount(labels, minlength=data.k))
    counts, true = Counter(taken).most_common(), np.bincount(data.truth)
    row: dict[str, object] = {
        "case": name,
        "rows": len(free),
        "categories": data.k,
        "known": data.n_known,
        "seeds": seeds,
        "chosen": "; ".join(f"{way}: {times}" for way, times in counts),
        "All": f"{np.mean(scores):.1f} ± {np.std(scores, ddof=1):.1f}",
        "sizes": f"{true.min()} to {true.max()}",
        "sizes found": f"{np.min(sizes)} to {np.max(sizes)}",
    }
    print(row, flush=True)
    return row


def main(options: argparse.Namespace) -> None:
    warnings.simplefilter("ignore")
    if options.features is None:
        features, columns = digits()
        every = {"digits": drawn(features, columns, Case(), 0)}
    else:
        features, columns = read(options.features, options.labels, options.by)
        part = some_classes(columns, options.classes)
        few = {name: values[part] for name, values in columns.items()}
        every = {
            f"{options.classes} classes": drawn(features[part], few, Case(), 0),
            "tail of 100": drawn(features[part], few, Case(tail=100), 0),
        }
        for by in options.by:
            part = some_rows(len(features), options.rows)
            rows = {name: values[part] for name, values in columns.items()}
            every[f"by {by}"] = drawn(features[part], rows, Case(by=by), 0)
    path = (options.out or RESULTS) / f"selection_{options.name}.json"
    results = json.loads(path.read_text())["results"] if path.exists() else []
    for name, data in every.items():
        for title, one in ((name, data), (f"{name}, named", named(data))):
            if title not in [row["case"] for row in results]:
                results.append(measure(title, one, options.seeds))
                save(f"selection_{options.name}", results, options.out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("features", type=Path, nargs="?")
    parser.add_argument("labels", type=Path, nargs="?")
    parser.add_argument("--by", action="append", default=[], help="also group by this column")
    parser.add_argument("--classes", type=int, default=50)
    parser.add_argument("--rows", type=int, default=1500)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--name", default="digits", help="name of the results")
    parser.add_argument("--out", type=Path)
    main(parser.parse_args())
