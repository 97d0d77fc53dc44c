"""The map: categories in the plane, similar ones side by side, and images around them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.manifold import TSNE

from selex.report.facts import Facts, Floats, Ints

MOST_DOTS = 5000
WIDTH, HEIGHT, MARGIN = 1000, 620, 56
ICONS = 80
"""Categories up to which there is room for an image of each."""

_FEW = 5  # categories; fewer have no neighbourhoods to keep, and are drawn along their main directions
_LARGE = 400  # categories; of more, neighbours far away are taken together, which is faster
_CLOUD = 0.5  # radius of a category's images, as a part of the distance to the next category
_SMALLEST, _LARGEST = 4, 60  # that radius, in the units of the picture
_ICON, _LETTER = 44, 6.8  # width of an image and of a letter of its name
_ABOVE, _BELOW = 20, 36  # how far an image reaches up from its place, and its name down
LETTERS = 18
"""Letters of a name that the map shows."""

_TURNS = 200  # rounds of pushing images apart that lie on each other


@dataclass(frozen=True)
class CropParams:
    """Where a category is on the map, and its images as the path of an SVG: points are lines without length."""

    number: int
    x: float
    y: float
    dots: str


@dataclass(frozen=True)
class Map:
    """Every category's place, how many images are drawn, and how many there are."""

    places: list[CropParams]
    drawn: int
    total: int


def draw_map(facts: Facts) -> Map | None:
    """The map of a run; None for a single category.

    Categories are placed by t-SNE of their centres. An image lies around its category's place, in the direction in
    which its features leave the centre, and is drawn towards its next best category by how likely that is.
    """
    filled = np.flatnonzero(facts.sizes)
    if len(filled) < 2:
        return None
    places = np.zeros((len(facts.names), 2))
    placed = _framed(_plane(facts.model.assigner.centers[filled].astype(np.float64)))
    letters = [min(len(facts.names[number]), LETTERS) for number in filled.tolist()]
    places[filled] = pushed_apart(placed, letters) if len(filled) <= ICONS else placed
    rows = _sample(facts)
    dots = _dots(facts, rows, places, _radius(places[filled]))
    owners = facts.clusters[rows]
    found = [
        CropParams(number, round(x, 1), round(y, 1), _path(dots[owners == number]))
        for number, (x, y) in zip(filled.tolist(), places[filled].tolist(), strict=True)
    ]
    return Map(found, len(rows), len(facts.files))


def _plane(centers: Floats) -> Floats:
    """Two coordinates for each centre, neighbours together; the same every time."""
    centred = centers - centers.mean(0)
    flat: Floats = centred @ _main_directions(centred)
    if len(centers) < _FEW or not flat[:, 0].std():
        return flat
    start = 1e-4 * flat / flat[:, 0].std()
    perplexity = max(1.0, min(15.0, (len(centers) - 1) / 3))
    method = "exact" if len(centers) <= _LARGE else "barnes_hut"
    model = TSNE(2, perplexity=perplexity, init=start.astype(np.float32), method=method, random_state=0)
    placed: Floats = model.fit_transform(centred.astype(np.float32)).astype(np.float64)
    return placed


def _main_directions(centred: Floats) -> Floats:
    """The two directions in which rows differ most, dimensions × 2, each with its largest entry positive."""
    directions = np.linalg.svd(centred, full_matrices=False)[2][:2].T
    directions = np.pad(directions, ((0, 0), (0, 2 - directions.shape[1])))
    largest = np.take_along_axis(directions, np.abs(directions).argmax(0)[None], 0)
    signed: Floats = directions * np.where(largest < 0, -1, 1)
    return signed


def _framed(places: Floats) -> Floats:
    """Turned such that the picture is wider than high, and brought into it."""
    centred = places - places.mean(0)
    turned = centred @ _main_directions(centred)
    low, span = turned.min(0), np.ptp(turned, axis=0)
    room = np.array([WIDTH - 2 * MARGIN, HEIGHT - 2 * MARGIN])
    framed: Floats = np.where(span > 0, (turned - low) / np.where(span > 0, span, 1), 0.5) * room + MARGIN
    return framed


def pushed_apart(places: Floats, letters: list[int]) -> Floats:
    """Moved where images or names would cover each other: a pair along the axis that needs the smaller move."""
    places, order = places.copy(), np.arange(len(places))
    widths = np.maximum(_ICON, _LETTER * np.array(letters))
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


def _sample(facts: Facts) -> Ints:
    """Rows to draw: all, or evenly from each category its share, at least one."""
    part = min(1.0, MOST_DOTS / len(facts.files))
    counts = np.maximum(1, (part * facts.sizes).astype(int))
    chosen = [rows[np.arange(n) * len(rows) // n] for rows, n in zip(facts.members, counts, strict=True) if len(rows)]
    return np.sort(np.concatenate(chosen))


def _radius(places: Floats) -> float:
    """How far a category's images reach: about halfway to the usual neighbour."""
    apart = np.linalg.norm(places[:, None] - places[None], axis=2)
    np.fill_diagonal(apart, np.inf)
    return float(np.clip(_CLOUD * np.median(apart.min(1)), _SMALLEST, _LARGEST))


def _dots(facts: Facts, rows: Ints, places: Floats, radius: float) -> Floats:
    """Where the images go."""
    own, after = facts.clusters[rows], facts.runner_up[rows]
    away = facts.whitened(rows).astype(np.float64) - facts.model.assigner.centers[own]
    offset = away @ _main_directions(away[:: -(-len(away) // 2000)])
    length = np.linalg.norm(offset, axis=1)
    usual = np.quantile(length, 0.9) or 1.0
    offset *= (radius / usual * np.minimum(1, 1.5 * usual / np.maximum(length, 1e-12)))[:, None]
    pull = np.where(after >= 0, np.minimum(1 - facts.confidence[rows], 0.5), 0)[:, None]
    towards: Floats = places[own] + pull * (places[after] - places[own]) + offset
    return towards.clip(4, [WIDTH - 4, HEIGHT - 4])


def _path(dots: Floats) -> str:
    return "".join(f"M{x:.0f} {y:.0f}h0" for x, y in dots)
