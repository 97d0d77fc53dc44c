"""The losses of GCD and what SimGCD adds to them.

GCD (Vaze et al.): InfoNCE over two views, and the supervised contrastive loss of Khosla et al. SimGCD (Wen et al., ICCV
2023): those of a classifier that is taught by itself; its logits are the cosines of rows with its prototypes.

n rows; b images, n = 2b where there are two views; d dims; K categories, known ones first; leading dims (`...`) are
levels.
"""

from __future__ import annotations

from math import log

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from selex.errors import InputError
from selex.losses.similarity import (
    KINDS,
    Kind,
    check_choice,
    check_labels,
    check_same_rows,
    check_temperature,
    full_precision,
    logits_among,
    masked_out,
    own_entries,
    products,
)
from selex.types import UNLABELLED


def logits(a: Tensor, b: Tensor, kind: Kind = "distance") -> Tensor:
    """How alike the rows of two tables are, before any temperature: higher is more alike.

    Args:
        a: `n × d` rows.
        b: `m × d` rows.
        kind: `"distance"` is minus the Euclidean distance of the rows as they are, `"cosine"` that of their angle.

    Returns:
        `n × m` logits. The gradient is finite everywhere, and 0 where two rows coincide.
    """
    check_choice("kind", kind)
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1]:
        raise InputError(f"rows must be two tables of one width, not {tuple(a.shape)} and {tuple(b.shape)}")
    a, b = full_precision(a), full_precision(b)
    return KINDS[kind](products(a, b), a.square().sum(1), b.square().sum(1))


def info_nce(view_a: Tensor, view_b: Tensor, temperature: float, kind: Kind = "distance") -> Tensor:
    """Each row must pick its other view among all other rows of both views: the mean over the 2b rows.

    Args:
        view_a: `b × d` embeddings of one view of each image.
        view_b: `b × d` embeddings of the other view, in the same order.
        temperature: logits are divided by it.
        kind: `"distance"` or `"cosine"`, see `logits`.

    Returns:
        The loss, a scalar.
    """
    log_shares = log_shares_of_views(view_a, view_b, temperature, kind)
    return -positives_of(log_shares).mean()


def supervised_contrastive(embeddings: Tensor, labels: Tensor, temperature: float, kind: Kind = "distance") -> Tensor:
    """Rows of one category attract each other (Khosla et al., the mean over positives outside the logarithm).

    Rows without a label take no part, not even as negatives. A row that is alone in its category is a negative for the
    others and has no term of its own.

    Args:
        embeddings: `n × d` embeddings, all views below each other.
        labels: category of each of the n rows, -1 where unknown.
        temperature: logits are divided by it.
        kind: `"distance"` or `"cosine"`, see `logits`.

    Returns:
        The mean over rows that have positives. If there are none it is 0, with a gradient of 0.
    """
    check_labels(labels, embeddings)
    check_temperature(temperature)
    return supervised_from_logits(logits_among(embeddings, kind) / temperature, labels)


def supervised_from_logits(scaled: Tensor, labels: Tensor) -> Tensor:
    """Supervised contrastive loss of each level, from `... × n × n` logits over temperature and `... × n` labels."""
    others = (labels != UNLABELLED)[..., None, :] & ~own_entries(scaled)
    positives = (labels[..., :, None] == labels[..., None, :]) & others
    log_shares = scaled - masked_out(scaled, ~others).logsumexp(-1, keepdim=True)  # keepdim: each row by its own sum
    n_positives = positives.sum(-1)
    row_losses = -log_shares.masked_fill(~positives, 0).sum(-1) / n_positives.clamp(min=1)
    return row_losses.sum(-1) / (n_positives > 0).sum(-1).clamp(min=1)


def log_shares_of_views(view_a: Tensor, view_b: Tensor, temperature: float, kind: Kind) -> Tensor:
    """`2b × 2b` logarithm of the softmax over each row's logits, its own entry left out."""
    check_same_rows(view_a, view_b)
    check_temperature(temperature)
    return log_shares_of(logits_among(torch.cat([view_a, view_b]), kind), temperature)


def log_shares_of(square: Tensor, temperature: float) -> Tensor:
    """The same from the logits between all rows."""
    scaled = square / temperature
    return masked_out(scaled, own_entries(scaled)).log_softmax(1)


def positives_of(square: Tensor) -> Tensor:
    """The entry of each of 2b rows at its other view: column i + b in the first half, i - b in the second.

    Two diagonals: their gradient adds nothing up, so that it is the same in every bit each time, on a GPU too.
    """
    b = len(square) // 2
    return torch.cat([square.diagonal(b), square.diagonal(-b)])


def teacher_temperature(epoch: int, warmup_epochs: int = 30, start: float = 0.07, end: float = 0.04) -> float:
    """Temperature of the teacher in an epoch: straight from `start` to `end` in the warm-up epochs, then `end`.

    Args:
        epoch: counted from 0.
        warmup_epochs: the last of them is the first epoch with `end`.
        start: temperature of epoch 0, if there is a warm-up of at least two epochs.
        end: temperature after the warm-up; lower is sharper.
    """
    done = min(1.0, epoch / (warmup_epochs - 1)) if warmup_epochs > 1 else 1.0
    return start + (end - start) * done


def self_distillation(
    logits_a: Tensor, logits_b: Tensor, teacher_temperature: float | Tensor, student_temperature: float = 0.1
) -> Tensor:
    """Each view's prediction must match the other view's sharper one; the mean over both ways and all images.

    The teacher is the student itself without gradient.

    Args:
        logits_a: `b × K` logits of one view of each image.
        logits_b: `b × K` logits of the other view, in the same order.
        teacher_temperature: temperature of what is to be matched, see `teacher_temperature`.
        student_temperature: temperature of what is trained.

    Returns:
        The cross-entropy, a scalar.
    """
    check_same_rows(logits_a, logits_b)
    check_temperature(teacher_temperature)
    check_temperature(student_temperature)
    students = full_precision(torch.cat([logits_a, logits_b])) / student_temperature
    teachers = full_precision(torch.cat([logits_b, logits_a])).detach() / teacher_temperature
    return cross_entropy(students, teachers.softmax(1))


def mean_entropy(logits: Tensor, temperature: float = 0.1) -> Tensor:
    """How far the mean prediction is from even use of all categories: `log K - H(mean prediction)`, 0 where it is even.

    To minimise it is to maximise the entropy of the mean prediction, which keeps categories from being left empty.

    Args:
        logits: `n × K` logits, all views below each other.
        temperature: that of the student.

    Returns:
        The loss, a scalar from 0 to log K.
    """
    _check_logits(logits, temperature)
    log_shares = (full_precision(logits) / temperature).log_softmax(1)
    log_mean = log_shares.logsumexp(0) - log(len(logits))
    return log(logits.shape[1]) + (log_mean.exp() * log_mean).sum()


def supervised_cross_entropy(logits: Tensor, labels: Tensor, temperature: float = 0.1) -> Tensor:
    """Cross-entropy of the labelled rows; 0, with a gradient of 0, if there are none.

    Args:
        logits: `n × K` logits, all views below each other.
        labels: category of each of the n rows, -1 where unknown.
        temperature: that of the student.

    Returns:
        The mean over labelled rows, a scalar.
    """
    _check_logits(logits, temperature)
    check_labels(labels, logits)
    scaled = full_precision(logits) / temperature
    total = cross_entropy(scaled, labels.long(), ignore_index=UNLABELLED, reduction="sum")
    return total / (labels != UNLABELLED).sum().clamp(min=1)


def _check_logits(logits: Tensor, temperature: float) -> None:
    check_temperature(temperature)
    if logits.ndim != 2 or not logits.numel():
        raise InputError(f"logits must be rows × categories, not of shape {tuple(logits.shape)}")
