"""GCD (Vaze et al., CVPR 2022): InfoNCE over all rows and the supervised contrastive loss over labelled ones.

SimGCD (Wen et al., ICCV 2023) adds a classifier over all categories, known and novel, that teaches itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from selex.config import TrainConfig
from selex.losses import (
    info_nce,
    mean_entropy,
    self_distillation,
    supervised_contrastive,
    supervised_cross_entropy,
    teacher_temperature,
)
from selex.models.heads import Classifier
from selex.models.network import Backbone
from selex.training.methods.base import Batch, Losses, Method, Task, views
from selex.types import Hierarchy, Level


class GCD(Method):
    """Contrastive training; categories are found by semi-supervised k-means in the end."""

    def encode(self, states: Tensor) -> tuple[Tensor, ...]:
        """Embeddings."""
        return (self.head(self.features(states)),)

    def losses(self, encoded: tuple[Tensor, ...], batch: Batch) -> Losses:
        """`(1 - lambda) InfoNCE + lambda SupCon`."""
        (embeddings,), settings = encoded, self.settings
        unsupervised = info_nce(*views(embeddings), settings.temperature, self.kind)
        labels = batch.labels.repeat(2)
        supervised = supervised_contrastive(embeddings, labels, settings.supervised_temperature, self.kind)
        loss = (1 - settings.sup_weight) * unsupervised + settings.sup_weight * supervised
        return {"loss": loss, "unsupervised": unsupervised.detach(), "supervised": supervised.detach()}


ENTROPY_WEIGHT = 2.0
WARMUP = 30


class SimGCD(Method):
    """Parametric: categories are the classifier's, no clustering."""

    head: Classifier
    clusters = False
    sharpness: Tensor

    def __init__(self, backbone: Backbone, task: Task, settings: TrainConfig) -> None:
        super().__init__(backbone, task, settings)
        self.register_buffer("sharpness", torch.tensor(0.07))

    def make_head(self, dim: int) -> nn.Module:
        """A prototype for each category, and the projection beside it."""
        return Classifier(dim, self.task.n_categories)

    def prepare(self, epoch: int, features: Callable[[], Tensor], labels: Tensor, rng: Any) -> Level | None:
        """The teacher's temperature; the categories as they are now, to be watched."""
        self.sharpness.fill_(teacher_temperature(epoch, min(WARMUP, max(1, self.settings.epochs // 4))))
        if epoch % self.settings.interval:
            return None
        return self.classify(features(), labels).levels[0]

    def encode(self, states: Tensor) -> tuple[Tensor, ...]:
        """Projections and logits."""
        projections, logits = self.head(self.features(states))
        return projections, logits

    def losses(self, encoded: tuple[Tensor, ...], batch: Batch) -> Losses:
        """Self-distillation with even use of categories, cross-entropy of labelled rows, and GCD's two losses."""
        (projections, logits), labels, weight = encoded, batch.labels.repeat(2), self.settings.sup_weight
        distilled = self_distillation(*views(logits), self.sharpness)
        uneven = mean_entropy(logits)
        supervised = supervised_cross_entropy(logits, labels)
        contrast = info_nce(*views(projections), self.settings.temperature, self.kind)
        alike = supervised_contrastive(projections, labels, self.settings.supervised_temperature, self.kind)
        unlabelled = distilled + ENTROPY_WEIGHT * uneven + contrast
        parts = {"distilled": distilled, "uneven": uneven, "supervised": supervised, "contrast": contrast}
        loss = (1 - weight) * unlabelled + weight * (supervised + alike)
        return {"loss": loss, **{name: part.detach() for name, part in parts.items()}}

    @torch.no_grad()
    def classify(self, features: Tensor, labels: Tensor) -> Hierarchy:
        """One level: the classifier's categories; labelled rows keep their own."""
        prototypes, rows = self.head.prototypes.float(), normalize(features.float(), dim=1)
        found = (rows @ prototypes.T).argmax(1)
        found = torch.where(labels >= 0, labels, found)
        inertia = float((rows - prototypes[found]).square().sum())
        return Hierarchy((Level(found, prototypes, self.task.n_known, inertia, 0),))
