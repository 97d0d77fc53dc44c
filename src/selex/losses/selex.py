"""Self-expertise: the unsupervised and the supervised loss of the paper (eq. 10 and 11), and the targets of the first.

n rows; b images, n = 2b where there are two views, one below the other; d dims; L levels of pseudo-labels, finest
first. Row i of a target matrix (eq. 8 and 9, algorithm 6) says how much each other row may be taken for the other view
of row i.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

from selex.cluster.kmeans import distances_to_own
from selex.errors import InputError
from selex.losses.gcd import log_shares_of, log_shares_of_views, supervised_from_logits
from selex.losses.similarity import (
    Kind,
    check_choice,
    check_labels,
    check_same_rows,
    check_temperature,
    full_precision,
    logits_among,
    logits_of,
    prefix_products,
)
from selex.types import Level


def use_targets(level_labels: Tensor, alpha: float) -> Tensor:
    """Targets from pseudo-labels: `y_ij = Σ_k 1(c_i^k ≠ c_j^k) / 2^k`, 1 at the positive (eq. 8).

    Args:
        level_labels: `levels × b` cluster of each image at each level, finest first; `0 × b` without any level.
        alpha: how much of Y there is in `alpha·Y + (1 - alpha)·I` (eq. 9), I being 1 at the positive.

    Returns:
        `2b × 2b` targets, 0 on the diagonal, rows summing to 1.
    """
    if level_labels.ndim != 2:
        raise InputError(f"level_labels must be levels × images, not of shape {tuple(level_labels.shape)}")
    far = _halved_sum(level_labels[:, :, None] != level_labels[:, None, :])
    return _targets(far.repeat(2, 2), alpha)


def radius_targets(features_a: Tensor, features_b: Tensor, radii: Tensor, alpha: float) -> Tensor:
    """Targets from distances: row j is far from row i at a level if it is over the radius of i's cluster (algorithm 6).

    Args:
        features_a: `b × d` backbone features of one view of each image; L2-normalised here.
        features_b: `b × d` features of the other view, in the same order.
        radii: `levels × b` radius of each image's cluster at each level, finest first; see `cluster_radii`.
        alpha: how much of Y there is in `alpha·Y + (1 - alpha)·I` (eq. 9), I being 1 at the positive.

    Returns:
        `2b × 2b` targets, 0 on the diagonal, rows summing to 1; not symmetric, as clusters differ in radius.
    """
    rows = normalize(full_precision(_both(features_a, features_b, radii)))
    far = _halved_sum(-logits_among(rows, "distance") > radii.repeat(1, 2)[:, :, None])
    return _targets(far, alpha)


def published_targets(features_a: Tensor, features_b: Tensor, radii: Tensor, alpha: float) -> Tensor:
    """Targets as the published code makes them: row j is far from row i if it is over the radius of *j's* cluster.

    Distances are those of features as they are, with radii of normalised ones; the positive has no say of its own; and
    an entry is divided by the sum of row j where it should be row i's, so that rows do not sum to 1.

    Args:
        features_a: `b × d` backbone features of one view of each image.
        features_b: `b × d` features of the other view, in the same order.
        radii: `levels × b` radius of each image's cluster at each level, finest first; see `nearest_prototypes`.
        alpha: how much of Y there is in `alpha·Y + (1 - alpha)·I` (eq. 9), I being 1 at the positive.

    Returns:
        `2b × 2b` targets, 0 on the diagonal.
    """
    rows = full_precision(_both(features_a, features_b, radii))
    far = _halved_sum(-logits_among(rows, "distance") > radii.repeat(1, 2)[:, None, :]).fill_diagonal_(0)
    sums = far.sum(1)
    return _smoothed(far / sums.where(sums > 0, 1), alpha)


def nearest_prototypes(level: Level) -> Tensor:
    """Radius of each cluster of a level in the published code: the distance from its prototype to the nearest other."""
    centers = torch.as_tensor(level.centers)
    apart: Tensor = torch.cdist(centers, centers)
    return apart.fill_diagonal_(torch.inf).min(1).values


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


def _both(features_a: Tensor, features_b: Tensor, radii: Tensor) -> Tensor:
    """Both views, one below the other, checked."""
    check_same_rows(features_a, features_b)
    if radii.ndim != 2 or radii.shape[1] != len(features_a):
        raise InputError(f"radii must be levels × {len(features_a)} images, not of shape {tuple(radii.shape)}")
    return torch.cat([features_a, features_b])


def _targets(far: Tensor, alpha: float) -> Tensor:
    """Eq. 9 from the sums of eq. 8, for 2b rows: 1 at the positive, then each row by its sum."""
    y = far.fill_diagonal_(0).where(_positive(far) == 0, 1)
    return _smoothed(y / y.sum(1, keepdim=True), alpha)


def _smoothed(y: Tensor, alpha: float) -> Tensor:
    if not 0 <= alpha <= 1:
        raise InputError(f"alpha must be from 0 to 1, not {alpha}")
    return alpha * y + (1 - alpha) * _positive(y)


def _positive(y: Tensor) -> Tensor:
    """1 where a column is the other view of the row."""
    return torch.eye(len(y), dtype=y.dtype, device=y.device).roll(len(y) // 2, 1)


def unsupervised_self_expertise(
    view_a: Tensor,
    view_b: Tensor,
    targets: Tensor,
    temperature: float,
    kind: Kind = "distance",
    form: Literal["softmax", "binary"] = "softmax",
) -> Tensor:
    """USE: the cross-entropy of each row's shares `p = softmax(logits)`, its own entry left out, against its targets.

    With the targets of `alpha = 0` the form `"softmax"` is `info_nce`.

    Args:
        view_a: `b × d` embeddings of one view of each image.
        view_b: `b × d` embeddings of the other view, in the same order.
        targets: `2b × 2b`, from `use_targets` or `radius_targets`.
        temperature: logits are divided by it.
        kind: `"distance"` or `"cosine"`, see `logits`.
        form: `"softmax"` is `-Σ_j y_ij log p_ij`, `"binary"` adds `-Σ_j (1 - y_ij) log(1 - p_ij)`; the mean over rows.

    Returns:
        The loss, a scalar.
    """
    check_choice("form", form, tuple(_FORMS))
    return _unsupervised(log_shares_of_views(view_a, view_b, temperature, kind), targets, form)


def supervised_self_expertise(
    embeddings: Tensor, labels: Tensor, level_labels: Tensor, temperature: float, kind: Kind = "distance"
) -> Tensor:
    """SSE: `½ (L^0 + Σ_k L^k / 2^k)`, `L^k` the supervised contrastive loss on the first `d / 2^k` dims (eq. 11).

    `L^0` is that of the ground truth on all dims, `L^k` that of the pseudo-labels of level k. Without levels there is
    nothing to halve for: the loss is `L^0`, which is `supervised_contrastive`.

    Args:
        embeddings: `n × d` embeddings, all views below each other.
        labels: category of each of the n rows, -1 where unknown.
        level_labels: `L × n` cluster of each row at each level, finest first; -1 leaves a row out of a level.
        temperature: logits are divided by it.
        kind: `"distance"` of the prefixes as they are, or `"cosine"` of the angle between prefixes, each by its own
            norm.

    Returns:
        The loss, a scalar.
    """
    check_temperature(temperature)
    check_labels(labels, embeddings)
    _check_levels(labels, level_labels)
    sizes = prefix_sizes(embeddings.shape[1], len(level_labels))
    prefixes = logits_of(prefix_products(embeddings, sizes), kind)
    return _supervised(prefixes, labels, level_labels, temperature)


def self_expertise(
    inner: Tensor,
    targets: Tensor,
    labels: Tensor,
    level_labels: Tensor,
    temperatures: tuple[float, float],
    kind: Kind = "distance",
    form: Literal["softmax", "binary"] = "softmax",
) -> tuple[Tensor, Tensor]:
    """Both losses of a batch, from inner products alone: those of USE are the largest prefix of SSE's.

    Args:
        inner: `L + 1 × 2b × 2b` inner products of embeddings, one view of each image below the other, over the first
            dims of `prefix_sizes`: from `prefix_products`, or without embeddings from `ProjectionHead.products`.
        targets: `2b × 2b`, see `unsupervised_self_expertise`.
        labels: category of each of the 2b rows, -1 where unknown.
        level_labels: `L × 2b`, see `supervised_self_expertise`.
        temperatures: of the unsupervised and of the supervised loss.
        kind: `"distance"` or `"cosine"`, see `logits`.
        form: see `unsupervised_self_expertise`.

    Returns:
        `unsupervised_self_expertise` and `supervised_self_expertise`.
    """
    check_choice("form", form, tuple(_FORMS))
    for temperature in temperatures:
        check_temperature(temperature)
    _check_levels(labels, level_labels)
    shape = (len(level_labels) + 1, len(labels), len(labels))
    if inner.shape != shape:
        raise InputError(f"inner must be of shape {shape}, not {tuple(inner.shape)}")
    prefixes = logits_of(inner, kind)
    use = _unsupervised(log_shares_of(prefixes[0], temperatures[0]), targets, form)
    return use, _supervised(prefixes, labels, level_labels, temperatures[1])


def prefix_sizes(dims: int, n_levels: int) -> list[int]:
    """Dims of the ground truth and of each of `n_levels` levels: `dims`, half of it, …, rounded down, at least 1."""
    return [max(1, dims >> level) for level in range(n_levels + 1)]


def _check_levels(labels: Tensor, level_labels: Tensor) -> None:
    if level_labels.ndim != 2 or level_labels.shape[1] != len(labels):
        raise InputError(f"level_labels must be levels × {len(labels)} rows, not of shape {tuple(level_labels.shape)}")


def _unsupervised(log_shares: Tensor, targets: Tensor, form: str) -> Tensor:
    if targets.shape != log_shares.shape:
        raise InputError(f"targets must be of shape {tuple(log_shares.shape)}, not {tuple(targets.shape)}")
    return _FORMS[form](log_shares, targets.to(log_shares.dtype)).sum(1).mean()


def _supervised(prefixes: Tensor, labels: Tensor, level_labels: Tensor, temperature: float) -> Tensor:
    losses = supervised_from_logits(prefixes / temperature, torch.cat([labels[None], level_labels]))
    weights = 0.5 ** torch.arange(len(losses), device=losses.device)
    return (weights * losses).sum() / (2 if len(level_labels) else 1)


def _binary_form(log_shares: Tensor, targets: Tensor) -> Tensor:
    # a share of 1, as in a batch of one image, would be the logarithm of 0
    rest = 1 - log_shares.exp().clamp(max=1 - torch.finfo(log_shares.dtype).eps)
    return -targets * log_shares - (1 - targets) * rest.log()


_FORMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "softmax": lambda log_shares, targets: -targets * log_shares,
    "binary": _binary_form,
}
