"""Random batches for the tests of losses, and every loss of a batch."""

import torch
from hypothesis import strategies as st
from torch.nn.functional import normalize

from selex import losses
from selex.losses import (
    info_nce,
    prefix_products,
    radius_targets,
    supervised_contrastive,
    supervised_self_expertise,
    unsupervised_self_expertise,
    use_targets,
)
from selex.losses.similarity import logits_of

KINDS = ["distance", "cosine"]
FORMS = ["softmax", "binary"]
seeds = st.integers(0, 2**32)
kinds = st.sampled_from(KINDS)
temperatures = st.sampled_from([0.07, 0.3, 1.0])


class Batch:
    """A random batch in float64: two views, labels with -1, pseudo-labels of some levels."""

    def __init__(self, seed, b=None, dims=8, levels=None, dtype=torch.float64):
        rng = torch.Generator().manual_seed(seed)
        b = b or int(torch.randint(1, 7, (), generator=rng))
        levels = int(torch.randint(0, 5, (), generator=rng)) if levels is None else levels
        self.b = b
        rows = normalize(torch.randn(2 * b, dims, generator=rng, dtype=torch.float64))
        self.a, self.v = rows.to(dtype).split(b)
        self.labels = torch.randint(-1, 3, (b,), generator=rng)
        self.levels = torch.randint(0, 3, (levels, b), generator=rng)
        self.radii = 2 * torch.rand(levels, b, generator=rng, dtype=torch.float64)
        self.order = torch.randperm(b, generator=rng)

    @property
    def rows(self):
        return torch.cat([self.a, self.v])

    @property
    def both(self):
        """Labels and pseudo-labels of the rows of both views."""
        return self.labels.repeat(2), self.levels.repeat(1, 2)

    def permuted(self):
        """The same batch with its images in another order."""
        other = object.__new__(Batch)
        other.b, order = self.b, self.order
        other.a, other.v, other.labels = self.a[order], self.v[order], self.labels[order]
        other.levels, other.radii = self.levels[:, order], self.radii[:, order]
        return other


def every_loss(batch, kind="distance"):
    """Each loss of a batch, by name."""
    labels, levels = batch.both
    targets = use_targets(batch.levels, 0.5)
    near = radius_targets(batch.a, batch.v, batch.radii, 0.5)
    return {
        "info_nce": info_nce(batch.a, batch.v, 0.5, kind),
        "supervised": supervised_contrastive(batch.rows, labels, 0.5, kind),
        "sse": supervised_self_expertise(batch.rows, labels, levels, 0.5, kind),
        "radius": unsupervised_self_expertise(batch.a, batch.v, near, 0.5, kind),
        **{form: unsupervised_self_expertise(batch.a, batch.v, targets, 0.5, kind, form) for form in FORMS},
        "distillation": losses.self_distillation(batch.a, batch.v, 0.04),
        "mean_entropy": losses.mean_entropy(batch.rows),
        "cross_entropy": losses.supervised_cross_entropy(batch.rows, labels),
    }


def prefix_distances(rows, sizes):
    """Distances between rows over their first dims."""
    return -logits_of(prefix_products(rows, sizes), "distance")
