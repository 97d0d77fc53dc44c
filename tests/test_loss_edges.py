"""Gradients, precision, batches with nothing to compare, and wrong input."""

import pytest
import torch
from torch.autograd import gradcheck
from torch.nn.functional import normalize

from loss_batches import FORMS, KINDS, Batch, every_loss, prefix_distances
from selex import InputError, losses
from selex.losses import (
    info_nce,
    logits,
    published_targets,
    radius_targets,
    self_expertise,
    supervised_contrastive,
    supervised_self_expertise,
    unsupervised_self_expertise,
    use_targets,
)


def rows_with_gradient(seed=0, **batch):
    """A tiny batch, and its rows as a leaf."""
    found = Batch(seed, b=3, levels=2, **batch)
    found.labels = torch.tensor([0, 0, -1])
    return found, found.rows.requires_grad_()


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_the_contrastive_losses(kind):
    batch, z = rows_with_gradient(dims=4)
    labels, levels = batch.both
    targets = use_targets(batch.levels, 0.6)
    assert gradcheck(lambda z: logits(z[:3], z[3:], kind), z)
    assert gradcheck(lambda z: info_nce(z[:3], z[3:], 0.5, kind), z)
    assert gradcheck(lambda z: supervised_contrastive(z, labels, 0.5, kind), z)
    assert gradcheck(lambda z: supervised_self_expertise(z, labels, levels, 0.5, kind), z)
    for form in FORMS:
        assert gradcheck(lambda z, form=form: unsupervised_self_expertise(z[:3], z[3:], targets, 0.5, kind, form), z)


def test_gradients_of_prefix_distances():
    _, z = rows_with_gradient(dims=4)
    assert gradcheck(lambda z: prefix_distances(z, [4, 2, 1]), z)


def test_gradients_of_the_classifier_losses():
    batch, z = rows_with_gradient(dims=4)
    labels, _ = batch.both
    fixed = z.detach().clone()
    assert gradcheck(lambda z: losses.mean_entropy(z, 0.5), z)
    assert gradcheck(lambda z: losses.supervised_cross_entropy(z, labels, 0.5), z)
    # the teacher has no gradient: the student's is that of a cross-entropy with fixed targets
    losses.self_distillation(z[:3], z[3:], 0.3, 0.5).backward()
    found, z.grad = z.grad, None
    teachers = (fixed.roll(3, 0) / 0.3).softmax(1)
    torch.nn.functional.cross_entropy(z / 0.5, teachers).backward()
    torch.testing.assert_close(found, z.grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dims", [8, 3000])
def test_gradients_are_finite_and_small_where_rows_coincide(dtype, kind, dims):
    batch = Batch(3, b=6, dims=dims, levels=3, dtype=dtype)
    batch.labels = torch.tensor([0, 0, 1, 1, -1, -1])
    batch.a[1] = batch.a[0]
    batch.v[:] = batch.a
    batch.v[2] += 1e-7 * batch.a[3]
    batch.a.requires_grad_()
    for name, loss in every_loss(batch, kind).items():
        (gradient,) = torch.autograd.grad(loss, batch.a)
        assert gradient.isfinite().all(), name
        assert gradient.abs().max() < 50, name


def test_the_gradient_of_a_distance_is_no_longer_than_1_even_among_rounding_errors():
    rng = torch.Generator().manual_seed(0)
    z = normalize(torch.randn(100, 256, generator=rng))
    near = z + 1e-3 * torch.rand(100, 1, generator=rng) * normalize(torch.randn(100, 256, generator=rng))
    rows = torch.cat([z, near]).requires_grad_()
    prefix_distances(rows, [256])[0, :100, 100:].diagonal().sum().backward()
    assert rows.grad.norm(dim=1).max() < 1.5


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_finite_for_a_row_of_zeros(kind):
    z = torch.zeros(4, 8, requires_grad=True)
    every = torch.cat([z, torch.eye(4, 8)])
    levels = torch.tensor([[0, 1, 0, 1, 0, 1, 0, 1]])
    supervised_self_expertise(every, levels[0], levels, 0.07, kind).backward()
    assert z.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_is_computed_in_float32(dtype, kind):
    batch = Batch(4, b=6, levels=3, dtype=dtype)
    exact = Batch(4, b=6, levels=3)
    exact.a, exact.v = batch.a.double(), batch.v.double()
    expected = every_loss(exact, kind)
    for name, loss in every_loss(batch, kind).items():
        assert loss.dtype == torch.float32, name
        assert loss.item() == pytest.approx(expected[name].item(), rel=2e-4, abs=1e-6), name


@pytest.mark.parametrize("kind", KINDS)
def test_autocast_changes_nothing(kind):
    batch = Batch(4, b=6, levels=3, dtype=torch.float32)
    expected = every_loss(batch, kind)
    with torch.autocast("cpu", torch.bfloat16):
        found = every_loss(batch, kind)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("labels", [[-1, -1, -1, -1], [0, 1, 2, 3], [0, -1, -1, -1]])
def test_rows_without_positives_give_0_with_a_gradient(labels):
    z = Batch(5, b=2).rows.requires_grad_()
    labels = torch.tensor(labels)
    for loss in (
        supervised_contrastive(z, labels, 0.07),
        supervised_self_expertise(z, labels, labels[None], 0.07),
    ):
        assert loss == 0
        (gradient,) = torch.autograd.grad(loss, z)
        assert (gradient == 0).all()


def test_a_row_alone_in_its_category_is_a_negative_for_the_others():
    z = Batch(5, b=2).rows
    alone = supervised_contrastive(z, torch.tensor([0, 0, 1, -1]), 0.3)
    absent = supervised_contrastive(z, torch.tensor([0, 0, -1, -1]), 0.3)
    assert absent == 0
    assert alone > 0


def test_no_labelled_row_gives_a_cross_entropy_of_0_with_a_gradient():
    z = Batch(5, b=2).rows.requires_grad_()
    loss = losses.supervised_cross_entropy(z, torch.full((4,), -1))
    assert loss == 0
    (gradient,) = torch.autograd.grad(loss, z)
    assert (gradient == 0).all()


def test_one_category_only_contrasts_rows_with_each_other_alone():
    batch = Batch(6, b=4, levels=2)
    one = torch.zeros(2, 4, dtype=torch.int64)
    torch.testing.assert_close(use_targets(one, 1.0), torch.eye(8).roll(4, 1))
    same = torch.ones(8, 3, dtype=torch.float64)  # rows that are all alike share evenly: log of the seven others
    loss = supervised_self_expertise(same, torch.zeros(8), one.repeat(1, 2), 0.07)
    assert loss.item() == pytest.approx(0.5 * (1 + 0.5 + 0.25) * torch.tensor(7.0).log().item())
    assert supervised_contrastive(batch.rows, torch.zeros(8), 0.07).isfinite()


@pytest.mark.parametrize("form", FORMS)
def test_one_image_has_nothing_to_be_told_from(form):
    batch = Batch(7, b=1, levels=2)
    batch.a.requires_grad_()
    targets = use_targets(batch.levels, 1.0)
    loss = unsupervised_self_expertise(batch.a, batch.v, targets, 1.0, form=form)
    assert loss == 0
    (gradient,) = torch.autograd.grad(loss, batch.a)
    assert (gradient == 0).all()


def test_targets_carry_no_gradient():
    batch = Batch(8, b=3, levels=2)
    assert not radius_targets(batch.a.requires_grad_(), batch.v, batch.radii, 0.5).requires_grad


def test_teacher_temperature_falls_straight_then_stays():
    found = [losses.teacher_temperature(epoch, 4, 0.07, 0.04) for epoch in range(6)]
    assert found == pytest.approx([0.07, 0.06, 0.05, 0.04, 0.04, 0.04])
    assert losses.teacher_temperature(0) == 0.07
    assert losses.teacher_temperature(29) == losses.teacher_temperature(199) == pytest.approx(0.04)
    assert losses.teacher_temperature(0, 0) == losses.teacher_temperature(0, 1) == pytest.approx(0.04)


def test_mean_entropy_is_0_for_even_use_and_log_k_for_one_category():
    sure = 100 * torch.eye(4)
    assert losses.mean_entropy(sure).item() == pytest.approx(0, abs=1e-6)
    assert losses.mean_entropy(sure[:1].repeat(5, 1)).item() == pytest.approx(torch.tensor(4.0).log().item())


TWO, THREE = torch.eye(2), torch.eye(3)
IDS = torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: logits(TWO, THREE), "one width"),
        (lambda: logits(TWO, TWO, "angle"), "kind must be 'distance' or 'cosine'"),
        (lambda: info_nce(TWO, THREE, 1.0), "two views"),
        (lambda: info_nce(TWO[:0], TWO[:0], 1.0), "two views"),
        (lambda: info_nce(TWO, TWO, 0.0), "temperature must be greater than 0"),
        (lambda: supervised_contrastive(THREE, IDS, 1.0), "one for each row"),
        (lambda: supervised_contrastive(IDS, IDS, 1.0), "one for each row of a table"),
        (lambda: supervised_self_expertise(TWO, IDS, IDS, 1.0), "levels × 2 rows"),
        (lambda: self_expertise(torch.ones(2, 2, 2), TWO, IDS, IDS, (1.0, 1.0)), "levels × 2 rows"),
        (lambda: self_expertise(torch.ones(1, 2, 2), TWO, IDS, IDS[None], (1.0, 1.0)), r"shape \(2, 2, 2\)"),
        (lambda: supervised_self_expertise(TWO, IDS, IDS[None], 1.0, "angle"), "kind must be"),
        (lambda: unsupervised_self_expertise(TWO, TWO, TWO, 1.0), r"targets must be of shape \(4, 4\)"),
        (lambda: unsupervised_self_expertise(TWO, TWO, torch.eye(4), 1.0, form="bce"), "'softmax' or 'binary'"),
        (lambda: use_targets(IDS, 0.5), "levels × images"),
        (lambda: use_targets(IDS[None], 1.5), "alpha must be from 0 to 1"),
        (lambda: radius_targets(TWO, TWO, THREE, 0.5), "levels × 2 images"),
        (lambda: prefix_distances(TWO, [3]), "from 1 to 2"),
        (lambda: prefix_distances(TWO, []), "from 1 to 2"),
        (lambda: published_targets(TWO, TWO, THREE, 0.5), "levels × 2 images"),
        (lambda: losses.self_distillation(TWO, THREE, 0.04), "two views"),
        (lambda: losses.mean_entropy(TWO[:0]), "rows × categories"),
        (lambda: losses.supervised_cross_entropy(THREE, IDS), "one for each row"),
    ],
)
def test_wrong_input_is_said_in_one_line(call, words):
    with pytest.raises(InputError, match=words) as error:
        call()
    assert "\n" not in str(error.value)
