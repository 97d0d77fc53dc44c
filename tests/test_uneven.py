"""Counts where sizes differ: clusters show how uneven novel categories are."""

from dataclasses import astuple, replace

import numpy as np
import pytest
import torch

from conftest import TAIL, VERY_UNEVEN, half_labelled, pile, some_labelled
from selex import estimate_k
from selex.cluster.estimate_k import _moved
from selex.cluster.holdout import known_share
from selex.cluster.holdout.uneven import Novel, effective_number, novel_if_uneven
from selex.cluster.rows import as_rows
from selex.cluster.search import searched
from selex.errors import Note
from selex.types import KEstimate


@pytest.mark.parametrize("large", ["known", "novel"])
def test_a_very_large_category_does_not_stand_for_the_others(large, monkeypatch):
    """Twelve categories, one far larger than the others: if novel ones had the mean size of known ones, 8 or 19."""
    sizes = [300, *TAIL[1:], *TAIL] if large == "known" else [*TAIL, 300, *TAIL[1:]]
    x, truth = pile(sizes, spread=0.4 if large == "known" else 0.8)
    labels = half_labelled(truth, 6)
    scores = []
    found = estimate_k(x, labels, rng=0, progress=lambda _, score: scores.append(score))
    assert np.isnan(scores[-1])  # of clusters that tell how uneven sizes are: they take longest
    monkeypatch.setattr("selex.cluster.estimate_k.novel_if_uneven", lambda *_: None)
    by_size = estimate_k(x, labels, rng=0)
    assert abs(np.log(found.n_clusters / 12)) < abs(np.log(by_size.n_clusters / 12))
    assert found.low <= 12 <= found.high
    assert found.low <= by_size.n_clusters <= found.high
    counts = [count for count, _ in found.curve]
    assert counts == sorted(set(counts))
    assert found.n_clusters in counts
    moved = 6 + (max(by_size.curve, key=lambda point: point[1])[0] - 6) * (found.n_clusters - 6) / (
        by_size.n_clusters - 6
    )
    assert max(found.curve, key=lambda point: point[1])[0] == pytest.approx(moved, abs=0.51)


@pytest.mark.parametrize("spread", [0.4, 1.2])
@pytest.mark.parametrize("asked", [34, 74])
def test_if_few_clusters_are_found_of_those_asked_for_fewer_are_asked_for(asked, spread, monkeypatch):
    """Too many clusters cut a large novel category up: nine categories, by the mean size of known ones far more."""
    x, truth = pile([*TAIL, 600, 20, 10], spread=spread)
    count = known_share.Count(asked + 6, 0.25, as_rows(x, 1 << 20), torch.from_numpy(half_labelled(truth, 6)))
    ks = searches(monkeypatch)
    found = novel_if_uneven(count, asked, True, np.random.default_rng(0)).likely
    assert ks[0] - 6 == asked > ks[1] - 6 > found > 3
    assert len(ks) == 2


@pytest.mark.parametrize(("largest", "by_size"), [(1500, 30), (110, 8)])
def test_where_only_novel_categories_are_large_the_mean_size_of_known_ones_tells_little(largest, by_size):
    """However alike in size the known ones are: clusters tell of far fewer than their mean size does."""
    x, truth = pile([120, 100, 80, 60, 50, 40, largest, 90, 70, 60, 50, 30], spread=0.4)
    count = known_share.Count(36.0, 0.1, as_rows(x, 1 << 20), torch.from_numpy(half_labelled(truth, 6)))
    found = novel_if_uneven(count, by_size, True, np.random.default_rng(0))
    half_way = (by_size * found.by_clusters) ** 0.5
    assert found.by_clusters < by_size
    assert (found.likely < half_way) == (largest == 1500)


def test_if_many_categories_are_likely_of_few_asked_for_more_are_asked_for(monkeypatch):
    """By mean size one category is novel, since a known one is very large; five are."""
    x, truth = pile([*VERY_UNEVEN, 90, 50, 25, 12, 6], spread=0.2)
    count = known_share.Count(6.0, 0.8, as_rows(x, 1 << 20), torch.from_numpy(half_labelled(truth, 5, 2)))
    ks = searches(monkeypatch)
    found = novel_if_uneven(count, 1, True, np.random.default_rng(0))
    assert ks[0] == 6 < ks[1]
    assert len(ks) == 2
    assert 1 < found.likely < found.by_clusters


def test_if_fewer_clusters_tell_nothing_the_first_count_stays(monkeypatch):
    x, truth = pile([*TAIL, 600, 20, 10], spread=0.4)
    count = known_share.Count(40, 0.25, as_rows(x, 1 << 20), torch.from_numpy(half_labelled(truth, 6)))
    ks = searches(monkeypatch, silent_from=1)
    found = novel_if_uneven(count, 34, True, np.random.default_rng(0))
    assert round(found.likely) == ks[1] - 6 < 34


@pytest.mark.parametrize("labels_of_each", [[12] * 6, [25, 20, 15, 4, 3, 2]])
def test_sizes_that_do_not_differ_leave_the_count_alone(labels_of_each):
    """Even if someone labelled some categories more than others."""
    x, truth = pile([30] * 12, spread=0.8)
    labels = some_labelled(truth, labels_of_each)
    count = known_share.Count(20.0, 0.1, as_rows(x, 1 << 20), torch.from_numpy(labels))
    assert novel_if_uneven(count, 14, True, np.random.default_rng(0)) is None


def test_labels_of_which_more_are_looked_at_do_not_make_sizes_differ(monkeypatch):
    """In a sample of unlabelled rows, known clusters hold more rows the more labels they have."""
    monkeypatch.setattr(known_share, "_ROWS", 300)
    x, truth = pile([200] * 12, spread=0.4)
    labels = torch.from_numpy(some_labelled(truth, [120, 60, 40, 20, 10, 10]))
    count = known_share.count_by_share(as_rows(x, 1 << 20), labels, 6, True, np.random.default_rng(0))
    assert count.weight[1] > 5 * count.weight[0]
    assert novel_if_uneven(count, 6, True, np.random.default_rng(0)) is None
    alike = count._replace(weight=(1.0, 1.0))
    assert novel_if_uneven(alike, 6, True, np.random.default_rng(0)) is not None


@pytest.mark.filterwarnings("ignore::selex.errors.Note")
def test_where_no_novel_cluster_keeps_a_row_the_count_stays(monkeypatch):
    x, truth = pile([*TAIL, 8], spread=0.4)
    labels = half_labelled(truth, 6)
    count = known_share.Count(9.0, 0.1, as_rows(x, 1 << 20), torch.from_numpy(labels))
    searches(monkeypatch, silent_from=0)
    assert novel_if_uneven(count, 3, True, np.random.default_rng(0)) is None


def test_if_all_categories_are_known_none_is_added_where_sizes_differ():
    x, truth = pile(TAIL, spread=0.2)
    with pytest.warns(Note, match="6 categories, the lowest count, did best"):
        assert estimate_k(x, half_labelled(truth, 6), rng=0).n_clusters == 6


@pytest.mark.parametrize("by_size", [0, -1])
def test_where_by_size_no_category_is_novel_the_count_stays(by_size):
    x, truth = pile([*TAIL, 300], spread=0.8)
    count = known_share.Count(9.0, 0.1, as_rows(x, 1 << 20), torch.from_numpy(half_labelled(truth, 6)))
    assert novel_if_uneven(count, by_size, True, np.random.default_rng(0)) is None


@pytest.mark.parametrize("found", ["many", "few"])
def test_there_are_at_most_as_many_novel_clusters_as_rows_without_a_label(found, monkeypatch):
    """The estimate may be higher: it is made for all rows, of which some are looked at."""
    x, truth = pile([*TAIL, 20], spread=0.4)
    labels = half_labelled(truth, 6)
    kept = (labels >= 0) | (truth == 6)
    count = known_share.Count(500.0, 0.1, as_rows(x[kept], 1 << 20), torch.from_numpy(labels[kept]))
    asked = searches(monkeypatch)
    if found == "few":
        monkeypatch.setattr("selex.cluster.holdout.uneven.effective_number", lambda _: 1.0)
    assert 1 <= novel_if_uneven(count, 494, True, np.random.default_rng(0)).likely < 494
    assert max(asked) <= 6 + 20


def test_where_there_are_too_many_clusters_to_search_for_unequal_ones_the_count_stays():
    x, truth = pile([*TAIL, 300, *TAIL[1:]] * 13, spread=0.4)
    labels = half_labelled(truth, 6)
    count = known_share.Count(700.0, 0.1, as_rows(x, 1 << 20), torch.from_numpy(labels))
    assert len(x) > 6000
    assert novel_if_uneven(count, 694, True, np.random.default_rng(0)) is None


def test_the_lower_end_of_an_interval_moves_down_and_the_upper_one_stays():
    """Six known categories and 24 novel ones by size; clusters tell of six, both together of twelve."""
    found = KEstimate(30, 22, 50, ((14, 0.5), (30, 1.0), (50, 0.2)), "combined")
    moved = _moved(found, Novel(12.0, 6.0), 6)
    assert moved == KEstimate(18, 10, 50, ((10, 0.5), (18, 1.0), (28, 0.2)), "combined")
    assert astuple(_moved(found, Novel(36.0, 48.0), 6))[:3] == (42, 22, 50)
    assert astuple(_moved(found, Novel(60.0, 70.0), 6))[:3] == (66, 22, 66)


def test_where_more_clusters_would_be_too_many_the_first_count_stays(monkeypatch):
    x, truth = pile([*VERY_UNEVEN, 90, 50, 25, 12, 6], spread=0.2)
    count = known_share.Count(6.0, 0.8, as_rows(x, 1 << 20), torch.from_numpy(half_labelled(truth, 5, 2)))
    monkeypatch.setattr("selex.cluster.search.smoothed.can_smooth", lambda n, k: k <= 6)
    ks = searches(monkeypatch)
    found = novel_if_uneven(count, 1, True, np.random.default_rng(0))
    assert ks == [6]
    assert found.likely > 1


@pytest.mark.parametrize(("sizes", "number"), [([7, 7, 7, 7], 4.0), ([5], 1.0), ([3, 0, 3], 2.0), ([2, 1, 1], 2**1.5)])
def test_over_how_many_things_are_spread_in_effect(sizes, number):
    assert effective_number(sizes) == pytest.approx(number)


def searches(monkeypatch, silent_from=99):
    """For how many clusters is searched, one after the other; from some on, known clusters get all rows."""
    ks = []

    def spy(problem, search, rng):
        ks.append(problem.k)
        level = searched(problem, search, rng)
        known = torch.as_tensor(level.labels).clamp(max=problem.n_known - 1)
        return replace(level, labels=known) if len(ks) > silent_from else level

    monkeypatch.setattr("selex.cluster.holdout.uneven.searched", spy)
    return ks
