"""The losses of a parametric classifier, SimGCD (Wen et al., ICCV 2023): a classifier taught by itself.

b images; n rows; K categories, known ones first. Logits are the cosines of rows with the classifier's prototypes.
"""

from __future__ import annotations

from math import log

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from selex.errors import InputError
from selex.losses.similarity import check_labels, check_same_rows, check_temperature, full_precision
from selex.types import UNLABELLED


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
