"""GCD (Vaze et al., CVPR 2022): InfoNCE over all rows and the supervised contrastive loss over labelled ones."""

from __future__ import annotations

from torch import Tensor

from selex.losses import info_nce, supervised_contrastive
from selex.training.methods.base import Batch, Losses, Method, views


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
