"""The map of a round: where its images lie, worked out when first asked for."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from selex.report.map import HEIGHT, WIDTH, cloud_radius, main_directions, place_categories, place_images
from selex.runs.results import Results

Array = np.ndarray[Any, Any]

SCALE = 10
"""Coordinates are whole numbers, so many to a unit of the picture."""

SIZE = WIDTH * SCALE, HEIGHT * SCALE
_BLOCK, _SAMPLE = 8192, 2000


class Plane:
    """Places of a round's images; they stay while decisions move images to other categories."""

    def __init__(self) -> None:
        self._lock, self._round = threading.Lock(), 0
        self._places = np.zeros((0, 2), dtype=np.int64)

    def places(self, number: int, results: Results, features: Array) -> Array:
        """Coordinates of every row in round `number`."""
        with self._lock:
            if number != self._round:
                self._places = np.rint(SCALE * places_of(results, features)).astype(np.int64)
                self._round = number
            return self._places


def places_of(results: Results, features: Array) -> Array:
    """Where each row lies, as on the map of the report: categories by their mean features, images around them."""
    filled, own = np.unique(results.category, return_inverse=True)
    centers, sizes = np.zeros((len(filled), features.shape[1])), np.bincount(own)
    for start in range(0, len(own), _BLOCK):
        np.add.at(centers, own[start : start + _BLOCK], np.asarray(features[start : start + _BLOCK], dtype=np.float64))
    centers /= sizes[:, None]
    some = np.arange(0, len(own), -(-len(own) // _SAMPLE))
    directions = main_directions(np.asarray(features[some], dtype=np.float64) - centers[own[some]])
    offset = np.concatenate(
        [
            (np.asarray(features[start : start + _BLOCK], dtype=np.float64) - centers[own[start : start + _BLOCK]])
            @ directions
            for start in range(0, len(own), _BLOCK)
        ]
    )
    number = np.full(len(results.names) + 1, -1)
    number[filled] = np.arange(len(filled))
    places = place_categories(centers) if len(filled) > 1 else np.array([[WIDTH / 2, HEIGHT / 2]])
    after = number[results.runner_up]  # a next best of -1 is the last, which is none
    found: Array = place_images(offset, own, after, results.confidence, places, cloud_radius(places))
    return found
