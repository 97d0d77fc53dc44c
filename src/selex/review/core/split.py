"""The parts that a category falls into, to be offered to a person."""

from __future__ import annotations

from typing import Any

import numpy as np

from selex.review.core.decisions import Refused

Array = np.ndarray[Any, Any]

MOST_PARTS = 8
_SAMPLE = 5000  # k-means looks at so many rows at most; the others join the nearest part


def parts_of(features: Array, rows: Array, count: int, seed: int = 0) -> list[Array]:
    """`rows` in `count` parts by k-means on their features, the largest first; the same every time."""
    if not 2 <= count <= MOST_PARTS:
        raise Refused(f"a category can be split into 2 to {MOST_PARTS} parts, not {count}")
    if len(rows) < count:
        raise Refused(f"{len(rows)} images cannot be split into {count} parts")
    from sklearn.cluster import KMeans  # takes a second to import: not everybody splits

    rows = np.sort(rows)
    rng = np.random.default_rng(seed)
    sample = rows if len(rows) <= _SAMPLE else np.sort(rng.choice(rows, _SAMPLE, replace=False))
    points = np.asarray(features[sample], dtype=np.float32)
    if len(np.unique(points, axis=0)) < count:
        raise Refused("these images are too alike to be split: move some of them manually")
    model = KMeans(count, n_init=4, random_state=seed).fit(points)
    labels = model.predict(np.asarray(features[rows], dtype=np.float32))
    parts = [rows[labels == part] for part in range(count)]
    return sorted((part for part in parts if len(part)), key=len, reverse=True)
