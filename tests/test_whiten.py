"""Features whitened: what it does to distances, with how few labels, and that it stays with the model."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from selex import bssk, split_accuracy
from selex.cluster.assign import fit_assigner
from selex.cluster.holdout.calibrate import held_out_calibration
from selex.cluster.whiten import fit_whitener
from selex.errors import InputError


def stretched(seed=0, n=600, d=12, k=10):
    """Categories that differ in the last dims and vary, all in the same way, far more in the first."""
    rng = np.random.default_rng(seed)
    truth = np.arange(n) % k
    means = np.zeros((k, d))
    means[:, d // 2 :] = rng.normal(size=(k, d - d // 2))
    spread = np.r_[np.full(d // 2, 3.0), np.full(d - d // 2, 0.3)]
    rows = means[truth] + spread * rng.normal(size=(n, d))
    known = truth < k // 2
    labels = np.where(known & (rng.random(n) < 0.5), truth, -1)
    return rows.astype(np.float32), truth, known, labels


def accuracy(rows, truth, known, labels):
    free = labels < 0
    found = np.asarray(bssk(rows, labels, truth.max() + 1, n_init=3, rng=0).labels)
    return split_accuracy(truth[free], found[free], known[free])


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_novel_categories_are_found_that_were_hidden():
    rows, truth, known, labels = stretched()
    whitener = fit_whitener(unit(rows), labels, 0.9)
    before, after = (accuracy(features, truth, known, labels) for features in (unit(rows), whitener(unit(rows))))
    assert after.novel > before.novel + 0.2


def test_distances_are_those_of_mahalanobis():
    rows, _, _, labels = stretched()
    whitener = fit_whitener(rows, labels, 0.7)
    held = labels >= 0
    away = np.concatenate([rows[labels == c] - rows[labels == c].mean(0) for c in np.unique(labels[held])])
    scatter = away.T.astype(np.float64) @ away / (held.sum() - len(np.unique(labels[held])))
    wanted = 0.7 * scatter / np.trace(scatter) * len(scatter) + 0.3 * np.eye(len(scatter))
    matrix = whitener.matrix.double().numpy()
    np.testing.assert_allclose(np.linalg.inv(matrix @ matrix.T), wanted, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(whitener.mean, rows.mean(0), atol=1e-4)
    assert np.linalg.eigvalsh(matrix @ matrix.T).max() <= 1 / 0.3 + 1e-3  # nothing is blown up by more


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor], ids=["numpy", "torch"])
def test_rows_keep_their_kind_and_have_length_one(kind):
    rows, _, _, labels = stretched()
    out = fit_whitener(kind(rows), kind(labels), 0.5)(kind(rows))
    assert type(out) is type(kind(rows))
    np.testing.assert_allclose(np.linalg.norm(np.asarray(out), axis=1), 1, rtol=1e-5)


def test_a_memory_mapped_file_is_read_in_blocks(tmp_path):
    rows, _, _, labels = stretched()
    np.save(tmp_path / "rows.npy", rows)
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    one, other = fit_whitener(mapped, labels, 0.5, memory=1 << 12), fit_whitener(rows, labels, 0.5)
    np.testing.assert_allclose(one.matrix, other.matrix, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(one(mapped), other(rows), atol=1e-5)


def test_few_labels_tell_little():
    rows, truth, _, _ = stretched()
    few = np.full(len(rows), -1)
    few[[0, 10, 20, 1, 11]] = truth[[0, 10, 20, 1, 11]]  # three rows beyond the first of each category, 12 dims
    matrix = fit_whitener(rows, few, 1.0).matrix.double().numpy()
    assert np.linalg.eigvalsh(matrix @ matrix.T).max() == pytest.approx(1 / (1 - 3 / 15), rel=1e-3)


def test_confidence_is_worth_something_where_labels_shaped_features():
    """On the pixels of digits: as sure as it is right, where the labels alone would make it too sure; five draws."""
    pixels, truth = load_digits(return_X_y=True)
    rows, known = unit(pixels).astype(np.float32), truth < 5
    too_sure, honest = np.mean([over_confidence(rows, truth, known, seed) for seed in range(5)], axis=0)
    assert -0.05 < honest < too_sure
    assert honest < 0.05


def over_confidence(rows, truth, known, seed):
    """By how much confidence is above accuracy, its temperature from the labels themselves and from hidden ones."""
    labels = np.where(known & (np.random.default_rng(seed).random(len(truth)) < 0.5), truth, -1)
    white, free = fit_whitener(rows, labels, 0.5)(rows), labels < 0
    level = bssk(white, labels, 10, n_init=3, rng=seed)
    found = np.asarray(level.labels)
    right = split_accuracy(truth[free], found[free], known[free]).all
    sure = fit_assigner(white, level, labels)
    held_out = replace(sure, calibration=held_out_calibration(rows, labels, 10, whiten=0.5, rng=seed))
    return [judge(white, found).confidence[free].mean() - right for judge in (sure, held_out)]


def test_nothing_to_even_out():
    rows, _, _, labels = stretched()
    assert fit_whitener(rows, labels, 0) is None
    assert fit_whitener(rows, np.full(len(rows), -1), 0.5) is None
    single = np.full(len(rows), -1)
    single[:3] = [0, 1, 2]
    assert fit_whitener(rows, single, 0.5) is None
    twice = np.full(len(rows), -1)
    twice[:2] = 0
    assert fit_whitener(np.ones_like(rows), twice, 0.5) is None
    same = unit(rows)
    same[1:7] = same[0]
    assert fit_whitener(same, np.where(np.arange(len(rows)) < 7, 0, -1), 0.5) is None  # equal but for rounding


def test_features_that_stay_as_they_are_are_not_read():
    assert fit_whitener(None, None, 0) is None


def test_whole_numbers():
    rows, _, _, labels = stretched()
    whole = (100 * rows).astype(np.int32)
    whitener = fit_whitener(whole, labels, 0.5)
    np.testing.assert_allclose(whitener(torch.from_numpy(whole)), whitener(whole), atol=1e-5)


def test_two_labelled_images_do_no_harm():
    rows, truth, known, _ = stretched()
    few = np.full(len(rows), -1)
    few[[0, 10]] = 0
    assert truth[0] == truth[10]
    whitener = fit_whitener(unit(rows), few, 0.5)
    before, after = (accuracy(features, truth, known, few) for features in (unit(rows), whitener(unit(rows))))
    assert after.all > before.all - 0.05


@pytest.mark.parametrize("amount", [-0.1, 1.1, float("nan")])
def test_an_amount_that_cannot_be(amount):
    rows, _, _, labels = stretched()
    with pytest.raises(InputError, match="whiten must be from 0 to 1"):
        fit_whitener(rows, labels, amount)
