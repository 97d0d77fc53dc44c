"""Confidence, runner-up, distance and reach, against plain loops and numbers worked by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from conftest import blobs, half_labelled
from selex import Level, bssk
from selex.cluster.assign import FALSE_ALARMS, Assigner, Calibration, fit_assigner
from selex.cluster.refine import refine_level
from selex.cluster.rows import Rows


def plain(assigner, x, own=None):
    """The same as plain loops: nearest centre, softmax over minus squared distances, next best, distance, fits.

    What a cluster counts for is taken off squared distances before they are compared.
    """
    found = []
    offsets = [0] * len(assigner.centers) if assigner.offsets is None else assigner.offsets.tolist()
    for row, values in enumerate(x):
        squared = [sum((v - c) ** 2 for v, c in zip(values, center, strict=True)) for center in assigner.centers]
        less = [s - offset for s, offset in zip(squared, offsets, strict=True)]
        mine = int(np.argmin(less)) if own is None else int(own[row])
        weights = [math.exp(-(s - min(less)) / assigner.temperature) for s in less]
        others = [k for k in range(len(squared)) if k != mine]
        runner_up = min(others, key=lambda k: less[k]) if others else -1
        distance = math.sqrt(squared[mine])
        found.append((mine, weights[mine] / sum(weights), runner_up, distance, distance <= assigner.reach[mine]))
    return found


def rows(found):
    columns = (found.labels, found.confidence, found.runner_up, found.distances, found.fits)
    return list(zip(*(column.tolist() for column in columns), strict=True))


@pytest.fixture
def fitted():
    x, truth = blobs(6, 15, spread=0.6, dims=5)
    x = (x + 7).astype(np.float32)  # far from the origin, where digits are lost
    labels = half_labelled(truth, 3)
    level = bssk(x, labels, 6, rng=0)
    return x, labels, level, fit_assigner(x, level, labels)


@pytest.fixture
def counted():
    """Clusters that count for more or less, in data that lies around the origin: rows, labels, level, assigner."""
    x, truth = blobs(6, 15, spread=0.6, dims=5)
    x = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
    labels = half_labelled(truth, 3)
    level = bssk(x, labels, 6, rng=0)
    offsets = np.array([0.0, 0.3, -0.2, 0.1, -0.4, 0.5], dtype=np.float32)
    level = replace(level, offsets=offsets)
    free = np.array(
        [row[0] for row in plain(Assigner(level.centers, np.ones(6), Calibration(1.0), offsets), x.astype(float))]
    )
    level = replace(level, labels=np.where(labels < 0, free, labels))
    return x, labels, level, fit_assigner(x, level, labels)


def agrees(assigner, data, own, memory):
    expected = plain(assigner, data.astype(np.float64), own)
    for found, wanted in zip(rows(assigner(data, own, memory)), expected, strict=True):
        assert found[0] == wanted[0]
        assert found[2] == wanted[2]
        assert found[1] == pytest.approx(wanted[1], abs=2e-4)
        assert found[3] == pytest.approx(wanted[3], abs=1e-5)
        assert found[4] == wanted[4]


@pytest.mark.parametrize("memory", [1, 1 << 30])
@pytest.mark.parametrize("which", ["fitted", "counted"])
def test_against_plain_loops(which, memory, request):
    x, _, level, assigner = request.getfixturevalue(which)
    new = x + np.random.default_rng(1).normal(0, 0.3, x.shape).astype(np.float32)
    for data, own in ((new, None), (x, level.labels)):
        agrees(assigner, data, own, memory)


def test_offsets_change_who_is_nearest(counted):
    x, _, level, assigner = counted
    without = replace(assigner, offsets=None)
    assert (assigner(x).labels != without(x).labels).any()
    assert assigner.offsets.tolist() == level.offsets.tolist()
    same = replace(assigner, offsets=np.full(6, 0.7, dtype=np.float32))  # all count for as much
    assert same(x).labels.tolist() == without(x).labels.tolist()
    assert same(x).confidence == pytest.approx(without(x).confidence, abs=1e-5)


@pytest.mark.parametrize("memory", [1, 1 << 30])
def test_nearest_with_offsets_gives_true_distances(counted, memory):
    x, _, level, _ = counted
    data = Rows(x.astype(np.float64), memory)
    centers, offsets = torch.from_numpy(level.centers).double(), torch.from_numpy(level.offsets).double()
    found, distances = data.nearest(centers - data.shift, offsets)
    squared = ((x.astype(np.float64)[:, None] - level.centers.astype(np.float64)) ** 2).sum(2)
    assert found.tolist() == (squared - level.offsets).argmin(1).tolist()
    np.testing.assert_allclose(distances, squared[np.arange(len(x)), found], atol=1e-7)


@pytest.mark.parametrize("refine", ["proportional", "balanced"])
def test_unlabelled_rows_are_where_the_soft_clustering_put_them(counted, refine):
    x, labels, level, _ = counted
    level = refine_level(x, labels, level, refine)
    free = labels < 0
    assert (fit_assigner(x, level, labels)(x[free]).labels == level.labels[free]).all()


def test_a_level_in_tensors_gives_the_same_assigner(counted):
    x, labels, level, assigner = counted
    moved = replace(
        level, **{name: torch.from_numpy(getattr(level, name)) for name in ("labels", "centers", "offsets")}
    )
    same = fit_assigner(torch.from_numpy(x), moved, labels)
    assert same.offsets.tolist() == assigner.offsets.tolist()
    assert same.temperature == pytest.approx(assigner.temperature)
    assert rows(same(torch.from_numpy(x))) == rows(assigner(x))


def test_probabilities_of_all_clusters_sum_to_one(fitted):
    x, _, _, assigner = fitted
    total = sum(assigner(x, np.full(len(x), k)).confidence for k in range(6))
    assert total == pytest.approx(np.ones(len(x)), abs=1e-4)


def test_unlabelled_rows_are_where_the_clustering_put_them(fitted):
    x, labels, level, assigner = fitted
    free = labels < 0
    assert (assigner(x[free]).labels == level.labels[free]).all()


def test_tensors_and_arrays_agree(fitted):
    x, _, _, assigner = fitted
    assert rows(assigner(torch.from_numpy(x))) == rows(assigner(x))


def level_of(x, labels, n_known=0):
    x, labels = np.asarray(x, dtype=np.float32), np.asarray(labels)
    centers = np.stack([x[labels == k].mean(0) for k in range(labels.max() + 1)])
    return x, Level(labels, centers, n_known, 0.0, 1)


def test_reach_by_hand():
    """Ten rows at -1 and +1 in turn: without itself a row's centre is 10/9 away, always; so the spread is 0."""
    x = np.array([[(-1.0) ** i] for i in range(10)])
    x, level = level_of(x, [0] * 10)
    assert fit_assigner(x, level, [-1] * 10).reach == pytest.approx([10 / 9])
    # five at ±1 and five at ±3, mean 0: distances 10/9 and 30/9, of which four are the longer
    x, level = level_of([[1.0], [-1], [1], [-1], [3], [-3], [3], [-3], [1], [-1]], [0] * 10)
    assert fit_assigner(x, level, [-1] * 10).reach == pytest.approx([30 / 9])


def test_false_alarms_are_as_rare_as_promised():
    """Rows of the same categories, not seen before, wherever they are: about two in a hundred are marked."""
    rng = np.random.default_rng(0)
    centers, truth = rng.normal(size=(20, 32)), np.repeat(np.arange(20), 50)
    x = (centers[truth] + 0.3 * rng.normal(size=(1000, 32))).astype(np.float32)
    new = (centers[truth] + 0.3 * rng.normal(size=(1000, 32))).astype(np.float32)
    marked = 1 - fit_assigner(x, level_of(x, truth)[1], np.full(1000, -1))(new).fits.mean()
    assert FALSE_ALARMS / 2 < marked < 2 * FALSE_ALARMS


def test_small_clusters_borrow_and_a_row_alone_says_nothing():
    """Cluster 1 has a single row, cluster 0 two, 2 apart: each is 2 from the other, the only distance there is."""
    x, level = level_of([[0.0], [2.0], [50.0]], [0, 0, 1])
    assert fit_assigner(x, level, [-1] * 3).reach == pytest.approx([2, 2])
    x, level = level_of([[0.0], [2.0]], [0, 1])
    assigner = fit_assigner(x, level, [-1, -1])
    assert np.isinf(assigner.reach).all()
    assert assigner(np.array([[1e6]], dtype=np.float32)).fits.all()


def test_temperature_without_labels_is_a_share_of_the_usual_gap():
    """Rows at 0, 1 and 10, 11: nearest centre 0.5 away, the other 10.5 or 9.5: gaps 110 and 90, of which the lower."""
    x, level = level_of([[0.0], [1.0], [10.0], [11.0]], [0, 0, 1, 1])
    assert fit_assigner(x, level, [-1] * 4).temperature == pytest.approx(0.3 * 90)
    level = replace(level, offsets=np.array([0.0, 30.0]))  # gaps of 80, 60, 120 and 140
    assert fit_assigner(x, level, [-1] * 4).temperature == pytest.approx(0.3 * 80)


def test_a_few_labels_do_not_make_everything_certain():
    """Four labelled rows, all in their own clusters: the likeliest temperature is 0, but four rows say little."""
    x, level = level_of([[0.0], [1.0], [10.0], [11.0]], [0, 0, 1, 1])
    few = fit_assigner(x, level, [0, 0, 1, 1]).temperature
    assert 9 < few < 27
    x, level = level_of([[0.0], [1.0], [10.0], [11.0]] * 250, [0, 0, 1, 1] * 250)
    assert fit_assigner(x, level, [0, 0, 1, 1] * 250).temperature < few


@pytest.mark.parametrize("offsets", [(0.0, 0.0, 0.0, 0.0), (1.0, -0.5, 0.5, 0.0)])
def test_temperature_makes_the_labels_likeliest(offsets):
    x, truth = blobs(4, 30, spread=1.2, dims=3)
    labels = half_labelled(truth, 4)
    level = replace(bssk(x, labels, 4, rng=0), offsets=np.array(offsets) if any(offsets) else None)
    best = fit_assigner(x, level, labels).temperature
    sizes, labelled = np.bincount(level.labels), np.flatnonzero(labels >= 0)

    def surprise(temperature):
        """Beforehand it is expected at 0.3 times the usual gap, as firmly as ten rows would say so by a doubling."""
        gaps = [np.diff(np.sort(((level.centers - x[row]) ** 2).sum(1) - offsets)[:2]) for row in labelled]
        total = 10 / 2 * np.log2(temperature / (0.3 * np.sort(gaps, axis=0)[(len(gaps) - 1) // 2, 0])) ** 2
        for row in labelled:
            squared = ((level.centers - x[row]) ** 2).sum(1)
            mine = level.labels[row]
            squared[mine] *= (sizes[mine] / (sizes[mine] - 1)) ** 2
            squared -= offsets
            total += squared[mine] / temperature + np.log(np.exp(-squared / temperature).sum())
        return total

    assert surprise(best) < min(surprise(best * 1.1), surprise(best / 1.1))


def test_temperature_sees_all_categories_when_there_are_too_many_rows(monkeypatch):
    """Sorted by category, as in a folder; the first category is tight, the others are not."""
    monkeypatch.setattr("selex.cluster.assign._SAMPLE", 50)
    x, truth = blobs(5, 40, spread=1.2, dims=4)
    order = np.argsort(truth, kind="stable")
    x, truth = x[order], truth[order]
    x[:40] = x[:40].mean(0) + 0.01 * (x[:40] - x[:40].mean(0))
    x, level = level_of(x, truth)
    few = fit_assigner(x, level, truth).temperature
    monkeypatch.setattr("selex.cluster.assign._SAMPLE", 200)
    assert few == pytest.approx(fit_assigner(x, level, truth).temperature, rel=0.5)


def test_one_cluster_is_certain():
    x, level = level_of([[0.0], [1.0], [3.0]], [0, 0, 0])
    found = fit_assigner(x, level, [-1] * 3)(x)
    assert found.confidence.tolist() == [1, 1, 1]
    assert found.runner_up.tolist() == [-1, -1, -1]


def test_copies_of_one_row():
    """Distances of 0 everywhere: no division by zero, and a copy fits."""
    x, level = level_of(np.ones((6, 3)), [0, 0, 0, 1, 1, 1])
    found = fit_assigner(x, level, [-1] * 6)(x)
    assert found.confidence == pytest.approx([0.5] * 6)
    assert found.fits.all()


@pytest.mark.parametrize("size", [3, 5, 20])
def test_new_rows_of_the_same_categories_fit_and_strangers_do_not(size):
    """In many dimensions new rows are farther from a centre than the rows that made it, most of all a small one's."""
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(8, 200))
    truth = np.repeat(np.arange(8), size)
    x = (centers[truth] + 0.5 * rng.normal(size=(len(truth), 200))).astype(np.float32)
    level = level_of(x, truth)[1]
    assigner = fit_assigner(x, level, np.full(len(x), -1))
    new = centers[rng.integers(8, size=500)] + 0.5 * rng.normal(size=(500, 200))
    strangers = rng.normal(size=(500, 200)) + 0.5 * rng.normal(size=(500, 200))
    assert assigner(new.astype(np.float32)).fits.mean() > 0.95
    assert assigner(strangers.astype(np.float32)).fits.mean() < 0.05


def test_an_assigner_is_what_it_is_made_of():
    assigner = Assigner(np.eye(2, dtype=np.float32), np.ones(2, dtype=np.float32), Calibration(0.5))
    found = assigner(np.array([[1, 0], [0, 3]], dtype=np.float32))
    assert found.labels.tolist() == [0, 1]
    assert found.fits.tolist() == [True, False]
    assert found.confidence[0] == pytest.approx(1 / (1 + math.exp(-2 / 0.5)))
