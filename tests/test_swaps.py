import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reference import squared
from selex import split_accuracy
from selex.cluster.kmeans import Problem, Settings, prepare
from selex.cluster.rows import totals
from selex.cluster.search.swaps import _costs, find_swaps, paired, split_all, swapped


def unequal(seed=0):
    """Forty clear categories of 5 to 120 rows, twenty of them known, half of the rows of these labelled."""
    rng = np.random.default_rng(seed)
    sizes = rng.permutation(np.geomspace(5, 120, 40).astype(int))
    truth = np.repeat(np.arange(40), sizes)
    centers = rng.standard_normal((40, 32))
    x = centers[truth] + 0.5 * rng.standard_normal((len(truth), 32))
    labels = np.where((truth < 20) & (rng.random(len(truth)) < 0.5), truth, -1)
    labels[[np.flatnonzero(truth == known)[0] for known in range(20)]] = range(20)
    return x, truth, labels


def problem_of(x, labels, k, memory=1 << 30, **settings):
    rows, known, n_known = prepare(x, labels, memory)
    return Problem(rows, known, n_known, k - n_known, Settings(**settings))


def scattered(seed, n=60, n_known=3):
    """Rows without structure, some labelled."""
    rng = np.random.default_rng(seed)
    labels = np.where(rng.random(n) < 0.3, rng.integers(0, n_known, n), -1)
    labels[:n_known] = range(n_known)
    return rng.standard_normal((n, 4)), labels


@pytest.mark.parametrize("balanced", [True, False])
def test_categories_of_unequal_size_are_found_that_bssk_misses(balanced):
    x, truth, labels = unequal()
    problem = problem_of(x, labels, 40, balanced=balanced)
    level = problem.solve(np.random.default_rng(0))
    better = swapped(problem, level)
    free = labels == -1
    before, after = (split_accuracy(truth[free], one.labels.numpy()[free], truth[free] < 20) for one in (level, better))
    assert before.all < 0.95
    assert after.all > 0.99
    assert better.inertia < 0.95 * level.inertia
    assert (better.labels.numpy()[~free] == labels[~free]).all()


@given(st.integers(0, 2**32), st.sampled_from([0.5, 1.0, 1.1]))
def test_the_inertia_never_rises_and_is_that_of_the_labels(seed, significant):
    x, labels = scattered(seed)
    problem = problem_of(x, labels, 8, n_iter=3)
    level = problem.solve(np.random.default_rng(seed))
    found = swapped(problem, level, significant)
    assert found.inertia <= level.inertia
    own = torch.as_tensor(x) - problem.rows.shift - found.centers[found.labels]
    assert found.inertia == pytest.approx(float(own.square().sum()))
    assert found.n_clusters == 8
    assert len(found.labels.unique()) == 8


@given(st.integers(0, 2**32))
def test_costs_and_gains_are_what_plain_loops_give(seed):
    x, labels = scattered(seed)
    problem = problem_of(x, labels, 8)
    level = problem.solve(np.random.default_rng(seed))
    x, centers, found = (x - problem.rows.shift.numpy()), level.centers.numpy(), level.labels.numpy()
    free = np.flatnonzero(labels == -1)
    costs, heirs = _costs(problem, level.centers, level.labels[problem.free_index])
    gains, mine, new = split_all(problem, level.labels[problem.free_index])
    for cluster in range(8):
        members = [row for row in free if found[row] == cluster]
        others = [{k: squared(x[row], centers[k]) for k in range(8) if k != cluster} for row in members]
        if cluster < 3:
            assert costs[cluster] == torch.inf
        else:
            more = [
                min(far.values()) - squared(x[row], centers[cluster]) for row, far in zip(members, others, strict=True)
            ]
            heir = int(heirs[cluster])
            a, b = (int((found == one).sum()) for one in (cluster, heir))
            merged = a * b / (a + b) * squared(centers[cluster], centers[heir])
            assert costs[cluster] == pytest.approx(min(sum(more), merged), abs=1e-9)
        if members:
            seconds = [min(far, key=far.get) for far in others]
            assert seconds.count(int(heirs[cluster])) == max(map(seconds.count, seconds))
        rows = [row for row in range(60) if found[row] == cluster]
        mean = x[rows].mean(0)
        whole = sum(squared(x[row], mean) for row in rows)
        halved = sum(
            min(squared(x[row], mine[cluster]), squared(x[row], new[cluster]))
            if labels[row] == -1
            else squared(x[row], mine[cluster])
            for row in rows
        )
        assert float(gains[cluster]) <= whole - halved + 1e-9


def test_a_cluster_of_two_categories_gains_what_lies_between_them():
    x = np.array([[0.0, 0], [0, 1], [10, 0], [10, 1]])
    problem = problem_of(x, None, 1)
    gains, mine, new = split_all(problem, torch.zeros(4, dtype=torch.long))
    assert float(gains[0]) == pytest.approx(100)  # 2 · 2 / 4 · 10²
    assert sorted([float(mine[0, 0]), float(new[0, 0])]) == pytest.approx([0, 10] - problem.rows.shift[0].numpy())


def test_neither_heirs_nor_split_clusters_are_dropped():
    costs = torch.tensor([torch.inf, 1.0, 1.1, 2.0, 9.0], dtype=torch.float64)
    heirs = torch.tensor([0, 2, 1, 4, 0])
    gains = torch.tensor([0.5, 0.0, 0.0, 7.0, 8.0], dtype=torch.float64)
    dropped, split = paired(costs, heirs, gains)
    assert dropped.tolist() == [1]  # 2 gets the rows of 1; 3 would gain nothing that 1 does not
    assert split.tolist() == [4]


def test_nothing_to_swap_leaves_the_level_as_it_is():
    x, labels = scattered(0)
    problem = problem_of(x, labels, 3)
    level = problem.solve(np.random.default_rng(0))
    assert swapped(problem, level) is level


@pytest.mark.filterwarnings("ignore:every row is labelled")
def test_nothing_is_left_where_every_row_is_labelled():
    problem = problem_of(scattered(0)[0], np.arange(60) % 3, 3)
    level = problem.solve(np.random.default_rng(0))
    assert swapped(problem, level) is level


def test_blocks_change_nothing():
    x, _, labels = unequal()
    at_once, in_blocks = (problem_of(x, labels, 40, memory) for memory in (1 << 30, 1 << 12))
    level = at_once.solve(np.random.default_rng(0))
    one, other = (find_swaps(problem, level, 1.1) for problem in (at_once, in_blocks))
    assert len(one.gains) > 0
    assert one.dropped.tolist() == other.dropped.tolist()
    np.testing.assert_allclose(one.centers, other.centers, atol=1e-9)


@given(st.integers(0, 2**32))
def test_totals_are_those_of_bincount_in_blocks_too(seed):
    rng = np.random.default_rng(seed)
    labels, values = torch.from_numpy(rng.integers(0, 5, 300)), torch.from_numpy(rng.standard_normal(300))
    whole = totals(values, labels, 6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("selex.cluster.rows.CPU_BLOCK", 6 * 8 * 7)
        parts = totals(values, labels, 6)
    expected = np.bincount(labels, values, minlength=6)
    np.testing.assert_allclose(whole, expected, atol=1e-12)
    np.testing.assert_allclose(parts, expected, atol=1e-12)
