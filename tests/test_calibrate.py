"""Confidence as high as rows are often right: lowered where novel rows end up in known clusters."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit, logit
from sklearn.datasets import load_digits

from conftest import blobs, half_labelled
from selex import ClusterConfig, fit_clusters
from selex.cluster.assign import Assigner, Assignment, Calibration, shifts_of, unlabelled_sizes
from selex.cluster.distributed.group import ALONE
from selex.cluster.hierarchy import hssk
from selex.cluster.holdout import calibrate
from selex.cluster.holdout.calibrate import held_out_calibration
from selex.cluster.rows import Rows


def test_log_odds_are_shifted_in_known_clusters_alone():
    x, _ = blobs(4, 10, spread=2)
    centers = x[::10].astype(np.float32)
    plain = Assigner(centers, np.full(4, np.inf, np.float32), Calibration(5.0), n_known=2)
    before, after = plain(x), replace(plain, shifts=np.float32([-1, 0.5]))(x)
    assert after.labels.tolist() == before.labels.tolist()
    for cluster, shift in enumerate((-1, 0.5)):
        part = before.labels == cluster
        odds = logit(np.clip(before.confidence[part].astype(float), 1e-4, 1 - 1e-4))
        np.testing.assert_allclose(after.confidence[part], expit(odds + shift), rtol=1e-5)
    novel = before.labels >= 2
    assert 0 < novel.sum() < len(x)
    np.testing.assert_array_equal(after.confidence[novel], before.confidence[novel])


def judged(sizes, sure):
    """Rows of clusters of these sizes, each as sure as the others, and clusters 0 and 1 known."""
    clusters = np.repeat(np.arange(len(sizes)), sizes)
    n = len(clusters)
    none, far = np.full(n, -1), np.ones(n, dtype=np.float32)
    return Assignment(clusters, np.full(n, sure, dtype=np.float32), none, far, np.ones(n, dtype=bool), far)


def shifts(sizes, labelled, calibration, sure=0.9):
    """Of two known clusters of these sizes, some of whose rows are labelled."""
    found = judged(sizes, sure)
    known = np.full(len(found.labels), -1)
    for cluster, number in enumerate(labelled):
        known[np.flatnonzero(found.labels == cluster)[:number]] = cluster
    assigner = Assigner(np.eye(3, dtype=np.float32), np.ones(3, np.float32), calibration, n_known=2)
    return shifts_of(found, known, assigner, ALONE)


def test_a_known_cluster_with_a_novel_category_in_it_is_unsure():
    """Of a hundred rows each category has thirty, twenty of them unlabelled; one cluster holds forty such rows."""
    full, mixed = shifts([30, 50, 20], [10, 10], Calibration(1.0, 0.3, 0.3, 0.95))
    assert full == pytest.approx(0.3)
    assert 40 * expit(logit(0.9) + mixed) == pytest.approx(0.95 * 20, rel=1e-4)
    full, mixed = shifts([30, 50, 20], [10, 10], Calibration(1.0, 0.3, 0.3, 1.0), sure=1.0)
    assert full == pytest.approx(0.3)
    assert 40 * expit(logit(0.9999) + mixed) == pytest.approx(20, rel=1e-3)


def test_without_a_number_of_rows_of_known_categories_nothing_is_shifted():
    assert shifts([30, 50, 20], [10, 10], Calibration(1.0)) is None


@pytest.mark.parametrize(
    ("labelled", "found", "expected"),
    [
        ([10, 10, 10], [20, 40, 20], [20, 20, 20]),
        ([5, 10, 15], [25, 20, 15], [25, 20, 15]),  # one size, labelled to different extents
        ([100, 1000, 1900], [100, 1000, 1900], [500, 1000, 1900]),  # labels tell of sizes
        ([0, 100, 200], [300, 200, 100], [200, 100, 50]),  # more labels than a category has rows on average
    ],
)
def test_what_a_category_has_is_its_size_less_its_labels(labelled, found, expected):
    mean = {10: 30, 1000: 2000, 100: 200}[int(np.mean(labelled))]
    sizes = unlabelled_sizes(np.array(labelled), np.array(found), mean)
    np.testing.assert_allclose(sizes, expected, rtol=0.01)


def digits(seed):
    """Pixels of the digits, and labels of half of the first five."""
    pixels, truth = load_digits(return_X_y=True)
    rows = (pixels / np.linalg.norm(pixels, axis=1, keepdims=True)).astype(np.float32)
    return rows, truth, np.where((truth < 5) & (np.random.default_rng(seed).random(len(truth)) < 0.5), truth, -1)


def too_sure(seed, k=10):
    """By how much confidence in known clusters is above the share of right names: as it is, and not lowered."""
    rows, truth, labels = digits(seed)
    config = ClusterConfig(categories=k, adapt="off", search="swaps", refine="proportional", levels=1, restarts=1)
    found = fit_clusters(rows, labels, config, rng=seed)
    part = (labels < 0) & (found.labels < 5)
    plain = replace(found.assigner, n_known=0)(found.transform(rows), found.labels)
    right = (found.labels == truth)[part].mean()
    return [judged.confidence[part].mean() - right for judged in (found.assignment, plain)]


def test_without_labels_clusters_are_about_as_sure_as_they_are_pure():
    rows, truth, _ = digits(0)
    found = fit_clusters(rows, None, ClusterConfig(categories=10, adapt="off", levels=1, restarts=1), rng=0)
    pure = sum(np.bincount(truth[found.labels == number]).max() for number in range(10)) / len(truth)
    assert found.assignment.confidence.mean() == pytest.approx(pure, abs=0.1)


def test_known_clusters_are_as_sure_as_their_names_are_right():
    lowered, not_lowered = np.mean([too_sure(seed) for seed in range(5)], axis=0)
    assert abs(lowered) < 0.035 < not_lowered


def test_a_number_of_clusters_that_labels_contradict_is_not_believed():
    """With thirty clusters known categories would be a third as large as they are, less than is labelled of them.

    Next to no row would be right then, and confidence lowered to next to nothing.
    """
    lowered, not_lowered = too_sure(0, k=30)
    assert lowered > not_lowered - 0.02


def test_rows_of_known_categories_are_counted():
    x, truth = blobs(12, 30, spread=0.5, seed=1)
    labels = half_labelled(truth, 6)
    unlabelled = int(((labels < 0) & (truth < 6)).sum())
    rows, generator = Rows(x), np.random.default_rng(0)
    assert calibrate._rows_of_known(rows, labels, 12, True, generator) == pytest.approx(unlabelled, rel=0.1)
    one = half_labelled(truth, 1)
    assert calibrate._rows_of_known(rows, one, 12, True, generator) is None  # nothing tells how known ones differ


def test_clear_clusters_stay_sure():
    x, truth = blobs(12, 30, spread=0.1, seed=1)
    config = ClusterConfig(categories=12, adapt="off", levels=1)
    found = fit_clusters(x, half_labelled(truth, 6), config, rng=0)
    assert (found.assigner.shifts > 0).all()


def test_held_out_rows_tell_how_sure_known_clusters_are():
    odds = np.repeat([0.0, 2.0], 500)
    right = np.random.default_rng(0).random(1000) < expit(odds + 0.7)
    assert calibrate._likeliest_shift(odds, right.astype(float)) == pytest.approx(0.7, abs=0.2)
    assert calibrate._likeliest_shift(odds[:1], np.ones(1)) < 0.5  # one row does not tell
    assert calibrate._likeliest_shift(odds[:0], np.ones(0)) == 0


def test_as_many_rows_are_right_as_held_out_ones_say():
    found, sizes = np.array([10.0, 20, 50]), np.array([20.0, 20, 20])
    most = calibrate._level(found, sizes, 40)
    assert np.minimum(found, most * sizes).sum() == pytest.approx(40)
    assert calibrate._level(found, sizes, 60) == 1  # no cluster has more rows of its category than there are


@pytest.mark.parametrize(("labelled", "search"), [(6, "swaps"), (20, "bssk")])
def test_few_labels_need_the_search_of_the_end(labelled, search, monkeypatch):
    x, truth = blobs(4, 40)
    labels = np.where((truth < 2) & (np.arange(len(x)) % 40 < labelled), truth, -1)
    searches = []

    def spy(*args, search, **how):
        searches.append(search)
        return hssk(*args, search=search, **how)

    monkeypatch.setattr(calibrate, "hssk", spy)
    held_out_calibration(x, labels, 4, search="swaps", rng=0)
    assert searches == [search]


@pytest.mark.filterwarnings("error")
def test_two_labels_of_each_category_tell_how_large_it_is():
    """Whichever categories a fold holds out: they do not leave a label of another to hold out with them each time."""
    x, truth = blobs(6, 40)
    labels = np.full(len(truth), -1)
    for category in range(3):
        labels[np.flatnonzero(truth == category)[:2]] = category
    found = [held_out_calibration(x, labels, 6, rng=seed) for seed in range(12)]
    assert all(one.temperature > 0 for one in found)
    assert all(one.share == pytest.approx(1 / 6, rel=0.01) for one in found)


def test_half_of_a_category_that_training_did_not_see_at_all_is_given_back(monkeypatch):
    x, truth = blobs(8, 30, spread=1.0, seed=1)
    labels = half_labelled(truth, 5)
    held_out = (labels == 4) | ((labels >= 0) & (np.arange(len(x)) % 3 == 0))
    trials = []

    class Spy(calibrate._Trial):
        def __init__(self, rows, level, known, held_out):
            trials.append((np.array(level.n_known), known[held_out]))
            super().__init__(rows, level, known, held_out)

    monkeypatch.setattr(calibrate, "_Trial", Spy)
    assert held_out_calibration(x, labels, 8, held_out=held_out, rng=0).temperature > 0
    [(n_known, looked_for)] = trials
    assert n_known == 5
    counts = np.bincount(looked_for, minlength=5)
    assert counts[:4].tolist() == np.bincount(labels[held_out & (labels < 4)]).tolist()
    assert counts[4] == np.sum(labels == 4) // 2
