from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import blobs, half_labelled
from selex import InputError, Variant, bssk, hssk, published
from selex.cluster import hierarchy
from selex.cluster.hierarchy import level_sizes


def test_level_sizes_of_cub():
    assert [sum(size) for size in level_sizes(100, 100)] == [200, 100, 50, 24, 12, 6, 2]


@pytest.mark.parametrize(
    ("known", "novel", "expected"),
    [
        (5, 5, [(5, 5), (2, 2), (1, 1)]),
        (5, 20, [(5, 20), (2, 10), (1, 5)]),
        (20, 3, [(20, 3), (10, 1), (5, 1), (2, 1), (1, 1)]),
        (1, 9, [(1, 9)]),
        (4, 0, [(4, 0), (2, 0), (1, 0)]),
        (0, 9, [(0, 9), (0, 4), (0, 2)]),
        (0, 1, [(0, 1)]),
    ],
)
def test_level_sizes(known, novel, expected):
    assert level_sizes(known, novel) == expected


@given(st.integers(0, 40), st.integers(0, 40))
def test_levels_shrink_and_never_lose_a_side(known, novel):
    sizes = level_sizes(known, novel)
    for (known_before, novel_before), (known_after, novel_after) in pairwise(sizes):
        assert known_after == max(known_before // 2, min(known_before, 1))
        assert novel_after == max(novel_before // 2, min(novel_before, 1))
    assert sizes[-1][0] <= 1


def coarser(fine, coarse):
    """How many coarse clusters the rows of each fine cluster fall into."""
    return [len(set(coarse[fine == cluster].tolist())) for cluster in np.unique(fine)]


@settings(max_examples=25)
@given(st.integers(0, 2**32), st.sampled_from([(4, 4), (6, 6), (8, 8), (6, 3), (12, 12)]), st.integers(4, 12))
def test_tight_blobs_may_merge_but_never_split_at_any_level(seed, sizes, size):
    n_known, n_novel = sizes
    x, truth = blobs(n_known + n_novel, size, spread=1e-4, dims=32, seed=seed)
    hierarchy = hssk(x, half_labelled(truth, n_known, seed), n_known + n_novel, rng=seed)
    for level in hierarchy.levels:
        assert coarser(truth, level.labels) == [1] * (n_known + n_novel), level.n_clusters


def test_every_level_is_in_row_order():
    x, truth = blobs(16, 10, spread=1e-3)
    known = half_labelled(truth, 8)
    order = np.random.default_rng(0).permutation(len(x))
    for level in hssk(x[order], known[order], 16, rng=0).levels:
        # if labels were ordered in any other way, blobs would be torn apart
        assert coarser(truth[order], level.labels) == [1] * 16


def test_known_rows_stay_together_going_up():
    x, truth = blobs(20, 12, spread=1.0, seed=3)
    levels = hssk(x, half_labelled(truth, 10), 20, rng=0).levels
    base = levels[0].labels
    in_known = base < 10
    for level in levels:
        assert coarser(base[in_known], level.labels[in_known]) == [1] * 10
        assert (level.labels[in_known] < level.n_known).all()
    assert [level.n_clusters for level in levels] == [20, 10, 4, 2]


def test_the_base_level_is_bssk():
    x, truth = blobs(10, 15, spread=1.0)
    known = half_labelled(truth, 5)
    assert hssk(x, known, 10, rng=4).levels[0].labels.tolist() == bssk(x, known, 10, rng=4).labels.tolist()


def test_fewer_levels_are_the_first_ones():
    x, truth = blobs(16, 8, spread=1.0)
    known = half_labelled(truth, 8)
    full, part = hssk(x, known, 16, rng=0), hssk(x, known, 16, rng=0, n_levels=2)
    assert part.n_clusters == full.n_clusters[:2]
    for some, same in zip(part.levels, full.levels, strict=False):
        assert some.labels.tolist() == same.labels.tolist()
    with pytest.raises(InputError, match="n_levels"):
        hssk(x, known, 16, n_levels=0)


def test_known_first_is_the_published_slip():
    x, truth = blobs(16, 10, spread=1e-3)
    known = half_labelled(truth, 8)
    right, slipped = hssk(x, known, 16, rng=0), hssk(x, known, 16, rng=0, variant=Variant(level_order="known-first"))
    assert slipped.levels[0].labels.tolist() == right.levels[0].labels.tolist()
    listed = [row for row in range(160) if known[row] >= 0] + [row for row in range(160) if known[row] < 0]
    for good, bad in zip(right.levels[1:], slipped.levels[1:], strict=True):
        back = [good.labels[row] for row in listed if right.levels[0].labels[row] < 8]
        back += [good.labels[row] for row in listed if right.levels[0].labels[row] >= 8]
        assert [bad.labels[row] for row in listed] == back
        assert bad.labels.tolist() != good.labels.tolist()
        assert (bad.labels == good.labels)[known >= 0].all()  # labelled rows come first both times


@pytest.mark.parametrize(("grouping", "grouped"), [("level", [8, 4, 2]), ("base", [8, 8, 8])])
def test_known_clusters_are_groups_of_the_level_below_or_of_the_base(grouping, grouped, monkeypatch):
    x, truth = blobs(16, 10, spread=0.3)
    known, seen, group = half_labelled(truth, 8), [], hierarchy._group
    monkeypatch.setattr(hierarchy, "_group", lambda level, *more: seen.append(level.n_known) or group(level, *more))
    found = hssk(x, known, 16, rng=0, variant=Variant(grouping=grouping))
    assert seen == grouped
    base, top = found.levels[0].labels, found.levels[1].labels
    assert all(len(set(top[base == cluster])) == 1 for cluster in range(8))  # rows of a known cluster stay together


def test_published_runs_to_the_end():
    x, truth = blobs(12, 10, spread=0.5)
    hierarchy = hssk(x, half_labelled(truth, 6), 12, rng=0, n_init=2, variant=published())
    assert hierarchy.n_clusters == [12, 6, 2]


def test_without_labels_it_is_a_plain_balanced_hierarchy():
    x, truth = blobs(8, 10, spread=1e-3)
    hierarchy = hssk(x, None, 8, rng=0)
    assert hierarchy.n_clusters == [8, 4, 2]
    assert all(level.n_known == 0 for level in hierarchy.levels)
    for level in hierarchy.levels:
        assert coarser(truth, level.labels) == [1] * 8


def test_all_rows_labelled_groups_the_known_ones():
    x, truth = blobs(6, 5)
    with pytest.warns(UserWarning, match="every row is labelled"):
        hierarchy = hssk(x, truth, 6, rng=0)
    assert hierarchy.n_clusters == [6, 3, 1]
    assert hierarchy.levels[0].labels.tolist() == truth.tolist()


def test_progress_counts_levels():
    x, truth = blobs(8, 5)
    seen = []
    hssk(x, half_labelled(truth, 4), 8, rng=0, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]
