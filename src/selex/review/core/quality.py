"""Photos that are better set aside: blurred, dark or empty ones, and all but one of those that are nearly the same.

Measures are taken of a small version of each photo; what is unusual is judged within the collection where it can be.
Thresholds are set so that few good photos are found; `benchmarks/quality.py` measures what is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from selex.data.decode import Unreadable, decode
from selex.runs.results import directions

Array = np.ndarray[Any, Any]

SIDE = 160
"""Shorter side, in pixels, at which photos are measured."""

BLURRED = 0.1
"""A photo is blurred whose variance of the Laplacian is below this part of the median over all photos."""

DARK, EMPTY = 35, 8
"""A photo is dark whose mean, and empty whose standard deviation, is below this, of 255."""

SAME = 0.9
"""Photos are nearly the same whose small versions correlate so much, if their features are neighbours too."""

_SMALL = 16  # side of the versions that are compared
_NEIGHBOURS = 5
_BLOCK = 2048


@dataclass(frozen=True, eq=False)
class Measures:
    """Of every row: sharpness (variance of the Laplacian), brightness, contrast; NaN where a photo cannot be read.

    `small` are the photos as rows of 16 × 16 grey values.
    """

    sharpness: Array
    brightness: Array
    contrast: Array
    small: Array

    @classmethod
    def of(cls, found: list[Array]) -> Measures:
        """What `measure` found of each row, together."""
        table = np.stack(found)
        return cls(table[:, 0], table[:, 1], table[:, 2], table[:, 3:].astype(np.uint8))

    @property
    def bad(self) -> dict[str, Array]:
        """Which rows are dark, empty or blurred; each is the first of these that it is."""
        dark = self.brightness < DARK
        empty = ~dark & (self.contrast < EMPTY)
        usual = np.nanmedian(self.sharpness) if np.isfinite(self.sharpness).any() else 0.0
        return {"blurred": ~empty & ~dark & (self.sharpness < BLURRED * usual), "dark": dark, "empty": empty}


def measure(path: str) -> Array:
    """Sharpness, brightness, contrast and the small version of a photo, in one row."""
    row = np.full(3 + _SMALL**2, np.nan, dtype=np.float32)
    try:
        image = Image.fromarray(decode(path, SIDE)).convert("L")
    except Unreadable:
        row[3:] = 0
        return row
    grey = np.asarray(image, dtype=np.float32)
    middle = 4 * grey[1:-1, 1:-1]
    laplacian = middle - grey[:-2, 1:-1] - grey[2:, 1:-1] - grey[1:-1, :-2] - grey[1:-1, 2:]
    row[:3] = laplacian.var(), grey.mean(), grey.std()
    row[3:] = np.asarray(image.resize((_SMALL, _SMALL), Image.Resampling.BOX)).ravel()
    return row


def near_duplicates(features: Array, category: Array, small: Array) -> list[Array]:
    """Groups of rows that are nearly the same photo: neighbours by features in one category, and alike to the eye."""
    pairs = [
        pair for number in np.unique(category) for pair in _pairs(features, np.flatnonzero(category == number), small)
    ]
    first = np.arange(len(category))  # of each row: the first of its group

    def root(row: int) -> int:
        while first[row] != row:
            row = first[row]
        return row

    for a, b in pairs:
        one, other = sorted((root(a), root(b)))
        first[other] = one
    roots = np.array([root(row) for row in range(len(first))])
    grouped = np.flatnonzero(np.bincount(roots, minlength=len(roots)) > 1)
    return [np.flatnonzero(roots == group) for group in grouped]


def _pairs(features: Array, rows: Array, small: Array) -> list[tuple[int, int]]:
    """Pairs of rows, of one category, that are among each other's nearest and look the same."""
    looks = small[rows].astype(np.float32)
    looks = directions(looks - looks.mean(axis=1, keepdims=True))
    near, count = directions(features[rows]), min(_NEIGHBOURS, len(rows) - 1)
    found = []
    for start in range(0, len(rows) if count else 0, _BLOCK):
        cosine = near[start : start + _BLOCK] @ near.T
        own = np.arange(len(cosine))
        cosine[own, own + start] = -np.inf
        best = np.argpartition(-cosine, count - 1, axis=1)[:, :count]
        same = np.einsum("nd,nkd->nk", looks[start : start + _BLOCK], looks[best]) >= SAME
        found += [(int(rows[start + i]), int(rows[best[i, k]])) for i, k in np.argwhere(same)]
    return found
