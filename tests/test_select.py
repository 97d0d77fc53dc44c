"""Which search and which refinement held-out labels ask for, and which it is where they cannot tell."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from conftest import half_labelled
from selex.cluster.distributed.group import ALONE
from selex.cluster.holdout import select as module
from selex.cluster.holdout.select import Selection, safest, select
from selex.cluster.search import searched
from selex.errors import InputError
from test_refine import cloud
from test_swaps import unequal

UNEVEN = [240, 20, 120, 20, 240, 20, 120, 20, 160, 20, 200, 20]


@pytest.fixture
def quick(monkeypatch):
    """One draw of held-out labels: for tests that are of something else."""
    monkeypatch.setattr(module, "_DRAWS", 1)


def ending(*given, **how):
    """The search and the refinement that are selected."""
    found = select(*given, **how)
    assert not found.adapt
    return found.search, found.refine


@pytest.mark.parametrize("seed", range(2))
def test_clusters_of_unequal_size_are_noticed_whatever_the_seed(seed):
    rows, truth = cloud(UNEVEN, dims=16, spread=1.2, seed=5)
    assert ending(rows, half_labelled(truth, 8), 12, search=("swaps",), rng=seed) == ("swaps", "proportional")


@pytest.mark.parametrize("seed", range(2))
def test_clusters_of_equal_size_that_overlap_are_noticed_whatever_the_seed(seed):
    rows, truth = cloud([200] * 12, dims=6, seed=5)
    assert ending(rows, half_labelled(truth, 12), 12, search=("swaps",), rng=seed)[1] == "balanced"


def test_as_many_labels_for_each_category_do_not_make_clusters_of_one_size():
    rows, truth = cloud(UNEVEN, dims=16, spread=1.2, seed=5)
    labels = np.full(len(truth), -1)
    for category in range(8):
        labels[np.flatnonzero(truth == category)[:10]] = category
    assert ending(rows, labels, 12, search=("swaps",), rng=0)[1] != "balanced"


@pytest.mark.parametrize(("behind", "best"), [(0.8, "balanced"), (1.2, "none")])
def test_equal_numbers_of_labels_speak_for_clusters_of_one_size(behind, best):
    """By a standard error; where numbers of labels scatter as by chance, they do not."""
    rng = np.random.default_rng(0)
    base, noise = rng.random(50), rng.normal(0, 0.1, 50)
    noise -= noise.mean()
    lead = noise + behind * np.sqrt(np.square(noise).sum()) / 50
    ways = {Selection(False, refine, "swaps"): [base] for refine in ("proportional", "balanced")}
    ways[Selection(False, "none", "swaps")] = [base + lead]
    for counts, refine in ((rng.binomial(20, 0.5, 50), best), (np.full(50, 10), "none"), (rng.poisson(10, 50), "none")):
        data = module._Data(None, np.resize(np.repeat(np.arange(50), counts), 1200), 60, 0, True, 1)
        data.known[counts.sum() :] = -1
        assert module._best(ways, data, ALONE).refine == refine


def test_clusters_of_one_size_do_not_come_before_features_that_are_as_good_adapted():
    rng = np.random.default_rng(1)
    base, counts = rng.random(50), rng.binomial(20, 0.5, 50)
    data = module._Data(None, np.where(np.arange(1200) < counts.sum(), 0, -1), 60, 0, True, 1)
    data.known[: counts.sum()] = np.repeat(np.arange(50), counts)
    ways = {Selection(adapt, refine): [base] for adapt in (True, False) for refine in ("none", "balanced")}
    assert module._best(ways, data, ALONE)[:2] == (True, "balanced")
    ways[Selection(True, "balanced")] = [base - 1]
    assert module._best(ways, data, ALONE)[:2] == (True, "none")


def test_a_better_search_is_noticed():
    """Clear categories of very unequal size: BSSK misses many, which swaps find."""
    x, _, labels = unequal()
    rows = x / np.linalg.norm(x, axis=1, keepdims=True)
    assert ending(rows, labels, 40, search=("bssk", "swaps"), refine=("none",), rng=0) == ("swaps", "none")


def test_of_ways_that_are_as_good_within_chance_the_first_is_taken():
    safe, bold = Selection(False, "proportional", "swaps"), Selection(False, "balanced", "consensus")
    rng = np.random.default_rng(0)
    base = rng.random(50)
    noise = rng.normal(0, 0.1, 50)
    noise -= noise.mean()
    for ahead, best in ((0.05, safe), (0.05 + 0.1, bold)):  # a standard error is 0.1 · √50 / 50 = 0.014 a category
        assert safest({safe: [base], bold: [base + noise + ahead * 0.1]}) == best
    assert safest({safe: [base + 0.1], bold: [base]}) == safe


def test_the_error_is_that_of_all_draws_together():
    """What one draw cannot tell several can: a category that is better each time is better."""
    safe, bold = Selection(False, "none", "swaps"), Selection(False, "none", "consensus")
    zero = np.zeros(4)
    one, other = np.array([4.0, -3.0, 0, 0]), np.array([-3.0, 4.0, 0, 0])
    assert safest({safe: [zero], bold: [one]}) == safe
    assert safest({safe: [zero, zero], bold: [one, other]}) == bold


def recovery(held_out=4):
    """Two categories with four labels each, so many of which are held out."""
    return module._Recovery(np.repeat([0, 1], held_out), np.array([4, 4]), np.array([True, True]))


def test_a_category_is_recovered_as_far_as_its_cluster_is_of_it():
    """Eight rows of each category are held out or unlabelled: a cluster of twelve rows holds four of others."""
    found, hit = np.repeat([0, 1], 4), np.full(8, True)
    once = recovery()
    assert once(found, hit, np.array([8, 8])).tolist() == [1, 1]  # so there is an unlabelled row for each labelled one
    assert once.unlabelled == 1
    assert once(found, hit, np.array([8, 12])).tolist() == [1, 8 / 12]
    assert once(found, hit, np.array([5, 8])).tolist() == [1, 1]  # too small a cluster: rows are missed elsewhere
    missed = np.array([True, True, False, False] + 4 * [True])
    assert once(found, missed, np.array([8, 8])).tolist() == [4 / (8 + 4), 1]
    assert once(found, np.full(8, False), np.array([8, 8])).tolist() == [0, 0]


def test_a_held_out_row_stands_for_more_where_fewer_are_held_out():
    half = recovery(held_out=2)
    assert half(np.repeat([0, 1], 2), np.full(4, True), np.array([6, 6])).tolist() == [
        1,
        1,
    ]  # two held_out, four others
    assert half.unlabelled == 1


def test_a_category_of_which_no_row_is_held_out_does_not_count():
    """With few labels: a category with a single one, and ten unlabelled rows for each labelled one."""
    one = module._Recovery(np.repeat([0, 1], 2), np.array([4, 4, 1]), np.array([True, True, True]))
    found = one(np.repeat([0, 1], 2), np.full(4, True), np.array([42, 42, 7]))
    assert one.unlabelled == 10
    assert found.tolist() == [1, 1, 0]


@pytest.mark.parametrize("n_known", [1, 3, 4])
def test_searches_are_compared_only_where_categories_can_be_held_out_as_a_whole(quick, monkeypatch, n_known):
    rows, truth = cloud([60] * 8, dims=16, spread=0.5, seed=1)
    tried, search = [], module._Trial.search
    monkeypatch.setattr(module._Trial, "search", lambda self, *how: tried.append(how[0]) or search(self, *how))
    select(rows, np.where(truth < n_known, truth, -1), 8, search=("swaps", "smoothed"), refine=("none",), rng=0)
    assert tried == (["swaps", "smoothed"] if n_known == 4 else ["swaps"])


def test_where_nothing_tells_how_large_clusters_should_be_only_what_is_missed_counts():
    alone = module._Recovery(np.repeat([0, 1], 2), np.array([2, 2]), np.array([False, False]))
    hit = np.array([True, False, True, True])
    assert alone(np.array([0, 1, 1, 1]), hit, np.array([50, 9])).tolist() == [0.5, 1]


def test_a_way_that_merges_categories_is_not_taken_though_it_sorts_held_out_rows(monkeypatch):
    """Eight clear categories; one search puts novel ones in pairs, and loses no held-out row by that."""
    rows, truth = cloud([40] * 8, dims=16, spread=0.3, seed=5)
    labels = half_labelled(truth, 4)

    def merged(problem, search, rng):
        level = searched(problem, "swaps", rng)
        pair = {
            "swaps": level.labels,
            "bssk": torch.where(level.labels == level.labels.max(), problem.n_known, level.labels),
        }
        return replace(level, labels=pair[search])

    monkeypatch.setattr(module, "searched", merged)
    assert ending(rows, labels, 8, search=("bssk", "swaps"), refine=("none",), rng=0) == ("swaps", "none")


def test_categories_held_out_as_a_whole_count_as_much_as_the_others():
    truth, seen = np.array([0, 0, 1, 2, 3]), np.array([True, True, True, True, False])
    assert module._weights(truth, seen).tolist() == [0.125] * 4 + [0.5]
    assert module._weights(truth, seen | True).tolist() == [0.2] * 5


@pytest.mark.parametrize(("labelled", "tried"), [((20, 20), 1), ((20, 19), 0)])
def test_few_held_out_rows_tell_nothing(quick, labelled, tried):
    rows, truth = cloud([200] * 12, dims=6)
    labels = np.full(len(truth), -1)
    for category, count in enumerate(labelled):
        labels[np.flatnonzero(truth == category)[:count]] = category
    steps = []
    found = ending(rows, labels, 12, search=("swaps",), rng=0, progress=lambda done, of: steps.append((done, of)))
    assert steps == [(0, 1)] * tried
    assert tried or found == ("swaps", "proportional")


def test_where_nothing_can_be_held_out_it_is_the_first_of_each():
    rows, _ = cloud([9], dims=4)
    for labels in (np.full(9, -1), np.array([0, 1, 2] + 6 * [-1]), None):
        assert ending(rows, labels, 4, whiten=0.5) == ("swaps", "proportional")


def test_features_are_adapted_where_that_is_all_there_is(quick):
    rows, truth = cloud([40] * 8)
    found = select(rows, half_labelled(truth, 5), 8, adapt=(True,), search=("swaps",), refine=("none",), rng=0)
    assert found[:3] == (True, "none", "swaps")
    assert found.whitener is not None
    assert found.settings == {"adapt": "on", "search": "swaps", "refine": "none"}


def test_rows_of_different_lengths_end_as_in_the_paper(quick):
    rows, truth = cloud([40] * 8)
    lengths = np.random.default_rng(0).uniform(1, 3, (len(rows), 1))
    assert ending(lengths * rows, half_labelled(truth, 5), 8, rng=0) == ("swaps", "none")


@pytest.mark.parametrize("whiten", [0.0, 0.5])
def test_arrays_tensors_and_rows_in_another_order_agree(whiten):
    rows, truth = cloud([40] * 8, dims=16)
    rows, labels = rows.astype(np.float32), half_labelled(truth, 5)
    order = np.random.default_rng(0).permutation(len(rows))
    kinds = (rows, labels), (torch.from_numpy(rows), torch.from_numpy(labels)), (rows[order], labels[order])
    assert len({ending(*kind, 8, search=("swaps",), whiten=whiten, rng=0) for kind in kinds}) == 1


def test_nothing_given_is_changed(quick):
    rows, truth = cloud([40] * 8, spread=1.5)
    labels = half_labelled(truth, 5)
    before = labels.copy()
    how = {"search": ("swaps", "bssk"), "rng": 2}
    assert ending(rows, labels, 8, **how) == ending(rows, labels, 8, **how)
    assert labels.tolist() == before.tolist()


@pytest.mark.filterwarnings("error")
def test_what_is_held_out_is_not_complained_of(quick):
    """Categories of few labels have one left, which the clustering would note."""
    rows, truth = cloud([40] * 20)
    labels = np.full(len(truth), -1)
    for category in range(16):
        labels[np.flatnonzero(truth == category)[:3]] = category
    assert ending(rows, labels, 20, search=("swaps",), rng=0)[0] == "swaps"


def test_labels_are_checked():
    rows, truth = cloud([20] * 4)
    with pytest.raises(InputError, match="category 1 has no labelled row"):
        select(rows, np.where(truth == 1, -1, truth), 4)
    with pytest.raises(InputError, match="80 rows"):
        select(rows, truth[:7], 4)
