"""Heads on top of a backbone: the projection of contrastive losses, and SimGCD's classifier."""

# n rows, d dims of the feature

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise
from typing import Any

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
        return normalize(linear(self.inner(features), normalize(self.directions, dim=1)), dim=1)

    def inner(self, features: Tensor) -> Tensor:
        """What goes into the last map: (n, 256), L2-normalised."""
        return normalize(self.mlp(features), dim=1)

    def products(self, inner: Tensor, sizes: Sequence[int]) -> Tensor:
        """Inner products of embeddings over their first `size` dims, for each size, of which the first is all dims.

        With W the first rows of the last map, embeddings `W x` and `W y` have the inner product `x' (W' W) y`: the wide
        embeddings themselves are never made.
        """
        ends = sorted(set(sizes))
        grams = dict(zip(ends, _Grams.apply(self.directions, ends), strict=True))  # type: ignore[no-untyped-call]
        with torch.autocast(inner.device.type, enabled=False):
            rows = inner.to(self.directions.dtype)
            made = rows @ torch.stack([grams[size] for size in sizes]) @ rows.T  # sizes × n × n
        lengths = made[0].diagonal().clamp(min=1e-24).rsqrt()
        return made * lengths[:, None] * lengths


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


class _Grams(torch.autograd.Function):
    """`W' W` of the first rows of a table, each scaled to length 1, for several numbers of rows in one pass.

    On a GPU products round what they multiply to TF32. They remain inner products of one slightly other W, so that near
    rows stay near.
    """

    @staticmethod
    def forward(ctx: Any, table: Tensor, ends: Sequence[int]) -> Tensor:
        lengths = table.norm(dim=1, keepdim=True).clamp(min=1e-12)
        unit = table / lengths
        ctx.save_for_backward(unit, lengths)
        ctx.ends = ends
        with _tensor_cores(table):
            return torch.stack(list(accumulate(part.T @ part for part in unit.tensor_split(ends[:-1]))))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None]:
        (unit, lengths), cuts = ctx.saved_tensors, ctx.ends[:-1]
        both = gradients[0] + gradients[0].mT
        later = list(accumulate(both.flip(0)))[::-1]  # rows count in their own Gram and in all larger ones
        turn = torch.empty_like(unit)
        with _tensor_cores(unit):
            for part, gradient, out in zip(unit.tensor_split(cuts), later, turn.tensor_split(cuts), strict=True):
                torch.mm(part, gradient, out=out)
        turn -= unit * (unit * turn).sum(1, keepdim=True)  # a row's length has no effect
        return turn / lengths, None


@contextmanager
def _tensor_cores(x: Tensor) -> Iterator[None]:
    """While this lasts, float32 products may round what they multiply, not what they add up, to 10 bits; no autocast.

    On a CPU they do not.
    """
    matmul: Any = torch.backends.cuda.matmul
    name, value = ("fp32_precision", "tf32") if hasattr(matmul, "fp32_precision") else ("allow_tf32", True)
    before = getattr(matmul, name)
    setattr(matmul, name, value)
    try:
        with torch.autocast(x.device.type, enabled=False):
            yield
    finally:
        setattr(matmul, name, before)


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
