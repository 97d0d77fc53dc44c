"""Ward's linkage of groups, against scipy's, and the clusters it leads to."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.cluster.hierarchy import fcluster, linkage

from selex import split_accuracy
from selex.cluster.kmeans import Problem, Settings, prepare
from selex.cluster.search import searched
from selex.cluster.search.swaps import from_ward, labelled_accuracy, ward
from test_swaps import problem_of, scattered, unequal


def same_clusters(one, other):
    return len(set(zip(one, other, strict=True))) == len(set(one)) == len(set(other))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("k", [1, 4, 15, 40])
def test_single_rows_give_what_scipy_gives(seed, k):
    x = np.random.default_rng(seed).standard_normal((40, 5))
    assert same_clusters(ward(x, np.ones(40), 0, k).tolist(), fcluster(linkage(x, "ward"), k, "maxclust").tolist())


def test_a_group_counts_as_its_rows():
    rng = np.random.default_rng(0)
    means, sizes = rng.standard_normal((30, 4)), rng.integers(1, 5, 30)
    copies = np.repeat(np.arange(30), sizes)
    expected = fcluster(linkage(means[copies], "ward"), 6, "maxclust")
    assert same_clusters(ward(means, sizes.astype(float), 0, 6)[copies].tolist(), expected.tolist())


def test_known_categories_stay_apart_however_near_they_are():
    means = np.array([[0.0, 0], [0.1, 0], [5, 5], [5, 6], [0, 0.3], [-9, 9]])
    found = ward(means, np.ones(6), 2, 4)
    assert found[:2].tolist() == [0, 1]
    assert found[4] == 0
    assert found[2] == found[3]
    assert len(set(found.tolist())) == 4


def test_clear_categories_of_unequal_size_are_found():
    x, truth, labels = unequal()
    problem = problem_of(x, labels, 40)
    found = from_ward(problem, np.random.default_rng(0)).labels.numpy()
    free = labels == -1
    assert split_accuracy(truth[free], found[free], truth[free] < 20).all > 0.97
    assert (found[~free] == labels[~free]).all()


def test_too_few_rows_for_groups_are_clustered_as_ever():
    x = np.random.default_rng(0).standard_normal((12, 3))
    rows, known, n_known = prepare(x, None, 1 << 20)
    problem = Problem(rows, known, n_known, 6, Settings())
    found, ever = from_ward(problem, np.random.default_rng(0)), problem.solve(np.random.default_rng(0))
    assert found.labels.tolist() == ever.labels.tolist()


def test_groups_of_a_sample_take_the_other_rows_too(monkeypatch):
    x, truth, labels = unequal()
    problem = problem_of(x, labels, 40)
    monkeypatch.setattr("selex.cluster.search.swaps._SAMPLE", problem.free.n // 2)
    found = from_ward(problem, np.random.default_rng(0)).labels.numpy()
    free = labels == -1
    assert split_accuracy(truth[free], found[free], truth[free] < 20).all > 0.9
    assert sorted(set(found.tolist())) == list(range(40))


@given(st.integers(0, 2**32), st.sampled_from([True, False]))
def test_the_search_never_ends_at_a_higher_inertia_than_bssk(seed, balanced):
    x, labels = scattered(seed)
    problem = problem_of(x, labels, 8, balanced=balanced, n_init=2)
    one, other = np.random.default_rng(seed), np.random.default_rng(seed)
    assert searched(problem, "swaps", one).inertia <= searched(problem, "bssk", other).inertia
    assert one.random() == other.random()


@pytest.mark.parametrize(
    ("inertia", "home", "taken"),
    [(0.99, 0.5, True), (0.999, 0.5, False), (1.0, 0.6, True), (1.0, 0.52, False), (1.5, 0.9, False)],
)
def test_wards_start_is_taken_where_it_is_clearly_better_and_only_there(monkeypatch, inertia, home, taken):
    """By inertia, or by labelled rows that are nearest to their own category; never above what BSSK has."""
    x, _, labels = unequal()
    problem = problem_of(x, labels, 40)
    start = problem.solve(np.random.default_rng(0))
    swaps, ward = replace(start, inertia=start.inertia), replace(start, inertia=inertia * start.inertia)
    monkeypatch.setattr("selex.cluster.search.swaps.from_ward", lambda *_: ward)
    monkeypatch.setattr("selex.cluster.search.swaps.swapped", lambda _, level: ward if level is ward else swaps)
    monkeypatch.setattr("selex.cluster.search.swaps.labelled_accuracy", lambda _, level: home if level is ward else 0.5)
    assert (searched(problem, "swaps", np.random.default_rng(0)) is ward) == taken


def test_labelled_rows_at_home_are_those_nearest_to_their_own_category():
    x, labels = scattered(3)
    problem = problem_of(x, labels, 8)
    level = problem.solve(np.random.default_rng(0))
    centers = level.centers.numpy() + problem.rows.shift.numpy()
    nearest = [np.square(centers - row).sum(1).argmin() for row in x]
    expected = np.mean([near == own for near, own in zip(nearest, labels, strict=True) if own >= 0])
    assert 0 < expected < 1
    assert labelled_accuracy(problem, level) == pytest.approx(expected)
    assert labelled_accuracy(problem_of(x, None, 8), level) == 1
