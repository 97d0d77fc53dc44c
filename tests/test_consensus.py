import numpy as np
import pytest
import torch

from conftest import blobs, half_labelled
from selex import InputError, hssk, split_accuracy
from selex.cluster.kmeans import Problem, Settings, prepare
from selex.cluster.rows import Rows
from selex.cluster.search.consensus import agreement, agreement_runs, consensus, memberships


def overlapping(seed=0, spread=0.8):
    """Blobs that overlap so much that single runs are often wrong."""
    x, truth = blobs(16, 25, spread=spread, dims=24, seed=seed)
    return x, truth, half_labelled(truth, 8)


def pairs_of(together, truth, labels):
    """Precision and recall of pairs of unlabelled rows said to be together."""
    free = np.flatnonzero(labels == -1)
    same = truth[free][:, None] == truth[free]
    said = together[np.ix_(free, free)]
    np.fill_diagonal(same, False)
    np.fill_diagonal(said, False)
    return (same & said).sum() / said.sum(), (same & said).sum() / same.sum()


def test_pairs_that_runs_agree_on_are_right_more_often_than_those_of_one_run():
    x, truth, labels = overlapping()
    runs = agreement_runs(x, labels, 16, 20, rng=0)
    share = agreement(*2 * (torch.from_numpy(runs),)).numpy()
    single = pairs_of(runs[0][:, None] == runs[0], truth, labels)
    agreed = pairs_of(share >= 0.7, truth, labels)
    assert agreed[0] > single[0] + 0.1
    assert agreed[1] > 0.5 * single[1]


def test_shares_are_what_counting_gives_and_labelled_rows_are_exact():
    x, _truth, labels = overlapping()
    runs = agreement_runs(x, labels, 16, 5, rng=0)
    share = agreement(*2 * (torch.from_numpy(runs)[:, :30],)).numpy()
    for i in range(30):
        for j in range(30):
            assert share[i, j] == pytest.approx(np.mean(runs[:, i] == runs[:, j]))
            if labels[i] != -1 and labels[j] != -1:
                assert share[i, j] == (labels[i] == labels[j])


def test_runs_are_labels_of_every_row_and_the_seed_decides_them():
    x, _, labels = overlapping()
    runs = agreement_runs(x, labels, 16, 3, rng=7)
    assert runs.shape == (3, len(x))
    assert runs.dtype == np.int32
    assert all(len(np.unique(one)) == 16 for one in runs)
    assert (runs[:, labels != -1] == labels[labels != -1]).all()
    np.testing.assert_array_equal(runs, agreement_runs(x, labels, 16, 3, rng=7))
    assert (runs[0] != runs[1]).any()


def test_a_tensor_gives_a_tensor_with_the_same_runs():
    x, _, labels = overlapping()
    found = agreement_runs(torch.from_numpy(x), torch.from_numpy(labels), 16, 2, rng=7)
    assert isinstance(found, torch.Tensor)
    assert found.dtype == torch.int32
    np.testing.assert_array_equal(found.numpy(), agreement_runs(x, labels, 16, 2, rng=7))


@pytest.mark.parametrize("share", [0, -1, 1.5])
def test_a_share_of_dimensions_that_is_none_is_refused(share):
    x, _, labels = overlapping()
    with pytest.raises(InputError, match="subspace"):
        agreement_runs(x, labels, 16, 2, subspace=share)


@pytest.mark.parametrize("memory", [1, 1 << 30])
def test_rows_along_some_dimensions_are_those_columns(memory):
    x = np.random.default_rng(0).standard_normal((20, 6)) + 100  # far from the origin: they are centred
    columns = torch.tensor([4, 1, 5])
    view = Rows(x, memory).along(columns)
    np.testing.assert_allclose(view.take(slice(None)) + view.shift, x[:, columns], atol=1e-12)
    again = view.at(torch.tensor([3, 2])).along(torch.tensor([1]))
    np.testing.assert_allclose(again.take(slice(None)) + again.shift, x[[3, 2]][:, [1]], atol=1e-12)
    np.testing.assert_allclose(view.norms, np.square(x[:, columns] - np.asarray(view.shift)).sum(1), rtol=1e-9)


def test_what_runs_agree_on_is_better_than_one_run():
    x, truth, labels = overlapping(spread=1.5)
    rows, known, n_known = prepare(x, labels, 1 << 30)
    problem = Problem(rows, known, n_known, 8, Settings())
    free = labels == -1
    one, many = (
        split_accuracy(truth[free], level.labels.numpy()[free], truth[free] < 8).all
        for level in (problem.solve(np.random.default_rng(0)), consensus(problem, np.random.default_rng(0)))
    )
    assert many > one + 0.03


def test_memberships_keep_what_runs_agree_on():
    """Rows that are always together are in one place, rows that never are stand at right angles."""
    clear = torch.arange(60) % 6
    runs = torch.stack([torch.from_numpy(np.random.default_rng(seed).permutation(6))[clear] for seed in range(5)])
    found = memberships(runs, 6, np.random.default_rng(0))
    assert found.shape == (60, 6)
    angles = found @ found.T
    np.testing.assert_allclose(angles, (clear[:, None] == clear).float(), atol=1e-5)


def test_memberships_fit_the_memory():
    runs = torch.from_numpy(np.random.default_rng(0).integers(0, 9, (4, 50)))
    assert memberships(runs, 9, np.random.default_rng(0), memory=50 * 8 * 3).shape == (50, 3)


@pytest.mark.parametrize("search", ["bssk", "swaps", "consensus"])
def test_rows_in_another_order_give_the_same_clusters(search):
    x, _, labels = overlapping()
    order = np.random.default_rng(0).permutation(len(x))
    found = hssk(x, labels, 16, n_levels=1, search=search, rng=0).levels[0].labels
    again = hssk(x[order], labels[order], 16, n_levels=1, search=search, rng=0).levels[0].labels
    assert again.tolist() == found[order].tolist()


def test_another_word_is_refused():
    x, _, labels = overlapping()
    allowed = "bssk, swaps, smoothed, unequal or consensus"
    with pytest.raises(InputError, match=f"search must be {allowed}, not 'best'"):
        hssk(x, labels, 16, search="best")
