"""The map of the review page: every image has a place, near its category, and the same each time."""

import numpy as np
import pytest

from review_runs import small_run
from selex.report.map import HEIGHT, MARGIN, WIDTH, place_images
from selex.review.core.decisions import Decision
from selex.review.core.session import Review
from selex.review.server.maps import places_of
from selex.review.server.views import Views
from selex.runs.results import Results


@pytest.mark.parametrize("count", [1, 2, 7])
def test_images_lie_around_their_category_and_inside_the_picture(tmp_path, count):
    run = small_run(tmp_path, n=80, count=count, n_known=min(2, count))
    results = Results.read(run)
    places = places_of(results, run.embeddings, np.arange(80))
    assert places.shape == (80, 2)
    assert ((places >= 0) & (places <= [WIDTH, HEIGHT])).all()
    assert (places == places_of(results, run.embeddings, np.arange(80))).all()
    middles = np.stack([np.median(places[results.category == number], axis=0) for number in range(count)])
    away = np.linalg.norm(places[:, None] - middles[None], axis=2)
    own = away[np.arange(80), results.category]
    sure = results.confidence > 0.7  # others are drawn towards the next best, up to halfway
    assert count == 1 or (own < away.mean(1))[sure].mean() > 0.95


def test_no_image_is_pressed_against_the_side_of_the_picture():
    """Places reach up to the margin; images around them go no farther than the margin is wide."""
    places = np.array([[MARGIN, MARGIN], [WIDTH - MARGIN, HEIGHT - MARGIN]], dtype=float)
    own = np.repeat([0, 1], 100)
    offset = np.random.default_rng(0).normal(0, 1, (200, 2))
    offset[0] = 50, 50  # one far away from all others
    at = place_images(offset, own, np.full(200, -1), np.ones(200), places, 60)
    assert len(np.unique(at, axis=0)) == 200, "none lie on each other for want of room"
    assert np.linalg.norm(at - places[own], axis=1).max() <= MARGIN - 4 + 1e-9
    assert ((at >= 4) & (at <= [WIDTH - 4, HEIGHT - 4])).all()


def test_what_is_set_aside_is_not_on_the_map_and_decisions_colour_it_anew(tmp_path):
    review = Review(small_run(tmp_path).folder)
    views = Views(review)
    before = views.map()
    assert before.row == list(range(40))
    review.decide(Decision("set_aside", rows=(3, 4)), review.version)
    review.decide(Decision("move", rows=(5,), category=1), review.version)
    after = views.map()
    assert after.row == [row for row in range(40) if row not in (3, 4)]
    assert after.category[3] == 1
    assert (after.x[3], after.y[3]) == (before.x[5], before.y[5]), "it stays where it was"
    assert [spot.size for spot in after.categories] == sorted((spot.size for spot in after.categories), reverse=True)


def test_of_many_images_the_map_shows_a_share_of_each_category(tmp_path, monkeypatch):
    review = Review(small_run(tmp_path).folder)
    monkeypatch.setattr("selex.review.server.maps.MOST", 12)
    sizes = np.bincount(review.results.category)
    views = Views(review)
    found = views.map()
    assert found.total == 40
    shown = np.bincount(review.results.category[found.row], minlength=len(sizes))
    assert shown.tolist() == [max(1, int(12 / 40 * size)) for size in sizes]
    assert found.row == sorted(set(found.row))
    assert {spot.id for spot in found.categories} == set(found.category)
    assert [spot.size for spot in found.categories] == sorted(sizes.tolist(), reverse=True), "sizes are of all images"
    row = next(row for row in range(40) if row not in found.row)
    review.decide(Decision("move", rows=(row,), name="not on the map"), review.version)
    assert len(views.map().categories) == len(sizes)
    review.decide(Decision("set_aside", rows=tuple(range(40))), review.version)
    assert (views.map().row, views.map().categories, views.map().total) == ([], [], 0)
