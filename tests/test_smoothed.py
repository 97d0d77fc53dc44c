"""Clusters of rows averaged with their neighbours: what they find that centres do not, and that centres keep it."""

import numpy as np
import pytest
import torch
from sklearn.neighbors import kneighbors_graph

from conftest import half_labelled
from selex import ClusterConfig, fit_clusters, hssk, split_accuracy
from selex.cluster.holdout.select import select
from selex.cluster.search import searched
from selex.cluster.search import smoothed as module
from selex.cluster.search.smoothed import bordered, can_smooth, graph_of, nodes_of, smoothed
from test_swaps import problem_of


def wide(seed=3):
    """Six categories on a sphere, two known, half of their rows labelled; the last is wide and large."""
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(6), [60] * 5 + [400])
    centers = rng.standard_normal((6, 10))
    width = np.where(truth == 5, 1.5, 0.5)[:, None] / np.sqrt(10)
    x = (centers / np.linalg.norm(centers, axis=1, keepdims=True))[truth] + width * rng.standard_normal((700, 10))
    return x / np.linalg.norm(x, axis=1, keepdims=True), truth, half_labelled(truth, 2)


def moved_rows(problem):
    nodes = nodes_of(problem, np.random.default_rng(0))
    return smoothed(problem, nodes, graph_of(problem, nodes), problem.k).rows


def accuracy(truth, labels, found):
    free = labels < 0
    return split_accuracy(truth[free], np.asarray(found)[free], truth[free] < labels.max() + 1).all


def test_a_wide_category_stays_whole_that_centres_cut():
    x, truth, labels = wide()
    problem = problem_of(x, labels, 6, n_init=3)
    found, centres = (searched(problem, way, np.random.default_rng(0)) for way in ("smoothed", "swaps"))
    assert accuracy(truth, labels, centres.labels) < 0.75
    assert accuracy(truth, labels, found.labels) > 0.95
    assert (found.labels.numpy()[labels >= 0] == labels[labels >= 0]).all()


def test_rows_are_where_centres_and_offsets_say():
    """So `predict` gives the same, and so does whoever continues from the clusters."""
    x, _, labels = wide()
    problem = problem_of(x, labels, 6)
    found = searched(problem, "smoothed", np.random.default_rng(0))
    behind = torch.cdist(torch.as_tensor(x), found.centers + problem.rows.shift).square() - found.offsets
    free = labels < 0
    assert (behind.argmin(1).numpy()[free] == found.labels.numpy()[free]).all()
    model = fit_clusters(x, labels, ClusterConfig(categories=6, whiten=0, search="smoothed", refine="none", levels=1))
    assert (model.assigner(x[free]).labels == np.asarray(model.labels)[free]).all()


def test_rows_are_where_they_were_found_whatever_is_between_means():
    """Two bands beside each other, one wider and larger: no border half-way tells them apart."""
    rng = np.random.default_rng(0)
    truth = np.repeat([0, 1], [100, 400])
    x = np.stack([1.2 * truth + rng.uniform(0, 1 + truth), rng.uniform(-2, 2, 500)], 1)
    problem = problem_of(x, np.where(np.arange(500) < 20, 0, -1), 2)
    found = bordered(problem, nodes_of(problem, rng), torch.from_numpy(truth))
    assert (found.labels.numpy() != truth).mean() < 0.01
    assert np.abs(np.bincount(found.labels) - np.bincount(truth)).max() <= 5
    means = np.stack([x[truth == 0].mean(0), x[truth == 1].mean(0)])
    assert (((x[:, None] - means) ** 2).sum(2).argmin(1) != truth).mean() > 0.03


def test_the_graph_joins_what_scikit_learn_joins_nearer_rows_more():
    x = np.random.default_rng(0).standard_normal((60, 5))
    away = kneighbors_graph(x, 10, mode="distance").toarray()
    ranks = np.where(away > 0, (np.where(away > 0, away, np.inf)).argsort(1).argsort(1) + 1.0, np.inf)
    for memory in (1, 1 << 30):
        found = module._neighbours(torch.from_numpy(x), memory).toarray()
        np.testing.assert_allclose(found, (1 / ranks + 1 / ranks.T) / 2)


def test_labelled_rows_of_a_category_move_as_one():
    """A category in two parts, too: its rows are all in one place, between them."""
    x, truth, labels = wide()
    labels[np.flatnonzero(truth == 3)[:20]] = 0
    problem = problem_of(x, labels, 6)
    found = moved_rows(problem)
    moved = (found.take(slice(None)) + found.shift).numpy()
    for category in (0, 1):
        assert np.ptp(moved[labels == category], axis=0).max() == 0
    for category in (2, 4):  # others draw together
        assert moved[truth == category].var(0).sum() < 0.1 * x[truth == category].var(0).sum()


def test_a_row_without_neighbours_but_its_own_category_stays_where_it_is(monkeypatch):
    monkeypatch.setattr(module, "_NEIGHBOURS", 2)
    x = np.random.default_rng(0).standard_normal((12, 2))
    x[3:] += 100
    problem = problem_of(x, np.repeat([0, -1], [3, 9]), 3)
    found = moved_rows(problem)
    moved = (found.take(slice(None)) + found.shift).numpy()
    np.testing.assert_allclose(moved[:3], x[:3].mean(0)[None].repeat(3, 0), rtol=1e-5)


@pytest.mark.parametrize("nodes", [6000, 300])
def test_rows_in_another_order_give_the_same_clusters(monkeypatch, nodes):
    """With a node for each row as with small groups."""
    monkeypatch.setattr(module, "_NODES", nodes)
    x, truth, labels = wide()
    order = np.random.default_rng(1).permutation(len(x))
    found = hssk(x, labels, 6, n_levels=1, search="smoothed", rng=0).levels[0].labels
    again = hssk(x[order], labels[order], 6, n_levels=1, search="smoothed", rng=0).levels[0].labels
    assert again.tolist() == found[order].tolist()
    assert accuracy(truth, labels, found) > 0.9


def test_with_too_few_groups_for_the_clusters_it_is_swaps(monkeypatch):
    x, _, labels = wide()
    assert can_smooth(6000, 3000)
    assert not can_smooth(1_000_000, 10_000)
    assert not can_smooth(100, 1)
    monkeypatch.setattr(module, "_NODES", 50)
    found, ever = (searched(problem_of(x, labels, 6), way, np.random.default_rng(0)) for way in ("smoothed", "swaps"))
    assert found.labels.tolist() == ever.labels.tolist()


def test_held_out_labels_choose_it_where_it_is_better_and_leave_the_others_as_they_are():
    x, truth, labels = wide()
    known = half_labelled(truth, 6)
    assert select(x, known, 6, search=("swaps", "smoothed"), rng=0)[1:3] == ("none", "smoothed")
    one, other = np.random.default_rng(3), np.random.default_rng(3)
    searched(problem_of(x, labels, 6), "smoothed", one)
    assert one.random() == other.random()


@pytest.mark.parametrize("k", [1, 6])
def test_without_labels_the_clusters_are_not_refined_away(k):
    x, _, _ = wide()
    config = ClusterConfig(categories=k, search="smoothed", whiten=0.0)
    found = fit_clusters(x, None, config, rng=0)
    assert (found.selection.search, found.selection.refine) == ("smoothed", "none")
    assert len(set(found.labels.tolist())) == k
