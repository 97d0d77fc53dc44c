"""Each loss against plain loops, against the others, and what must not change it."""

import inspect
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import reference_losses as plain
from loss_batches import FORMS, Batch, every_loss, kinds, seeds, temperatures
from selex import losses
from selex.losses import (
    info_nce,
    logits,
    prefix_products,
    prefix_sizes,
    radius_targets,
    self_expertise,
    supervised_contrastive,
    supervised_self_expertise,
    unsupervised_self_expertise,
    use_targets,
)


def equal(value, expected, tolerance=1e-9):
    assert value.ndim == 0
    assert value.item() == pytest.approx(expected, rel=tolerance, abs=tolerance)


@given(seeds, kinds)
def test_logits_as_plain_loops(seed, kind):
    batch = Batch(seed)
    expected = [[plain.alike(x, y, kind) for y in batch.v.tolist()] for x in batch.a.tolist()]
    torch.testing.assert_close(logits(batch.a, batch.v, kind), torch.tensor(expected, dtype=torch.float64))


@given(seeds, kinds, temperatures)
def test_info_nce_as_plain_loops(seed, kind, temperature):
    batch = Batch(seed)
    expected = plain.info_nce(batch.a.tolist(), batch.v.tolist(), temperature, kind)
    equal(info_nce(batch.a, batch.v, temperature, kind), expected)


@given(seeds, kinds, temperatures)
def test_supervised_contrastive_as_plain_loops(seed, kind, temperature):
    batch = Batch(seed)
    labels = batch.labels.repeat(2)
    labels[0] = -1  # views may differ, and rows may be alone
    expected = plain.supervised_contrastive(batch.rows.tolist(), labels.tolist(), temperature, kind)
    equal(supervised_contrastive(batch.rows, labels, temperature, kind), expected)


@given(seeds, kinds, st.sampled_from(FORMS), temperatures)
def test_both_losses_at_once_are_the_two_of_them(seed, kind, form, temperature):
    batch = Batch(seed)
    targets, labels, levels = use_targets(batch.levels, 0.5), batch.labels.repeat(2), batch.levels.repeat(1, 2)
    inner = prefix_products(batch.rows, prefix_sizes(batch.rows.shape[1], len(levels)))
    use, sse = self_expertise(inner, targets, labels, levels, (temperature, 0.3), kind, form)
    equal(use, unsupervised_self_expertise(batch.a, batch.v, targets, temperature, kind, form).item())
    equal(sse, supervised_self_expertise(batch.rows, labels, levels, 0.3, kind).item())


@given(seeds, st.floats(0, 1))
def test_targets_as_plain_loops(seed, alpha):
    batch = Batch(seed)
    expected = plain.label_targets(batch.levels.tolist(), batch.b, alpha)
    torch.testing.assert_close(use_targets(batch.levels, alpha), torch.tensor(expected))


@given(seeds, st.floats(0, 1))
def test_radius_targets_as_plain_loops(seed, alpha):
    batch = Batch(seed)
    a, v = 3 * batch.a, 5 * batch.v
    expected = plain.radius_targets(a.tolist(), v.tolist(), batch.radii.tolist(), alpha)
    torch.testing.assert_close(radius_targets(a, v, batch.radii, alpha), torch.tensor(expected))


@given(seeds, kinds, temperatures, st.sampled_from(FORMS))
def test_unsupervised_self_expertise_as_plain_loops(seed, kind, temperature, form):
    batch = Batch(seed, b=4)
    targets = use_targets(batch.levels, 0.7)
    args = (batch.a.tolist(), batch.v.tolist(), targets.tolist(), temperature, kind, form)
    expected = plain.unsupervised_self_expertise(*args)
    equal(unsupervised_self_expertise(batch.a, batch.v, targets, temperature, kind, form), expected)


@given(seeds, kinds, temperatures)
def test_supervised_self_expertise_as_plain_loops(seed, kind, temperature):
    batch = Batch(seed)
    labels, levels = batch.both
    args = (batch.rows.tolist(), labels.tolist(), levels.tolist(), temperature, kind)
    expected = plain.supervised_self_expertise(*args)
    equal(supervised_self_expertise(batch.rows, labels, levels, temperature, kind), expected)


@given(seeds, temperatures, temperatures)
def test_distillation_as_plain_loops(seed, teacher, student):
    batch = Batch(seed)
    a, v = batch.a.tolist(), batch.v.tolist()
    equal(losses.self_distillation(batch.a, batch.v, teacher, student), plain.self_distillation(a, v, teacher, student))
    equal(losses.mean_entropy(batch.rows, student), plain.mean_entropy(a + v, student))
    labels = batch.labels.repeat(2)
    expected = plain.supervised_cross_entropy(a + v, labels.tolist(), student)
    equal(losses.supervised_cross_entropy(batch.rows, labels, student), expected)


@given(seeds, kinds, temperatures)
def test_alpha_0_is_info_nce_bit_for_bit(seed, kind, temperature):
    batch = Batch(seed, dtype=torch.float32)
    use = unsupervised_self_expertise(batch.a, batch.v, use_targets(batch.levels, 0.0), temperature, kind)
    assert use == info_nce(batch.a, batch.v, temperature, kind)


@given(seeds, st.floats(0, 1))
def test_without_levels_any_alpha_is_info_nce(seed, alpha):
    batch = Batch(seed, levels=0)
    use = unsupervised_self_expertise(batch.a, batch.v, use_targets(batch.levels, alpha), 1.0)
    torch.testing.assert_close(use, info_nce(batch.a, batch.v, 1.0))


@given(seeds, kinds, st.floats(0, 1))
def test_alpha_0_without_levels_is_the_loss_of_gcd(seed, kind, balance):
    batch = Batch(seed, levels=0, dtype=torch.float32)
    labels, levels = batch.both
    use = unsupervised_self_expertise(batch.a, batch.v, use_targets(batch.levels, 0.0), 1.0, kind)
    sse = supervised_self_expertise(batch.rows, labels, levels, 0.07, kind)
    gcd = (1 - balance) * info_nce(batch.a, batch.v, 1.0, kind)
    gcd = gcd + balance * supervised_contrastive(batch.rows, labels, 0.07, kind)
    torch.testing.assert_close((1 - balance) * use + balance * sse, gcd, rtol=1e-7, atol=1e-7)


@given(seeds)
def test_distance_and_cosine_of_unit_rows_tell_the_same(seed):
    batch = Batch(seed)
    cosine = logits(batch.a, batch.v, "cosine")
    torch.testing.assert_close(logits(batch.a, batch.v, "distance"), -(2 - 2 * cosine).clamp(min=0).sqrt())


def test_labels_of_one_view_pair_each_make_supervised_contrastive_info_nce():
    batch = Batch(1, b=5)
    own = torch.arange(5).repeat(2)
    torch.testing.assert_close(supervised_contrastive(batch.rows, own, 0.3), info_nce(batch.a, batch.v, 0.3))


@given(seeds, kinds)
def test_the_order_of_images_does_not_matter(seed, kind):
    batch = Batch(seed)
    found, again = every_loss(batch, kind), every_loss(batch.permuted(), kind)
    torch.testing.assert_close(again, found)


@given(seeds, kinds)
def test_the_order_of_views_does_not_matter(seed, kind):
    batch = Batch(seed)
    found = every_loss(batch, kind)
    batch.a, batch.v = batch.v, batch.a
    torch.testing.assert_close(every_loss(batch, kind), found)


@given(seeds)
def test_names_of_clusters_do_not_matter(seed):
    batch = Batch(seed)
    found = every_loss(batch)
    names = torch.tensor([7, 3, 5, -1])  # the last one is that of -1
    batch.levels, batch.labels = names[batch.levels], names[batch.labels]
    again = every_loss(batch)
    del found["cross_entropy"], again["cross_entropy"]  # whose labels are positions
    torch.testing.assert_close(again, found)


@given(seeds, kinds)
def test_unlabelled_rows_take_no_part_in_the_supervised_loss(seed, kind):
    batch = Batch(seed)
    labels = batch.labels.repeat(2)
    kept = labels != -1
    expected = supervised_contrastive(batch.rows[kept], labels[kept], 0.3, kind)
    torch.testing.assert_close(supervised_contrastive(batch.rows, labels, 0.3, kind), expected)


@pytest.mark.parametrize("name", losses.__all__)
def test_every_public_name_is_documented(name):
    thing = getattr(losses, name)
    page = (Path(__file__).parent.parent / "docs" / "losses.md").read_text()
    assert f"::: selex.losses.{name}\n" in page
    assert name in losses.__doc__
    assert [parameter for parameter in inspect.signature(thing).parameters if parameter not in thing.__doc__] == []
