"""The map: categories in the plane, similar ones side by side, and images around them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from selex.report.facts import Facts, Floats, Ints
from selex.report.plane import HEIGHT, WIDTH, cloud_radius, main_directions, place_categories, place_images

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
class CropParams:
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
    placed = place_categories(facts.model.assigner.centers[filled].astype(np.float64))
    letters = [min(len(facts.names[number]), LETTERS) for number in filled.tolist()]
    places[filled] = pushed_apart(placed, letters) if len(filled) <= ICONS else placed
    rows = _sample(facts)
    dots = _dots(facts, rows, places, cloud_radius(places[filled]))
    owners = facts.clusters[rows]
    named = with_room(places[filled], letters, facts.sizes[filled]) if len(filled) > ICONS else [True] * len(filled)
    found = [
        CropParams(number, round(x, 1), round(y, 1), _path(dots[owners == number]), name)
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


def _sample(facts: Facts) -> Ints:
    """Rows to draw: all, or evenly from each category its share, at least one."""
    part = min(1.0, MOST_DOTS / len(facts.files))
    counts = np.maximum(1, (part * facts.sizes).astype(int))
    chosen = [rows[np.arange(n) * len(rows) // n] for rows, n in zip(facts.members, counts, strict=True) if len(rows)]
    return np.sort(np.concatenate(chosen))


def _dots(facts: Facts, rows: Ints, places: Floats, radius: float) -> Floats:
    """Where the images go."""
    own = facts.clusters[rows]
    away = facts.whitened(rows).astype(np.float64) - facts.model.assigner.centers[own]
    offset = away @ main_directions(away[:: -(-len(away) // 2000)])
    return place_images(offset, own, facts.runner_up[rows], facts.confidence[rows], places, radius)


def _path(dots: Floats) -> str:
    return "".join(f"M{x:.0f} {y:.0f}h0" for x, y in dots)
