"""The backbone as it is: nothing is trained, categories are found by clustering its features."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from selex.config import TrainConfig
from selex.models.backbones import Backbone
from selex.training.methods.base import Batch, Losses, Method, Task, here_only


class Frozen(Method):
    """No training: `forward` has no loss to give, features are clustered as they are."""

    trains = False

    def __init__(self, backbone: Backbone, task: Task, settings: TrainConfig) -> None:
        nn.Module.__init__(self)
        self.task, self.settings, self.gather = task, settings, here_only
        self.whitener = None
        self.tail = backbone.requires_grad_(False)

    def encode(self, states: Tensor) -> tuple[Tensor, ...]:
        """Features of images."""
        return (self.features(states),)

    def losses(self, encoded: tuple[Tensor, ...], batch: Batch) -> Losses:
        """Nothing to learn."""
        return {"loss": torch.zeros((), device=encoded[0].device)}
