"""The one pipeline: what it finds is the same from the command line, the estimators, `discover` and Python."""

import csv
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from commands import digit_photos, selex
from conftest import blobs, half_labelled
from selex import (
    ClusterConfig,
    Config,
    HierarchicalKMeans,
    InputError,
    SemiSupervisedKMeans,
    bssk,
    discover,
    fit_clusters,
    split_accuracy,
)
from selex.cluster.adapt import adapt
from selex.cluster.assign import Calibration, fit_assigner
from selex.cluster.estimate_k import estimate_k
from selex.cluster.hierarchy import hssk
from selex.cluster.holdout.calibrate import held_out_calibration
from selex.cluster.holdout.select import Selection, select
from selex.cluster.whiten import FeatureMaps, fit_whitener
from selex.data.store import ImageStore
from selex.data.table import read_table
from selex.discovery_steps import Discovery
from selex.models import load_backbone
from selex.runs.predictor import load
from selex.types import SEARCHES


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """A run of digits, its features, and its labels as whole numbers."""
    home = tmp_path_factory.mktemp("digits")
    digit_photos(home / "photos")
    config = Config.of(str(home / "photos"), backbone="pixels", categories=6, seed=3)
    run = discover(config, home / "run", store=home / "store")
    table = run.clusters.to_pydict()
    features = np.array(run.embeddings)
    labels = np.where(np.array(table["labelled"]) == 1, np.array(table["cluster"]), -1)
    np.save(home / "features.npy", features)
    with (home / "labels.csv").open("w", newline="") as file:
        rows = [(row, name) for row, name in enumerate(table["category"]) if labels[row] >= 0]
        csv.writer(file).writerows([("row", "label"), *rows])
    return home, features, labels, table


def levels_of(table):
    return {name: list(map(int, column)) for name, column in table.items() if name.startswith("level_")}


@pytest.mark.parametrize("categories", [6, None])
def test_the_same_labels_from_everywhere(found, categories, tmp_path):
    home, features, labels, table = found
    fitted = fit_clusters(features, labels, ClusterConfig(categories=categories), rng=3)
    expected = {f"level_{i}": level.labels.tolist() for i, level in enumerate(fitted.hierarchy.levels, 1)}
    count = "auto" if categories is None else categories

    model = HierarchicalKMeans(count, random_state=3).fit(features, labels)
    assert {f"level_{i}": level.labels.tolist() for i, level in enumerate(model.hierarchy_.levels, 1)} == expected
    assert SemiSupervisedKMeans(count, random_state=3).fit(features, labels).labels_.tolist() == fitted.labels.tolist()

    arguments = ("features.npy", "--labels", "labels.csv", "--categories", count, "--seed", 3)
    done = selex("cluster", *arguments, "--out", tmp_path / "clusters.csv", cwd=home)
    assert done.returncode == 0, done.stderr
    with (tmp_path / "clusters.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert levels_of({name: [row[name] for row in rows] for name in rows[0]}) == expected

    if categories is None:
        config = Config.of(str(home / "photos"), backbone="pixels", seed=3)
        table = discover(config, tmp_path / "run", store=home / "store").clusters.to_pydict()
    assert levels_of(table) == expected


def test_tensors_give_what_arrays_give(found):
    _, features, labels, _ = found
    array = fit_clusters(features, labels, ClusterConfig(categories=6))
    tensor = fit_clusters(torch.from_numpy(features), torch.from_numpy(labels), ClusterConfig(categories=6))
    assert isinstance(tensor.labels, torch.Tensor)
    assert tensor.labels.tolist() == array.labels.tolist()
    np.testing.assert_allclose(tensor.assignment.confidence, array.assignment.confidence, atol=1e-5)


def test_it_is_its_steps_one_after_the_other():
    x, truth = blobs(12, 30, spread=2, seed=1)
    labels = half_labelled(truth, 6)
    found = fit_clusters(x, labels, rng=5)
    count = estimate_k(x, labels, rng=5).n_clusters
    chosen = select(x, labels, count, whiten=0.5, rng=0)  # whatever the seed
    refine, search = chosen.refine, chosen.search
    rows = fit_whitener(x, labels, 0.5)(x)
    hierarchy = hssk(rows, labels, count, search=search, refine=refine, n_init=3, rng=5)
    end = rows, hierarchy.levels[0]
    calibration = held_out_calibration(x, labels, count, search=search, refine=refine, whiten=0.5, end=end, rng=5)
    assert (found.estimate.n_clusters, found.selection.refine, found.selection.search) == (count, refine, search)
    assert found.labels.tolist() == hierarchy.levels[0].labels.tolist()
    assert found.assigner.calibration == calibration
    np.testing.assert_array_equal(found.assigner.reach, fit_assigner(rows, hierarchy.levels[0], labels).reach)
    np.testing.assert_array_equal(found.transform(x), rows)


def test_the_papers_way_is_plain_hssk():
    x, truth = blobs(12, 30, spread=2, seed=1)
    labels = half_labelled(truth, 6)
    paper = Config.of(preset="paper", categories=12).cluster
    found = fit_clusters(x, labels, paper, rng=0)
    assert not found.maps
    assert found.labels.tolist() == hssk(x, labels, 12, n_init=10, rng=0).levels[0].labels.tolist()
    assert found.assigner.temperature == fit_assigner(x, found.hierarchy.levels[0], labels).temperature


def test_a_generator_moves_on_as_with_the_last_step_alone():
    x, truth = blobs(6, 20)
    labels = half_labelled(truth, 3)
    used, alone = np.random.default_rng(1), np.random.default_rng(1)
    found = fit_clusters(x, labels, ClusterConfig(categories=6), rng=used)
    hssk(found.transform(x), labels, 6, refine=found.selection.refine, n_init=3, rng=alone)
    assert used.random() == alone.random()


def test_new_rows_go_through_the_maps(found):
    home, features, labels, table = found
    fitted = fit_clusters(features, labels, ClusterConfig(categories=6), rng=3)
    model = load(home / "run")
    assert model.assigner.calibration[:3] == pytest.approx(fitted.assigner.calibration[:3])
    assert model.assigner.calibration.shifts == pytest.approx(fitted.assigner.calibration.shifts)
    assert model.assigner.n_known == fitted.assigner.n_known == 3
    free = labels < 0
    for maps, assigner in ((fitted.maps, fitted.assigner), (model.maps, model.assigner)):
        again = assigner(maps.transform(features))
        assert again.labels[free].tolist() == np.array(table["cluster"])[free].tolist()


def test_clusters_calibrated_like_others_do_not_have_the_shifts_of_those(found):
    """All else that says how sure they are is as there."""
    home, features, labels, _ = found
    config = Config.of(str(home / "photos"), backbone="pixels", categories=6, seed=3)
    like = fit_clusters(features, labels, config.cluster, rng=3)
    calibration = Calibration(0.1, 0.8, -0.5, shifts=(-2.0, 0.0, 1.0))
    like = replace(like, assigner=replace(like.assigner, calibration=calibration))
    run = SimpleNamespace(log=lambda **entry: None)
    steps = Discovery(run, config, load_backbone("pixels"), "cpu", progress=False, tell=lambda line: None)
    again = steps.cluster(features, ImageStore.build(read_table(home / "photos"), home / "store"), like=like)
    assert again.assigner.calibration == (0.1, 0.8, -0.5, ())
    plain = fit_clusters(features, labels, replace(config.cluster, **like.selection.settings), rng=3, calibrate=False)
    assert again.labels.tolist() == plain.labels.tolist()


def test_maps_are_applied_in_order_and_come_back_from_tensors():
    x, truth = blobs(4, 20)
    first = fit_whitener(x, truth, 0.5)
    second = fit_whitener(first(x), truth, 0.9)
    maps = FeatureMaps((first, second))
    np.testing.assert_array_equal(maps.transform(x), second(first(x)))
    again = FeatureMaps.from_tensors({"centers": torch.zeros(2, 2), **maps.to_tensors()})
    np.testing.assert_array_equal(again.transform(x), maps.transform(x))
    assert not FeatureMaps.from_tensors({"centers": torch.zeros(2, 2)})
    assert FeatureMaps().transform(x) is x


def test_few_labels_that_leave_nothing_to_whiten_by_once_half_are_held_out():
    """Two labels a category: with one of them held out, rows keep their own lengths."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 6)) * rng.uniform(1, 9, size=(200, 1))
    labels = np.r_[np.repeat(np.arange(20), 2), np.full(160, -1)]
    found = fit_clusters(x, labels, ClusterConfig(categories=25))
    assert found.maps
    assert found.selection.refine == "none"
    soft = fit_clusters(x, labels, ClusterConfig(categories=25, refine="proportional"))
    assert soft.assignment.confidence.min() > 0


def test_labels_that_cannot_be():
    x, _ = blobs(4, 5)
    with pytest.raises(InputError, match="one label per row"):
        fit_clusters(x, [0, 1])
    with pytest.raises(InputError, match="label -2 in row 0"):
        fit_clusters(x, np.full(20, -2))


@pytest.mark.parametrize(("refine", "tried"), [("auto", 3), ("none", 3), ("proportional", 1)])
def test_rows_are_smoothed_unless_that_would_be_refined_away(monkeypatch, refine, tried):
    x, truth = blobs(8, 20, spread=2, seed=1)
    given = []
    monkeypatch.setattr(
        "selex.cluster.pipeline.select", lambda *_, **how: given.append(how) or Selection(False, "none")
    )
    fit_clusters(x, half_labelled(truth, 4), ClusterConfig(categories=8, refine=refine, levels=1), calibrate=False)
    searches = given[0]["search"] if given else ("swaps",)
    assert searches == ("swaps", "smoothed", "unequal")[:tried]


def test_features_are_adapted_where_held_out_labels_say_so(monkeypatch, short):
    x, truth = blobs(8, 20, spread=2, seed=1)
    labels, config = half_labelled(truth, 4), ClusterConfig(categories=8)
    assert not fit_clusters(x, labels, config).selection.adapt  # too few rows to try
    monkeypatch.setattr("selex.cluster.pipeline.FEW", 1)
    chosen = fit_clusters(x, labels, config)
    assert chosen.selection.settings == select(x, labels, 8, adapt=(True, False), whiten=0.5, rng=0).settings
    auto = chosen.selection.settings.items()
    assert list(chosen.selected(config)) == [f"{name}: {way} (auto)" for name, way in auto]
    asked = fit_clusters(x, labels, replace(config, **chosen.selection.settings))
    assert asked.labels.tolist() == chosen.labels.tolist()


def test_adapted_features_are_one_map_that_new_rows_go_through(short):
    x, truth = blobs(8, 20, spread=2, seed=1)
    labels = half_labelled(truth, 4)
    found = fit_clusters(x, labels, ClusterConfig(categories=8, adapt="on", refine="none"))
    (step,) = found.maps.steps
    whitener = fit_whitener(x, labels, 0.5)
    np.testing.assert_allclose(step.matrix, adapt(x, labels, 8, whitener, rng=0).matrix, atol=1e-6)
    again = found.assigner(found.transform(x))
    free = labels < 0
    assert again.labels[free].tolist() == found.labels[free].tolist()


def test_poor_seeds_without_limits_of_size_are_not_where_the_default_ends():
    """Sixty clear categories, a few iterations: seeds leave several without a centre, swaps find them."""
    x, truth = blobs(60, 20, spread=0.5, dims=32)
    labels = half_labelled(truth, 30)
    config = ClusterConfig(categories=60, balanced=False, iterations=2, levels=1)
    ends = bssk(x, labels, 60, balanced=False, n_iter=2, rng=0), fit_clusters(x, labels, config, calibrate=False)
    seeds, default = (split_accuracy(truth, np.asarray(end.labels), truth < 30).novel for end in ends)
    assert seeds < 0.9
    assert default > 0.98


def permuted(x, labels, seed=1):
    order = np.random.default_rng(seed).permutation(len(x))
    return order, x[order], None if labels is None else labels[order]


@pytest.mark.parametrize("settings", [{}, {"categories": 8, "adapt": "on"}, {"categories": 8, "search": "auto"}])
def test_rows_in_another_order_change_nothing(short, settings):
    """Every row is in the same cluster of every level, and as sure of it: no draw depends on where a row stands."""
    x, truth = blobs(8, 20, spread=2, seed=1)
    labels, config = half_labelled(truth, 4), ClusterConfig(**settings)
    order, rows, known = permuted(x, labels)
    found, again = fit_clusters(x, labels, config, rng=3), fit_clusters(rows, known, config, rng=3)
    for level, other in zip(found.hierarchy.levels, again.hierarchy.levels, strict=True):
        assert other.labels.tolist() == level.labels[order].tolist()
    assert again.selection.settings == found.selection.settings
    np.testing.assert_allclose(again.assignment.confidence, found.assignment.confidence[order], atol=1e-4)
    assert again.assignment.fits.tolist() == found.assignment.fits[order].tolist()


@pytest.mark.parametrize("search", ["auto", *SEARCHES])
def test_rows_that_are_all_one_fill_all_clusters(search):
    """Four known categories that nothing tells apart: their rows stay, and each novel cluster has one of the others."""
    labels = np.where(np.arange(200) < 80, np.arange(200) % 4, -1)
    config = ClusterConfig(categories=6, search=search, levels=1)
    found = fit_clusters(np.full((200, 4), 0.5, dtype=np.float32), labels, config)
    assert found.labels[:80].tolist() == labels[:80].tolist()
    assert np.bincount(found.labels).tolist() == [138, 20, 20, 20, 1, 1]


@pytest.mark.parametrize("search", ["auto", *SEARCHES])
def test_copies_are_together_in_any_order_of_rows(search):
    """Rows that are there three times, some of which are labelled all three."""
    x, truth = blobs(8, 12, spread=2, seed=1)
    x, truth = np.repeat(x / np.linalg.norm(x, axis=1, keepdims=True), 3, axis=0), np.repeat(truth, 3)
    labels = np.where((truth < 4) & (np.arange(len(truth)) // 3 % 2 == 0), truth, -1)
    config = ClusterConfig(categories=8, search=search, levels=1)
    order, rows, known = permuted(x, labels)
    found = fit_clusters(x, labels, config, calibrate=False)
    again = fit_clusters(rows, known, config, calibrate=False)
    assert (np.asarray(found.labels).reshape(-1, 3) == np.asarray(found.labels)[::3, None]).all()
    assert again.labels.tolist() == found.labels[order].tolist()
    assert again.selection.settings == found.selection.settings


def test_digits_in_another_order_are_the_same_from_everywhere(found, tmp_path):
    _, features, labels, table = found
    order, rows, known = permuted(features, labels)
    expected = np.array(table["cluster"])[order].tolist()
    assert SemiSupervisedKMeans(6, random_state=3).fit(rows, known).labels_.tolist() == expected
    np.save(tmp_path / "features.npy", rows)
    with (tmp_path / "labels.csv").open("w", newline="") as file:
        named = [(row, table["category"][order[row]]) for row in np.flatnonzero(known >= 0)]
        csv.writer(file).writerows([("row", "label"), *named])
    arguments = ("features.npy", "--labels", "labels.csv", "--categories", 6, "--seed", 3)
    done = selex("cluster", *arguments, "--out", "clusters.csv", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with (tmp_path / "clusters.csv").open(newline="") as file:
        assert [int(row["level_1"]) for row in csv.DictReader(file)] == expected


@pytest.mark.parametrize("refine", ["none", "proportional", "balanced"])
def test_rows_of_length_zero_are_where_new_ones_would_go(refine):
    """Black images: to unit centres all of them are equally far, and rounding must not decide."""
    x, truth = blobs(12, 20, spread=2, seed=1)
    x = np.concatenate([np.zeros((5, 16)), x / np.linalg.norm(x, axis=1, keepdims=True)]).astype(np.float32)
    labels = np.r_[np.full(5, -1), half_labelled(truth, 6)]
    config = ClusterConfig(categories=12, whiten=0, adapt="off", refine=refine)
    found = fit_clusters(x, labels, config)
    again = found.assigner(found.transform(x))
    free = labels < 0
    assert again.labels[free].tolist() == found.labels[free].tolist()
    assert len(set(found.labels[:5].tolist())) == 1
    assert found.assigner(np.zeros((1, 16), dtype=np.float32)).labels[0] == found.labels[0]
