"""The map of the review page: every image has a place, near its category, and the same each time."""

import numpy as np
import pytest

from review_runs import small_run
from selex.report.map import HEIGHT, WIDTH
from selex.review.core.decisions import Decision
from selex.review.core.session import Review
from selex.review.server.maps import places_of
from selex.review.server.views import Views
from selex.runs.results import Results


@pytest.mark.parametrize("count", [1, 2, 7])
def test_images_lie_around_their_category_and_inside_the_picture(tmp_path, count):
    run = small_run(tmp_path, n=80, count=count, n_known=min(2, count))
    results = Results.read(run)
    places = places_of(results, run.embeddings)
    assert places.shape == (80, 2)
    assert ((places >= 0) & (places <= [WIDTH, HEIGHT])).all()
    assert (places == places_of(results, run.embeddings)).all()
    middles = np.stack([np.median(places[results.category == number], axis=0) for number in range(count)])
    away = np.linalg.norm(places[:, None] - middles[None], axis=2)
    own = away[np.arange(80), results.category]
    sure = results.confidence > 0.7  # others are drawn towards the next best, up to halfway
    assert count == 1 or (own < away.mean(1))[sure].mean() > 0.95


def test_junk_is_not_on_the_map_and_decisions_colour_it_anew(tmp_path):
    review = Review(small_run(tmp_path).folder)
    views = Views(review)
    before = views.map()
    assert before.row == list(range(40))
    review.decide(Decision("junk", rows=(3, 4)), review.version)
    review.decide(Decision("move", rows=(5,), category=1), review.version)
    after = views.map()
    assert after.row == [row for row in range(40) if row not in (3, 4)]
    assert after.category[3] == 1
    assert (after.x[3], after.y[3]) == (before.x[5], before.y[5]), "it stays where it was"
    assert [spot.size for spot in after.categories] == sorted((spot.size for spot in after.categories), reverse=True)
