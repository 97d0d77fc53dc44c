"""Heads on top of a backbone: the projection of contrastive losses, and SimGCD's classifier."""

# n rows, d dims of the feature

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, normalize

from selex.errors import InputError

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
        """What goes into the last map: (n, bottleneck), L2-normalised."""
        return normalize(self.mlp(features), dim=1)

    def products(self, inner: Tensor, sizes: Sequence[int]) -> Tensor:
        """Inner products of embeddings over their first `size` dims, for each size, of which the first is all dims.

        With W the first rows of the last map, embeddings `W x` and `W y` have the inner product `x' (W' W) y`: wide
        embeddings themselves are never made. Few dims, fewer than the bottleneck has, are: there, `W' W` would cancel.
        """
        dims, (_, width) = len(self.directions), inner.shape
        if not sizes or sizes[0] != dims or not all(1 <= size <= dims for size in sizes):
            raise InputError(f"sizes must be from 1 to {dims}, the first of them {dims}, not {list(sizes)}")
        with _products("ieee", inner):
            rows = inner.to(self.directions.dtype)
            made: dict[int, Tensor] = {}
            if few := [size for size in sizes if size <= width]:
                short = linear(rows, normalize(self.directions[: max(few)], dim=1))
                made |= {size: short[:, :size] @ short[:, :size].T for size in few}
            if many := sorted(set(sizes) - set(few)):
                wide = rows @ _Grams.apply(self.directions, many) @ rows.T  # type: ignore[no-untyped-call]
                made |= dict(zip(many, wide, strict=True))
        together = torch.stack([made[size] for size in sizes])
        lengths = together[0].diagonal().clamp(min=1e-24).rsqrt()
        return together * lengths[:, None] * lengths


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
        with _products("tf32", table):
            return torch.stack(list(accumulate(part.T @ part for part in unit.tensor_split(ends[:-1]))))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor, None]:
        (unit, lengths), cuts = ctx.saved_tensors, ctx.ends[:-1]
        both = gradients[0] + gradients[0].mT
        later = list(accumulate(both.flip(0)))[::-1]  # rows count in their own Gram and in all larger ones
        turn = torch.empty_like(unit)
        with _products("tf32", unit):
            for part, gradient, out in zip(unit.tensor_split(cuts), later, turn.tensor_split(cuts), strict=True):
                torch.mm(part, gradient, out=out)
        turn -= unit * (unit * turn).sum(1, keepdim=True)  # a row's length has no effect
        return turn / lengths, None


@contextmanager
def _products(precision: Literal["ieee", "tf32"], x: Tensor) -> Iterator[None]:
    """While this lasts, float32 products on a GPU are exact, or round what they multiply to 10 bits; no autocast.

    Whatever asks for the older setting `allow_tf32` meanwhile gets an error, in torch 2.9 and later.
    """
    matmul: Any = torch.backends.cuda.matmul
    newer = hasattr(matmul, "fp32_precision")
    name, value = ("fp32_precision", precision) if newer else ("allow_tf32", precision == "tf32")
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
