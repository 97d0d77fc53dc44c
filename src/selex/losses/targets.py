"""Target matrices of unsupervised self-expertise (paper eq. 8 and 9, algorithm 6).

b images in two views are 2b rows, one view below the other. Row i of a target says how much each other row may be
taken for the other view of row i.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

from selex.cluster.kmeans import distances_to_own
from selex.errors import InputError
from selex.losses.similarity import check_choice, check_same_rows, full_precision, logits_among
from selex.types import Level


@dataclass(frozen=True)
class TargetVariant:
    """Where the published code leaves the paper's target matrix, for comparison. Every default is the paper's text.

    Attributes:
        features: radii are compared with distances of `"normalised"` features, as the radii are, or of `"raw"` ones,
            under which nearly every pair is far.
        sums: a target's entries are divided by the sum of their own `"rows"`, so that each row sums to 1, or by the
            entry's `"columns"`: row sums divided by without keeping their dimension.
    """

    features: Literal["normalised", "raw"] = "normalised"
    sums: Literal["rows", "columns"] = "rows"

    def __post_init__(self) -> None:
        check_choice("features", self.features, ("normalised", "raw"))
        check_choice("sums", self.sums, ("rows", "columns"))


PAPER = TargetVariant()


def use_targets(level_labels: Tensor, alpha: float, variant: TargetVariant = PAPER) -> Tensor:
    """Targets from pseudo-labels: `y_ij = Σ_k 1(c_i^k ≠ c_j^k) / 2^k`, 1 at the positive (eq. 8).

    Args:
        level_labels: `levels × b` cluster of each image at each level, finest first; `0 × b` without any level.
        alpha: how much of Y there is in `alpha·Y + (1 - alpha)·I` (eq. 9), I being 1 at the positive.
        variant: differences from the paper, for comparison.

    Returns:
        `2b × 2b` targets, 0 on the diagonal, rows summing to 1.
    """
    if level_labels.ndim != 2:
        raise InputError(f"level_labels must be levels × images, not of shape {tuple(level_labels.shape)}")
    far = _halved_sum(level_labels[:, :, None] != level_labels[:, None, :])
    return _targets(far.repeat(2, 2), alpha, variant)


def radius_targets(
    features_a: Tensor, features_b: Tensor, radii: Tensor, alpha: float, variant: TargetVariant = PAPER
) -> Tensor:
    """Targets from distances: row j is far from row i at a level if it is over the radius of i's cluster (algorithm 6).

    Args:
        features_a: `b × d` backbone features of one view of each image; L2-normalised here.
        features_b: `b × d` features of the other view, in the same order.
        radii: `levels × b` radius of each image's cluster at each level, finest first; see `cluster_radii`.
        alpha: how much of Y there is in `alpha·Y + (1 - alpha)·I` (eq. 9), I being 1 at the positive.
        variant: differences from the paper, for comparison.

    Returns:
        `2b × 2b` targets, 0 on the diagonal, rows summing to 1; not symmetric, as clusters differ in radius.
    """
    check_same_rows(features_a, features_b)
    if radii.ndim != 2 or radii.shape[1] != len(features_a):
        raise InputError(f"radii must be levels × {len(features_a)} images, not of shape {tuple(radii.shape)}")
    rows = torch.cat([features_a, features_b])
    if variant.features == "normalised":
        rows = normalize(full_precision(rows))
    far = _halved_sum(-logits_among(rows, "distance") > radii.repeat(1, 2)[:, :, None])
    return _targets(far, alpha, variant)


def cluster_radii(features: Tensor, level: Level) -> Tensor:
    """Radius of each cluster of a level: the largest distance of one of its rows to its centre, 0 for an empty one.

    The features are those that were clustered: L2-normalised ones, in row order.
    """
    far: Tensor = distances_to_own(features, level)
    labels = torch.as_tensor(level.labels, device=far.device).long()
    return far.new_zeros(level.n_clusters).scatter_reduce(0, labels, far, "amax")


def _halved_sum(far: Tensor) -> Tensor:
    """`Σ_k far_k / 2^k` over levels k = 1, 2, …"""
    weights = 0.5 ** torch.arange(1, len(far) + 1, device=far.device)
    return (weights[:, None, None] * far).sum(0)


def _targets(far: Tensor, alpha: float, variant: TargetVariant) -> Tensor:
    """Eq. 9 from the sums of eq. 8, for 2b rows."""
    if not 0 <= alpha <= 1:
        raise InputError(f"alpha must be from 0 to 1, not {alpha}")
    positive = torch.eye(len(far), dtype=far.dtype, device=far.device).roll(len(far) // 2, 1)
    y = far.fill_diagonal_(0).where(positive == 0, 1)
    # keepdim divides entry (i, j) by the sum of row i; without it numbers are matched with columns, and it is row j's
    y = y / y.sum(1, keepdim=variant.sums == "rows")
    return alpha * y + (1 - alpha) * positive
