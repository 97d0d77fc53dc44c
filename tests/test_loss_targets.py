"""The target matrix worked by hand, and distances over prefixes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import normalize
from torch.utils.flop_counter import FlopCounterMode

from loss_batches import Batch, seeds
from selex.losses import (
    TargetVariant,
    cluster_radii,
    prefix_distances,
    prefix_sizes,
    radius_targets,
    supervised_self_expertise,
    use_targets,
)
from selex.types import Level


def figure():
    """The paper's figure: two cats, a lion and a car.

    Level 1 tells cats, lions and cars apart, level 2 animals from other things: a lion differs from a cat at level 1
    only, a car at both.
    """
    return torch.tensor([[0, 0, 1, 2], [0, 0, 0, 1]])


def test_the_target_matrix_of_the_papers_figure():
    half, far = 1 / 2, 3 / 4
    # columns: cat, cat, lion, car, and their other views
    cat = torch.tensor([0, 0, half, far, 1, 0, half, far]) / 3.5
    second_cat = torch.tensor([0, 0, half, far, 0, 1, half, far]) / 3.5
    lion = torch.tensor([half, half, 0, far, half, half, 1, far]) / 4.5
    car = torch.tensor([far, far, far, 0, far, far, far, 1]) / 5.5
    upper = torch.stack([cat, second_cat, lion, car])
    expected = torch.cat([upper, upper.roll(4, 1)])
    torch.testing.assert_close(use_targets(figure(), 1.0), expected)
    mixed = 0.5 * expected + 0.5 * torch.eye(8).roll(4, 1)
    torch.testing.assert_close(use_targets(figure(), 0.5), mixed)


def test_rows_of_the_published_targets_are_divided_by_other_rows_sums():
    paper, published = (use_targets(figure(), 1.0, TargetVariant(sums=sums)) for sums in ("rows", "columns"))
    sums = torch.tensor([3.5, 3.5, 4.5, 5.5]).repeat(2)
    torch.testing.assert_close(published, paper * sums[:, None] / sums)
    assert published.sum(1).sub(1).abs().max() > 0.05


@given(seeds, st.floats(0, 1))
def test_targets_are_distributions_over_the_other_rows(seed, alpha):
    batch = Batch(seed)
    for targets in (use_targets(batch.levels, alpha), radius_targets(batch.a, batch.v, batch.radii, alpha)):
        torch.testing.assert_close(targets.sum(1), torch.ones(2 * batch.b))
        assert (targets >= 0).all()
        assert (targets.diagonal() == 0).all()


def test_raw_features_are_far_from_all_under_radii_of_normalised_ones():
    batch = Batch(0, b=4, levels=2)
    radii = torch.full((2, 4), 2.0)  # no two unit rows are farther apart
    near = radius_targets(20 * batch.a, 20 * batch.v, radii, 1.0)
    torch.testing.assert_close(near, torch.eye(8).roll(4, 1))
    raw = radius_targets(20 * batch.a, 20 * batch.v, radii, 1.0, TargetVariant(features="raw"))
    assert (raw > 0).sum() == 8 * 7


def test_radii_reach_the_farthest_row_of_each_cluster():
    features = torch.tensor([[0.0, 0], [2, 0], [0, 1], [5, 5]])
    level = Level(torch.tensor([0, 0, 1, 1]), torch.tensor([[0.0, 0], [0, 1], [9, 9]]), 1, 0.0, 1)
    assert cluster_radii(features, level).tolist() == pytest.approx([2, 41**0.5, 0])


@given(seeds, st.integers(1, 40), st.integers(0, 6))
def test_prefix_distances_are_those_of_cdist_at_each_level(seed, dims, levels):
    z = Batch(seed, b=5, dims=dims).rows
    sizes = prefix_sizes(dims, levels)
    expected = torch.stack([torch.cdist(z[:, :size], z[:, :size]) for size in sizes])
    torch.testing.assert_close(prefix_distances(z, sizes), expected, rtol=0, atol=1e-7)
    torch.testing.assert_close(prefix_distances(z, sizes[::-1]), expected.flip(0), rtol=0, atol=1e-7)


def test_prefix_distances_of_a_wide_batch_in_float32():
    z = normalize(torch.randn(64, 65536, generator=torch.Generator().manual_seed(0)))
    sizes = prefix_sizes(65536, 7)
    wide = z.double()
    expected = torch.stack([torch.cdist(wide[:, :size], wide[:, :size]) for size in sizes])
    torch.testing.assert_close(prefix_distances(z, sizes).double(), expected, rtol=0, atol=1e-5)


def test_prefix_sizes_halve_down_to_one():
    assert prefix_sizes(256, 3) == [256, 128, 64, 32]
    assert prefix_sizes(5, 4) == [5, 2, 1, 1, 1]
    assert prefix_sizes(7, 0) == [7]


def test_the_products_of_all_levels_cost_as_much_as_one_gram_matrix():
    batch = Batch(0, b=4, dims=64, levels=5)
    labels, levels = batch.both
    with FlopCounterMode(display=False) as counter:
        supervised_self_expertise(batch.rows, labels, levels, 0.07)
    assert counter.get_total_flops() == 2 * 8 * 8 * 64
