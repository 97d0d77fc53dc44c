"""The map of a round: where its images lie, worked out when first asked for."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np

from selex.report.map import (
    HEIGHT,
    WIDTH,
    cloud_radius,
    main_directions,
    mean_features,
    place_categories,
    place_images,
    sample_rows,
)
from selex.review.core.decisions import Refused
from selex.review.core.state import SET_ASIDE
from selex.review.server import schema
from selex.review.server.cards import spots_of
from selex.review.server.lists import Lists
from selex.runs.results import Results

Array = np.ndarray[Any, Any]

SCALE = 10
"""Coordinates are whole numbers, so many to a unit of the picture."""

SIZE = WIDTH * SCALE, HEIGHT * SCALE
MOST = 200_000
"""Images on the map; of more, each category's share is drawn, evenly."""
_BLOCK, _SAMPLE = 8192, 2000


@dataclass(frozen=True, eq=False)
class Placed:
    """The rows on the map, in order, and the two coordinates of each."""

    rows: Array
    at: Array


class Plane:
    """Places of a round's images; they stay while decisions move images to other categories."""

    def __init__(self) -> None:
        self._lock, self._round = threading.Lock(), 0
        self._placed = Placed(np.zeros(0, dtype=np.int64), np.zeros((0, 2), dtype=np.int64))

    def places(self, number: int, results: Results, features: Array) -> Placed:
        """Where images of round `number` lie."""
        with self._lock:
            if number != self._round:
                rows = sample_rows(results.category, MOST)
                self._placed = Placed(rows, np.rint(SCALE * places_of(results, features, rows)).astype(np.int64))
                self._round = number
            return self._placed


def places_of(results: Results, features: Array, rows: Array) -> Array:
    """Where rows lie, as on the map of the report: categories by their mean features, images around them."""
    filled, own = np.unique(results.category[rows], return_inverse=True)
    centers = mean_features(features, rows, own)
    parts = [slice(start, start + _BLOCK) for start in range(0, len(rows), _BLOCK)]
    some = np.arange(0, len(own), -(-len(own) // _SAMPLE))
    directions = main_directions(np.asarray(features[rows[some]], dtype=np.float64) - centers[own[some]])
    offset = np.concatenate(
        [(np.asarray(features[rows[part]], dtype=np.float64) - centers[own[part]]) @ directions for part in parts]
    )
    number = np.full(len(results.names) + 1, -1)
    number[filled] = np.arange(len(filled))
    places = place_categories(centers) if len(filled) > 1 else np.array([[WIDTH / 2, HEIGHT / 2]])
    after = number[results.runner_up[rows]]  # a next best of -1 is the last, which is none
    return place_images(offset, own, after, results.confidence[rows], places, cloud_radius(places))


def map_of(plane: Plane, lists: Lists) -> schema.Map:
    """Where images lie, and what they can be coloured by."""
    review = lists.review
    with lists.now():
        number, results, features = review.round, review.results, review.embeddings
    placed = plane.places(number, results, features)  # outside: the first time takes a while
    with lists.now() as overview:
        if review.round != number:
            raise Refused("the run was clustered again: reload the map")
        standing, state, days = lists.standing(overview), review.state, lists.metadata.days
        there = state.mark[placed.rows] != SET_ASIDE
        rows, places = placed.rows[there], placed.at[there]
        return schema.Map(
            standing=standing,
            width=SIZE[0],
            height=SIZE[1],
            total=standing.images,
            row=rows.tolist(),
            x=places[:, 0].tolist(),
            y=places[:, 1].tolist(),
            category=state.category[rows].tolist(),
            confidence=np.rint(100 * results.confidence[rows]).astype(int).tolist(),
            day=None if days is None else np.where(np.isnat(days), -1, days.astype(int))[rows].tolist(),
            categories=spots_of(review, overview, state.category[rows], places),
        )
