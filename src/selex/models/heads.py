"""Heads on top of a backbone: the projection of contrastive losses, and SimGCD's classifier."""

# n rows, d dims of the feature

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, normalize

HIDDEN, BOTTLENECK = 2048, 256


class ProjectionHead(nn.Module):
    """MLP d → 2048 → 2048 → 256, L2-normalised, then a weight-normalised linear map to `out` dims, gain fixed at 1.

    The output is L2-normalised: what contrastive losses compare. `hidden` and `bottleneck` are for tiny networks.
    """

    def __init__(self, dim: int, out: int, hidden: int = HIDDEN, bottleneck: int = BOTTLENECK) -> None:
        super().__init__()
        self.mlp = _mlp(dim, hidden, bottleneck)
        self.directions = nn.Parameter(_directions(out, bottleneck))

    def forward(self, features: Tensor) -> Tensor:
        """Embeddings (n, out) of features (n, d)."""
        inner = normalize(self.mlp(features), dim=1)
        return normalize(linear(inner, normalize(self.directions, dim=1)), dim=1)


class Classifier(nn.Module):
    """SimGCD's head: cosines with a prototype of each category, and a projection beside it."""

    def __init__(self, dim: int, categories: int, hidden: int = HIDDEN, bottleneck: int = BOTTLENECK) -> None:
        super().__init__()
        self.mlp = _mlp(dim, hidden, bottleneck)
        self.directions = nn.Parameter(_directions(categories, dim))

    @property
    def prototypes(self) -> Tensor:
        """One unit vector a category, in the space of normalised features."""
        return normalize(self.directions, dim=1)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Projection (n, 256), normalised, and logits (n, categories) of features (n, d)."""
        return normalize(self.mlp(features), dim=1), linear(normalize(features, dim=1), self.prototypes)


def _mlp(dim: int, hidden: int, out: int) -> nn.Sequential:
    widths = (dim, hidden, hidden, out)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layer = nn.Linear(inputs, outputs)
        # A narrow head with DINO's 0.02 starts so small that its biases soon drown what it is given.
        nn.init.trunc_normal_(layer.weight, std=0.02 if hidden == HIDDEN else inputs**-0.5)
        nn.init.zeros_(layer.bias)
        layers += [layer, nn.GELU()]
    return nn.Sequential(*layers[:-1])


def _directions(rows: int, columns: int) -> Tensor:
    """As a linear layer starts: the length of a direction has no effect on the output, but on how fast it turns."""
    return torch.empty(rows, columns).uniform_(-(columns**-0.5), columns**-0.5)
