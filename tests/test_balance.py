import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reference import blocking_pairs, stable_match
from selex.cluster import balance
from selex.cluster.rows import Rows, count


@st.composite
def problems(draw, whole=False):
    """Rows, centres and capacities with room for all; whole numbers make many exact ties."""
    n, k = draw(st.integers(1, 40)), draw(st.integers(1, 7))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    numbers = (lambda shape: rng.integers(0, 4, shape).astype(np.float64)) if whole else rng.standard_normal
    capacity = rng.integers(0, 2 * n // k + 1, k)
    while capacity.sum() < n:
        capacity[rng.integers(k)] += 1
    return numbers((n, 2)), numbers((k, 2)), capacity


def in_all_ways(x, centers, capacity):
    """Labels from each implementation: all distances known, freed rows worked out anew, every row every round,
    and that with rows which are not there."""
    room = torch.from_numpy(capacity)
    rows = Rows(x)
    shifted = torch.from_numpy(centers) - rows.shift
    tight = Rows(x, memory=1)
    single = Rows(x.astype(np.float32))
    known = single.distances(shifted.float())
    more = balance.padded(balance.keys_of(known), room, len(x) + 3)
    return {
        "known": balance.match_freed(rows, shifted, room, rows.distances(shifted))[0],
        "chosen": balance.stable_match(rows, shifted, room)[0],
        "anew": balance.match_freed(tight, shifted, room)[0],
        "at once": balance.match_at_once(known, room)[0],
        "at once, padded": balance.rounds(*more)[: len(x)],
    }


@given(problems())
def test_every_way_gives_the_matching_of_plain_deferred_acceptance(problem):
    x, centers, capacity = problem
    distance = [[float(((row - center) ** 2).sum()) for center in centers] for row in x]
    expected = stable_match(distance, capacity.tolist())
    for way, labels in in_all_ways(x, centers, capacity).items():
        assert labels.tolist() == expected, way


@given(problems())
def test_capacity_holds_and_no_pair_blocks(problem):
    x, centers, capacity = problem
    distance = [[float(((row - center) ** 2).sum()) for center in centers] for row in x]
    for way, labels in in_all_ways(x, centers, capacity).items():
        assert (count(labels, len(capacity)).numpy() <= capacity).all(), way
        assert not blocking_pairs(distance, capacity.tolist(), labels.tolist()), way


@given(problems(whole=True))
def test_ties_go_to_the_lower_cluster_and_the_lower_row(problem):
    x, centers, capacity = problem
    distance = torch.from_numpy(((x[:, None] - centers) ** 2).sum(2))
    expected = stable_match(distance.tolist(), capacity.tolist())
    room = torch.from_numpy(capacity)
    rows = Rows(x)
    assert balance.match_freed(rows, torch.from_numpy(centers), room, distance)[0].tolist() == expected
    assert balance.match_at_once(distance.float(), room)[0].tolist() == expected


@given(problems())
def test_a_permutation_of_rows_permutes_the_matching(problem):
    x, centers, capacity = problem
    order = np.random.default_rng(0).permutation(len(x))
    straight, permuted = in_all_ways(x, centers, capacity), in_all_ways(x[order], centers, capacity)
    for way in straight:
        assert permuted[way].tolist() == straight[way][order].tolist(), way


def test_worked_by_hand():
    # rows at 0, 1, 2, 3, 10, centres at 0 and 4 with two and three seats: 2 is as near to both, but the lower cluster
    # has no seat left after 0 and 1
    x, centers = np.array([[0.0], [1], [2], [3], [10]]), np.array([[0.0], [4]])
    for labels in in_all_ways(x, centers, np.array([2, 3])).values():
        assert labels.tolist() == [0, 0, 1, 1, 1]


def test_freed_rows_can_overfill_the_next_cluster():
    # all rows want cluster 0; the two it frees want cluster 1, which has one seat, so one goes on to cluster 2
    x, centers = np.array([[0.0], [0.1], [0.2], [0.3]]), np.array([[0.0], [2], [5]])
    for labels in in_all_ways(x, centers, np.array([2, 1, 5])).values():
        assert labels.tolist() == [0, 0, 2, 1]


def test_a_single_sweep_may_overfill_and_that_is_the_difference():
    x, centers = np.array([[0.0], [0.1], [0.2], [0.3]]), np.array([[0.0], [2], [5]])
    rows = Rows(x)
    shifted = torch.from_numpy(centers) - rows.shift
    labels, distances = balance.sweep(rows, shifted, *rows.nearest(shifted), torch.tensor([2, 1, 5]))
    assert labels.tolist() == [0, 0, 1, 1]
    assert distances.tolist() == pytest.approx([0, 0.01, 1.8**2, 1.7**2])


def test_a_cluster_without_capacity_gets_nobody():
    x, centers = np.zeros((6, 2)), np.array([[0.0, 0], [9, 9]])
    for labels in in_all_ways(x, centers, np.array([0, 6])).values():
        assert labels.tolist() == [1] * 6
