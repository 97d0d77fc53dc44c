"""Confidence as high as rows are often right: adjusted where novel rows end up in known clusters."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.special import expit, logit
from sklearn.datasets import load_digits

from conftest import blobs, half_labelled
from selex import ClusterConfig, bssk, fit_clusters
from selex.cluster.assign import Assigner, Calibration
from selex.cluster.hierarchy import hssk
from selex.cluster.holdout import calibrate
from selex.cluster.holdout.calibrate import held_out_calibration
from selex.cluster.rows import Rows

POINTS = np.array([0.0, 1e-4, 0.2, 0.5, 0.9, 0.999, 1.0], dtype=np.float32)


@pytest.mark.parametrize(("share", "shift"), [(1.0, 0.0), (0.8, 0.0), (1.0, -1.5), (0.7, -0.4)])
def test_log_odds_are_shifted_and_probabilities_scaled(share, shift):
    adjusted = Calibration(0.1, share, shift).adjusted(POINTS, np.zeros(len(POINTS), dtype=int))
    np.testing.assert_allclose(adjusted, share * expit(logit(POINTS.astype(float)) + shift), rtol=1e-4)


def test_confidence_is_adjusted_in_known_clusters_alone():
    x, _ = blobs(4, 10, spread=2)
    centers = x[::10].astype(np.float32)
    plain = Assigner(centers, np.full(4, np.inf, np.float32), Calibration(5.0), n_known=2)
    lower = replace(plain, calibration=Calibration(5.0, 0.8, -1.0))
    before, after = plain(x), lower(x)
    known = before.labels < 2
    assert 0 < known.sum() < len(x)
    assert after.labels.tolist() == before.labels.tolist()
    np.testing.assert_array_equal(after.confidence[~known], before.confidence[~known])
    adjusted = lower.calibration.adjusted(before.confidence[known], before.labels[known])
    np.testing.assert_array_equal(after.confidence[known], adjusted)
    assert (after.confidence[known] < 0.8).all()


def digits(seed):
    """Pixels of the digits, and labels of half of the first five."""
    pixels, truth = load_digits(return_X_y=True)
    rows = (pixels / np.linalg.norm(pixels, axis=1, keepdims=True)).astype(np.float32)
    return rows, truth, np.where((truth < 5) & (np.random.default_rng(seed).random(len(truth)) < 0.5), truth, -1)


def too_sure(seed, k=10):
    """By how much confidence in known clusters is above the share of right names: as it is, and not adjusted."""
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
    adjusted, not_adjusted = np.mean([too_sure(seed) for seed in range(5)], axis=0)
    assert abs(adjusted) < 0.035 < not_adjusted


def test_a_number_of_clusters_that_labels_contradict_is_not_believed():
    """With thirty clusters known categories would be a third as large as they are, less than is labelled of them.

    Next to no row would be right then, and confidence lowered to next to nothing.
    """
    adjusted, not_adjusted = too_sure(0, k=30)
    assert adjusted > not_adjusted - 0.02


def test_rows_of_known_categories_are_counted():
    x, truth = blobs(12, 30, spread=0.5, seed=1)
    labels = half_labelled(truth, 6)
    unlabelled = int(((labels < 0) & (truth < 6)).sum())
    rows, generator = Rows(x), np.random.default_rng(0)
    labelled = calibrate._labelled(rows, labels)
    assert labelled.tolist() == np.bincount(labels[labels >= 0]).tolist()
    found = calibrate._rows_of_known(rows, labels, labelled, 12, True, generator)
    assert found == pytest.approx(unlabelled, rel=0.1)
    one = half_labelled(truth, 1)
    alone = calibrate._rows_of_known(rows, one, labelled[:1], 12, True, generator)
    assert alone is None, "nothing tells how known ones differ"


@pytest.mark.parametrize(("n_clusters", "count", "expected"), [(12, 20, 6 * 20), (12, 6, 6 * 50), (20, 12, 6 * 20)])
def test_labels_given_in_equal_numbers_do_not_stand_for_large_categories(n_clusters, count, expected, monkeypatch):
    """Of 360 rows six categories have ten labels each.

    Clusters may be fewer than shares say, then these are too many; or more, then they are not categories.
    """
    x, truth = blobs(12, 30)
    labels = np.full(len(x), -1)
    for category in range(6):
        labels[np.flatnonzero(truth == category)[:10]] = category
    monkeypatch.setattr(calibrate, "count_by_share", lambda *_: SimpleNamespace(n_clusters=count, error=0.05))
    rows, generator = Rows(x), np.random.default_rng(0)
    found = calibrate._rows_of_known(rows, labels, np.full(6, 10), n_clusters, True, generator)
    assert found == pytest.approx(expected, rel=0.01)


def test_clear_clusters_stay_sure():
    x, truth = blobs(12, 30, spread=0.1, seed=1)
    found = held_out_calibration(x, half_labelled(truth, 6), 12, whiten=0.5, rng=0)
    assert (found.adjusted(np.full(6, 0.999, np.float32), np.arange(6)) > 0.95).all()


def test_nothing_is_right_where_no_held_out_row_is():
    found, right = np.zeros(calibrate._BINS), np.zeros(calibrate._BINS)
    found[-20:] = 5
    share, shift = calibrate._lowered(found, right)
    assert share * expit(5 + shift) < 0.05
    right[-20:] = 5
    share, shift = calibrate._lowered(found, right)
    assert share * expit(8 + shift) > 0.95


def test_no_more_rows_are_expected_to_be_right_than_held_out_ones_say():
    """Half by the factor, half by the summand; what is not too much is left as it is."""
    odds = np.linspace(-9.2, 9.2, 2 * calibrate._BINS + 1)[1::2]
    found = np.ones(calibrate._BINS)
    every = expit(odds).sum()
    assert calibrate._lowered_to(every + 1, found, 1.0, 0.0) == (1, 0)
    share, shift = calibrate._lowered_to(0.8 * every, found, 1.0, 0.0)
    assert (found * share * expit(odds + shift)).sum() == pytest.approx(0.8 * every)
    assert share == pytest.approx(0.8**0.5)
    assert shift < 0
    assert calibrate._lowered_to(0.0, found, 1.0, 0.0) == (calibrate._LEAST_SHARE, -calibrate._MOST_SHIFT)


def test_rows_that_leave_novel_clusters_are_right_as_often_as_held_out_ones_were_there():
    """Three unlabelled rows are in the novel cluster, with one held-out row; two of them end in its category's."""
    known, held_out = np.array([0, 0, -1, -1, -1, -1]), np.arange(6) == 1
    level = replace(bssk(np.eye(6, dtype=np.float32), known, 2, rng=0), labels=np.array([0, 1, 1, 1, 0, 1]))
    trial = calibrate._Trial(Rows(np.eye(6, dtype=np.float32)), level, known, held_out)
    assert trial.joined(torch.tensor([0, 0, 0, 1, 0, 0])) == pytest.approx(2 / 3)
    assert trial.joined(trial.clusters) == 0


def test_each_known_cluster_can_have_a_shift_of_its_own():
    """In place of the two numbers for all, lower or higher; however sure a row is, it can become less so."""
    adjusted = Calibration(0.1, 0.5, -5, (-1.0, 0.5)).adjusted(np.tile(POINTS, 2), np.repeat([0, 1], len(POINTS)))
    odds = logit(np.minimum(POINTS.astype(float), 1 - 1e-4))
    np.testing.assert_allclose(adjusted, np.concatenate([expit(odds - 1), expit(odds + 0.5)]), rtol=1e-3)
    assert (adjusted[:7] <= POINTS).all()
    assert (adjusted[7:-1] >= POINTS[:-1]).all()


def confidence_with_a_novel_category_in_the_first_cluster(labelled):
    """Mean confidence of the unlabelled rows of eighty known clusters, and the share of them that are right.

    Every category has thirty rows, so many of which are labelled; a novel one looks like the first known one.
    """
    x, truth = blobs(100, 30, spread=0.5, seed=3)
    x[truth == 80] += x[truth == 0].mean(0) - x[truth == 80].mean(0)
    known = np.full(len(x), -1)
    for category, number in enumerate(labelled):
        known[np.flatnonzero(truth == category)[:number]] = category
    config = ClusterConfig(categories=99, adapt="off", search="swaps", refine="none", whiten=0.5, levels=1)
    found = fit_clusters(x, known, config, rng=0)
    parts = [(known < 0) & (found.labels == cluster) for cluster in range(80)]
    sure = [found.assignment.confidence[part].mean() for part in parts]
    return np.array(sure), np.array([(truth[part] == cluster).mean() for cluster, part in enumerate(parts)])


def test_a_cluster_with_a_whole_novel_category_in_it_is_unsure_where_labels_tell_that_sizes_are_equal():
    sure, right = confidence_with_a_novel_category_in_the_first_cluster(np.random.default_rng(0).binomial(30, 0.5, 80))
    assert right[0] < 0.5 < right[1:].min()
    assert sure[0] == pytest.approx(right[0], abs=0.1)
    assert (sure[1:] > 0.8).all()


def test_labels_given_in_equal_numbers_do_not_tell_that_sizes_are_equal():
    sure, right = confidence_with_a_novel_category_in_the_first_cluster([15] * 80)
    assert right[0] < 0.5
    assert sure[0] > 0.6


def test_as_many_rows_are_right_as_held_out_ones_say():
    """Of clusters whose rows are all sure: up to one and the same share of what their categories have."""
    found = np.zeros((3, calibrate._BINS))
    found[:, -1] = 10, 20, 50
    odds = 9.2 * (1 - 1 / calibrate._BINS)
    for right, expected in ((40, [10, 15, 15]), (60, [10, 20, 20])):
        shifts = calibrate._limited(right, found, np.full(3, 20.0), 0.0)
        np.testing.assert_allclose(found[:, -1] * expit(odds + shifts), expected, rtol=1e-3)


def test_held_out_rows_tell_how_sure_known_clusters_are():
    found = np.full(calibrate._BINS, 50.0)
    odds = np.linspace(-9.2, 9.2, 2 * calibrate._BINS + 1)[1::2]
    assert calibrate._likeliest_shift(found, found * expit(odds + 0.7)) == pytest.approx(0.7, abs=0.01)
    assert calibrate._likeliest_shift(0 * found, 0 * found) == 0


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


def test_rows_that_look_surer_in_the_end_are_no_more_often_right():
    x, truth = blobs(12, 30, spread=2.5, seed=1)
    labels = half_labelled(truth, 6)
    sharp = x + 2 * np.stack([x[truth == category].mean(0) for category in range(12)])[truth]
    before = held_out_calibration(x, labels, 12, rng=0)
    after = held_out_calibration(x, labels, 12, end=(sharp, bssk(sharp, labels, 12, rng=0)), rng=0)
    assert after.temperature == before.temperature
    assert after.share < before.share
    assert after.shift < before.shift


@pytest.mark.filterwarnings("error")
def test_two_labels_of_each_category_are_too_few_to_count_by():
    """Whichever categories a fold holds out: they do not leave a label of another to hold out with them each time."""
    x, truth = blobs(6, 40)
    labels = np.full(len(truth), -1)
    for category in range(3):
        labels[np.flatnonzero(truth == category)[:2]] = category
    found = [held_out_calibration(x, labels, 6, rng=seed) for seed in range(12)]
    assert all(one.temperature > 0 for one in found)
    assert any(one[1:3] == (1, 0) for one in found)


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
