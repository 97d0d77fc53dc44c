"""Labels that are hidden and looked for again: which ones, what they tell, and where they tell nothing."""

import numpy as np
import pytest
import torch

from conftest import half_labelled
from selex import bssk, split_accuracy
from selex.cluster import assign
from selex.cluster.mixture import soften
from selex.cluster.rehearsal import _hidden, _numbered, rehearse
from selex.cluster.scatter import evening
from selex.errors import InputError
from test_mixture import cloud

UNEVEN = [240, 20, 120, 20, 240, 20, 120, 20, 160, 20, 200, 20]


def test_every_second_label_of_a_category_and_all_of_every_fourth_category_is_hidden():
    labels = np.array([0, 1, -1, 0, 0, 1, 2, -1, 0, 3, 4, 3, 4])
    halves, more = (np.flatnonzero(rows).tolist() for rows in _hidden(labels))
    assert halves == [3, 5, 8, 11, 12]
    assert more == [3, 5, 8, 9, 11, 12]
    halves, more = (np.flatnonzero(rows).tolist() for rows in _hidden(np.repeat(np.arange(9), 2)))
    assert halves == [1, 3, 5, 7, 9, 11, 13, 15, 17]
    assert more == [1, 3, 5, 6, 7, 9, 11, 13, 14, 15, 17]


def test_what_is_left_is_numbered_anew():
    assert _numbered(np.array([0, -1, 2, 4, 2])).tolist() == [0, -1, 1, 2, 1]
    assert _numbered(np.array([1, 3, 3])).tolist() == [0, 1, 1]
    assert _numbered(np.array([-1, -1])).tolist() == [-1, -1]


def surprise(rows, level, index, own, temperature):
    """How unlikely rows are to be in their own clusters, in plain loops."""
    total = 0.0
    for row, mine in zip(index, own, strict=True):
        squared = ((level.centers - rows[row]) ** 2).sum(1)
        odds = (-squared if level.offsets is None else level.offsets - squared) / temperature
        total += np.log(np.exp(odds - odds.max()).sum()) + odds.max() - odds[mine]
    return total


@pytest.mark.parametrize("sizes", ["paper", "any", "unequal", "equal"])
@pytest.mark.parametrize("whiten", [0.0, 0.5])
def test_the_temperature_makes_hidden_labels_likeliest(sizes, whiten):
    """Half of those of each category, with clusters made of the other half."""
    rows, truth = cloud([40] * 8, spread=1.5)
    labels = half_labelled(truth, 5)
    found = rehearse(rows, labels, 8, sizes=sizes, whiten=whiten, rng=0)
    assert found.sizes == sizes
    hidden, _ = _hidden(labels)
    left = np.where(hidden, -1, labels)
    even = evening(rows, left, whiten)(rows) if whiten else rows
    level = soften(even, left, bssk(even, left, 8, rng=0), sizes)
    index = np.flatnonzero(hidden)
    own = labels[index]
    best = found.temperature
    least = surprise(even, level, index, own, best)
    assert least < min(surprise(even, level, index, own, best * factor) for factor in (1 / 1.1, 1.1))


def test_the_best_form_is_that_whose_clusters_agree_best_with_hidden_labels():
    rows, truth = cloud(UNEVEN, dims=16)
    labels = half_labelled(truth, 8)
    _, hidden = _hidden(labels)
    left = np.array([0, 1, 2, -1, 3, 4, 5, -1, -1])[np.where(hidden, -1, labels)]
    start = bssk(rows, left, 12, rng=0)
    scores = {}
    for form in ("unequal", "any", "equal", "paper"):
        found = soften(rows, left, start, form).labels
        scores[form] = split_accuracy(labels[hidden], found[hidden], labels[hidden] >= 0).all
    assert len(set(scores.values())) > 1
    assert rehearse(rows, labels, 12, rng=0).sizes == max(scores, key=scores.get)


@pytest.mark.parametrize("seed", range(4))
def test_clusters_of_unequal_size_are_noticed(seed):
    rows, truth = cloud(UNEVEN, dims=16, spread=1.2, seed=seed)
    assert rehearse(rows, half_labelled(truth, 8, seed), 12, rng=seed).sizes == "unequal"


@pytest.mark.parametrize("seed", range(4))
def test_clusters_of_equal_size_that_overlap_are_noticed(seed):
    rows, truth = cloud([200] * 12, dims=6, seed=seed)
    assert rehearse(rows, half_labelled(truth, 12, seed), 12, rng=seed).sizes == "equal"


@pytest.mark.parametrize(("labelled", "hidden", "tried"), [((20, 20), 20, 5), ((20, 19), 19, 1)])
def test_few_hidden_rows_tell_nothing_of_sizes(labelled, hidden, tried):
    rows, truth = cloud([200] * 12, dims=6)
    labels = np.full(len(truth), -1)
    for category, count in enumerate(labelled):
        labels[np.flatnonzero(truth == category)[:count]] = category
    assert _hidden(labels)[1].sum() == hidden
    assert len(forms_tried(rows, labels, 12)) == tried


def forms_tried(rows, labels, count):
    """What `rehearse` tries where it may choose, and last what it takes, if that tells how sure to be."""
    seen = []

    def watched(data, known, level, sizes, memory):
        seen.append(sizes)
        return soften(data, known, level, sizes, memory)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("selex.cluster.rehearsal.soften", watched)
        found = rehearse(rows, labels, count, rng=0)
    assert seen[:4] in (["unequal"], ["unequal", "any", "equal", "paper"])
    assert seen[4:] in ([], [found.sizes])
    return seen


def test_where_nothing_can_be_hidden():
    rows, _ = cloud([9], dims=4)
    nothing, singles = np.full(9, -1), np.array([0, 1, 2] + 6 * [-1])
    for labels in (nothing, singles):
        found = rehearse(rows, labels, 4, whiten=0.5)
        assert (found.sizes, found.temperature) == ("unequal", None)
        assert rehearse(rows, labels, 4, sizes="equal").sizes == "equal"
    assert rehearse(rows, np.array([0, 0] + 7 * [-1]), 1).temperature is None  # one cluster: sure of everything


def test_a_category_hidden_as_a_whole_tells_of_sizes_but_not_how_sure_to_be():
    """One label each in eighty categories: those of twenty are hidden, and no half of any."""
    rows, truth = cloud([4] * 90)
    labels = np.full(len(truth), -1)
    for category in range(80):
        labels[np.flatnonzero(truth == category)[0]] = category
    assert [hidden.sum() for hidden in _hidden(labels)] == [0, 20]
    assert rehearse(rows, labels, 90, rng=0).temperature is None
    assert len(forms_tried(rows, labels, 90)) == 4


def test_few_labels_give_a_temperature():
    rows, _ = cloud([9], dims=4)
    found = rehearse(rows, np.array([0, 1, -1, 0, 0, 1, 2, -1, 0]), 4, whiten=0.5, rng=0)
    assert found.sizes == "unequal"
    assert found.temperature > 0


@pytest.mark.parametrize("whiten", [0.0, 0.5])
def test_tensors_and_arrays_agree(whiten):
    rows, truth = cloud(UNEVEN, dims=16)
    rows, labels = rows.astype(np.float32), half_labelled(truth, 8)
    array = rehearse(rows, labels, 12, whiten=whiten, rng=0)
    tensor = rehearse(torch.from_numpy(rows), torch.from_numpy(labels), 12, whiten=whiten, rng=0)
    assert tensor.sizes == array.sizes
    assert tensor.temperature == pytest.approx(array.temperature, rel=1e-3)


def test_the_same_again_and_nothing_given_is_changed():
    rows, truth = cloud([40] * 8, spread=1.5)
    labels = half_labelled(truth, 5)
    before = labels.copy()
    assert rehearse(rows, labels, 8, rng=2) == rehearse(rows, labels, 8, rng=2)
    assert labels.tolist() == before.tolist()


def test_few_rows_are_taken_from_all_over(monkeypatch):
    """Rows come sorted by category: the first ones alone would tell of some categories only."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(6), 100)
    far = np.eye(8)[:6] * np.array([4, 4, 4, 1, 1, 1])[:, None]  # the first half is easy to tell apart
    rows = (far[labels] + 0.6 * rng.normal(size=(600, 8))).astype(np.float32)
    labels[1::2] = -1
    whole = rehearse(rows, labels, 6, sizes="paper", whiten=0.5, rng=0).temperature
    monkeypatch.setattr(assign, "_SAMPLE", 60)
    assert rehearse(rows, labels, 6, sizes="paper", whiten=0.5, rng=0).temperature == pytest.approx(whole, rel=0.2)


@pytest.mark.filterwarnings("error")
def test_what_is_hidden_is_not_complained_of():
    """Categories of two labels have one left, which the clustering would note."""
    rows, truth = cloud([40] * 6)
    labels = np.full(len(truth), -1)
    for category in range(3):
        labels[np.flatnonzero(truth == category)[:2]] = category
    assert rehearse(rows, labels, 6, rng=0).temperature > 0


def test_where_all_but_one_cluster_is_left_out():
    """Copies of one row: nothing tells clusters apart, so nothing tells how sure to be."""
    rows = np.tile([[0.6, 0.8]], (40, 1))
    labels = np.where(np.arange(40) < 10, 0, -1)
    for sizes in ("any", "unequal", "equal"):
        assert rehearse(rows, labels, 2, sizes=sizes, rng=0).sizes == sizes
    few = cloud([1] * 6)[0]
    assert rehearse(few, np.array([0, 0, -1, -1, -1, -1]), 6, rng=0).sizes == "unequal"


def test_labels_are_checked():
    rows, truth = cloud([20] * 4)
    assert rehearse(rows, None, 4, rng=0) == rehearse(rows, np.full(80, -1), 4, rng=0)
    with pytest.raises(InputError, match="category 1 has no labelled row"):
        rehearse(rows, np.where(truth == 1, -1, truth), 4)
    with pytest.raises(InputError, match="80 rows"):
        rehearse(rows, truth[:7], 4)
