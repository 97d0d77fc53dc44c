"""The state seen from above: what each category has, what looks alike, how one would be split.

An `Overview` is made once per version of the state, a `Space` once per round.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np

from selex.data.clusters import DOUBTFUL
from selex.review.core.decisions import Refused
from selex.review.core.mixed import UNKNOWN, Mixture, mixture
from selex.review.core.session import Review
from selex.review.core.state import CONFIRMED, SET_ASIDE, UNDECIDED, UNSURE
from selex.runs.results import directions, mean_direction, most_alike

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Overview:
    """Figures per category and per row. What is set aside counts in no category."""

    version: str  # of the state this is of
    order: Array  # rows, category after category, each one's surest first; those set aside at the end
    starts: Array  # where the rows of each category start in `order`, and where the last one's end
    sizes: Array  # images of each category, and how many of them are so:
    confirmed: Array
    unsure: Array
    changed: Array
    confidence: Array  # mean confidence of each category
    unsure_rows: Array  # rows that were marked so, or that nobody decided about and the run is unsure of
    changed_rows: Array  # rows that are elsewhere than the run, or the round before, had them
    marks: Array  # how many rows have each mark
    next_best: Array  # the next best category of each row, -1 where there is none

    @classmethod
    def of(cls, review: Review, by_confidence: Array) -> Overview:
        """The overview of the state as it is; `by_confidence` are all rows, the surest first."""
        state, results = review.state, review.results
        count = len(state.names)
        shelf = np.where(state.mark == SET_ASIDE, count, state.category)
        order = by_confidence[np.argsort(shelf[by_confidence], kind="stable")]
        sizes = np.bincount(shelf, minlength=count + 1)[:count]
        unsure_rows = (state.mark == UNSURE) | ((state.mark == UNDECIDED) & (results.confidence < DOUBTFUL))
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
            number(unsure_rows),
            number(changed_rows),
            total / np.maximum(sizes, 1),
            unsure_rows,
            changed_rows,
            np.bincount(state.mark, minlength=4),
            state.next_best(),
        )

    @property
    def live(self) -> Array:
        """Categories that have images."""
        return np.flatnonzero(self.sizes)

    def rows(self, category: int) -> Array:
        """The images of a category, the surest first."""
        return self.order[self.starts[category] : self.starts[category + 1]]


LOOKS = 3
"""Categories whose parts are looked for at a time."""
NEIGHBOURS = 8
"""Categories that are shown as most similar to one."""


_BLOCK = 8192


class Space:
    """The features of a round. Means of categories are worked out when first asked for, then kept up to date."""

    def __init__(self, review: Review) -> None:
        self.features, self.round = review.embeddings, review.round
        self._means = np.zeros((0, self.features.shape[1]), dtype=np.float32)
        self._version = 0
        self._given = np.where(review.results.labelled, review.results.category, -1)
        self._mixtures: dict[bytes, Mixture] = {}

    def looks(self) -> Callable[[Array], Mixture]:
        """Tells into how many parts images fall: worked out once, and for a few at a time, so that nobody waits."""
        most = len(self._mixtures) + LOOKS

        def look(rows: Array) -> Mixture:
            key = sha256(rows.tobytes()).digest()
            if key not in self._mixtures and len(self._mixtures) < most:
                self._mixtures[key] = mixture(self.features, rows, self._given)
            return self._mixtures.get(key, UNKNOWN)

        return look

    def near(self, row: int, count: int) -> list[tuple[int, float]]:
        """The images most like one, and their cosines."""
        found = self.like(self.features[row], count + 1)
        return [(other, cosine) for other, cosine in found if other != row][:count]

    def like(self, feature: Array, count: int) -> list[tuple[int, float]]:
        """The images most like one that has this feature, and their cosines."""
        target = directions(np.asarray(feature, dtype=np.float32)[None])[0]
        cosine = np.concatenate([self._cosines(start, target) for start in range(0, len(self.features), _BLOCK)])
        best = np.argpartition(-cosine, min(count, len(cosine) - 1))[:count]
        best = best[np.argsort(-cosine[best], kind="stable")]
        return [(int(other), float(cosine[other])) for other in best]

    def neighbours(self, category: int, overview: Overview, review: Review, count: int) -> list[tuple[int, float]]:
        """The categories most like one, and the cosines of their means."""
        return most_alike(self.means(overview, review), category, overview.live, count)

    def means(self, overview: Overview, review: Review) -> Array:
        """Unit means; only those of categories that decisions touched since are worked out again."""
        count = len(overview.sizes)
        stale = set(range(len(self._means), count))
        for played in review.timeline.since(self._version):
            stale |= {category for category in played.touched if category < count}
        means = np.zeros((count, self.features.shape[1]), dtype=np.float32)
        kept = min(count, len(self._means))
        means[:kept] = self._means[:kept]
        for category in stale:
            means[category] = mean_direction(self.features, overview.rows(category))
        self._means, self._version = means, review.timeline.version
        return means

    def _cosines(self, start: int, target: Array) -> Array:
        return directions(self.features[start : start + _BLOCK]) @ target


MOST_PARTS = 8
_SAMPLE = 5000  # k-means looks at so many rows at most; the others join the nearest part


_TOGETHER = 2 / 3
"""Images with a given label stay together where so many of them are in one part; else they are of several kinds."""
_TURNS = 20


def parts_of(features: Array, rows: Array, count: int, given: Array | None = None) -> list[Array]:
    """`rows` in `count` parts by k-means on their features; the same every time.

    The first part keeps the name of the category: the one with most rows of `given`, which have the label of that name,
    else the largest. The others follow by size.
    """
    if not 2 <= count <= MOST_PARTS:
        raise Refused(f"a category can be split into 2 to {MOST_PARTS} parts, not {count}")
    if len(rows) < count:
        raise Refused(f"{len(rows)} images cannot be split into {count} parts")
    from sklearn.cluster import KMeans  # takes a second to import: not everybody splits

    rows = np.sort(rows)
    rng = np.random.default_rng(0)
    sample = rows if len(rows) <= _SAMPLE else np.sort(rng.choice(rows, _SAMPLE, replace=False))
    points = np.asarray(features[sample], dtype=np.float32)
    if len(np.unique(points, axis=0)) < count:
        raise Refused("these images are too alike to be split: move some of them manually")
    model = KMeans(count, n_init=4, random_state=0).fit(points)
    held = np.zeros(0, dtype=np.int64) if given is None else given[np.isin(given, rows)]
    centers = _around(points, model.labels_, model.cluster_centers_, np.isin(sample, held))
    labels = _nearest(np.asarray(features[rows], dtype=np.float32), centers)
    votes = np.bincount(labels[np.isin(rows, held)], minlength=count)
    if len(held) and votes.max() >= _TOGETHER * len(held):
        moved = np.where(np.isin(rows, held), votes.argmax(), labels)
        labels = moved if len(np.unique(moved)) == count else labels
    order = sorted(range(count), key=lambda part: (votes[part] < max(1, votes.max()), -(labels == part).sum()))
    return [rows[labels == part] for part in order if (labels == part).any()]


def _around(points: Array, labels: Array, centers: Array, held: Array) -> Array:
    """Centres of parts after those that are `held` went to the part where most of them are, if most are in one."""
    votes = np.bincount(labels[held], minlength=len(centers))
    if not held.any() or votes.max() < _TOGETHER * held.sum():
        return centers
    for _ in range(_TURNS):
        labels = np.where(held, votes.argmax(), labels)
        if len(np.unique(labels)) < len(centers):
            break  # nothing would be left of another part
        centers = np.stack([points[labels == part].mean(0) for part in range(len(centers))])
        labels, before = _nearest(points, centers), labels
        if np.array_equal(np.where(held, votes.argmax(), labels), before):
            break
    return centers


def _nearest(points: Array, centers: Array) -> Array:
    """The nearest centre of each point."""
    return (np.square(centers).sum(1) - 2 * points @ centers.T).argmin(1)
