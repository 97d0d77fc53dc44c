"""SelEx (ECCV 2024): self-expertise with pseudo-labels at many levels of abstraction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from selex.cluster.adapt import TEMPERATURE, adapt, attraction, positives
from selex.cluster.hierarchy import hssk
from selex.cluster.search.consensus import agreement_runs
from selex.cluster.whiten import fit_whitener
from selex.config import TrainConfig
from selex.losses import (
    cluster_radii,
    nearest_prototypes,
    prefix_sizes,
    published_targets,
    radius_targets,
    self_expertise,
    use_targets,
)
from selex.models.heads import ProjectionHead
from selex.models.network import Backbone
from selex.training.methods.base import Batch, Losses, Method, Task, views
from selex.types import Hierarchy, Level, variant_for

PROTOTYPE_TEMPERATURE = 0.1
BANK = 16_384
"""Images that views are compared with at most: a batch alone holds few pairs of one category."""
AGREED = 0.7
"""Share of the clusterings from which on two images are a positive pair."""


class SelEx(Method):
    """Hierarchical pseudo-labels before each epoch; USE and SSE on each batch."""

    own_kind = "distance"
    head: ProjectionHead
    level_labels: Tensor
    radii: Tensor
    centers: Tensor
    runs: Tensor
    """Cluster of each image in each of many runs, `(r, N)`."""
    bank: Tensor
    """Images that views are compared with, `(m,)`."""
    keys: Tensor
    """Their features, as they are clustered, `(m, d)`."""

    def __init__(self, backbone: Backbone, task: Task, settings: TrainConfig) -> None:
        super().__init__(backbone, task, settings)
        for name in ("level_labels", "radii", "centers", "runs", "bank", "keys"):  # they stay for `interval` epochs
            self.register_buffer(name, None)
        self.variant = variant_for(settings.quirks)
        self.augmented = self.variant.crops == "augmented"
        self.published_targets = "targets" in settings.quirks
        self.by_radii = settings.targets == "radii" or self.published_targets

    def mapped(self, features: Tensor, labels: Tensor, rng: Any) -> Tensor:
        """Features as they are clustered: whitened, and adapted where clusterings are to agree."""
        if not self.settings.agreement:
            return super().mapped(features, labels, rng)
        task = self.task
        known = labels if task.n_known else None
        whitener = fit_whitener(features, labels, task.whiten)
        rows = self.through(
            adapt(features, known, task.n_categories, whitener, balanced=task.balanced, rng=rng), features
        )
        self.runs = agreement_runs(rows, known, task.n_categories, balanced=task.balanced, rng=rng)
        self.bank = torch.from_numpy(rng.permutation(len(rows))[:BANK]).to(rows.device)
        self.keys = rows[self.bank]
        return rows

    def prepare(self, epoch: int, features: Callable[[], Tensor], labels: Tensor, rng: Any) -> Level | None:
        """Pseudo-labels of all levels, every `interval` epochs."""
        if epoch % self.settings.interval:
            return None
        rows = features()
        levels = self.pseudo_labels(rows, labels, rng).levels
        self.level_labels = torch.stack([torch.as_tensor(level.labels).long() for level in levels])
        if self.by_radii:
            self.radii = torch.stack([self._radii(rows, level)[level.labels] for level in levels])
        if self.settings.prototypes:
            self.centers = normalize(torch.as_tensor(levels[0].centers), dim=1)
        return levels[0]

    def _radii(self, rows: Tensor, level: Level) -> Tensor:
        return nearest_prototypes(level) if self.published_targets else cluster_radii(rows, level)

    def pseudo_labels(self, features: Tensor, labels: Tensor, rng: Any) -> Hierarchy:
        """The hierarchy that the losses use."""
        task, settings = self.task, self.settings
        return hssk(
            features,
            labels if task.n_known else None,
            task.n_categories,
            n_levels=settings.loss_levels if settings.hssk else 1,
            balanced=task.balanced,
            variant=self.variant,
            rng=rng,
        )

    @property
    def in_losses(self) -> list[nn.Parameter]:
        """The last map of the head."""
        return [self.head.directions]

    def encode(self, states: Tensor) -> tuple[Tensor, ...]:
        """What the head's last map is given, and features where something is compared with them."""
        features = self.features(states)
        inner = self.head.inner(features)
        if self.settings.prototypes or self.settings.agreement:
            return inner, features
        return (inner, features.detach()) if self.by_radii else (inner,)

    def losses(self, encoded: tuple[Tensor, ...], batch: Batch) -> Losses:
        """`(1 - lambda) USE + lambda SSE`, and what draws features to prototypes."""
        settings = self.settings
        levels = self.level_labels[:, batch.rows]
        targets = self.targets(encoded, batch, levels)
        pseudo = levels if settings.sse else levels[:0]
        temperatures = settings.temperature, settings.supervised_temperature
        inner = self.head.products(encoded[0], prefix_sizes(len(self.head.directions), len(pseudo)))
        use, sse = self_expertise(
            inner, targets, batch.labels.repeat(2), pseudo.repeat(1, 2), temperatures, self.kind, settings.form
        )
        loss = settings.expertise * ((1 - settings.sup_weight) * use + settings.sup_weight * sse)
        parts = {"use": use.detach(), "sse": sse.detach()}
        if settings.prototypes:
            near = self.nearness(encoded[1], levels[0].repeat(2))
            loss, parts["prototypes"] = loss + settings.prototypes * near, near.detach()
        if settings.agreement:
            agreed = self.agreed(encoded[1], batch.rows)
            loss, parts["agreement"] = loss + settings.agreement * agreed, agreed.detach()
        return {"loss": loss, **parts}

    def agreed(self, features: Tensor, rows: Tensor) -> Tensor:
        """How far views are from the images of the bank that clusterings put theirs with."""
        weights = positives(self.runs[:, rows], self.runs[:, self.bank], AGREED)
        with torch.autocast(features.device.type, enabled=False):
            logits = self.as_clustered(features) @ self.keys.T / TEMPERATURE
        return attraction(logits, weights.repeat(2, 1))

    def nearness(self, features: Tensor, clusters: Tensor) -> Tensor:
        """Cross-entropy of each row's cluster under its cosines with all prototypes, where features are clustered."""
        with torch.autocast(features.device.type, enabled=False):
            cosines = self.as_clustered(features) @ self.centers.T
        return cross_entropy(cosines / PROTOTYPE_TEMPERATURE, clusters)

    def targets(self, encoded: tuple[Tensor, ...], batch: Batch, levels: Tensor) -> Tensor:
        """Target matrix of unsupervised self-expertise."""
        alpha = self.settings.alpha if self.settings.use else 0.0
        if not self.by_radii:
            return use_targets(levels, alpha)
        features, radii = encoded[1].detach(), self.radii[:, batch.rows]
        if self.published_targets:
            return published_targets(*views(features), radii, alpha)
        with torch.autocast(features.device.type, enabled=False):
            return radius_targets(*views(self.as_clustered(features)), radii, alpha)
