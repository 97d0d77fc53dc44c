"""Every method through one contract; what each option of SelEx does."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from conftest import blobs, half_labelled
from selex.cluster.hierarchy import hssk
from selex.data.crops import AugmentConfig
from selex.errors import InputError
from selex.losses import cluster_radii, info_nce, radius_targets, supervised_contrastive, use_targets
from selex.training.methods import METHODS, Batch, Task
from selex.types import Hierarchy, Level, Variant, published
from training_for_tests import TRAINED, batch, digit_data, loop, prepared, small, weights

SELEX_WAYS = [{}, {"targets": "radii"}, {"published": True}, {"form": "binary"}, {"kind": "cosine"}, {"hssk": False}]
SELEX_WAYS += [{"prototypes": 0.35}, {"prototypes": 0.35, "published": True}, {"published_quirks": "order+crops"}]
SELEX_WAYS += [{"random_crop": 0.6, "color_jitter": 0.4}, {"agreement": 0.5}]
WAYS = [*((name, {}) for name in TRAINED), *(("selex", way) for way in SELEX_WAYS[1:])]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return digit_data(tmp_path_factory.mktemp("digits"))


@pytest.fixture(scope="module")
def features(data):
    """Features of all images of an untrained network."""
    return loop(small("gcd"), data).features(0)


@pytest.mark.parametrize("name", METHODS)
def test_the_contract(name, data, features):
    method, labels = small(name), torch.as_tensor(data.labels)
    level = method.prepare(0, lambda: features, labels, np.random.default_rng(0))
    assert isinstance(level, Level)
    assert len(level.labels) == 60
    states = batch(data, method).states
    rows = torch.arange(16)
    encoded = method.encode(states)
    assert all(len(part) == 32 for part in encoded)
    losses = method(Batch(states, rows, labels[rows]))
    assert losses["loss"].shape == ()
    assert losses["loss"].isfinite()
    assert losses["loss"].requires_grad
    assert method.n_trained > 0
    assert not any(part.requires_grad for key, part in losses.items() if key != "loss")
    pieces = [method.encode(piece) for piece in states.split(7)]
    for whole, parts in zip(encoded, zip(*pieces, strict=True), strict=True):
        assert torch.allclose(whole, torch.cat(parts), atol=1e-5)
    found = method.cluster(features, labels, 0) if method.clusters else method.classify(features, labels)
    assert isinstance(found, Hierarchy)
    assert found.levels[0].n_clusters == 5
    assert found.levels[0].n_known == 3
    held = labels >= 0
    assert torch.equal(torch.as_tensor(found.levels[0].labels)[held], labels[held])


@pytest.mark.parametrize("name", TRAINED)
def test_what_is_remembered_gives_the_same_loss(name, data):
    method = prepared(name, data)
    other = small(name)
    other.load_state_dict(method.state_dict())
    given = batch(data, method)
    assert torch.equal(method(given)["loss"], other(given)["loss"])


@pytest.mark.parametrize("name", METHODS)
def test_without_any_label(name, data, features):
    method = small(name, task=Task(4, 0))
    labels = torch.full((60,), -1)
    level = method.prepare(0, lambda: features, labels, np.random.default_rng(0))
    assert level.n_known == 0
    states = batch(data, method).states
    assert method(Batch(states, torch.arange(16), labels[:16]))["loss"].isfinite()
    assert level.n_clusters == 4


ALONE = [(name, {"sup_weight": share}) for name in TRAINED for share in (0.0, 1.0)]


@pytest.mark.parametrize(("name", "way"), [*WAYS, *ALONE], ids=str)
def test_twenty_steps_lower_each_loss(name, way, data):
    """The whole loss, and each of its two parts where it is the only one."""
    method = prepared(name, data, **way)
    given, seen = batch(data, method), []
    optimizer = torch.optim.SGD([p for p in method.parameters() if p.requires_grad], lr=2e-3, momentum=0.9)
    for _ in range(21):
        optimizer.zero_grad()
        loss = method(given)["loss"]
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    assert seen[-1] < seen[0] - 0.002


@pytest.mark.parametrize(
    ("name", "way", "micro_batch"), [*((*case, 3) for case in WAYS), ("selex", {}, 1), ("gcd", {}, 16)], ids=str
)
def test_a_batch_in_pieces_has_the_same_gradient(name, way, micro_batch, data):
    found = {}
    for size in (None, micro_batch):
        method = prepared(name, data, micro_batch=size, **way)
        given = batch(data, method)
        losses = loop(method, data).steps.forward_backward(given.states, given.rows, given.labels)
        found[size] = (
            {key: float(value) for key, value in losses.items()},
            {key: tensor.grad for key, tensor in method.named_parameters() if tensor.requires_grad},
        )
    (losses, gradients), (same_losses, same) = found[None], found[micro_batch]
    assert same_losses == pytest.approx(losses, rel=1e-4)
    for key, gradient in gradients.items():
        assert torch.allclose(same[key], gradient, rtol=1e-3, atol=1e-4 * float(gradient.abs().max())), key


@pytest.mark.parametrize("kind", ["distance", "cosine"])
def test_selex_without_levels_and_alpha_is_gcd(kind, data):
    gcd = prepared("gcd", data, kind=kind)
    given = batch(data, gcd)
    expected = gcd(given)["loss"]
    for way in (
        {"alpha": 0.0, "sse": False},
        {"use": False, "sse": False},
        {"use": False, "sse": False, "hssk": False},
    ):
        method = prepared("selex", data, kind=kind, **way)
        assert torch.equal(weights(method)["head.directions"], weights(gcd)["head.directions"])
        assert method(given)["loss"].item() == pytest.approx(expected.item(), rel=1e-6), way
    assert prepared("selex", data, kind=kind)(given)["loss"].item() != pytest.approx(expected.item(), rel=1e-3)


def test_gcd_by_its_formula(data):
    method = prepared("gcd", data, sup_weight=0.2, temperature=0.5, supervised_temperature=0.1)
    given = batch(data, method)
    (rows,) = method.encode(given.states)
    a, b = rows.chunk(2)
    expected = 0.8 * info_nce(a, b, 0.5, "cosine") + 0.2 * supervised_contrastive(
        rows, given.labels.repeat(2), 0.1, "cosine"
    )
    assert method(given)["loss"].item() == pytest.approx(expected.item(), rel=1e-6)


def test_parts_of_selex_that_are_left_out(data):
    """Each changes its own part of the loss and no other."""
    whole = prepared("selex", data)
    given = batch(data, whole)
    all_parts = whole(given)
    assert whole.level_labels.shape == (2, 60)
    for way, changed in (({"use": False}, {"use"}), ({"sse": False}, {"sse"}), ({"hssk": False}, {"use", "sse"})):
        method = prepared("selex", data, **way)
        parts = method(given)
        assert {key for key in ("use", "sse") if not torch.equal(parts[key], all_parts[key])} == changed
        assert len(method.level_labels) == (1 if way == {"hssk": False} else 2)
    a, b = whole.head(whole.features(given.states)).chunk(2)
    without = prepared("selex", data, use=False)(given)["use"]
    assert without.item() == pytest.approx(info_nce(a, b, 1.0, "distance").item(), rel=1e-6)


def test_levels_of_the_losses_can_be_limited(data, features):
    labels = torch.as_tensor(data.labels)
    for levels, count in ((None, 2), (1, 1), (5, 2)):
        method = small("selex", loss_levels=levels)
        method.prepare(0, lambda: features, labels, 0)
        assert len(method.level_labels) == count


@pytest.mark.parametrize("name", TRAINED)
def test_pseudo_labels_every_so_many_epochs(name, features, data):
    method, asked = small(name, interval=3), []
    for epoch in range(7):
        level = method.prepare(
            epoch, lambda epoch=epoch: asked.append(epoch) or features, torch.as_tensor(data.labels), 0
        )
        assert (level is None) == (epoch % 3 != 0)
    assert asked == [0, 3, 6]


def test_pseudo_labels_are_those_of_the_hierarchy_in_row_order(data, features):
    labels = torch.as_tensor(data.labels)
    method = small("selex")
    method.prepare(0, lambda: features, labels, np.random.default_rng(3))
    expected = hssk(features, labels, 5, rng=np.random.default_rng(3))
    assert method.level_labels.tolist() == [torch.as_tensor(level.labels).tolist() for level in expected.levels]
    assert torch.equal(method.level_labels[0][labels >= 0], labels[labels >= 0])


# METHOD: where the published code leaves its paper, rows 1 to 8


@pytest.fixture(scope="module")
def many():
    """Features of eight categories of twelve rows, four of them known."""
    rows, truth = blobs(8, 12, spread=1.2)
    return normalize(torch.from_numpy(rows).float()), torch.from_numpy(half_labelled(truth, 4))


def in_variant(**change):
    return replace(Variant(), **change)


def pseudo(many, way, variant=None):
    method = small("selex", task=Task(8, 4), published=way)
    if variant:
        method.variant = variant
    method.prepare(0, lambda: many[0], many[1], np.random.default_rng(1))
    return method


def test_published_row_1_labels_of_upper_levels_are_read_by_position(many):
    found = pseudo(many, True, in_variant(level_order="known-first")).level_labels
    right = pseudo(many, False).level_labels
    assert torch.equal(found[0], right[0])
    labelled = many[1] >= 0
    for level in (1, 2):  # what comes out of order, tests/test_hierarchy.py has
        assert torch.equal(found[level][labelled], right[level][labelled])
        assert not torch.equal(found[level], right[level])
    assert published().level_order == "known-first"


def test_published_rows_2_and_3_raw_features_radii_of_columns_and_their_sums(data, features):
    method = prepared("selex", data, published=True)
    given = batch(data, method)
    targets = method.targets(method.encode(given.states), given, method.level_labels[:, given.rows])
    raw = method.features(given.states).detach()
    assert not torch.allclose(raw.norm(dim=1), torch.ones(32), atol=0.1)
    radii = method.radii[:, given.rows].repeat(1, 2)
    y = torch.zeros(32, 32)
    for i in range(32):
        for j in range(32):
            apart = float((raw[i] - raw[j]).norm())
            if i != j:
                y[i, j] = sum(float(apart > radii[level, j]) / 2**level for level in range(len(radii)))
    y = y / y.sum(1)  # row sums divided by along columns
    positive = torch.eye(32).roll(16, 1)
    assert torch.allclose(targets, 0.5 * y + 0.5 * positive, atol=1e-5)


def test_radii_of_the_paper_are_in_the_space_of_the_features(data, features):
    method = prepared("selex", data, targets="radii")
    given = batch(data, method)
    encoded = method.encode(given.states)
    found = method.targets(encoded, given, method.level_labels[:, given.rows])
    rows = normalize(encoded[1])
    expected = radius_targets(*rows.chunk(2), method.radii[:, given.rows], 0.5)  # type: ignore[call-arg]
    assert torch.allclose(found, expected)
    assert torch.allclose(found.sum(1), torch.ones(32))
    level = hssk(features, torch.as_tensor(data.labels), 5, rng=np.random.default_rng([0, 4, 0])).levels[0]
    assert torch.allclose(method.radii[0], cluster_radii(features, level)[level.labels], atol=1e-5)
    assert not torch.allclose(found, use_targets(method.level_labels[:, given.rows], 0.5))


def test_radii_of_whitened_features_are_compared_in_their_space(data):
    method = prepared("selex", data, targets="radii", task=Task(5, 3, whiten=0.5))
    given = batch(data, method)
    encoded = method.encode(given.states)
    found = method.targets(encoded, given, method.level_labels[:, given.rows])
    rows = method.whitener(normalize(encoded[1]))
    assert torch.allclose(found, radius_targets(*rows.chunk(2), method.radii[:, given.rows], 0.5))  # type: ignore[call-arg]
    assert not torch.allclose(found, radius_targets(*encoded[1].chunk(2), method.radii[:, given.rows], 0.5))  # type: ignore[call-arg]


def test_published_row_4_features_of_random_views(data):
    asked = []
    for way in (False, True):
        parts = loop(small("selex", published=way), data)
        parts.batches.states.augmented = lambda generator, *how, parts=parts: (
            asked.append(how) or parts.batches.states.centres()
        )
        parts.features(0)
    assert asked == [(AugmentConfig(),)]  # as in training


def test_published_rows_5_and_7_balancing_and_seeding(many):
    right = pseudo(many, False).level_labels[0]
    for change in ({"balancing": "growing"}, {"seeding": "spread"}):
        assert all(getattr(published(), key) == value for key, value in change.items())
        found = pseudo(many, True, in_variant(**change)).level_labels[0]
        expected = hssk(*many, 8, variant=in_variant(**change), rng=np.random.default_rng(1)).levels[0].labels  # type: ignore[call-arg]
        assert torch.equal(found, torch.as_tensor(expected))
        assert not torch.equal(found, right)


@pytest.mark.parametrize(
    ("published_quirks", "variant", "targets"),
    [
        ("order", in_variant(level_order="known-first"), False),
        ("grouping", in_variant(grouping="base"), False),
        ("crops", in_variant(crops="augmented"), False),
        ("targets", Variant(), True),
        ("clustering", Variant("spread", "growing"), False),
        ("order+crops", in_variant(level_order="known-first", crops="augmented"), False),
    ],
)
def test_each_difference_of_the_published_code_alone(published_quirks, variant, targets):
    method = small("selex", published_quirks=published_quirks)
    assert (method.variant, method.published_targets, method.by_radii) == (variant, targets, targets)
    assert method.augmented == ("crops" in published_quirks)


def test_a_difference_that_is_none():
    with pytest.raises(
        InputError, match="published_quirks must be some of order, grouping, crops, targets, clustering, not 'colour'"
    ):
        small("selex", published_quirks="order+colour")


def test_prototypes_as_plain_loops(data):
    method = small("selex", task=Task(5, 3, whiten=0.5), prototypes=0.35)
    parts = loop(method, data)
    parts.prepare(0)
    given = batch(data, method)
    encoded = method.encode(given.states)
    losses = method.losses(encoded, given)
    clusters = method.level_labels[0][given.rows].repeat(2)
    terms = []
    for row, cluster in zip(encoded[1], clusters.tolist(), strict=True):
        even = method.whitener(normalize(row[None], dim=1))[0]
        scores = torch.stack([even @ center for center in method.centers]) / 0.1
        terms.append(scores.logsumexp(0) - scores[cluster])
    expected = torch.stack(terms).mean()
    torch.testing.assert_close(losses["prototypes"], expected.detach())
    plain = (1 - 0.35) * losses["use"] + 0.35 * losses["sse"]
    torch.testing.assert_close(losses["loss"].detach(), plain + 0.35 * expected.detach())
    torch.testing.assert_close(method.centers.norm(dim=1), torch.ones(5))


def test_agreement_as_plain_loops(data):
    method = prepared("selex", data, agreement=0.5, expertise=0.0)
    given = batch(data, method)
    encoded = method.encode(given.states)
    views = normalize(method.as_clustered(encoded[1]).detach().double(), dim=1)
    runs, bank, keys = method.runs.numpy(), method.bank.tolist(), method.keys.double()
    expected = 0.0
    for view, row in zip(views, given.rows.repeat(2).tolist(), strict=True):
        logits = [float(view @ key) / 0.1 for key in keys]
        largest = max(logits)
        log_sum = largest + np.log(sum(np.exp(logit - largest) for logit in logits))
        shares = [float((runs[:, row] == runs[:, other]).mean()) for other in bank]
        weights = [share if share >= 0.7 - 1e-9 else 0.0 for share in shares]
        expected -= sum(w * (logit - log_sum) for w, logit in zip(weights, logits, strict=True)) / sum(weights)
    losses = method.losses(encoded, given)
    assert float(losses["agreement"]) == pytest.approx(expected / len(views), rel=1e-4)
    assert float(losses["loss"].detach()) == pytest.approx(0.5 * expected / len(views), rel=1e-4)


def test_features_are_whitened_out_for_all_that_cluster_them(data, features):
    labels = torch.as_tensor(data.labels)
    for name in METHODS:
        method = small(name, task=Task(5, 3, whiten=0.5))
        rows = method.mapped(features, labels, None)
        assert torch.equal(rows, features) == (name == "simgcd")  # its classifier knows features as they are
        assert torch.equal(small(name).mapped(features, labels, None), features)


def test_published_is_all_rows_at_once():
    method = small("selex", published=True)
    assert method.variant == published() == Variant("spread", "growing", "base", "known-first", "augmented")
    assert (method.augmented, method.by_radii, method.published_targets) == (True, True, True)
    method = small("selex")
    assert method.variant == Variant()
    assert (method.augmented, method.by_radii, method.published_targets) == (False, False, False)
