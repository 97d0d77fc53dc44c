import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer, StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from conftest import blobs, half_labelled
from selex import (
    ClusterConfig,
    HierarchicalKMeans,
    InputError,
    Note,
    SemiSupervisedKMeans,
    Whitening,
    fit_clusters,
    published,
    split_accuracy,
)
from selex.cluster.holdout.select import select

BOTH = pytest.mark.parametrize("estimator", [SemiSupervisedKMeans, HierarchicalKMeans])

# These checks ask for 1 or 2 clusters and hand over a y of 2 or 3 classes. Labels are categories here, not a target to
# ignore, and more known categories than clusters is a mistake that must be refused.
REFUSED = "asks for fewer clusters than y has categories, which is refused on purpose"
EXPECTED_FAILURES = dict.fromkeys(
    [
        "check_dont_overwrite_parameters",
        "check_fit2d_1feature",
        "check_fit2d_predict1d",
        "check_methods_sample_order_invariance",
        "check_methods_subset_invariance",
    ],
    REFUSED,
)


def run_checks(estimator, expected):
    results = check_estimator(estimator, expected_failed_checks=expected, on_skip=None, on_fail=None)
    failed = {r["check_name"]: repr(r["exception"]) for r in results if r["status"] == "failed"}
    assert not failed
    return results


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("amount", [0.0, 0.5])
def test_whitening_follows_scikit_learn(amount):
    run_checks(Whitening(amount), {})


def test_whitening_in_a_pipeline_finds_what_was_held_out():
    rng = np.random.default_rng(0)
    truth = np.arange(600) % 10
    rows = np.c_[rng.normal(size=(600, 8)), np.eye(10)[truth] + 0.15 * rng.normal(size=(600, 10))]
    names = np.array([f"c{c}" if c < 5 and i % 20 < 10 else "" for i, c in enumerate(truth)])
    free, known = names == "", truth < 5
    scores = []
    for amount in (0.0, 0.95):
        pipeline = make_pipeline(Whitening(amount), SemiSupervisedKMeans(10, whiten=0, refine="none", random_state=0))
        found = pipeline.fit_predict(rows, names)
        scores.append(split_accuracy(truth[free], found[free], known[free]).all)
        assert (pipeline.predict(rows)[free] == found[free]).mean() > 0.99
    assert scores[1] > scores[0] + 0.3


@pytest.mark.filterwarnings("ignore")  # the checks fit on all manner of odd data and look at warnings themselves
@BOTH
def test_scikit_learn_conventions(estimator):
    results = run_checks(estimator(), EXPECTED_FAILURES)
    xfailed = [r for r in results if r["status"] == "xfail"]
    assert {r["check_name"] for r in xfailed} == set(EXPECTED_FAILURES)
    assert all("known categories: ask for at least" in str(r["exception"]) for r in xfailed)


class WithoutY:
    """Does not look at y, so that the checks' y of too many classes does not matter."""

    def fit(self, X, y=None):
        return super().fit(X)  # type: ignore[misc]

    def fit_predict(self, X, y=None):
        return super().fit_predict(X)  # type: ignore[misc]


class UnlabelledKMeans(WithoutY, SemiSupervisedKMeans):
    pass


class UnlabelledHierarchy(WithoutY, HierarchicalKMeans):
    pass


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("estimator", [UnlabelledKMeans, UnlabelledHierarchy])
def test_scikit_learn_conventions_hold_without_exception_when_y_is_not_given(estimator):
    run_checks(estimator(), {})


@BOTH
def test_categories_keep_their_names(estimator):
    x, truth = blobs(6, 10)
    names = np.array(["sparrow", "finch", "wren"])
    y = [names[t] if t < 3 and i % 2 else None for i, t in enumerate(truth)]
    model = estimator(6, random_state=0).fit(x, y)
    assert model.classes_.tolist() == ["finch", "sparrow", "wren"]
    for row, label in enumerate(y):
        if label:
            assert model.classes_[model.labels_[row]] == label
    assert split_accuracy(truth, model.labels_, truth < 3).all == 1


@pytest.mark.parametrize(
    "y",
    [
        ["a", "b", "", "a", "b", ""],
        ["a", "b", -1, "a", "b", -1],
        np.array(["a", "b", None, "a", "b", None], dtype=object),
        np.array(["a", "b", np.nan, "a", "b", np.nan], dtype=object),
        pd.Series(["a", "b", None, "a", "b", None]),
        [10, 20, -1, 10, 20, -1],
        [1.5, 2.5, np.nan, 1.5, 2.5, np.nan],
        torch.tensor([7, 9, -1, 7, 9, -1]),
        np.array([[3], [4], [-1], [3], [4], [-1]]),
        np.array([1, "b", None, 1, "b", None], dtype=object),
        ["a", "b", float("nan"), "a", "b", float("nan")],
        [1, "b", -1, 1, "b", -1],
        pd.Series(["a", "b", None, "a", "b", None], dtype="string"),
    ],
)
def test_names_of_any_type(y):
    x = np.array([[0.0, 0], [5, 0], [0, 5], [0.1, 0], [5.1, 0], [0.1, 5]])
    model = SemiSupervisedKMeans(3, random_state=0).fit(x, y)
    assert len(model.classes_) == 2
    assert model.labels_[[0, 3]].tolist() == [model.labels_[0]] * 2
    assert model.labels_[[2, 5]].tolist() == [2, 2]


@BOTH
def test_predict_agrees_with_labels_of_unlabelled_rows(estimator):
    x, truth = blobs(12, 30, spread=1.5, seed=4)
    known = half_labelled(truth, 6)
    model = estimator(12, random_state=0).fit(x, known)
    free = known == -1
    assert model.predict(x)[free].tolist() == model.labels_[free].tolist()


@BOTH
@pytest.mark.parametrize("refine", ["proportional", "balanced"])
@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor], ids=["numpy", "torch"])
def test_rows_that_take_part_in_several_clusters(estimator, refine, kind):
    x, truth = blobs(12, 30, spread=1.5, seed=4)
    x, known = kind(x / np.linalg.norm(x, axis=1, keepdims=True)), half_labelled(truth, 6)
    model = estimator(12, refine=refine, whiten=0, random_state=0).fit(x, known)
    assert model.refine_ == refine
    base, free = model.hierarchy_.levels[0], known == -1
    assert model.predict(x)[free].tolist() == model.labels_[free].tolist()
    np.testing.assert_allclose(np.linalg.norm(model.cluster_centers_, axis=1), 1)
    away = np.linalg.norm(np.asarray(x)[:, None] - np.asarray(base.centers), axis=2)
    np.testing.assert_allclose(model.transform(x), away, atol=1e-7)
    assert model.predict(x).tolist() == (away**2 - np.asarray(base.offsets)).argmin(1).tolist()
    paper = estimator(12, refine="none", whiten=0, random_state=0).fit(x, known)
    assert paper.refine_ == "none"
    assert paper.labels_.tolist() != model.labels_.tolist()


@BOTH
@pytest.mark.parametrize("refine", ["none", "proportional"])
@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor], ids=["numpy", "torch"])
def test_probabilities_are_what_confidence_is_made_of(estimator, refine, kind):
    x, truth = blobs(12, 30, spread=1.5, seed=4)
    x, known = kind(x / np.linalg.norm(x, axis=1, keepdims=True)), half_labelled(truth, 6)
    model = estimator(12, refine=refine, random_state=0).fit(x, known)
    found = model.predict_proba(x)
    assert type(found) is type(x)
    assert found.shape == (len(x), 12)
    found = np.asarray(found)
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-12)
    assert found.argmax(1).tolist() == np.asarray(model.predict(x)).tolist()
    # by the formula of the manual
    offsets = model.hierarchy_.levels[0].offsets
    away = np.asarray(model.transform(x)) ** 2 - (0 if offsets is None else np.asarray(offsets))
    weights = np.exp(-(away - away.min(1, keepdims=True)) / model.temperature_)
    np.testing.assert_allclose(found, weights / weights.sum(1, keepdims=True), atol=1e-9)
    # and what the pipeline, that `discover` calls, says of rows of the data
    levels = 1 if estimator is SemiSupervisedKMeans else None
    config = ClusterConfig(categories=12, refine=refine, levels=levels)
    same = fit_clusters(x, known, config, rng=0)
    own = np.asarray(model.labels_)
    likely = found[np.arange(len(x)), own].astype(np.float32)
    likely[own < 6] = same.assigner.calibration.adjusted(likely[own < 6], own[own < 6])
    np.testing.assert_allclose(likely, same.assignment.confidence, atol=1e-6)


@pytest.mark.parametrize("spread", [1.2, 2.0, 5.0])
def test_probabilities_of_new_rows_are_worth_what_they_say(spread):
    x, truth = blobs(8, 160, spread=spread, seed=1)
    labels, new = half_labelled(truth, 8), np.arange(len(x)) % 2 == 1
    model = SemiSupervisedKMeans(8, refine="none", random_state=0).fit(x[~new], labels[~new])
    found = model.predict_proba(x[new])
    right = found.argmax(1) == truth[new]
    assert found.max(1).mean() == pytest.approx(right.mean(), abs=0.1)


@BOTH
def test_refinement_by_what_held_out_labels_tell(estimator):
    x, truth = blobs(6, 30, spread=0.8)
    x, known = x / np.linalg.norm(x, axis=1, keepdims=True), half_labelled(truth, 4)
    model = estimator(6, random_state=0).fit(x, known)
    selected = select(x, known, 6, search=("swaps",), whiten=0.5, rng=0)
    assert (model.search_, model.refine_) == (selected.search, selected.refine)
    asked_for = estimator(6, refine=model.refine_, random_state=0).fit(x, known)
    assert model.labels_.tolist() == asked_for.labels_.tolist()
    assert estimator(6, random_state=0).fit(x).refine_ == "proportional"  # without labels
    assert clone(model).get_params()["refine"] == "auto"
    with pytest.raises(InputError, match="refine must be auto, none, proportional or balanced, not 'large'"):
        estimator(6, refine="large").fit(x)


@BOTH
def test_rows_of_different_length_are_refined_only_where_whitening_makes_them_alike(estimator):
    x, truth = blobs(6, 30, spread=0.8)
    known = half_labelled(truth, 4)
    assert estimator(6, random_state=0).fit(x, known).refine_ != "none"
    assert estimator(6, random_state=0).fit(x).refine_ == "none"
    assert estimator(6, whiten=0, random_state=0).fit(x, known).refine_ == "none"
    with pytest.raises(InputError, match="needs rows of equal length"):
        estimator(6, whiten=0, refine="balanced", random_state=0).fit(x, known)


def test_transform_is_the_distance_to_every_centre():
    x, truth = blobs(5, 10, spread=0.5)
    model = SemiSupervisedKMeans(5, random_state=0).fit(x, half_labelled(truth, 2))
    expected = np.linalg.norm(model.maps_.transform(x)[:, None] - model.cluster_centers_, axis=2)
    np.testing.assert_allclose(model.transform(x), expected, atol=1e-7)
    assert model.get_feature_names_out().tolist() == [f"semisupervisedkmeans{i}" for i in range(5)]


def test_hierarchy_has_its_levels_finest_first():
    x, truth = blobs(8, 10)
    model = HierarchicalKMeans(8, random_state=0).fit(x, half_labelled(truth, 4))
    levels = model.hierarchy_.levels
    assert [len(level.centers) for level in levels] == [8, 4, 2]
    assert levels[0].labels is model.labels_
    assert all(level.labels.shape == (80,) for level in levels)
    assert len(SemiSupervisedKMeans(8, random_state=0).fit(x, half_labelled(truth, 4)).hierarchy_.levels) == 1
    two = HierarchicalKMeans(8, n_levels=2, random_state=0).fit(x, half_labelled(truth, 4))
    assert two.hierarchy_.n_clusters == [8, 4]


def test_attributes():
    x, truth = blobs(6, 10)
    model = SemiSupervisedKMeans(6, random_state=0).fit(x, half_labelled(truth, 3))
    assert model.n_clusters_ == 6
    assert model.cluster_centers_.shape == (6, x.shape[1])
    away = model.maps_.transform(x) - model.cluster_centers_[model.labels_]
    assert model.inertia_ == pytest.approx((away**2).sum())
    assert model.n_iter_ >= 1
    assert model.n_features_in_ == x.shape[1]
    assert model.k_estimate_ is None


def test_auto_estimates_the_number():
    x, truth = blobs(9, 20, spread=0.3)
    model = SemiSupervisedKMeans("auto", random_state=0).fit(x, half_labelled(truth, 4))
    assert model.k_estimate_.n_clusters == model.n_clusters_
    assert abs(model.n_clusters_ - 9) <= 1


@BOTH
def test_pickle_clone_and_pipeline(estimator):
    x, truth = blobs(6, 10)
    known = half_labelled(truth, 3)
    model = estimator(6, random_state=0, variant=published()).fit(x, known)
    again = pickle.loads(pickle.dumps(model))
    assert again.predict(x).tolist() == model.predict(x).tolist()
    assert clone(model).get_params() == model.get_params()
    pipeline = make_pipeline(StandardScaler(), Normalizer(), estimator(6, random_state=0))
    assert split_accuracy(truth, pipeline.fit_predict(x, known), truth < 3).all == 1
    assert pipeline.predict(x[:3]).shape == (3,)


def test_tensors_stay_tensors_and_pandas_is_welcome():
    x, truth = blobs(6, 10)
    known = half_labelled(truth, 3)
    model = SemiSupervisedKMeans(6, random_state=0).fit(torch.from_numpy(x), torch.from_numpy(known))
    assert isinstance(model.labels_, torch.Tensor)
    assert isinstance(model.predict(torch.from_numpy(x)), torch.Tensor)
    assert model.predict(x).tolist() == model.predict(torch.from_numpy(x)).tolist()
    frame = pd.DataFrame(x, columns=[f"f{i}" for i in range(x.shape[1])])
    named = SemiSupervisedKMeans(6, random_state=0).fit(frame, known)
    assert named.labels_.tolist() == model.labels_.tolist()
    assert named.feature_names_in_.tolist() == frame.columns.tolist()


def test_seeds_and_generators():
    x, _ = blobs(6, 10, spread=2.0)
    for make in (lambda: 3, lambda: np.random.default_rng(3), lambda: np.random.RandomState(3)):
        first, second = (SemiSupervisedKMeans(6, random_state=make()).fit(x).labels_.tolist() for _ in range(2))
        assert first == second


@pytest.mark.parametrize("count", [0, -1, 2.5, "many", None])
def test_bad_number_of_clusters(count):
    with pytest.raises(InputError, match="whole number of at least 1, or 'auto'"):
        SemiSupervisedKMeans(count).fit(np.zeros((5, 2)))


def test_a_rows_answer_does_not_depend_on_the_others():
    x, truth = blobs(6, 10)
    x = x.astype(np.float32)
    model = SemiSupervisedKMeans(6, random_state=0).fit(x, half_labelled(truth, 3))
    far = np.concatenate([x[:5], np.full((1, x.shape[1]), 1e6, dtype=np.float32)])
    assert model.predict(far)[:5].tolist() == model.predict(x[:5]).tolist()
    np.testing.assert_allclose(model.transform(far)[:5], model.transform(x[:5]), rtol=1e-5)


def test_bad_input_is_one_clear_line():
    x = np.zeros((5, 2))
    with pytest.raises(ValueError, match=r"shape \(3,\) for 5 rows"):
        SemiSupervisedKMeans(2).fit(x, [0, 1, -1])
    with pytest.raises(InputError, match="3 columns, the fitted data had 2"):
        SemiSupervisedKMeans(2).fit(torch.rand(5, 2)).predict(torch.rand(5, 3))
    with pytest.raises(InputError, match="rows × dimensions"):
        SemiSupervisedKMeans(2).fit(torch.rand(5))
    with pytest.warns(Note, match="no row is labelled"):
        SemiSupervisedKMeans(2).fit(np.eye(5), [-1] * 5)
