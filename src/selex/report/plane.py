"""Categories in the plane, similar ones side by side, images around them: for the report and for the review page."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

WIDTH, HEIGHT, MARGIN = 1000, 620, 56

_FEW = 5  # categories; fewer have no neighbourhoods to keep, and are drawn along their main directions
_LARGE = 400  # categories; of more, neighbours far away are taken together, which is faster
_CLOUD = 0.5  # radius of a category's images, as a part of the distance to the next category
_SMALLEST, _LARGEST = 4, 60  # that radius, in the units of the picture


def place_categories(centers: Floats) -> Floats:
    """Two coordinates for each centre, neighbours together, within the picture; the same every time."""
    return _framed(_plane(centers))


def place_images(offset: Floats, own: Ints, after: Ints, confidence: Floats, places: Floats, radius: float) -> Floats:
    """Where images go: around their own category's place, drawn towards the next best one by how likely that is.

    `offset` is how their features leave the centre, in two directions; `after` is -1 where there is no next best.
    """
    length = np.linalg.norm(offset, axis=1)
    usual = np.quantile(length, 0.9) or 1.0
    offset = offset * (radius / usual * np.minimum(1, 1.5 * usual / np.maximum(length, 1e-12)))[:, None]
    pull = np.where(after >= 0, np.minimum(1 - confidence, 0.5), 0)[:, None]
    towards: Floats = places[own] + pull * (places[after] - places[own]) + offset
    return towards.clip(4, [WIDTH - 4, HEIGHT - 4])


def cloud_radius(places: Floats) -> float:
    """How far a category's images reach: about halfway to the usual neighbour."""
    if len(places) < 2:
        return float(_LARGEST)
    apart = np.linalg.norm(places[:, None] - places[None], axis=2)
    np.fill_diagonal(apart, np.inf)
    return float(np.clip(_CLOUD * np.median(apart.min(1)), _SMALLEST, _LARGEST))


def main_directions(centred: Floats) -> Floats:
    """The two directions in which rows differ most, dimensions × 2, each with its largest entry positive."""
    directions = np.linalg.svd(centred, full_matrices=False)[2][:2].T
    directions = np.pad(directions, ((0, 0), (0, 2 - directions.shape[1])))
    largest = np.take_along_axis(directions, np.abs(directions).argmax(0)[None], 0)
    signed: Floats = directions * np.where(largest < 0, -1, 1)
    return signed


def _plane(centers: Floats) -> Floats:
    """The centres by t-SNE; a few along their main directions."""
    centred = centers - centers.mean(0)
    flat: Floats = centred @ main_directions(centred)
    if len(centers) < _FEW or not flat[:, 0].std():
        return flat
    from sklearn.manifold import TSNE  # takes a second to import

    start = 1e-4 * flat / flat[:, 0].std()
    perplexity = max(1.0, min(15.0, (len(centers) - 1) / 3))
    method = "exact" if len(centers) <= _LARGE else "barnes_hut"
    model = TSNE(2, perplexity=perplexity, init=start.astype(np.float32), method=method, random_state=0)
    placed: Floats = model.fit_transform(centred.astype(np.float32)).astype(np.float64)
    return placed


def _framed(places: Floats) -> Floats:
    """Turned such that the picture is wider than high, and brought into it."""
    centred = places - places.mean(0)
    turned = centred @ main_directions(centred)
    low, span = turned.min(0), np.ptp(turned, axis=0)
    room = np.array([WIDTH - 2 * MARGIN, HEIGHT - 2 * MARGIN])
    framed: Floats = np.where(span > 0, (turned - low) / np.where(span > 0, span, 1), 0.5) * room + MARGIN
    return framed
