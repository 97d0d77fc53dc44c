"""Clusters as unequal in size as numbers of labels are: what that finds, and when it is tried."""

import csv

import numpy as np
import pytest
import torch

from commands import selex
from conftest import half_labelled
from selex import ClusterConfig, SemiSupervisedKMeans, fit_clusters, hssk, split_accuracy
from selex.cluster.holdout.select import Selection, select
from selex.cluster.search import searched
from selex.cluster.search.unequal import _Cost, alike, differ, evenness, follow
from test_swaps import problem_of, scattered

SIZES = (300, 150, 60, 30, 12, 300, 120, 40, 15, 8)  # five known


def tail(sizes=SIZES, seed=0):
    """Categories that overlap a little, on a sphere, half of the rows of the first five labelled."""
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(len(sizes)), sizes)
    x = rng.standard_normal((len(sizes), 8))[truth] + 0.75 * rng.standard_normal((len(truth), 8))
    return x / np.linalg.norm(x, axis=1, keepdims=True), truth, half_labelled(truth, 5)


def novel(truth, labels, found):
    free = labels < 0
    return split_accuracy(truth[free], np.asarray(found)[free], truth[free] < 5).novel


@pytest.mark.parametrize("seed", range(3))
def test_a_large_category_stays_whole_that_swaps_cut(seed):
    x, truth, labels = tail(seed=seed)
    problem = problem_of(x, labels, 10, n_init=3)
    found, swaps = (searched(problem, way, np.random.default_rng(0)) for way in ("unequal", "swaps"))
    assert novel(truth, labels, found.labels) > novel(truth, labels, swaps.labels) + 0.1
    assert found.n_clusters == 10
    assert (found.labels.numpy()[labels >= 0] == labels[labels >= 0]).all()


def test_sizes_come_to_differ_as_labels_do():
    x, _, labels = tail()
    problem = problem_of(x, labels, 10)
    of_labels = evenness(problem.counts[:5])
    found, swaps = (
        evenness(torch.bincount(searched(problem, way, np.random.default_rng(0)).labels))
        for way in ("unequal", "swaps")
    )
    assert abs(found - of_labels) < abs(swaps - of_labels) / 2


def test_evenness_is_of_shares():
    assert evenness(torch.tensor([7, 7, 7])) == pytest.approx(0)
    assert evenness(torch.tensor([9, 0, 9, 0])) == pytest.approx(np.log(0.5))
    assert evenness(torch.tensor([1, 2, 3])) == pytest.approx(evenness(torch.tensor([10, 20, 30])))


@pytest.mark.parametrize("seed", range(5))
def test_what_swaps_and_splits_promise_is_what_the_cost_changes_by(seed):
    x, labels = scattered(seed)
    problem = problem_of(x, labels, 8)
    cost = _Cost(problem, 0.3)
    clusters = cost.converged(torch.as_tensor(problem.solve(np.random.default_rng(0)).labels)[problem.free_index])
    costs, heirs = cost._drops(clusters)
    assert torch.isinf(costs[:3]).all()
    for cluster in range(3, 8):
        joined = torch.where(clusters.labels == cluster, heirs[cluster], clusters.labels)
        sizes = torch.bincount(torch.cat([joined, problem.held_labels]), minlength=8).double()
        means = torch.nan_to_num(problem.means(joined))
        inertia = sum(
            float(rows.distances_to_own(means, where).sum())
            for rows, where in ((problem.free, joined), (problem.held, problem.held_labels))
        )
        rise = inertia - 0.3 * float(torch.special.xlogy(sizes, sizes).sum()) - clusters.cost
        assert float(costs[cluster]) == pytest.approx(rise, rel=1e-3, abs=1e-3)
    assert cost.swapped(clusters).cost <= clusters.cost


def test_new_rows_are_sorted_as_those_of_the_run():
    x, _, labels = tail()
    found = fit_clusters(x, labels, ClusterConfig(categories=10, search="unequal", levels=1))
    assert (found.selection.search, found.selection.refine) == ("unequal", "none")
    free = labels < 0
    assert (
        found.assigner(found.transform(x[free])).labels == np.asarray(found.labels)[free]
    ).mean() > 0.99  # but rows that repair


def test_the_order_of_rows_does_not_matter():
    x, _, labels = tail()
    order = np.random.default_rng(0).permutation(len(x))
    found, again = (
        hssk(*given, 10, n_levels=1, search="unequal", rng=0) for given in ((x, labels), (x[order], labels[order]))
    )
    assert again.levels[0].labels.tolist() == found.levels[0].labels[order].tolist()


def test_rows_that_are_all_one_are_left_as_they_are():
    labels = np.repeat([0, 1, -1], [3, 3, 14])
    found = hssk(np.ones((20, 4)), labels, 4, n_levels=1, search="unequal", rng=0).levels[0]
    assert found.labels[:6].tolist() == labels[:6].tolist()


@pytest.mark.parametrize(
    ("counts", "so"),
    [([90, 40, 12, 5], True), ([30, 33, 27, 30], False), ([9, 5, 7, 3, 6, 8], False), ([90, 4], False)],
)
def test_numbers_of_labels_differ_by_more_than_chance(counts, so):
    assert differ(np.array(counts)) is so


@pytest.mark.parametrize(("drawn", "so"), [("binomial", True), ("poisson", False), ("given", False), ("few", False)])
def test_numbers_of_labels_differ_as_little_as_a_draw_from_equal_categories(drawn, so):
    rng = np.random.default_rng(0)
    ways = {"binomial": rng.binomial(30, 0.5, 100), "poisson": rng.poisson(15, 100), "given": np.full(100, 15)}
    assert alike({**ways, "few": np.array([15, 14, 16])}[drawn], 30) is so


def chosen(x, labels, k=10):
    return fit_clusters(x, labels, ClusterConfig(categories=k, levels=1), calibrate=False).selection.search


@pytest.mark.parametrize("seed", [1, 3])
def test_it_is_chosen_where_labels_and_sizes_differ(seed):
    x, _, labels = tail(seed=seed)
    assert chosen(x, labels) == "unequal"


@pytest.mark.parametrize("most", [10, 10_000])
def test_it_is_tried_with_so_many_rows_at_most(monkeypatch, most):
    x, _, labels = tail()
    given = []
    monkeypatch.setattr("selex.cluster.pipeline.MOST_TO_SMOOTH", most)
    monkeypatch.setattr(
        "selex.cluster.pipeline.select", lambda *_, **how: given.append(how["search"]) or Selection(False, "none")
    )
    chosen(x, labels)
    assert given == [("swaps",) if most == 10 else ("unequal", "swaps", "smoothed")]


def test_what_is_chosen_is_the_same_from_everywhere(tmp_path):
    x, _, labels = tail(seed=3)
    order = np.random.default_rng(1).permutation(len(x))
    found = fit_clusters(x, labels, ClusterConfig(categories=10, levels=1), rng=3)
    assert found.selection.search == "unequal"
    model = SemiSupervisedKMeans(10, random_state=3).fit(x[order], labels[order])
    assert model.search_ == "unequal"
    assert model.labels_.tolist() == found.labels[order].tolist()
    np.save(tmp_path / "features.npy", x)
    with (tmp_path / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("row", "label"), *((row, labels[row]) for row in np.flatnonzero(labels >= 0))])
    arguments = ("features.npy", "--labels", "labels.csv", "--categories", 10, "--seed", 3)
    done = selex("cluster", *arguments, "--out", "clusters.csv", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "search: unequal (auto)\n" in done.stdout
    with (tmp_path / "clusters.csv").open(newline="") as file:
        assert [int(row["level_1"]) for row in csv.DictReader(file)] == found.labels.tolist()


@pytest.mark.parametrize("seed", [1, 3])
def test_labels_that_differ_in_number_alone_do_not_mislead(seed):
    x, _, labels = tail([100] * 10, seed)
    for category, kept in enumerate((50, 30, 16, 8, 4)):
        labels[np.flatnonzero(labels == category)[kept:]] = -1
    assert differ(np.bincount(labels[labels >= 0]))
    assert chosen(x, labels) != "unequal"


@pytest.mark.parametrize("seed", [1, 3])
def test_whether_unlabelled_rows_follow_numbers_of_labels(seed):
    """They do where categories differ in size, and not where some of equal size only have more labels."""
    for sizes, so in ((SIZES, True), ([100] * 10, False)):
        x, _, labels = tail(sizes, seed)
        for category, kept in enumerate((50, 30, 16, 8, 4)):
            labels[np.flatnonzero(labels == category)[kept:]] = -1
        problem = problem_of(x, labels, 10)
        assert follow(problem, searched(problem, "swaps", np.random.default_rng(0))) is so


@pytest.mark.parametrize("follows", [True, False])
def test_it_may_be_further_behind_swaps_where_unlabelled_rows_follow(monkeypatch, follows):
    x, _, labels = tail(seed=1)
    asked = []

    def safest(scores, errors):
        asked.append({way.search: errors(way) for way in scores})
        return next(way for way in scores if way.search == ("swaps" if len(asked) == 1 else "unequal"))

    monkeypatch.setattr("selex.cluster.holdout.select.safest", safest)
    monkeypatch.setattr("selex.cluster.holdout.select.follow", lambda *_: follows)
    found = select(x, labels, 10, search=("unequal", "swaps"), refine=("none",), rng=0)
    assert found.search == ("unequal" if follows else "swaps")
    assert asked == [{"unequal": 1, "swaps": 0.5}, {"unequal": 3, "swaps": 3}][: 1 + follows]


def test_where_held_out_labels_tell_nothing_it_is_not_taken():
    x, _, labels = tail()
    for known in (2, 3):  # too few categories, then too few labels
        few = np.where(labels < known, labels, -1)
        assert select(x, few, 10, search=("unequal", "swaps"), refine=("none",), rng=0).search == "swaps"
    labels[np.flatnonzero(labels >= 0)[::12]] += 100
    few = np.where(labels >= 100, labels - 100, -1)
    assert 0 < (few >= 0).sum() < 40
    assert select(x, few, 10, search=("unequal", "swaps"), refine=("none",), rng=0).search == "swaps"
