"""Photos that are better set aside: blurred, dark or empty ones, and all but one of those that are nearly the same.

They are looked for in the background while the page stays quick, and kept until there are new results. Measures are
taken of a small version of each photo; what is unusual is judged within the collection where it can be. Thresholds are
set so that few good photos are found; `benchmarks/quality.py` measures what is.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image

from selex.data.decode import Unreadable, decode
from selex.review.core.overview import Overview
from selex.review.core.session import Review
from selex.review.core.state import CONFIRMED, SET_ASIDE
from selex.review.server import schema
from selex.review.server.cards import image_card
from selex.runs.results import directions

Array = np.ndarray[Any, Any]

SIDE = 160
"""Shorter side, in pixels, at which photos are measured."""

BLURRED = 0.1
"""A photo is blurred whose variance of the Laplacian is below this part of the median over all photos."""

MOVED, MOVED_MOST = 0.3, 0.25
"""A photo is blurred by motion whose second differences along one direction vary by less than the first part of what is
usual, and by less than the second part of what they do along another direction."""

DARK, EMPTY = 35, 8
"""A photo is dark whose mean, and empty whose standard deviation, is below this, of 255."""

SAME = 0.9
"""Photos are nearly the same whose small versions, or that and a mirrored one, correlate so much, if their features are
neighbours too."""

SHOWN = 60
"""Photos of a kind that the page shows; to set aside are all."""

_SMALL = 16  # side of the versions that are compared
_NUMBERS = 8  # of a photo, before the small version
_NEIGHBOURS = 5
_BLOCK = 2048


@dataclass(frozen=True, eq=False)
class Measures:
    """Of every row: sharpness (variance of the Laplacian), brightness, contrast; NaN where a photo cannot be read.

    `along` is the variance of second differences along four directions `(n, 4)`, `size` that of the file in bytes,
    `small` are the photos as rows of 16 × 16 grey values.
    """

    sharpness: Array
    brightness: Array
    contrast: Array
    along: Array
    size: Array
    small: Array

    @classmethod
    def of(cls, found: list[Array]) -> Measures:
        """What `measure` found of each row, together."""
        table = np.stack(found)
        sharpness, brightness, contrast = table[:, :3].T
        return cls(sharpness, brightness, contrast, table[:, 3:7], table[:, 7], table[:, _NUMBERS:].astype(np.uint8))

    @property
    def bad(self) -> dict[str, Array]:
        """Which rows are dark, empty or blurred; each is the first of these that it is."""
        dark = self.brightness < DARK
        empty = ~dark & (self.contrast < EMPTY)
        least, most = self.along.min(axis=1), self.along.max(axis=1)
        moved = (least < MOVED * _usual(least)) & (least < MOVED_MOST * most)
        blurred = moved | (self.sharpness < BLURRED * _usual(self.sharpness))
        return {"blurred": ~empty & ~dark & blurred, "dark": dark, "empty": empty}


def _usual(values: Array) -> float:
    return float(np.nanmedian(values)) if np.isfinite(values).any() else 0.0


def measure(path: str) -> Array:
    """Sharpness, brightness, contrast, sharpness along directions, file size and the small version, in one row."""
    row = np.full(_NUMBERS + _SMALL**2, np.nan, dtype=np.float32)
    try:
        image = Image.fromarray(decode(path, SIDE)).convert("L")
    except Unreadable:
        row[_NUMBERS:] = 0
        return row
    grey = np.asarray(image, dtype=np.float32)
    along = _second_differences(grey)
    row[:3] = (along[0] + along[1]).var(), grey.mean(), grey.std()
    row[3:7] = [differences.var() for differences in along]
    row[7] = os.path.getsize(path)
    row[_NUMBERS:] = np.asarray(image.resize((_SMALL, _SMALL), Image.Resampling.BOX)).ravel()
    return row


def _second_differences(grey: Array) -> list[Array]:
    """Along rows, columns and both diagonals; what moved along one of them is smooth there, and not across it."""
    middle, inside = 2 * grey[1:-1, 1:-1], slice(1, -1)
    before, after = slice(None, -2), slice(2, None)
    pairs = [(grey[inside, before], grey[inside, after]), (grey[before, inside], grey[after, inside])]
    pairs += [(grey[before, before], grey[after, after]), (grey[before, after], grey[after, before])]
    return [middle - one - other for one, other in pairs]


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
    mirrored = looks.reshape(-1, _SMALL, _SMALL)[:, :, ::-1].reshape(looks.shape)
    near, count = directions(features[rows]), min(_NEIGHBOURS, len(rows) - 1)
    found = []
    for start in range(0, len(rows) if count else 0, _BLOCK):
        cosine = near[start : start + _BLOCK] @ near.T
        own = np.arange(len(cosine))
        cosine[own, own + start] = -np.inf
        best = np.argpartition(-cosine, count - 1, axis=1)[:, :count]
        alike = (np.einsum("nd,nkd->nk", one[start : start + _BLOCK], looks[best]) for one in (looks, mirrored))
        same = np.maximum(*alike) >= SAME
        found += [(int(rows[start + i]), int(rows[best[i, k]])) for i, k in np.argwhere(same)]
    return found


@dataclass
class _Look:
    """A look through the photos of a round: how far it is, and what came of it."""

    round: int
    paths: Sequence[str]
    began: float = field(default_factory=time.monotonic)
    done: int = 0
    found: tuple[Measures, list[Array]] | None = None
    failed: str | None = None

    @property
    def state(self) -> str:
        """As the page is told."""
        return "idle" if self.failed else "done" if self.found else "running"

    @property
    def seconds_left(self) -> float | None:
        """At the rate so far; None where there is none."""
        if self.state != "running" or not self.done:
            return None
        return (time.monotonic() - self.began) / self.done * (len(self.paths) - self.done)

    def run(self, features: Array, category: Array) -> None:
        """Look; meant for a thread of its own."""
        try:
            measures = self._measures()
            self.found = measures, near_duplicates(features, category, measures.small)
        except Exception as error:  # whatever it is, the page is to say so rather than to wait for ever
            self.failed = f"{type(error).__name__}: {error}"

    def _measures(self) -> Measures:
        rows = []
        with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
            for row in pool.map(measure, self.paths):
                rows.append(row)
                self.done = len(rows)
        return Measures.of(rows)


class Checks:
    """What was found in the photos of a round."""

    def __init__(self, review: Review) -> None:
        self._review, self._lock = review, threading.Lock()
        self._look = _Look(0, [])

    def start(self) -> None:
        """Look through the photos; nothing where that is done already, or being done."""
        with self._review.steady(), self._lock:
            review = self._review
            if self._look.round == review.round and not self._look.failed:
                return
            self._look = _Look(review.round, review.paths)
            given = (review.embeddings, review.results.category)
            threading.Thread(target=self._look.run, args=given, daemon=True).start()

    def answer(self, overview: Overview, standing: schema.Standing) -> schema.Check:
        """How far it is, and what was found that is not set aside yet."""
        look = self._look
        here = look.round == self._review.round
        return schema.Check(
            standing=standing,
            state=look.state if here else "idle",  # type: ignore[arg-type]
            done=look.done if here else 0,
            total=len(self._review.results),
            seconds_left=look.seconds_left if here else None,
            failed=look.failed if here else None,
            findings=self._findings(overview, *look.found) if here and look.found else [],
        )

    def _findings(self, overview: Overview, measures: Measures, groups: list[Array]) -> list[schema.Finding]:
        mark, review = self._review.state.mark, self._review
        open_, kinds = (mark != SET_ASIDE) & (mark != CONFIRMED), measures.bad
        bad = open_ & np.any(list(kinds.values()), axis=0)
        there = [_best_first(group[mark[group] != SET_ASIDE], mark, bad, measures.size) for group in groups]
        last = {int(row) for group in there if bad[group].all() for row in group}
        spare = [group for group in there if open_[group[1:]].any()]

        def finding(kind: str, rows: list[int], shown: list[Array], kept: list[int]) -> schema.Finding:
            cards = [[image_card(review, overview, row) for row in group.tolist()] for group in shown]
            return schema.Finding(kind=kind, rows=rows, groups=cards, last=[row for row in kept if row in last])  # type: ignore[arg-type]

        aside = [int(row) for group in spare for row in group[1:] if open_[row]]
        found = [finding("near-duplicate", aside, _first(spare), [int(group[0]) for group in spare])]
        for kind, rows in kinds.items():
            left = np.flatnonzero(rows & open_)
            found.append(finding(kind, left.tolist(), [left[:SHOWN]], left.tolist()))
        return [finding for finding in found if finding.rows]


def _best_first(rows: Array, mark: Array, bad: Array, size: Array) -> Array:
    """A group with the one to keep first: confirmed, else one that is not bad itself, else the largest file.

    A copy that was saved anew is smaller than the original, and so is the blurred one of a series; by sharpness the
    copy would be kept, since what compression adds looks sharp.
    """
    return rows[np.lexsort((-np.nan_to_num(size[rows]), bad[rows], mark[rows] != CONFIRMED))]


def _first(groups: list[Array]) -> list[Array]:
    """As many groups as the page shows."""
    ends = np.cumsum([len(group) for group in groups])
    return groups[: max(1, int((ends <= SHOWN).sum()))]
