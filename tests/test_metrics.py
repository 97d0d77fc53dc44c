import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score

from reference import best_accuracy
from selex import InputError, Scores, ari, nmi, split_accuracy


def test_worked_by_hand():
    # cluster 7 is category a (2 of 3), 8 is b (both), 9 is the novel c (1 of 2); one row of c sits in 7
    truth = ["a", "a", "a", "b", "b", "c", "c"]
    clusters = [7, 7, 9, 8, 8, 9, 7]
    scores = split_accuracy(truth, clusters, [True] * 5 + [False] * 2)
    assert scores == Scores(all=5 / 7, known=4 / 5, novel=1 / 2)


def test_v1_matches_known_and_novel_apart():
    truth, clusters, known = [0, 0, 1, 1], [5, 5, 5, 5], [True, True, False, False]
    assert split_accuracy(truth, clusters, known) == Scores(0.5, 1.0, 0.0)
    assert split_accuracy(truth, clusters, known, version="v1") == Scores(1.0, 1.0, 1.0)


labellings = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.booleans()), min_size=1, max_size=30)


@given(labellings)
def test_all_is_the_best_of_all_matchings(rows):
    truth, clusters, known = (np.array(column) for column in zip(*rows, strict=True))
    assert split_accuracy(truth, clusters, known).all == pytest.approx(best_accuracy(truth.tolist(), clusters.tolist()))


@given(labellings)
def test_all_is_the_mean_of_its_parts(rows):
    truth, clusters, known = (np.array(column) for column in zip(*rows, strict=True))
    for version in ("v1", "v2"):
        scores = split_accuracy(truth, clusters, known, version)
        parts = [score * part.sum() for score, part in ((scores.known, known), (scores.novel, ~known)) if part.any()]
        assert scores.all == pytest.approx(sum(parts) / len(truth))


def test_more_and_fewer_clusters_than_categories():
    assert split_accuracy([0, 0, 1, 1], [0, 1, 2, 3], [True] * 4).all == 0.5
    assert split_accuracy([0, 1, 2, 3], [0, 0, 0, 0], [True] * 4).all == 0.25


def test_an_empty_part_is_nan_not_a_crash():
    assert math.isnan(split_accuracy([0, 1], [0, 1], [True, True]).novel)
    assert math.isnan(split_accuracy([0, 1], [0, 1], [False, False]).known)
    assert all(math.isnan(score) for score in split_accuracy([], [], []))


def test_tensors_lists_and_arrays_agree():
    truth, clusters, known = [0, 1, 1, 2], [2, 0, 0, 0], [True, True, True, False]
    expected = split_accuracy(truth, clusters, known)
    assert split_accuracy(torch.tensor(truth), torch.tensor(clusters), torch.tensor(known)) == expected
    assert split_accuracy(np.array(truth), np.array(clusters), np.array(known)) == expected


def test_renaming_clusters_changes_nothing():
    truth, clusters = [0, 0, 1, 1, 2], [3, 3, 4, 3, 4]
    renamed = ["x" if cluster == 3 else "y" for cluster in clusters]
    known = [True, True, True, True, False]
    assert split_accuracy(truth, clusters, known) == split_accuracy(truth, renamed, known)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0, 1], [0], [True, True]), "2, 1, 2"),
        (([[0]], [0], [True]), "one-dimensional"),
        (([0], [0], [3]), "true or false"),
        (([0], [0], [True], "v3"), "'v1' or 'v2'"),
    ],
)
def test_bad_input_is_one_clear_line(arguments, message):
    with pytest.raises(InputError, match=message) as caught:
        split_accuracy(*arguments)
    assert "\n" not in str(caught.value)


def test_nmi_and_ari():
    assert nmi([0, 0, 1, 1], [5, 5, 3, 3]) == pytest.approx(1)
    assert nmi([0, 0, 1, 1], [0, 1, 0, 1]) == pytest.approx(0)
    assert ari([0, 0, 1, 2], [0, 0, 1, 1]) == pytest.approx(adjusted_rand_score([0, 0, 1, 2], [0, 0, 1, 1]))


def test_scores_print_as_percentages():
    assert str(Scores(0.7364, 0.753, 0.7281)) == "73.6 / 75.3 / 72.8"
