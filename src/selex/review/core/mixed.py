"""Whether a category is mixed: into how many parts its images fall, how surely, and whether labels follow them.

Its images are divided into two halves at random, and each half is clustered by itself. If the two agree about all
images, the parts are in the images; parts that chance made are others in each half. Images may fall into poses or
backgrounds just as surely: then those with one label are in all parts, not together in one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]

PARTS = range(2, 6)
"""Numbers of parts that are tried."""
_SAMPLE = 150  # images that are looked at
_HALVES = 3  # ways of making two halves
_STARTS = 4


class Mixture(NamedTuple):
    """The number of parts that halves agree about most, and how much: 1 always, 0 no more than by chance."""

    parts: int
    agreement: float
    together: float | None = None  # how often images with one label share a part, likewise; None: no two have one


UNKNOWN = Mixture(1, 0.0)


def mixture(features: Array, rows: Array, given: Array) -> Mixture:
    """Into how many parts these rows fall; the same every time. Of many rows a sample is looked at.

    `given` are the labels of all images, -1 where there is none.
    """
    rng = np.random.default_rng(0)
    some = rows if len(rows) <= _SAMPLE else np.sort(rng.choice(rows, _SAMPLE, replace=False))
    points = np.asarray(features[some], dtype=np.float32)
    alike = np.triu((given[some][:, None] == given[some]) & (given[some] >= 0), 1)
    kinds = np.unique(points, axis=0, return_inverse=True)[1].ravel()
    found = [_in_parts(points, kinds, alike, count, rng) for count in PARTS if 4 * count <= len(points)]
    return max(found, key=lambda one: one.agreement, default=UNKNOWN)


def _in_parts(points: Array, kinds: Array, alike: Array, count: int, rng: np.random.Generator) -> Mixture:
    from sklearn.metrics import adjusted_rand_score  # takes a second to import

    agreement, together = [], []
    for _ in range(_HALVES):
        order = rng.permutation(len(points))
        halves = np.array_split(order, 2)
        if any(len(np.unique(kinds[half])) < count for half in halves):  # too alike
            return UNKNOWN
        one, other = (_clusters(points, half, count) for half in halves)
        agreement.append(adjusted_rand_score(one, other))
        together += [_together(one, alike), _together(other, alike)] if alike.any() else []
    return Mixture(count, float(np.mean(agreement)), float(np.mean(together)) if together else None)


def _clusters(points: Array, half: Array, count: int) -> Array:
    """The part of every row, by k-means of some of them."""
    from sklearn.cluster import KMeans  # takes a second to import

    labels: Array = KMeans(count, n_init=_STARTS, random_state=0).fit(points[half]).predict(points)
    return labels


def _together(parts: Array, alike: Array) -> float:
    """How much more often than any two images those of these pairs are in one part."""
    same = parts[:, None] == parts
    chance = same[np.triu_indices(len(parts), 1)].mean()
    return float((same[alike].mean() - chance) / (1 - chance)) if chance < 1 else 0.0
