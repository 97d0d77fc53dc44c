"""Which share of the rows belongs to known categories: what is held out, and what it stands for."""

import numpy as np
import pytest
import torch

from conftest import pile, some_labelled
from selex import estimate_k
from selex.cluster.holdout import known_share
from selex.cluster.rows import Rows, as_rows
from selex.errors import Note


def test_every_known_category_is_among_the_rows_that_are_looked_at(monkeypatch):
    monkeypatch.setattr(known_share, "_ROWS", 200)
    x, truth = pile([400, 150, 60, 4, 4, 4, 200, 60], spread=0.4)
    labels = torch.from_numpy(some_labelled(truth, [300, 100, 40, 1, 1, 1]))
    for seed in range(5):
        count = known_share.count_by_share(as_rows(x, 1 << 20), labels, 6, True, np.random.default_rng(seed))
        assert (count.known[count.known >= 0].bincount(minlength=6) > 0).all()
        assert int((count.known >= 0).sum()) == int((count.known < 0).sum()) == 200
    with pytest.warns(Note, match="3 of 6 known categories have a single labelled row each"):
        found = estimate_k(x, labels.numpy(), rng=0)
    assert found.low <= 8 <= found.high


def test_held_out_rows_stand_for_categories_with_as_few_labels_as_theirs_keep():
    rng = np.random.default_rng(0)
    truth = np.repeat(np.arange(600), 20)
    labels = np.where(rng.random(len(truth)) < 0.1, truth, -1)
    rows = Rows(torch.from_numpy(rng.standard_normal((len(truth), 4)).astype(np.float32)))
    labels = np.unique(labels, return_inverse=True)[1] - 1  # categories without a label are not known
    look = known_share._Look(rows, labels, int(labels.max()) + 1, (1.0, 1.0), True)
    for whole, held_out in look._folds(rng):
        kept = np.where(whole | held_out, -1, labels)
        left = np.bincount(kept[kept >= 0], minlength=look.n_known)
        weights, own = look._as_known(kept, held_out), labels[held_out]
        for number in (1, 2):
            wanted = (left == number).sum() / (left > 0).sum()
            assert weights[left[own] == number].sum() / weights.sum() == pytest.approx(wanted, abs=0.03)
        assert (left[own] == 1).mean() < 0.9 * (left == 1).sum() / (left > 0).sum()  # without weights


def test_novel_categories_may_be_nearer_to_known_ones_than_held_out_ones_are():
    """How near they are is estimated with the share of known rows: without it they would pass for known ones."""
    known = np.array([[0.6, 0.1], [0.1, 0.1], [0.05, 0.05]])
    there = np.array([[0.3, 0.0], [0.4, 0.1], [0.3, 0.9]])
    mixed = 0.4 * known + 0.6 * there * (0.7, 0.3)
    tables = 1000 * known[None], 1000 * (there * (0.2, 0.8))[None], mixed
    alone = [part.sum(-1, keepdims=True) for part in tables]
    shares = [float((known_share._mixture(*parts)[0] * parts[2]).sum()) for parts in (tables, alone)]
    assert shares[0] == pytest.approx(0.4, abs=0.02)
    assert shares[1] > 0.55


@pytest.mark.parametrize("looks", [0, 1])
def test_where_all_rows_look_known_they_are_and_where_all_look_novel_none_is(looks):
    known, novel = np.array([[[1e9, 0.0], [0.0, 0.0]]]), np.array([[[0.0, 0.0], [1e9, 0.0]]])
    mixed = np.zeros((2, 2))
    mixed[looks, 0] = 1e4
    belongs = known_share._mixture(known, novel, mixed)
    assert np.isfinite(belongs).all()
    assert (belongs[0] * mixed).sum() / 1e4 == pytest.approx(1 - looks, abs=1e-3)


def test_of_two_labels_either_is_held_out():
    """In each fold but that which lacks the category: few labels are not to be spared."""
    labels = np.where(np.arange(240) % 10 < 2, np.repeat(np.arange(24), 10), -1)
    rng = np.random.default_rng(0)
    rows = Rows(torch.from_numpy(rng.standard_normal((240, 4)).astype(np.float32)))
    folds = list(known_share._Look(rows, labels, 24, (1.0, 1.0), True)._folds(rng))
    assert [int(held_out.sum()) for _, held_out in folds] == [18] * 4
    times = np.sum([held_out for _, held_out in folds], axis=0)
    assert set(times[labels >= 0].tolist()) == {1, 2}


def test_held_out_rows_count_alike_where_every_category_has_many_labels():
    rng = np.random.default_rng(0)
    labels = np.where(np.arange(600) % 2, np.repeat(np.arange(10), 60), -1)
    rows = Rows(torch.from_numpy(rng.standard_normal((600, 4)).astype(np.float32)))
    look = known_share._Look(rows, labels, 10, (1.0, 1.0), True)
    for whole, held_out in look._folds(rng):
        np.testing.assert_array_equal(look._as_known(np.where(whole | held_out, -1, labels), held_out), 1.0)
