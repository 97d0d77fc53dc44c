"""Rows that take part in several clusters: against plain numpy, and what it is good for."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from conftest import blobs, half_labelled
from selex import InputError, Level, Note, Variant, bssk, hssk, split_accuracy
from selex.cluster.hierarchy import level_sizes
from selex.cluster.refine import refine_level
from selex.types import UNLABELLED

FORMS = pytest.mark.parametrize("refine", ["proportional", "balanced"])


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def cloud(sizes, dims=8, spread=1.0, seed=0):
    """Unit rows around random directions, so many around each, shuffled: rows, and the direction of each."""
    rng = np.random.default_rng(seed)
    truth = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    means = unit(rng.normal(size=(len(sizes), dims)))
    return unit(means[truth] + spread * rng.normal(size=(len(truth), dims)) / dims**0.5), truth


@pytest.fixture
def overlapping():
    """Rows, labels of some, and a level of clusters to start from."""
    rows, truth = cloud([30, 10, 20, 5, 25, 10])
    labels = half_labelled(truth, 3)
    return rows, labels, bssk(rows, labels, 6, rng=0)


def plain(rows, labels, level, refine):
    """The same by the formula, row after row: labels, centres, offsets. Rows have length one."""
    n, k = len(rows), len(level.centers)
    temperature = 0.12 * level.inertia / n
    centers, offsets = unit(level.centers), np.zeros(k)

    def odds(row):
        return np.array([offsets[j] - ((row - centers[j]) ** 2).sum() for j in range(k)])

    def shares(temperature):
        found = np.zeros((n, k))
        for i, row in enumerate(rows):
            if labels[i] >= 0:
                found[i, labels[i]] = 1
            else:
                gaps = odds(row) / temperature
                weights = np.exp(gaps - gaps.max())
                found[i] = weights / weights.sum()
        return found

    def drawn_to_equal(offsets, temperature, steps):
        held = np.bincount(labels[labels >= 0], minlength=k)
        wanted = np.maximum(n / k - held, 0.25 * n / k)
        wanted *= (n - held.sum()) / wanted.sum()
        for _ in range(steps):
            step = np.log(np.maximum((shares(temperature) * (labels < 0)[:, None]).sum(0), 0.5) / wanted)
            offsets -= temperature * step
            if np.abs(step).max() < 0.02:
                break
        offsets -= offsets.mean()

    for step in range(int(np.ceil(np.log2(1 / temperature))), 0, -1) if refine == "balanced" else ():
        drawn_to_equal(offsets, 2**step * temperature, 8)
    for _ in range(30):
        if refine == "balanced":
            drawn_to_equal(offsets, temperature, 3)
        found = shares(temperature)
        centers = unit(found.T @ rows)
        if refine == "proportional":
            offsets = temperature * np.log(np.maximum(found.sum(0), 0.5) / n)
    for harder in (0.5, 0.25, 0.12) if refine == "balanced" else ():
        drawn_to_equal(offsets, harder * temperature, 30)
    found = [label if label >= 0 else odds(row).argmax() for row, label in zip(rows, labels, strict=True)]
    return np.array(found), centers, offsets


def same_as_plain(found, rows, labels, level, refine):
    clusters, centers, offsets = plain(rows, labels, level, refine)
    assert len(np.unique(clusters)) == len(level.centers)  # none is left out
    assert np.asarray(found.labels).tolist() == clusters.tolist()
    np.testing.assert_allclose(found.centers, centers, atol=1e-6)
    np.testing.assert_allclose(found.offsets, offsets, atol=1e-6)
    assert found.inertia == pytest.approx(((rows - centers[clusters]) ** 2).sum())
    assert found.n_iter == level.n_iter + 30


@FORMS
def test_against_plain_numpy(overlapping, refine):
    rows, labels, level = overlapping
    found = refine_level(rows, labels, level, refine)
    same_as_plain(found, rows, labels, level, refine)
    assert (found.labels != level.labels).any()
    assert found.n_known == 3


@FORMS
def test_rows_far_from_the_origin_are_centred_and_nothing_changes(refine):
    """Of length one and all in nearly one direction: `Rows` takes their mean off."""
    around, truth = cloud([30, 10, 20, 5, 25, 10])
    rows = unit(around + 12 * np.eye(8)[0])
    assert ((rows.mean(0) ** 2).sum() / rows.var(0).sum()) > 16
    labels = half_labelled(truth, 3)
    level = bssk(rows, labels, 6, rng=0)
    same_as_plain(refine_level(rows, labels, level, refine), rows, labels, level, refine)


@FORMS
def test_without_labels(refine):
    rows, _ = cloud([30, 10, 20, 15])
    level = bssk(rows, None, 4, rng=0)
    found = refine_level(rows, None, level, refine)
    same_as_plain(found, rows, np.full(len(rows), UNLABELLED), level, refine)
    assert found.n_known == 0


@FORMS
def test_rows_of_another_length_are_as_good(overlapping, refine):
    """Everything grows with the rows, offsets with their square."""
    rows, labels, level = overlapping
    once, far = refine_level(rows, labels, level, refine), bssk(7 * rows, labels, 6, rng=0)
    assert far.labels.tolist() == level.labels.tolist()
    found = refine_level(7 * rows, labels, far, refine)
    assert found.labels.tolist() == once.labels.tolist()
    np.testing.assert_allclose(found.centers, 7 * once.centers, atol=1e-7)
    np.testing.assert_allclose(found.offsets, 49 * once.offsets, atol=1e-7)


def test_the_papers_way_leaves_a_level_as_it_is(overlapping):
    rows, labels, level = overlapping
    found = refine_level(rows, labels, level, "none")
    assert found.labels.tolist() == level.labels.tolist()
    assert found.centers.tolist() == level.centers.tolist()
    assert (found.offsets, found.inertia, found.n_iter) == (None, level.inertia, level.n_iter)
    same = hssk(rows, labels, 6, rng=0, refine="none").levels[0]
    assert same.labels.tolist() == hssk(rows, labels, 6, rng=0).levels[0].labels.tolist()


@FORMS
def test_labelled_rows_never_move(refine):
    rows, truth = cloud([20] * 6, spread=2.0)
    wrong = np.random.default_rng(0).permutation(half_labelled(truth, 3))  # where no cluster would want them
    found = refine_level(rows, wrong, bssk(rows, wrong, 6, rng=0), refine).labels
    assert (found[wrong >= 0] == wrong[wrong >= 0]).all()


@FORMS
def test_every_row_labelled(refine):
    rows, truth = cloud([5, 6, 7])
    with pytest.warns(Note, match="every row is labelled"):
        level = hssk(rows, truth, 3, rng=0, refine=refine).levels[0]
    assert level.labels.tolist() == truth.tolist()
    np.testing.assert_allclose(level.centers, unit(np.stack([rows[truth == k].sum(0) for k in range(3)])), atol=1e-12)


def test_equal_sizes_where_the_papers_are_not():
    for seed in range(4):
        rows, _ = cloud([200] * 12, dims=6, seed=seed)
        level = bssk(rows, None, 12, rng=0)
        paper, equal = (
            np.ptp(np.bincount(refine_level(rows, None, level, form).labels)) for form in ("none", "balanced")
        )
        assert equal < 20
        assert paper > 30


def one_large_category(spread):
    """400 rows of 540 are of one category; two others are labelled in part."""
    rows, truth = cloud([400, 60, 40, 20, 20], dims=16, spread=spread)
    labels = np.where((truth > 2) & (np.arange(len(truth)) % 2 == 0), truth - 3, -1)
    return rows, labels, bssk(rows, labels, 6, rng=0)


@pytest.mark.parametrize("spread", [0.3, 1.0])
def test_balanced_sizes_settle_where_categories_are_of_unequal_size(spread):
    sizes = np.bincount(refine_level(*one_large_category(spread), "balanced").labels, minlength=6)  # type: ignore[call-arg]
    assert sizes.min() > 90 / 2
    assert sizes.max() < 90 * 2


def test_sizes_that_do_not_settle_are_left_as_they_are():
    rows, labels, level = one_large_category(0.01)
    with pytest.warns(Note, match="sizes differ too much to be balanced"):
        assert refine_level(rows, labels, level, "balanced").labels.tolist() == level.labels.tolist()


def test_a_large_and_a_small_cluster_that_overlap_are_told_apart():
    scores = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        truth = np.repeat([0, 1], [300, 30])
        rows = unit(np.eye(16)[truth] + 0.4 * rng.normal(size=(330, 16)))
        level = bssk(rows, None, 2, balanced=False, n_init=5, rng=0)
        found = (refine_level(rows, None, level, form).labels for form in ("none", "proportional"))
        scores.append([split_accuracy(truth, labels, truth == 0).all for labels in found])
    paper, unequal = np.transpose(scores)
    assert (unequal > paper).all()
    assert unequal.min() > 0.93
    assert paper.mean() < 0.9


def with_an_empty_one(rows, level, at):
    """The level with one more cluster at a place that is far from all rows."""
    far = -unit(rows.mean(0, keepdims=True))
    centers = np.concatenate([level.centers[:at], far, level.centers[at:]])
    return Level(level.labels + (level.labels >= at), centers, level.n_known, level.inertia, level.n_iter)


def test_balanced_clusters_are_never_empty():
    rows, truth = cloud([30] * 4, spread=0.3)
    labels = half_labelled(truth, 2)
    level = with_an_empty_one(rows, bssk(rows, labels, 4, rng=0), 2)
    assert np.bincount(level.labels, minlength=5).min() == 0
    assert np.bincount(refine_level(rows, labels, level, "balanced").labels, minlength=5).min() >= 8


def test_a_novel_cluster_without_rows_is_left_out():
    rows, truth = cloud([30] * 4, spread=0.3)
    rows = unit(rows + 1.5 * rows.mean(0))
    labels = half_labelled(truth, 2)
    level = bssk(rows, labels, 4, rng=0)
    with pytest.warns(Note, match="1 of 5 clusters have no rows: 4 are left"):
        found = refine_level(rows, labels, with_an_empty_one(rows, level, 2), "proportional")
    assert (found.n_known, found.n_novel) == (2, 2)
    assert found.labels.tolist() == level.labels.tolist()  # as if it had never been there
    assert found.offsets.shape == (4,)
    for cluster in range(4):
        mean = unit(rows[found.labels == cluster].mean(0, keepdims=True))[0]
        assert mean @ found.centers[cluster] > 0.999


def test_a_known_cluster_is_never_left_out():
    """One labelled row on the far side, which no other will join."""
    rows, _ = cloud([40, 40], spread=0.2)
    rows = np.concatenate([-unit(rows.mean(0, keepdims=True)), rows])
    labels = np.array([0] + [UNLABELLED] * 80)
    found = refine_level(rows, labels, Level(labels, rows[:3], 1, 20.0, 1), "proportional")
    assert np.flatnonzero(found.labels == 0).tolist() == [0]
    assert (found.n_known, found.n_novel) == (1, 2)


def test_nor_is_one_that_no_row_is_labelled_as():
    rows, _ = cloud([40, 40], spread=0.2)
    level = replace(with_an_empty_one(rows, bssk(rows, None, 2, rng=0), 0), n_known=1)
    found = refine_level(rows, None, level, "proportional")
    assert (found.n_known, found.n_novel) == (1, 2)
    assert 0 not in found.labels


@FORMS
def test_one_cluster(refine):
    rows, _ = cloud([12])
    found = refine_level(rows, None, bssk(rows, None, 1, rng=0), refine)
    assert found.labels.tolist() == [0] * 12
    np.testing.assert_allclose(found.centers, unit(rows.sum(0, keepdims=True)))
    assert found.offsets.tolist() == [0]


@FORMS
def test_copies_of_one_row(refine):
    """Nothing is between clusters: they stay as they are."""
    level = bssk(np.full((8, 4), 0.5), None, 2, rng=0)
    assert level.inertia == 0
    assert refine_level(np.full((8, 4), 0.5), None, level, refine).labels.tolist() == level.labels.tolist()


@FORMS
def test_tensors_and_arrays_agree(overlapping, refine):
    rows, labels, level = overlapping
    array = refine_level(rows, labels, level, refine)
    given = torch.from_numpy(rows), torch.from_numpy(labels)
    tensor = refine_level(*given, bssk(*given, 6, rng=0), refine)
    for name in ("labels", "centers", "offsets"):
        values = getattr(tensor, name)
        assert isinstance(values, torch.Tensor)
        assert isinstance(getattr(array, name), np.ndarray)
        assert values.tolist() == getattr(array, name).tolist()
    host = tensor.on_host()
    assert isinstance(host.centers, np.ndarray)
    assert isinstance(host.offsets, np.ndarray)


@FORMS
def test_a_memory_mapped_file_is_read_in_blocks(overlapping, tmp_path, refine):
    rows, labels, level = overlapping
    np.save(tmp_path / "rows.npy", rows)
    whole = refine_level(rows, labels, level, refine)
    for data in (rows, np.load(tmp_path / "rows.npy", mmap_mode="r")):
        pieces = refine_level(data, labels, level, refine, memory=1 << 11)
        assert pieces.labels.tolist() == whole.labels.tolist()
        np.testing.assert_allclose(pieces.centers, whole.centers, atol=1e-10)


@FORMS
def test_the_same_again(overlapping, refine):
    rows, labels, _ = overlapping
    first, second = (hssk(rows, labels, 6, rng=3, refine=refine) for _ in range(2))
    for one, same in zip(first.levels, second.levels, strict=True):
        assert one.labels.tolist() == same.labels.tolist()
        assert one.centers.tolist() == same.centers.tolist()


@FORMS
def test_the_base_level_of_a_hierarchy_is_softened(overlapping, refine):
    rows, labels, level = overlapping
    base, *coarser = hssk(rows, labels, 6, rng=0, refine=refine).levels
    softened = refine_level(rows, labels, level, refine)
    assert base.labels.tolist() == softened.labels.tolist()
    np.testing.assert_allclose(base.centers, softened.centers)
    assert [above.offsets for above in coarser] == [None] * len(coarser)


def check_levels(hierarchy, n_known):
    """Levels halve from what is there, ids have no gap, and rows of known clusters stay together going up."""
    base = hierarchy.levels[0]
    wanted = [sum(pair) for pair in level_sizes(n_known, base.n_novel)]
    assert hierarchy.n_clusters == wanted
    in_known = base.labels < n_known
    for level in hierarchy.levels:
        assert np.unique(level.labels).tolist() == list(range(level.n_clusters))
        assert len(level.centers) == level.n_clusters
        assert (level.labels[in_known] < level.n_known).all()
        for cluster in range(n_known):
            assert len(set(level.labels[base.labels == cluster].tolist())) == 1


@FORMS
def test_levels_above_are_as_of_any_base_level(refine):
    rows, truth = cloud([30] * 16, spread=0.8)
    hierarchy = hssk(rows, half_labelled(truth, 8), 16, rng=0, refine=refine)
    assert hierarchy.n_clusters == [16, 8, 4, 2]
    check_levels(hierarchy, 8)


def test_levels_above_where_clusters_were_left_out():
    """More clusters asked for than there are, among copies: those that are empty in the end count at no level."""
    rows, truth = cloud([10] * 8, spread=0.0)
    labels = half_labelled(truth, 4)
    with pytest.warns(Note, match="of 14 clusters have no rows"):
        hierarchy = hssk(rows, labels, 14, rng=0, refine="proportional")
    assert hierarchy.n_clusters[0] == 8
    check_levels(hierarchy, 4)
    assert hierarchy.n_clusters == [8, 4, 2]


def test_progress_counts_levels_that_are_made():
    rows, _ = cloud([10] * 8, spread=0.0)
    seen = []
    with pytest.warns(Note, match="have no row"):
        hssk(rows, None, 14, rng=0, refine="proportional", progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]  # of 8, 4 and 2


def test_the_published_slip_of_order_stays_above(overlapping):
    rows, labels, _ = overlapping
    right, slipped = (
        hssk(rows, labels, 6, rng=0, refine="proportional", variant=Variant(level_order=order))
        for order in ("rows", "known-first")
    )
    assert slipped.levels[0].labels.tolist() == right.levels[0].labels.tolist()
    assert slipped.levels[1].labels.tolist() != right.levels[1].labels.tolist()


def test_rows_of_very_different_lengths_are_refused(overlapping):
    rows, labels, level = overlapping
    longer = rows * np.linspace(1, 3, len(rows))[:, None]
    with pytest.raises(InputError, match=r"of equal length, but theirs are from 1\.\d+ to 2\.\d+: normalise them"):
        refine_level(longer, labels, level, "proportional")
    assert refine_level(longer, labels, level, "none").labels.tolist() == level.labels.tolist()


def test_a_few_rows_of_another_length_do_not_matter(overlapping):
    rows, labels, level = overlapping
    odd = rows.copy()
    odd[:3] = 0
    found = refine_level(odd, labels, level, "proportional")
    np.testing.assert_allclose(np.linalg.norm(found.centers, axis=1), 1)
    assert (found.labels == refine_level(rows, labels, level, "proportional").labels)[3:].mean() > 0.9


@FORMS
def test_rows_of_length_zero_have_no_direction_and_do_no_harm(refine):
    rows, _ = cloud([20] * 4, spread=0.3)
    found = hssk(np.concatenate([np.zeros((40, 8)), rows]), None, 4, balanced=False, rng=0, refine=refine).levels[0]
    np.testing.assert_allclose(np.linalg.norm(found.centers, axis=1), 1)
    nothing = hssk(np.zeros((5, 3)), None, 1, rng=0, refine=refine).levels[0]
    assert nothing.labels.tolist() == [0] * 5
    assert nothing.centers.tolist() == [[0, 0, 0]]


def test_another_word_is_refused(overlapping):
    rows, labels, level = overlapping
    for call in (lambda: refine_level(rows, labels, level, "even"), lambda: hssk(rows, labels, 6, refine="even")):
        with pytest.raises(InputError, match="refine must be none, proportional or balanced, not 'even'"):
            call()


def test_tight_blobs_stay_whole():
    rows, truth = blobs(10, 12)
    rows = unit(rows)
    for form in ("proportional", "balanced"):
        found = hssk(rows, half_labelled(truth, 5), 10, rng=0, refine=form).levels[0].labels
        assert split_accuracy(truth, found, truth < 5).all == 1


@FORMS
def test_a_cluster_for_each_row_is_left_as_it_is(refine):
    rows, _ = cloud([1] * 12)
    level = bssk(rows, None, 12, rng=0)
    assert level.inertia == 0
    assert sorted(refine_level(rows, None, level, refine).labels.tolist()) == list(range(12))
