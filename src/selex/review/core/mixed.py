"""Whether a category is mixed: into how many parts its images fall, and how surely.

Its images are divided into two halves at random, and each half is clustered by itself. If the two agree about all
images, the parts are in the images; parts that chance made are others in each half.
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
_TURNS = 15


class Mixture(NamedTuple):
    """The number of parts that halves agree about most, and how much: 1 always, 0 no more than by chance."""

    parts: int
    agreement: float


UNKNOWN = Mixture(1, 0.0)


def mixture(features: Array, rows: Array) -> Mixture:
    """Into how many parts these rows fall; the same every time. Of many rows a sample is looked at."""
    rng = np.random.default_rng(0)
    some = rows if len(rows) <= _SAMPLE else np.sort(rng.choice(rows, _SAMPLE, replace=False))
    points = np.asarray(features[some], dtype=np.float64)
    points = points - points.mean(0)
    products = points @ points.T
    found = [Mixture(count, _agreement(products, count, rng)) for count in PARTS if 4 * count <= len(points)]
    return max(found, key=lambda one: one.agreement, default=UNKNOWN)


def _agreement(products: Array, count: int, rng: np.random.Generator) -> float:
    n = len(products)
    found = []
    for _ in range(_HALVES):
        order = rng.permutation(n)
        one, other = (_clusters(products, half, count, rng) for half in (order[: n // 2], order[n // 2 :]))
        found.append(_rand_index(one, other, count))
    return float(np.mean(found))


def _clusters(products: Array, half: Array, count: int, rng: np.random.Generator) -> Array:
    """The part of every row, by k-means of some of them: the best of a few starts."""
    best, labels = np.inf, np.zeros(len(products), dtype=np.int64)
    inside = products[np.ix_(half, half)]
    for _ in range(_STARTS):
        own = _far(inside, _seeds(inside, count, rng)).argmin(1)
        for _ in range(_TURNS):
            before, own = own, _far(inside, _shares(own, count)).argmin(1)
            if np.array_equal(own, before):
                break
        shares = _shares(own, count)
        cost = _far(inside, shares).min(1).sum()
        if cost < best:
            best, labels = cost, _far(products, shares, half).argmin(1)
    return labels


def _seeds(products: Array, count: int, rng: np.random.Generator) -> Array:
    """Rows as centres, drawn by their squared distance to those drawn before."""
    lengths, chosen = np.diag(products), [int(rng.integers(len(products)))]
    for _ in range(count - 1):
        far = (lengths[:, None] + lengths[chosen] - 2 * products[:, chosen]).min(1).clip(0)
        chosen.append(int(rng.choice(len(far), p=far / far.sum() if far.sum() else None)))
    return np.eye(len(products))[:, chosen]


def _shares(labels: Array, count: int) -> Array:
    """Centres as shares of rows, `(rows, parts)`: of a part without rows, nowhere."""
    chosen = np.eye(count)[labels]
    return chosen / np.maximum(chosen.sum(0), 1)


def _far(products: Array, shares: Array, half: Array | slice = slice(None)) -> Array:
    """Squared distances of rows to centres, up to what is the same for all centres of a row."""
    across = products[:, half] @ shares
    return np.where(shares.any(0), (shares * across[half]).sum(0) - 2 * across, np.inf)


def _rand_index(one: Array, other: Array, count: int) -> float:
    """The adjusted Rand index of two clusterings."""
    table = np.bincount(one * count + other, minlength=count * count).reshape(count, count)
    pairs, rows, columns, all_pairs = (_pairs(of).sum() for of in (table, table.sum(1), table.sum(0), table.sum()))
    chance = rows * columns / all_pairs
    most = (rows + columns) / 2
    return float((pairs - chance) / (most - chance)) if most > chance else 0.0


def _pairs(numbers: Any) -> Array:
    return np.asarray(numbers) * (np.asarray(numbers) - 1) / 2
