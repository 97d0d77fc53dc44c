import warnings

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from conftest import TAIL, VERY_UNEVEN, blobs, half_labelled, pile
from selex import InputError, estimate_k
from selex.cluster.estimate_k import _combined, _percentiles
from selex.cluster.holdout import known_share
from selex.cluster.rows import as_rows
from selex.errors import Note


@pytest.mark.parametrize("method", ["combined", "accuracy", "silhouette"])
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


@pytest.mark.parametrize("method", ["combined", "accuracy", "silhouette"])
def test_the_estimate_is_the_best_of_its_curve(method):
    x, truth = blobs(9, 20, spread=0.8)
    found = estimate_k(x, half_labelled(truth, 4), method=method, rng=0)
    counts = [count for count, _ in found.curve]
    assert counts == sorted(set(counts))
    assert counts[0] >= 4
    assert dict(found.curve)[found.n_clusters] == max(score for _, score in found.curve)
    assert {found.low, found.high} <= set(counts)
    assert all(0 <= score <= 1 for _, score in found.curve)


@pytest.mark.filterwarnings("ignore::selex.errors.Note")
@pytest.mark.parametrize("seed", range(4))
def test_two_categories_of_which_one_has_a_single_label(seed):
    x, truth = blobs(4, 13, spread=0.5, seed=seed)
    labels = np.full(len(x), -1)
    labels[np.flatnonzero(truth == 0)[:1]], labels[np.flatnonzero(truth == 1)[:8]] = 0, 1
    found = estimate_k(x, labels, rng=seed)
    assert 2 <= found.low <= found.n_clusters <= found.high <= len(x)


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
    with pytest.warns(Note, match="6 categories, the highest count allowed"):  # of nine there are
        found = estimate_k(
            x,
            half_labelled(truth, 4),
            max_clusters=6,
            method="accuracy",
            rng=0,
            progress=lambda k, score: seen.append(k),
        )
    assert max(seen) == 6
    assert sorted(seen) == [count for count, _ in found.curve]


def test_as_many_known_as_can_be():
    x, truth = blobs(5, 10)
    assert estimate_k(x, half_labelled(truth, 5), max_clusters=5, rng=0).n_clusters == 5


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        (None, {"method": "accuracy"}, "needs two labelled categories, there are 0"),
        (None, {"method": "combined"}, "needs two labelled categories, one of them with two labels"),
        (None, {"method": "guess"}, "'auto', 'combined', 'accuracy' or 'silhouette', not 'guess'"),
        ([0, 0, 1, 1, 2, 2, -1, -1], {"max_clusters": 2}, "between 3 and the 8 rows"),
        (None, {"max_clusters": 9}, "between 2 and the 8 rows"),
    ],
)
def test_bad_input_is_one_clear_line(labels, options, message):
    with pytest.raises(InputError, match=message):
        estimate_k(np.random.default_rng(0).standard_normal((8, 2)), labels, **options)


@pytest.mark.parametrize(("n_blobs", "most"), [(12, 8), (60, 55)])
def test_what_labels_say_is_not_passed_over_at_a_limit(n_blobs, most):
    """Of many categories the median of the likely counts is not at the limit where the likeliest is."""
    x, truth = blobs(n_blobs, 20, spread=0.4, dims=48)
    with pytest.warns(Note, match=f"{most} categories, the highest count allowed: there may be more"):
        assert estimate_k(x, half_labelled(truth, n_blobs // 2), max_clusters=most, rng=0).n_clusters == most
    every_category = half_labelled(truth, n_blobs)
    with pytest.warns(Note, match=f"{n_blobs} categories, the lowest count"):
        assert estimate_k(x, every_category, rng=0).n_clusters == n_blobs


def test_the_count_of_the_labels_granularity():
    """Eight groups of four blobs each: labels of groups, or of blobs, tell which of the two is meant."""
    rng = np.random.default_rng(0)
    groups = rng.standard_normal((8, 32))
    blob = np.repeat(np.arange(32), 25)
    x = (groups[blob // 4] + 0.7 * rng.standard_normal((32, 32))[blob] + 0.3 * rng.standard_normal((800, 32))) / 6
    fine = estimate_k(x, half_labelled(blob, 16), rng=0)
    coarse = estimate_k(x, half_labelled(blob // 4, 4), rng=0)
    assert fine.low <= 32 <= fine.high
    assert abs(fine.n_clusters - 32) <= 4
    assert coarse.low <= 8 <= coarse.high
    assert abs(coarse.n_clusters - 8) <= 3


def test_few_known_categories_tell_less():
    """The interval of four known categories is wider than that of twenty, of the same forty."""
    x, truth = blobs(40, 15, spread=0.8, dims=24)
    many, few = (estimate_k(x, half_labelled(truth, n), rng=0) for n in (20, 4))
    assert many.low <= 40 <= many.high
    assert few.low <= 40 <= few.high
    assert few.high / few.low > many.high / many.low


@pytest.mark.parametrize("sizes", [[20] * 12, [60, 40, 30, 20, 20, 10, 200, 40, 30, 20, 20, 10]])
def test_rows_in_another_order_give_the_same_count(sizes):
    x, truth = pile(sizes, spread=0.8)
    labels, order = half_labelled(truth, 6), np.random.default_rng(1).permutation(len(truth))
    one, other = estimate_k(x, labels, rng=0), estimate_k(x[order], labels[order], rng=0)
    assert (one.n_clusters, one.low, one.high) == (other.n_clusters, other.low, other.high)


@pytest.mark.parametrize("novel", [5, 30])
def test_a_novel_category_among_known_ones_of_very_different_size(novel):
    """Seeds alone would put its centre into the largest known category."""
    x, truth = pile([80, 60, 40, 10, 6, 4, novel], spread=0.4)
    found = estimate_k(x, half_labelled(truth, 6), rng=0)
    assert found.n_clusters == 7
    assert found.low <= 7 <= found.high


@pytest.mark.parametrize("most", [6, 9, 12, 14, 20])
@pytest.mark.parametrize(
    ("sizes", "seed"),
    [([*TAIL, 300, *TAIL[1:]], 0), ([9, 10, 10, 3, 23, 255, 400], 35), ([13, 7, 148, 13, 54, 28, 31, 53, 83, 6], 20)],
)
def test_a_limit_only_cuts_off(sizes, seed, most):
    x, truth = pile(sizes, spread=0.8)
    labels = half_labelled(truth, 6, seed)
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always", Note)
        free = estimate_k(x, labels, rng=0)
        notes.clear()
        found = estimate_k(x, labels, max_clusters=most, rng=0)
    assert (found.low, found.n_clusters, found.high) == tuple(
        min(count, most) for count in (free.low, free.n_clusters, free.high)
    )
    assert max(count for count, _ in found.curve) <= most
    at_limit = any("the highest count allowed" in str(note.message) for note in notes)
    assert at_limit == (found.n_clusters == most > 6)


@pytest.mark.filterwarnings("ignore:.* have a single labelled row:selex.errors.Note")
@pytest.mark.parametrize("rng", range(3))
@pytest.mark.parametrize("spread", [0.2, 0.8])
def test_where_labels_hardly_tell_there_may_be_more_than_the_known_ones(spread, rng):
    """One known category has most of the rows. That none is novel is likeliest: five are."""
    x, truth = pile([*VERY_UNEVEN, 90, 50, 25, 12, 6], spread=spread)
    with pytest.warns(Note, match="labels hardly tell how many categories are novel, if any"):
        found = estimate_k(x, half_labelled(truth, 5, 2), rng=rng)
    assert found.low == 5 < found.n_clusters
    assert found.high >= 10
    assert found.n_clusters in dict(found.curve)


@pytest.mark.parametrize("sizes", [[100, 20, 10, 6, 4], [300, 20, 10, 6, 4], [300, 100, 30, 10, 10]])
def test_clear_clusters_tell_that_all_categories_are_known_whatever_their_sizes(sizes):
    """Their labels alone hardly would."""
    x, truth = pile(sizes, spread=0.1)
    with pytest.warns(Note, match="5 categories, the lowest count, did best"):
        assert estimate_k(x, half_labelled(truth, 5), rng=0).n_clusters == 5


def test_a_flat_curve_has_a_wide_interval():
    """Rows without any categories, and rows with seven clear ones: nothing labelled."""
    rng = np.random.default_rng(0)
    clear = estimate_k(blobs(7, 30, spread=0.2, seed=1)[0], None, rng=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Note)  # where its best count is, is anybody's guess
        cloud = estimate_k(rng.standard_normal((210, 16)), None, rng=0)
    assert cloud.high / cloud.low > 2 * clear.high / clear.low


def test_the_estimate_has_as_much_probability_above_as_below():
    ks = np.arange(5, 51)
    likely = np.where(ks < 7, 1.0, 0.5)
    low, middle, high = _percentiles(ks, likely)
    assert ks[likely.argmax()] == 5 <= low < middle < high <= 50
    weights = likely / ks  # evenly in the logarithm
    assert weights[ks <= middle].sum() == pytest.approx(weights[ks > middle].sum(), rel=0.15)


def test_the_estimate_is_on_the_curve_where_labels_hardly_tell(monkeypatch):
    """The counts that are judged are far apart where hardly anything is known."""
    monkeypatch.setattr("selex.cluster.estimate_k._silhouettes", lambda *_: np.zeros_like)
    rows = as_rows(np.random.default_rng(0).normal(size=(2400, 8)).astype(np.float32), 1 << 20)
    labels = torch.from_numpy(np.where(np.arange(2400) < 800, np.arange(2400) % 200, -1))
    count = known_share.Count(200.0, 2.0, rows, labels)
    with pytest.warns(Note, match="labels hardly tell"):
        found = _combined(count, 200, (200, 1200), True, np.random.default_rng(0), None)
    assert found.n_clusters > 200
    assert found.n_clusters in dict(found.curve)


@pytest.mark.parametrize(
    ("likeliest", "error", "told"), [(6, 0.2, True), (6, 0.6, False), (8, 1.2, True), (8, 1.5, False)]
)
def test_where_labels_hardly_tell_the_median_is_not_the_estimate(likeliest, error, told, monkeypatch):
    """It rises with how uncertain all is. That no category is novel may be likeliest by chance."""
    by = 0.4 / error if likeliest == 6 else 0.0
    monkeypatch.setattr("selex.cluster.estimate_k._silhouettes", lambda *_: lambda where: by * (where < np.log(6.5)))
    monkeypatch.setattr("selex.cluster.estimate_k.novel_if_uneven", lambda *_: None)
    x, truth = pile(TAIL * 2, spread=0.4)
    count = known_share.Count(8.0, error, as_rows(x, 1 << 20), torch.from_numpy(half_labelled(truth, 6)))
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always", Note)
        found = _combined(count, 6, (6, 300), True, np.random.default_rng(0), None)
    assert max(found.curve, key=lambda point: point[1])[0] == likeliest
    assert ["labels hardly tell" in str(note.message) for note in notes] == [True] * (not told)
    assert found.n_clusters == 8 if not told else found.n_clusters == 6 if likeliest == 6 else found.n_clusters > 12


def test_where_labels_hardly_tell_no_more_are_found_than_the_median(monkeypatch):
    """By shares alone there are more than half the rows."""
    monkeypatch.setattr("selex.cluster.estimate_k._silhouettes", lambda *_: lambda where: 1.0 * (where < 0.7))
    rows = as_rows(np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32), 1 << 20)
    labels = torch.from_numpy(np.array([0, 0, 1] + [-1] * 37))
    with pytest.warns(Note, match="labels hardly tell"):
        found = _combined(known_share.Count(26.7, 3.5, rows, labels), 2, (2, 20), True, np.random.default_rng(0), None)
    assert found.low <= found.n_clusters == 5 <= found.high


def test_a_limit_above_half_the_rows_allows_more():
    x, truth = pile([2] * 12 + [1] * 48, spread=0.1)
    labels = np.where((truth < 12) & (np.arange(len(truth)) % 2 == 0), truth, -1)
    labels[np.flatnonzero(truth < 12)] = truth[truth < 12]
    with pytest.warns(Note, match="36 categories, the highest count allowed"):
        assert estimate_k(x, labels, rng=0).n_clusters == 36
    assert estimate_k(x, labels, max_clusters=72, rng=0).n_clusters > 36


def test_silhouettes_do_not_exclude_what_shares_make_likely():
    """Known categories of two clusters each: silhouettes want clusters to be categories, labels say otherwise."""
    x, blob = blobs_of(24)
    labels = np.where((blob < 12) & (np.arange(len(x)) % 2 == 0), blob // 2, -1)
    count = known_share.Count(12.0, 0.15, as_rows(x, 1 << 20), torch.from_numpy(labels))
    found = _combined(count, 6, (6, 100), True, np.random.default_rng(0), None)
    assert found.low <= 8
    assert found.high >= 17


def test_an_interval_is_wider_where_known_categories_differ_in_size():
    x, blob = blobs_of(24)
    equal = np.where((blob < 6) & (np.arange(len(x)) // 24 < 6), blob, -1)
    many = np.where(blob == 0, 12, 1)
    unequal = np.where((blob < 6) & (np.arange(len(x)) // 24 < many), blob, -1)
    found = []
    for labels in (equal, unequal):
        count = known_share.Count(24.0, 0.1, as_rows(x, 1 << 20), torch.from_numpy(labels))
        found.append(_combined(count, 6, (6, 100), True, np.random.default_rng(0), None))
    assert found[0].n_clusters == found[1].n_clusters == 24
    assert found[1].low < found[0].low
    assert found[1].high > found[0].high


def blobs_of(k):
    rng = np.random.default_rng(0)
    blob = np.arange(12 * k) % k
    return (rng.normal(size=(k, 8))[blob] * 4 + rng.normal(size=(12 * k, 8)) * 0.2).astype(np.float32), blob
