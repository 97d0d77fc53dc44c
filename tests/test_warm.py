"""Clusters that continue from where they were, against rules checked row by row."""

from dataclasses import fields, replace

import numpy as np
import pytest

from selex import ClusterConfig, fit_clusters, split_accuracy
from selex.cluster import pipeline
from selex.cluster.assign import Assignment
from selex.cluster.warm import CLEARLY, Start
from selex.review.core.decisions import Decision
from selex.review.core.state import CONFIRMED, State
from selex.runs.results import Results

N_KNOWN = 4


def overlapping(seed, n=600, k=10, d=12):
    """Rows of length 1 around k directions, some of them near each other; half of the first four are labelled."""
    rng = np.random.default_rng(seed)
    directions = rng.normal(size=(k, d))
    truth = np.arange(n) % k
    rows = directions[truth] + 1.3 * rng.normal(size=(n, d))
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return rows, truth, np.where((truth < N_KNOWN) & (rng.random(n) < 0.5), truth, -1)


def found(rows, labels, refine="proportional"):
    config = ClusterConfig(categories=10, levels=1, adapt="off", search="swaps", refine=refine)
    return fit_clusters(rows, labels, config, rng=0)


def start_from(first, clusters=None, changed=()):
    """A start from a clustering, with rows in other clusters where `clusters` says so."""
    assigner = first.assigner
    stays = np.ones(len(assigner.centers), dtype=bool)
    stays[list(changed)] = False
    clusters = first.labels if clusters is None else clusters
    return Start(clusters, assigner.centers, stays, assigner.offsets, first.maps, first.selection, assigner.calibration)


def states(first, labels):
    """A state on what was found, as a review has it."""
    names = [*map(str, range(N_KNOWN)), *(f"novel-{c}" for c in range(1, len(first.assigner.centers) - N_KNOWN + 1))]
    judged = first.assignment
    files = [f"{row}" for row in range(len(labels))]
    return State(Results(files, names, N_KNOWN, judged.labels, labels >= 0, judged.confidence, judged.runner_up))


@pytest.mark.parametrize("refine", ["none", "proportional"])
def test_nothing_decided_nothing_changes(refine):
    rows, _, labels = overlapping(0)
    first = found(rows, labels, refine)
    again = fit_clusters(rows, labels, ClusterConfig(levels=1), start=start_from(first))
    assert np.array_equal(again.labels, first.labels)
    assert np.array_equal(again.assigner.centers, first.assigner.centers)
    assert np.array_equal(again.assignment.confidence, first.assignment.confidence)


@pytest.mark.parametrize("seed", range(6))
def test_names_change_no_other_category_and_it_is_never_worse(seed):
    """Where plain labels, clustered from nothing, move images of categories that nobody spoke of."""
    rows, truth, labels = overlapping(seed)
    first = found(rows, labels)
    free, state = labels < 0, states(first, labels)
    for category in (4, 6, 8):
        state.apply(Decision("name", category=category, name=f"named {category}"))
    order = np.array([*range(N_KNOWN), 4, 6, 8, 5, 7, 9])  # named ones are known now
    place = np.argsort(order)
    given = np.where(state.mark == CONFIRMED, place[state.category], -1)
    start = start_from(first, place[first.labels])
    start = replace(start, centers=start.centers[order], offsets=start.offsets[order])
    again = fit_clusters(rows, given, ClusterConfig(levels=1), start=start)
    assert np.array_equal(order[again.labels], first.labels)
    known = truth < N_KNOWN
    before, after = (split_accuracy(truth[free], one.labels[free], known[free]) for one in (first, again))
    assert after == pytest.approx(before)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("refine", ["none", "proportional"])
def test_rows_leave_only_for_a_changed_cluster_that_is_clearly_nearer(seed, refine):
    rows, _, labels = overlapping(seed)
    first = found(rows, labels, refine)
    rng = np.random.default_rng(seed)
    clusters = first.labels.copy()
    part = np.flatnonzero(clusters == 5)[::2]
    clusters[part] = 7  # every second image of one was moved to another
    given = np.where(np.isin(np.arange(len(rows)), rng.choice(part, len(part) // 2)), 7, labels)
    given, order = numbered(given, clusters)
    start = start_from(first, np.argsort(order)[clusters], ())
    stays = ~np.isin(order, (5, 7))
    offsets = None if start.offsets is None else start.offsets[order]
    start = replace(start, centers=start.centers[order], offsets=offsets, stays=stays)
    again = fit_clusters(rows, given, ClusterConfig(levels=1), start=start)
    centers, mapped = again.assigner.centers, first.maps.transform(rows)
    assert np.array_equal(centers[stays], start.centers[stays]), "nobody touched them"
    assert (again.labels[given >= 0] == given[given >= 0]).all(), "what was decided holds"
    squares = ((mapped[:, None] - centers[None]) ** 2).sum(2) - (0 if offsets is None else offsets)
    for row in np.flatnonzero(given < 0):
        own, now = start.clusters[row], again.labels[row]
        if own != now:
            assert not stays[now]
            assert squares[row, own] - squares[row, now] > CLEARLY * start.calibration.temperature - 1e-4
        elif not stays[squares[row].argmin()]:
            assert squares[row, own] - squares[row].min() < CLEARLY * start.calibration.temperature + 1e-4


def numbered(given, clusters):
    """Labels with known clusters first, and the cluster that each number stands for."""
    known = np.unique(given[given >= 0])
    order = np.array([*known, *np.setdiff1d(np.unique(clusters), known)])
    return np.where(given >= 0, np.argsort(order)[given], -1), order


def test_new_rows_go_to_the_nearest_cluster():
    rows, _, labels = overlapping(3)
    first = found(rows, labels)
    new = np.arange(len(rows)) % 25 == 7
    new &= labels < 0
    start = start_from(first, np.where(new, -1, first.labels))
    again = fit_clusters(rows, labels, ClusterConfig(levels=1), start=start)
    assert np.array_equal(again.labels, first.labels), "each is where it is nearest"


def test_merged_is_one_and_split_is_two():
    rows, truth, labels = overlapping(1)
    first = found(rows, labels)
    merged = np.where(first.labels == 9, 8, first.labels)
    start = start_from(first, merged, (8,))
    offsets = start.offsets[:9]
    start = replace(start, centers=start.centers[:9], stays=start.stays[:9], offsets=offsets)
    one = fit_clusters(rows, labels, ClusterConfig(levels=1), start=start)
    assert len(one.assigner.centers) == 9
    assert (one.labels[merged == 8] == 8).mean() > 0.9
    halves = np.where((first.labels == 8) & (truth % 2 == 0), 10, first.labels)
    start = start_from(first, halves, (8,))
    more = {"centers": np.vstack([start.centers, start.centers[:1]]), "offsets": np.append(start.offsets, 0)}
    two = fit_clusters(
        rows, labels, ClusterConfig(levels=1), start=replace(start, stays=np.append(start.stays, False), **more)
    )
    assert len(two.assigner.centers) == 11
    assert (two.labels[halves == 10] == 10).mean() > 0.9


def grown(seed, with_a_new_one):
    """Ten categories, of which five rows each are new; and another one, all of whose rows are new."""
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(11), 30)
    rows = 3 * np.eye(16)[truth] + 0.5 * rng.normal(size=(330, 16))
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    new = (np.arange(330) % 30 >= 25) | (truth == 10)
    kept = (truth < 10) | with_a_new_one
    return rows[kept], truth[kept], new[kept]


@pytest.mark.parametrize("refine", ["none", "proportional"])
@pytest.mark.parametrize("with_a_new_one", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_new_rows_open_a_cluster_only_where_they_are_distinct(seed, with_a_new_one, refine):
    rows, truth, new = grown(seed, with_a_new_one)
    labels = np.where((truth < N_KNOWN) & ~new & (np.arange(len(rows)) % 2 == 0), truth, -1)
    first = found(rows[~new], labels[~new], refine)
    clusters = np.full(len(rows), -1)
    clusters[~new] = first.labels
    again = fit_clusters(rows, labels, ClusterConfig(levels=1), start=start_from(first, clusters))
    assert len(again.assigner.centers) == 10 + with_a_new_one
    assert np.array_equal(again.labels[~new], first.labels)
    assert split_accuracy(truth[new], again.labels[new], np.ones(new.sum())).all == 1
    assert np.array_equal(again.assigner.centers[:10], first.assigner.centers)


def levels_of(first, new, levels):
    """What `levels`, found without new rows, say of all rows."""
    coarser = [np.full(len(new), -1) for _ in levels]
    for labels, level in zip(coarser, levels, strict=True):
        labels[~new] = level.labels
    return tuple(coarser)


@pytest.mark.parametrize("with_a_new_one", [False, True])
def test_coarser_levels_continue_where_rows_are_added(with_a_new_one):
    rows, truth, new = grown(0, with_a_new_one)
    labels = np.where((truth < N_KNOWN) & ~new & (np.arange(len(rows)) % 2 == 0), truth, -1)
    config = ClusterConfig(categories=10, adapt="off", search="swaps", refine="none")
    first = fit_clusters(rows[~new], labels[~new], config, rng=0)
    clusters = np.full(len(rows), -1)
    clusters[~new] = first.labels
    coarser = levels_of(first, new, first.hierarchy.levels[1:])
    start = replace(start_from(first, clusters), coarser=coarser)
    again = fit_clusters(rows, labels, ClusterConfig(), start=start, rng=1)
    assert again.hierarchy.n_clusters == [10 + with_a_new_one, *first.hierarchy.n_clusters[1:]]
    mapped = first.maps.transform(rows)
    for before, level in zip(first.hierarchy.levels[1:], again.hierarchy.levels[1:], strict=True):
        assert np.array_equal(level.labels[~new], before.labels), "rows stay where they were"
        means = np.array([mapped[level.labels == c].mean(0) for c in range(level.n_clusters)])
        np.testing.assert_allclose(level.centers, means, atol=1e-5)
        own = ((mapped - means[level.labels]) ** 2).sum()
        assert level.inertia == pytest.approx(own, rel=1e-4)
        for row in np.flatnonzero(new & (truth < 10)):
            there = level.labels[~new][again.labels[~new] == again.labels[row]]
            assert level.labels[row] == np.bincount(there).argmax()
        assert len(set(level.labels[truth == 10])) == with_a_new_one


def test_coarser_levels_are_made_anew_where_they_no_longer_fit():
    rows, truth, _ = grown(0, with_a_new_one=False)
    labels = np.where((truth < N_KNOWN) & (np.arange(len(rows)) % 2 == 0), truth, -1)
    config = ClusterConfig(categories=10, adapt="off", search="swaps", refine="none")
    first = fit_clusters(rows, labels, config, rng=0)
    apart = np.where(labels == 1, 4, first.hierarchy.levels[1].labels)  # a known category that is in two clusters
    few = np.minimum(first.hierarchy.levels[1].labels, 2)
    plain = fit_clusters(rows, labels, config, rng=1, start=start_from(first))
    for other in (apart, few):
        coarser = (other, *(level.labels for level in first.hierarchy.levels[2:]))
        anew = fit_clusters(rows, labels, config, rng=1, start=replace(start_from(first), coarser=coarser))
        for level, expected in zip(anew.hierarchy.levels, plain.hierarchy.levels, strict=True):
            assert np.array_equal(level.labels, expected.labels)


@pytest.mark.parametrize("refine", ["none", "proportional"])
@pytest.mark.parametrize("levels", [None, 1])
def test_a_few_new_rows_are_looked_at_alone(refine, levels, monkeypatch):
    rows, truth, new = grown(0, with_a_new_one=False)
    labels = np.where((truth < N_KNOWN) & (np.arange(len(rows)) % 2 == 0), truth, -1)  # of some new rows too
    config = ClusterConfig(categories=10, adapt="off", search="swaps", refine=refine, levels=levels)
    first = fit_clusters(rows[~new], labels[~new], config, rng=0)
    everything, alone = starts_with_new(first, new)
    plain = fit_clusters(rows, labels, config, start=everything, rng=1)
    monkeypatch.setattr(pipeline, "as_rows", None)  # which takes all rows
    again = fit_clusters(rows, labels, config, start=alone, rng=1)
    for before, level in zip(plain.hierarchy.levels, again.hierarchy.levels, strict=True):
        assert np.array_equal(level.labels, before.labels)
        assert level.n_known == before.n_known
    assert again.hierarchy.levels[0].inertia == pytest.approx(plain.hierarchy.levels[0].inertia, rel=1e-5)
    assert np.array_equal(again.labels[~new], first.labels)
    for name in ("confidence", "runner_up", "distances"):
        assert np.array_equal(getattr(again.assignment, name)[~new], getattr(first.assignment, name)), name
        np.testing.assert_allclose(getattr(again.assignment, name), getattr(plain.assignment, name), rtol=1e-5)
    assert np.array_equal(again.assignment.fits, plain.assignment.fits)
    assert np.array_equal(again.assigner.centers, plain.assigner.centers)
    np.testing.assert_allclose(again.assigner.reach, plain.assigner.reach, rtol=1e-6)
    np.testing.assert_allclose(again.assigner.margins, plain.assigner.margins, rtol=1e-5)


def starts_with_new(first, new):
    """Starts from a clustering that new rows come to: with nothing kept of the others, and with what was said of them.

    Of a new row something else is said, which must not matter.
    """
    clusters = np.full(len(new), -1)
    clusters[~new] = first.labels
    coarser = levels_of(first, new, first.hierarchy.levels[1:])
    everything = replace(start_from(first, clusters), coarser=coarser)
    rows = np.cumsum(~new) - 1
    judged = Assignment(*(getattr(first.assignment, one.name)[rows] for one in fields(Assignment)))
    return everything, replace(everything, judged=judged, margins=first.assigner.margins)


def test_a_cluster_that_opens_is_looked_for_among_all_rows():
    rows, truth, new = grown(0, with_a_new_one=True)
    labels = np.where((truth < N_KNOWN) & ~new & (np.arange(len(rows)) % 2 == 0), truth, -1)
    config = ClusterConfig(categories=10, adapt="off", search="swaps", refine="none")
    first = fit_clusters(rows[~new], labels[~new], config, rng=0)
    everything, alone = starts_with_new(first, new)
    plain, again = (fit_clusters(rows, labels, config, start=start, rng=1) for start in (everything, alone))
    assert len(again.assigner.centers) == 11
    assert np.array_equal(again.labels, plain.labels)
    assert np.array_equal(again.assignment.confidence, plain.assignment.confidence)


def test_margins_are_those_of_rows_one_by_one():
    rows, _, labels = overlapping(2)
    first = found(rows, labels)
    mapped, centers = first.maps.transform(rows).astype(float), first.assigner.centers.astype(float)
    expected = np.zeros((10, 3))
    for row in np.flatnonzero(labels < 0):
        to_all, own = ((mapped[row] - centers) ** 2).sum(1), first.labels[row]
        expected[own] += [1, to_all[own], np.delete(to_all, own).min()]
    np.testing.assert_allclose(first.assigner.margins, expected, rtol=1e-4)
