"""Rows compared with the centres of a few groups: against plain loops, and what it costs a clustering."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from selex.cluster.balance import stable_match
from selex.cluster.hierarchy import hssk
from selex.cluster.kmeans import bssk
from selex.cluster.pipeline import fit_clusters
from selex.cluster.rows import AllCenters, InvertedFile, Rows, compare_with
from selex.config import ClusterConfig
from selex.errors import InputError


@pytest.fixture
def families():
    """400 categories in 20 families, eight rows of each, some labelled."""
    rng = np.random.default_rng(0)
    centers = rng.standard_normal((20, 16)).repeat(20, 0) + 0.5 * rng.standard_normal((400, 16))
    truth = np.arange(3200) % 400
    rows = (centers[truth] + 0.1 * rng.standard_normal((3200, 16))).astype(np.float32)
    labels = np.where((truth < 200) & (np.arange(3200) < 1600), truth, -1)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True), labels, truth


@pytest.mark.parametrize("probes", [1, 3, 10])
def test_a_row_gets_the_nearest_centre_of_its_nearest_groups(probes):
    rng = np.random.default_rng(probes)
    x, centers = (torch.from_numpy(rng.standard_normal((n, 5))) for n in (60, 100))
    file = InvertedFile(centers, (centers * centers).sum(1), probes)
    assert sorted(torch.cat(file.members).tolist()) == list(range(100))
    values, labels = file.nearest(x)
    for row, value, label in zip(x, values, labels, strict=True):
        near = (file.groups - row).square().sum(1).argsort()[:probes]
        among = torch.cat([file.members[group] for group in near])
        distances = (centers[among] - row).square().sum(1)
        assert int(label) == int(among[distances.argmin()])
        torch.testing.assert_close(value + row.square().sum(), distances.min())


def test_with_limits_only_nearer_centres_count():
    rng = np.random.default_rng(0)
    x, centers = (torch.from_numpy(rng.standard_normal((n, 5))) for n in (60, 100))
    limits = torch.from_numpy(rng.choice([0.0, 4.0, np.inf], 100))
    file = InvertedFile(centers, (centers * centers).sum(1), 2)
    distances, labels = file.under(limits, x, x.square().sum(1))
    for row, distance, label in zip(x, distances, labels, strict=True):
        among = torch.cat([file.members[group] for group in (file.groups - row).square().sum(1).argsort()[:2]])
        to = (centers[among] - row).square().sum(1)
        to = to.masked_fill(to >= limits[among], torch.inf)
        torch.testing.assert_close(distance, to.min())
        assert distance == torch.inf or int(label) == int(among[to.argmin()])


def test_balanced_clusters_hold_no_more_than_they_may():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((600, 4)).astype(np.float32)
    rows = Rows(x, memory=1 << 14).probing(2)  # too little memory for all distances
    capacity = torch.full((100,), 6)
    labels, distances = stable_match(rows, torch.from_numpy(x[:100]), capacity)
    assert torch.bincount(labels, minlength=100).max() <= 6
    own = rows.distances_to_own(torch.from_numpy(x[:100]), labels)
    torch.testing.assert_close(distances, own, atol=1e-4, rtol=1e-4)
    exact, _ = stable_match(rows.probing(None), torch.from_numpy(x[:100]), capacity)
    assert float(own.sum()) < 1.2 * float(rows.distances_to_own(torch.from_numpy(x[:100]), exact).sum())


def test_few_centres_are_all_compared():
    centers = torch.eye(30)
    assert isinstance(compare_with(centers, centers.sum(1), 5), AllCenters)
    assert isinstance(compare_with(centers, centers.sum(1), 4), InvertedFile)


def test_clusters_are_nearly_as_good_and_rows_are_in_the_nearest_of_all(families):
    rows, labels, truth = families
    exact, probed = (bssk(rows, labels, 400, rng=0, probes=probes) for probes in (None, 3))
    assert probed.inertia < 1.05 * exact.inertia
    free = labels < 0
    nearest, _ = Rows(rows).nearest(torch.from_numpy(probed.centers))
    assert np.array_equal(probed.labels[free], nearest.numpy()[free])
    known = free & (truth < 200)
    assert (probed.labels == truth)[known].mean() > (exact.labels == truth)[known].mean() - 0.02


def test_it_is_an_option_of_the_pipeline():
    rows = np.random.default_rng(0).standard_normal((800, 16)).astype(np.float32)  # without any structure
    config = ClusterConfig(categories=100, adapt="off", search="bssk", refine="none", whiten=0, levels=1, restarts=1)
    probed = fit_clusters(rows, None, replace(config, probes=1), calibrate=False).labels
    assert np.array_equal(probed, hssk(rows, None, 100, n_levels=1, probes=1, rng=0).levels[0].labels)
    assert not np.array_equal(probed, fit_clusters(rows, None, config, calibrate=False).labels)
    with pytest.raises(InputError, match="probes must be a whole number of at least 1"):
        bssk(rows, None, 100, probes=0)
