"""The map: categories in the plane, similar ones side by side, and images around them.

How they are placed is the same for the review page; how they are drawn, from `draw_map` on, is that of the report.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from selex.report.facts import Facts  # it reads models, with torch, which the review page does without

Floats = NDArray[np.float64]
Ints = NDArray[np.integer]

WIDTH, HEIGHT, MARGIN = 1000, 620, 56

_FEW = 5  # categories; fewer have no neighbourhoods to keep, and are drawn along their main directions
_LARGE = 400  # categories; of more, neighbours far away are taken together, which is faster
_CLOUD = 0.5  # radius of a category's images, as a part of the distance to the next category
_SMALLEST, _LARGEST = 4, 60  # that radius, in the units of the picture
_EDGE = 4  # what stays empty along the sides
_BLOCK = 8192  # images whose features are read at a time


def mean_features(features: NDArray[Any], rows: Ints, own: Ints) -> Floats:
    """The mean features of each category, of which `rows` are in `own`: what both maps place them by."""
    means = np.zeros((int(own.max()) + 1, features.shape[1]))
    for start in range(0, len(rows), _BLOCK):
        part = slice(start, start + _BLOCK)
        np.add.at(means, own[part], np.asarray(features[rows[part]], dtype=np.float64))
    return means / np.bincount(own)[:, None]


def place_categories(centers: Floats) -> Floats:
    """Two coordinates for each centre, neighbours together, within the picture; the same every time."""
    return _framed(_plane(centers))


def place_images(offset: Floats, own: Ints, after: Ints, confidence: Floats, places: Floats, radius: float) -> Floats:
    """Where images go: around their own category's place, drawn towards the next best one by how likely that is.

    `offset` is how their features leave the centre, in two directions; `after` is -1 where there is no next best.
    """
    length = np.linalg.norm(offset, axis=1)
    usual = np.quantile(length, 0.9) or 1.0
    most = min(1.5 * radius, MARGIN - _EDGE)  # no farther than the picture goes beyond a place
    offset = offset * np.minimum(radius / usual, most / np.maximum(length, 1e-12))[:, None]
    pull = np.where(after >= 0, np.minimum(1 - confidence, 0.5), 0)[:, None]
    towards: Floats = places[own] + pull * (places[after] - places[own]) + offset
    return towards.clip(_EDGE, [WIDTH - _EDGE, HEIGHT - _EDGE])


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
    return directions * np.where(largest < 0, -1, 1)


def sample_rows(category: NDArray[np.integer], most: int) -> Ints:
    """Rows to draw: all, or evenly from each category its share, at least one."""
    if len(category) <= most:
        return np.arange(len(category))
    sizes = np.bincount(category)
    counts = np.maximum(1, (most / len(category) * sizes).astype(int))
    members = np.split(np.argsort(category, kind="stable"), np.cumsum(sizes)[:-1])
    chosen = [rows[np.arange(n) * len(rows) // n] for rows, n in zip(members, counts, strict=True) if len(rows)]
    return np.sort(np.concatenate(chosen))


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
    return model.fit_transform(centred.astype(np.float32)).astype(np.float64)


def _framed(places: Floats) -> Floats:
    """Turned such that the picture is wider than high, and brought into it."""
    centred = places - places.mean(0)
    turned = centred @ main_directions(centred)
    low, span = turned.min(0), np.ptp(turned, axis=0)
    room = np.array([WIDTH - 2 * MARGIN, HEIGHT - 2 * MARGIN])
    return np.where(span > 0, (turned - low) / np.where(span > 0, span, 1), 0.5) * room + MARGIN


MOST_DOTS = 5000
ICONS = 80
"""Categories up to which there is room for an image of each."""

_ICON, _LETTER, _GAP = 44, 6.8, 8  # width of an image, of a letter of its name, and between two names
_ABOVE, _BELOW = 20, 36  # how far an image reaches up from its place, and its name down
_LINE = 16  # height of a name
LETTERS = 18
"""Letters of a name that the map shows."""

_TURNS = 200  # rounds of pushing images apart that lie on each other


@dataclass(frozen=True)
class Place:
    """Where a category is on the map, and its images as the path of an SVG: points are lines without length.

    `named` says whether there is room for its name.
    """

    number: int
    x: float
    y: float
    dots: str
    named: bool


@dataclass(frozen=True)
class Map:
    """Every category's place, how many images are drawn, and how many there are."""

    places: list[Place]
    drawn: int
    total: int


def draw_map(facts: Facts) -> Map | None:
    """The map of a run; None for a single category.

    Categories are placed by t-SNE of their mean features. An image lies around its category's place, in the direction
    in which its features leave the centre, and is drawn towards its next best category by how likely that is.
    """
    filled, own = np.unique(facts.category, return_inverse=True)
    if len(filled) < 2:
        return None
    places = np.zeros((len(facts.names), 2))
    placed = place_categories(mean_features(facts.features, np.arange(len(own)), own))
    letters = [min(len(facts.names[number]), LETTERS) for number in filled.tolist()]
    places[filled] = pushed_apart(placed, letters) if len(filled) <= ICONS else placed
    rows = sample_rows(facts.category, MOST_DOTS)
    dots = _dots(facts, rows, places, cloud_radius(places[filled]))
    owners = facts.category[rows]
    named = with_room(places[filled], letters, facts.sizes[filled]) if len(filled) > ICONS else [True] * len(filled)
    found = [
        Place(number, round(x, 1), round(y, 1), _path(dots[owners == number]), name)
        for number, (x, y), name in zip(filled.tolist(), places[filled].tolist(), named, strict=True)
    ]
    return Map(found, len(rows), len(facts.files))


def with_room(places: Floats, letters: list[int], sizes: Ints) -> list[bool]:
    """Which names can be written above their places without covering each other, the largest categories first."""
    widths, taken = _LETTER * np.array(letters) / 2, list[int]()
    for number in np.argsort(-sizes, kind="stable").tolist():
        x, y = np.abs(places[taken] - places[number]).T
        inside = widths[number] <= places[number, 0] <= WIDTH - widths[number]
        if inside and ((x > widths[taken] + widths[number] + _GAP / 2) | (y > _LINE)).all():
            taken.append(number)
    return [number in taken for number in range(len(places))]


def pushed_apart(places: Floats, letters: list[int]) -> Floats:
    """Moved where images or names would cover each other: a pair along the axis that needs the smaller move."""
    places, order = places.copy(), np.arange(len(places))
    widths = np.maximum(_ICON, _LETTER * np.array(letters) + _GAP)
    room = np.stack(np.broadcast_arrays((widths[:, None] + widths[None]) / 2, float(_ABOVE + _BELOW)), axis=2)
    room[order, order] = 0
    low = np.stack([widths / 2, np.full(len(places), _ABOVE)], axis=1)
    high = np.stack([WIDTH - widths / 2, np.full(len(places), HEIGHT - _BELOW)], axis=1)
    for _ in range(_TURNS):
        gap = places[:, None] - places[None]
        lacking = np.maximum(room - np.abs(gap), 0)
        lacking[(lacking == 0).any(2)] = 0
        if not lacking.any():
            break
        side = np.where(gap == 0, np.sign(order[:, None] - order[None])[..., None], np.sign(gap))
        smaller = lacking == lacking.min(2, keepdims=True)
        places += 0.3 * (lacking * side * smaller).sum(1)
        places = places.clip(low, high)
    return places


def _dots(facts: Facts, rows: Ints, places: Floats, radius: float) -> Floats:
    """Where the images go."""
    own = facts.category[rows]
    away = facts.whitened(rows).astype(np.float64) - facts.model.assigner.centers[own]
    offset = away @ main_directions(away[:: -(-len(away) // 2000)])
    return place_images(offset, own, facts.runner_up[rows], facts.confidence[rows], places, radius)


def _path(dots: Floats) -> str:
    return "".join(f"M{x:.0f} {y:.0f}h0" for x, y in dots)
