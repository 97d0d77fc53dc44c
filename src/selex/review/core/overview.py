"""The state seen from above: which rows each category has, and what there is to say of each. Made once per version."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from selex.review.core.session import Review
from selex.review.core.state import CONFIRMED, JUNK, UNSURE

Array = np.ndarray[Any, Any]

DOUBTFUL = 0.5
"""An image less sure than this is doubtful."""


@dataclass(frozen=True, eq=False)
class Overview:
    """Figures per category and per row. Junk counts in no category.

    Attributes:
        version: the version of the state this is of.
        order: rows, category after category, each one's surest first; junk at the end.
        starts: where the rows of each category start in `order`, and where the last one's end.
        sizes, confirmed, unsure, doubtful, changed: images of each category, and how many of them are so.
        confidence: mean confidence of each category.
        changed_rows: rows that are elsewhere than the run, or the round before, had them.
    """

    version: str
    order: Array
    starts: Array
    sizes: Array
    confirmed: Array
    unsure: Array
    doubtful: Array
    changed: Array
    confidence: Array
    changed_rows: Array
    marks: Array

    @classmethod
    def of(cls, review: Review, by_confidence: Array) -> Overview:
        """The overview of the state as it is; `by_confidence` are all rows, the surest first."""
        state, results = review.state, review.results
        count = len(state.names)
        shelf = np.where(state.mark == JUNK, count, state.category)
        order = by_confidence[np.argsort(shelf[by_confidence], kind="stable")]
        sizes = np.bincount(shelf, minlength=count + 1)[:count]
        changed_rows = state.category != results.category
        if review.changes is not None:
            changed_rows |= review.changes.rows

        def number(rows: Array) -> Array:
            return np.bincount(shelf[rows], minlength=count + 1)[:count]

        total = np.bincount(shelf, weights=results.confidence, minlength=count + 1)[:count]
        return cls(
            review.version,
            order,
            np.concatenate([[0], np.cumsum(sizes)]),
            sizes,
            number(state.mark == CONFIRMED),
            number(state.mark == UNSURE),
            number((state.mark != CONFIRMED) & (results.confidence < DOUBTFUL)),
            number(changed_rows),
            total / np.maximum(sizes, 1),
            changed_rows,
            np.bincount(state.mark, minlength=4),
        )

    @property
    def live(self) -> Array:
        """Categories that have images."""
        return np.flatnonzero(self.sizes)

    def rows(self, category: int) -> Array:
        """The images of a category, the surest first."""
        found: Array = self.order[self.starts[category] : self.starts[category + 1]]
        return found
