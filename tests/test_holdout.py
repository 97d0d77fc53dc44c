"""Labels that are held out and looked for again: which ones, what they tell, and where they tell nothing."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from conftest import half_labelled
from selex import bssk
from selex.cluster import assign
from selex.cluster.holdout.calibrate import held_out_calibration
from selex.cluster.holdout.split import halves, numbered, wholes
from selex.cluster.refine import refine_level
from selex.cluster.rows import Rows
from selex.cluster.whiten import fit_whitener
from selex.errors import InputError
from test_refine import cloud

UNEVEN = [240, 20, 120, 20, 240, 20, 120, 20, 160, 20, 200, 20]


def held_out_of(labels, rows=None):
    """What is held out to see how sure to be, and to choose an ending; rows stand in the order of what they hold."""
    half = halves(labels, Rows(in_order(len(labels)) if rows is None else rows))
    return half, half | wholes(labels)


def in_order(n):
    """Rows of which the order by content is that in which they stand."""
    rows = np.zeros((n, 1))
    rows[:, 0] = np.sign(np.random.default_rng(0).standard_normal(1)) * np.arange(n)
    return rows


def test_every_second_label_of_a_category_and_all_of_every_fourth_category_is_held_out():
    labels = np.array([0, 1, -1, 0, 0, 1, 2, -1, 0, 3, 4, 3, 4])
    half, more = (np.flatnonzero(rows).tolist() for rows in held_out_of(labels))
    assert half == [3, 5, 8, 11, 12]
    assert more == [3, 5, 8, 9, 11, 12]
    half, more = (np.flatnonzero(rows).tolist() for rows in held_out_of(np.repeat(np.arange(9), 2)))
    assert half == [1, 3, 5, 7, 9, 11, 13, 15, 17]
    assert more == [1, 3, 5, 6, 7, 9, 11, 13, 14, 15, 17]


def test_other_categories_are_held_out_as_a_whole_in_each_draw():
    labels = np.arange(-1, 8)
    drawn = [labels[wholes(labels, draw)].tolist() for draw in range(4)]
    assert drawn == [[3, 7], [2, 6], [1, 5], [0, 4]]


def test_the_same_rows_are_held_out_wherever_they_stand():
    rows, truth = cloud([20] * 6)
    labels = half_labelled(truth, 4)
    order = np.random.default_rng(1).permutation(len(rows))
    half, again = halves(labels, Rows(rows)), halves(labels[order], Rows(rows[order]))
    assert half.any()
    assert again.tolist() == half[order].tolist()


def test_what_is_left_is_numbered_anew():
    assert numbered(np.array([0, -1, 2, 4, 2])).tolist() == [0, -1, 1, 2, 1]
    assert numbered(np.array([1, 3, 3])).tolist() == [0, 1, 1]
    assert numbered(np.array([-1, -1])).tolist() == [-1, -1]


def temperature(*data, **how):
    """That of the calibration by held-out labels."""
    found = held_out_calibration(*data, **how)
    return found and found.temperature


def surprise(rows, level, index, own, warmth):
    """How unlikely rows are to be in their own clusters, in plain loops, and the temperature beforehand.

    It is expected at 0.3 times the usual gap, as firmly as ten rows would say so by a doubling.
    """
    total, gaps = 0.0, []
    for row, mine in zip(index, own, strict=True):
        squared = ((level.centers - rows[row]) ** 2).sum(1) - (0 if level.offsets is None else level.offsets)
        gaps.append(np.diff(np.sort(squared)[:2])[0])
        odds = -squared / warmth
        total += np.log(np.exp(odds - odds.max()).sum()) + odds.max() - odds[mine]
    return total + 10 / 2 * np.log2(warmth / (0.3 * np.sort(gaps)[(len(gaps) - 1) // 2])) ** 2


@pytest.mark.parametrize("refine", ["none", "proportional", "balanced"])
@pytest.mark.parametrize("whiten", [0.0, 0.5])
def test_the_temperature_makes_held_out_labels_likeliest(refine, whiten):
    """Half of those of each category, with clusters made of the other half."""
    rows, truth = cloud([40] * 8, spread=1.5)
    labels = half_labelled(truth, 5)
    best = temperature(rows, labels, 8, refine=refine, whiten=whiten, rng=0)
    held_out, _ = held_out_of(labels, rows)
    left = np.where(held_out, -1, labels)
    white = fit_whitener(rows, left, whiten)(rows) if whiten else rows
    level = refine_level(white, left, bssk(white, left, 8, rng=0), refine)
    index = np.flatnonzero(held_out)
    own = labels[index]
    least = surprise(white, level, index, own, best)
    assert least < min(surprise(white, level, index, own, best * factor) for factor in (1 / 1.1, 1.1))


def test_where_nothing_can_be_held_out():
    rows, _ = cloud([9], dims=4)
    for labels in (np.full(9, -1), np.array([0, 1, 2] + 6 * [-1])):
        assert temperature(rows, labels, 4, whiten=0.5) is None
    assert temperature(rows, np.array([0, 0] + 7 * [-1]), 1) is None  # one cluster: sure of everything


def test_a_category_held_out_as_a_whole_does_not_tell_how_sure_to_be():
    """One label each in eighty categories: those of twenty are held out, and no half of any."""
    rows, truth = cloud([4] * 90)
    labels = np.full(len(truth), -1)
    for category in range(80):
        labels[np.flatnonzero(truth == category)[0]] = category
    assert [held_out.sum() for held_out in held_out_of(labels)] == [0, 20]
    assert temperature(rows, labels, 90, rng=0) is None


def test_few_labels_give_a_temperature():
    rows, _ = cloud([9], dims=4)
    labels = np.array([0, 1, -1, 0, 0, 1, 2, -1, 0])
    assert temperature(rows, labels, 4, refine="proportional", whiten=0.5, rng=0) > 0


@pytest.mark.parametrize("whiten", [0.0, 0.5])
def test_tensors_and_arrays_agree(whiten):
    rows, truth = cloud(UNEVEN, dims=16)
    rows, labels = rows.astype(np.float32), half_labelled(truth, 8)
    kinds = (rows, labels), (torch.from_numpy(rows), torch.from_numpy(labels))
    array, tensor = (temperature(*kind, 12, refine="balanced", whiten=whiten, rng=0) for kind in kinds)  # type: ignore[misc]
    assert tensor == pytest.approx(array, rel=1e-3)


def test_the_same_again_and_nothing_given_is_changed():
    rows, truth = cloud([40] * 8, spread=1.5)
    labels = half_labelled(truth, 5)
    before = labels.copy()
    assert temperature(rows, labels, 8, rng=2) == temperature(rows, labels, 8, rng=2)
    assert labels.tolist() == before.tolist()


def test_few_rows_are_taken_from_all_over(monkeypatch):
    """Rows come sorted by category: the first ones alone would tell of some categories only."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(6), 100)
    far = np.eye(8)[:6] * np.array([4, 4, 4, 1, 1, 1])[:, None]  # the first half is easy to tell apart
    rows = (far[labels] + 0.6 * rng.normal(size=(600, 8))).astype(np.float32)
    labels[1::2] = -1
    whole = temperature(rows, labels, 6, whiten=0.5, rng=0)
    monkeypatch.setattr(assign, "_SAMPLE", 60)
    assert temperature(rows, labels, 6, whiten=0.5, rng=0) == pytest.approx(whole, rel=0.2)


@pytest.mark.filterwarnings("error")
def test_what_is_held_out_is_not_complained_of():
    """Categories of two labels have one left, which the clustering would note."""
    rows, truth = cloud([40] * 6)
    labels = np.full(len(truth), -1)
    for category in range(3):
        labels[np.flatnonzero(truth == category)[:2]] = category
    assert temperature(rows, labels, 6, refine="proportional", rng=0) > 0


def test_labels_are_checked():
    rows, truth = cloud([20] * 4)
    assert temperature(rows, None, 4) is None
    with pytest.raises(InputError, match="category 1 has no labelled row"):
        temperature(rows, np.where(truth == 1, -1, truth), 4)
    with pytest.raises(InputError, match="80 rows"):
        temperature(rows, truth[:7], 4)


def test_copies_of_one_row_and_a_row_for_each_cluster():
    rows, labels = np.tile([[0.6, 0.8]], (40, 1)), np.where(np.arange(40) < 10, 0, -1)
    few, two = cloud([1] * 6)[0], np.array([0, 0, -1, -1, -1, -1])
    for refine in ("proportional", "balanced"):
        assert temperature(rows, labels, 2, refine=refine, rng=0) > 0
        assert temperature(few, two, 6, refine=refine, rng=0) > 0


def test_one_cluster_that_is_left_tells_nothing(monkeypatch):
    rows, truth = cloud([20] * 2)
    labels = half_labelled(truth, 1)

    def melted(data, known, level, refine, memory):
        return replace(level, labels=np.zeros(len(data), dtype=np.int64), centers=level.centers[:1])

    monkeypatch.setattr("selex.cluster.holdout.calibrate.refine_level", melted)
    assert temperature(rows, labels, 2, refine="proportional", rng=0) is None
