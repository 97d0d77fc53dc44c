import numpy as np
import pytest
from sklearn.datasets import load_digits

from conftest import blobs, half_labelled
from selex import InputError, estimate_k
from selex.errors import Note


@pytest.mark.parametrize("method", ["accuracy", "silhouette"])
@pytest.mark.parametrize(("n_known", "n_blobs"), [(4, 9), (10, 16)])
def test_blobs_of_known_number(method, n_known, n_blobs):
    x, truth = blobs(n_blobs, 25, spread=0.4, dims=24, seed=2)
    found = estimate_k(x, half_labelled(truth, n_known), method=method, rng=0)
    assert found.method == method
    assert abs(found.n_clusters - n_blobs) <= 1
    assert found.low <= found.n_clusters <= found.high


def test_without_labels_the_silhouette_serves():
    x, _ = blobs(7, 30, spread=0.4, seed=1)
    found = estimate_k(x, None, rng=0)
    assert found.method == "silhouette"
    assert abs(found.n_clusters - 7) <= 1


def test_the_estimate_is_the_best_of_its_curve():
    x, truth = blobs(9, 20, spread=0.8)
    found = estimate_k(x, half_labelled(truth, 4), rng=0)
    counts = [count for count, _ in found.curve]
    assert counts == sorted(set(counts))
    assert counts[0] == 4
    assert dict(found.curve)[found.n_clusters] == max(score for _, score in found.curve)
    assert {found.low, found.high} <= set(counts)
    assert all(0 <= score <= 1 for _, score in found.curve)


def test_digits_are_about_ten():
    x, truth = load_digits(return_X_y=True)
    found = estimate_k(x, half_labelled(truth, 5), rng=0)
    assert 8 <= found.n_clusters <= 13


def test_the_same_seed_gives_the_same_curve():
    x, truth = blobs(6, 15, spread=1.0)
    known = half_labelled(truth, 3)
    assert estimate_k(x, known, rng=3) == estimate_k(x, known, rng=3)


def test_the_highest_count_is_kept():
    x, truth = blobs(9, 20)
    seen = []
    with pytest.warns(Note, match="6 categories, the highest count tried, did best"):  # of nine there are
        found = estimate_k(x, half_labelled(truth, 4), max_clusters=6, rng=0, progress=lambda k, score: seen.append(k))
    assert max(seen) == 6
    assert sorted(seen) == [count for count, _ in found.curve]


def test_as_many_known_as_can_be():
    x, truth = blobs(5, 10)
    assert estimate_k(x, half_labelled(truth, 5), max_clusters=5, rng=0).n_clusters == 5


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        (None, {"method": "accuracy"}, "needs two labelled categories, there are 0"),
        (None, {"method": "guess"}, "'auto', 'accuracy' or 'silhouette', not 'guess'"),
        ([0, 0, 1, 1, 2, 2, -1, -1], {"max_clusters": 2}, "between 3 and the 8 rows"),
        (None, {"max_clusters": 9}, "between 2 and the 8 rows"),
    ],
)
def test_bad_input_is_one_clear_line(labels, options, message):
    with pytest.raises(InputError, match=message):
        estimate_k(np.random.default_rng(0).standard_normal((8, 2)), labels, **options)
