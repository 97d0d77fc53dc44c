"""The target matrix worked by hand, and distances over prefixes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import normalize
from torch.utils.flop_counter import FlopCounterMode

from loss_batches import Batch, prefix_distances, seeds
from selex.losses import (
    cluster_radii,
    nearest_prototypes,
    prefix_sizes,
    published_targets,
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


def test_published_targets_worked_out_by_hand():
    """Rows a0, a1, b0, b1; a column's radius is 2 for image 0 and 4.1 for image 1; sums of rows 1, 2, 1, 2 (halved)."""
    first, second = torch.tensor([[0.0, 0], [3, 0]]), torch.tensor([[0.0, 1], [3, 4]])
    radii = torch.tensor([[2.0, 4.1]])
    # apart: a0-a1 3, a0-b0 1, a0-b1 5, a1-b0 3.2, a1-b1 4, b0-b1 4.2
    far = torch.tensor([[0.0, 0, 0, 1], [1, 0, 1, 0], [0, 0, 0, 1], [1, 0, 1, 0]])
    expected = torch.tensor([[0.0, 0, 0, 0.5], [1, 0, 1, 0], [0, 0, 0, 0.5], [1, 0, 1, 0]])
    assert torch.equal(far.sum(1), torch.tensor([1.0, 2, 1, 2]))
    torch.testing.assert_close(published_targets(first, second, radii, 1.0), expected)
    positive = torch.eye(4).roll(2, 1)
    torch.testing.assert_close(published_targets(first, second, radii, 0.5), 0.5 * expected + 0.5 * positive)


def test_two_levels_of_published_targets_by_hand():
    """A pair that is far at both levels weighs 1 + ½, at the first alone 1, at the second alone ½; in their ratio."""
    first, second = torch.tensor([[0.0], [10]]), torch.tensor([[1.0], [12]])
    radii = torch.tensor([[20.0, 8.0], [0.5, 11.5]])  # rows 0, 10, 1, 12
    weights = torch.tensor([[0, 1, 0.5, 1.5], [0.5, 0, 0.5, 0], [0.5, 1, 0, 1], [0.5, 0, 0.5, 0]])
    torch.testing.assert_close(published_targets(first, second, radii, 1.0), weights / weights.sum(1))


def test_published_targets_where_nothing_is_far():
    near = published_targets(torch.zeros(2, 3), torch.ones(2, 3), torch.full((3, 2), 9.0), 1.0)
    assert torch.equal(near, torch.zeros(4, 4))


def test_published_radii_reach_to_the_nearest_other_prototype():
    level = Level(torch.tensor([0, 1, 2]), torch.tensor([[0.0, 0], [0, 1], [3, 1]]), 1, 0.0, 1)
    assert nearest_prototypes(level).tolist() == pytest.approx([1, 1, 3])


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
    raw = published_targets(20 * batch.a, 20 * batch.v, radii, 1.0)
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
