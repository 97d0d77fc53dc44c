"""Clusters of a graph of neighbours: what they find that centres alone do not, and that centres keep it."""

import numpy as np
import pytest
import torch
from sklearn.neighbors import kneighbors_graph

from conftest import half_labelled
from selex import ClusterConfig, fit_clusters, hssk, split_accuracy
from selex.cluster.holdout.select import select
from selex.cluster.search import searched
from selex.cluster.search import spectral as module
from selex.cluster.search.spectral import as_cut, can_cut, eigenvectors, from_spectral
from selex.types import CUTS
from test_swaps import problem_of, scattered


def wide(seed=0):
    """Six categories on a sphere, two known, half of their rows labelled; the last is a long band of 400 rows."""
    rng = np.random.default_rng(seed)
    angles = [np.full(60, 0.9 * number) for number in range(5)] + [np.linspace(4.6, 7.2, 400) % (2 * np.pi)]
    heights = np.repeat([1.0, -1, 1, -1, 1, -1.6], [60] * 5 + [400])
    angle = np.concatenate(angles) + 0.06 * rng.standard_normal(700)
    x = np.stack([np.cos(angle), np.sin(angle), heights + 0.06 * rng.standard_normal(700)], 1)
    truth = np.repeat(np.arange(6), [60] * 5 + [400])
    return x / np.linalg.norm(x, axis=1, keepdims=True), truth, half_labelled(truth, 2)


def accuracy(truth, labels, found):
    free = labels < 0
    return split_accuracy(truth[free], np.asarray(found)[free], truth[free] < labels.max() + 1).all


@pytest.mark.parametrize("cut", CUTS)
def test_a_wide_category_stays_whole_that_centres_cut(cut):
    x, truth, labels = wide()
    problem = problem_of(x, labels, 6, n_init=3)
    found, centres = (searched(problem, way, np.random.default_rng(0)) for way in (cut, "swaps"))
    assert accuracy(truth, labels, centres.labels) < 0.75
    assert accuracy(truth, labels, found.labels) > 0.95
    assert (found.labels.numpy()[labels >= 0] == labels[labels >= 0]).all()


def test_rows_are_where_centres_and_offsets_say():
    """So `predict` gives the same, and so does whoever continues from the clusters."""
    x, _, labels = wide()
    problem = problem_of(x, labels, 6)
    found = from_spectral(problem, np.random.default_rng(0))
    behind = torch.cdist(torch.as_tensor(x), found.centers + problem.rows.shift).square() - found.offsets
    free = labels < 0
    assert (behind.argmin(1).numpy()[free] == found.labels.numpy()[free]).all()
    model = fit_clusters(x, labels, ClusterConfig(categories=6, whiten=0, search="spectral", refine="none", levels=1))
    assert (model.assigner(x[free]).labels == np.asarray(model.labels)[free]).all()


def test_rows_are_where_the_cut_has_them_whatever_is_between_means():
    """Two bands beside each other, one wider and larger: no border half-way tells them apart."""
    rng = np.random.default_rng(0)
    truth = np.repeat([0, 1], [100, 400])
    x = np.stack([1.2 * truth + rng.uniform(0, 1 + truth), rng.uniform(-2, 2, 500)], 1)
    found = as_cut(problem_of(x, np.where(np.arange(500) < 20, 0, -1), 2), torch.from_numpy(truth))
    assert (found.labels.numpy() != truth).mean() < 0.01
    assert np.abs(np.bincount(found.labels) - np.bincount(truth)).max() <= 5
    means = np.stack([x[truth == 0].mean(0), x[truth == 1].mean(0)])
    assert (((x[:, None] - means) ** 2).sum(2).argmin(1) != truth).mean() > 0.03


def test_the_graph_joins_what_scikit_learn_joins():
    x = np.random.default_rng(0).standard_normal((60, 5))
    joined = kneighbors_graph(x, 12).toarray()
    for memory in (1, 1 << 30):
        found = module._neighbours(torch.from_numpy(x), 12, memory).toarray()
        np.testing.assert_array_equal(found, (joined + joined.T) / 2)


def test_rows_of_a_known_category_are_in_one_place_of_the_graph():
    """Not so where they are not joined: a category in two parts is in two places."""
    x, truth, labels = wide()
    labels[np.flatnonzero(truth == 3)[:20]] = 0
    for joined in (True, False):
        found = eigenvectors(problem_of(x, labels, 6), np.random.default_rng(0), joined)
        assert found.shape == (700, 6)
        assert (found[labels == 1] == found[labels == 1][0]).all()
        assert (found[labels == 0] == found[labels == 0][0]).all() == joined


@pytest.mark.parametrize(("cut", "nodes"), [("spectral", 6000), ("spectral", 300), ("spectral-unjoined", 6000)])
def test_rows_in_another_order_give_the_same_clusters(monkeypatch, cut, nodes):
    """With a node for each row as with small groups."""
    monkeypatch.setattr(module, "_NODES", nodes)
    x, truth, labels = wide()
    order = np.random.default_rng(1).permutation(len(x))
    found = hssk(x, labels, 6, n_levels=1, search=cut, rng=0).levels[0].labels
    again = hssk(x[order], labels[order], 6, n_levels=1, search=cut, rng=0).levels[0].labels
    assert again.tolist() == found[order].tolist()
    assert accuracy(truth, labels, found) > 0.9


def test_labels_make_no_more_nodes_of_a_graph_that_does_not_join_them(monkeypatch):
    monkeypatch.setattr(module, "_NODES", 100)
    x, _, labels = wide()
    made = {
        apart: len(module._nodes(problem_of(x, labels, 6), np.random.default_rng(0), apart)[1])
        for apart in (True, False)
    }
    assert made[False] <= 100 < made[True]


def test_without_rows_for_a_graph_it_is_bssk():
    x, labels = scattered(0)
    problem = problem_of(x, labels, 8)
    assert not can_cut(60, 8)
    assert can_cut(80, 8)
    assert not can_cut(1_000_000, 10_000)
    found, ever = from_spectral(problem, np.random.default_rng(0)), problem.solve(np.random.default_rng(0))
    assert found.labels.tolist() == ever.labels.tolist()


def test_hidden_labels_choose_it_where_it_is_better_and_leave_the_others_as_they_are():
    x, _, labels = wide()
    truth = np.repeat(np.arange(6), [60] * 5 + [400])
    known = half_labelled(truth, 6)
    assert select(x, known, 6, search=("swaps", "spectral"), rng=0)[1:3] == ("none", "spectral")
    one, other = np.random.default_rng(3), np.random.default_rng(3)
    searched(problem_of(x, labels, 6), "spectral", one)
    assert one.random() == other.random()


@pytest.mark.parametrize("k", [1, 6])
def test_without_labels_the_cut_is_not_refined_away(k):
    x, _, _ = wide()
    config = ClusterConfig(categories=k, search="spectral-unjoined", whiten=0.0)
    found = fit_clusters(x, None, config, rng=0)
    assert (found.selection.search, found.selection.refine) == ("spectral-unjoined", "none")
    assert len(set(found.labels.tolist())) == k
