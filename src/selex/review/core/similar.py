"""What looks alike: images by the cosine of their features, categories by that of their means."""

from __future__ import annotations

from typing import Any

import numpy as np

from selex.review.core.overview import Overview
from selex.review.core.session import Review

Array = np.ndarray[Any, Any]

_BLOCK = 8192


class Space:
    """The features of a round. Means of categories are worked out when first asked for, then kept up to date."""

    def __init__(self, review: Review) -> None:
        self.features, self.round = review.embeddings, review.round
        self._means = np.zeros((0, self.features.shape[1]), dtype=np.float32)
        self._version = 0

    def near(self, row: int, count: int) -> list[tuple[int, float]]:
        """The images most like one, and their cosines."""
        target = self._unit(self.features[row : row + 1])[0]
        cosine = np.concatenate([self._cosines(start, target) for start in range(0, len(self.features), _BLOCK)])
        cosine[row] = -np.inf
        best = np.argpartition(-cosine, min(count, len(cosine) - 1))[:count]
        best = best[np.argsort(-cosine[best], kind="stable")]
        return [(int(other), float(cosine[other])) for other in best if other != row]

    def neighbours(self, category: int, overview: Overview, review: Review, count: int) -> list[tuple[int, float]]:
        """The categories most like one, and the cosines of their means."""
        means = self._current_means(overview, review)
        live = overview.live[overview.live != category]
        cosine = means[live] @ means[category]
        best = np.argsort(-cosine, kind="stable")[:count]
        return [(int(live[i]), float(cosine[i])) for i in best]

    def _current_means(self, overview: Overview, review: Review) -> Array:
        """Unit means; only those of categories that decisions touched since are worked out again."""
        count = len(overview.sizes)
        stale = set(range(len(self._means), count))
        for played in review.timeline.since(self._version):
            stale |= {category for category in played.touched if category < count}
        means = np.zeros((count, self.features.shape[1]), dtype=np.float32)
        kept = min(count, len(self._means))
        means[:kept] = self._means[:kept]
        for category in stale:
            means[category] = self._mean(overview.rows(category))
        self._means, self._version = means, review.timeline.version
        return means

    def _mean(self, rows: Array) -> Array:
        total = np.zeros(self.features.shape[1])
        for start in range(0, len(rows), _BLOCK):
            total += self.features[np.sort(rows[start : start + _BLOCK])].sum(axis=0, dtype=np.float64)
        mean: Array = self._unit(total[None])[0]
        return mean

    def _cosines(self, start: int, target: Array) -> Array:
        return self._unit(self.features[start : start + _BLOCK]) @ target

    @staticmethod
    def _unit(rows: Any) -> Array:
        rows = np.asarray(rows, dtype=np.float32)
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        unit: Array = rows / np.maximum(lengths, 1e-12)
        return unit
