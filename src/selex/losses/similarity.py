"""How alike rows are, from their inner products: what all contrastive losses are built on.

n and m rows, d dims; leading dims (`...`) are levels. Everything is computed in float32, or in float64 where the data
is: half precision has too few digits for the distance of two near rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Literal

import torch
from torch import Tensor

from selex.errors import InputError

Kind = Literal["distance", "cosine"]


def full_precision(x: Tensor) -> Tensor:
    """The same in float32, or in float64 if it is so already."""
    return x if x.dtype == torch.float64 else x.float()


def products(a: Tensor, b: Tensor) -> Tensor:
    """`n × m` inner products in full precision, under autocast too."""
    with torch.autocast(a.device.type, enabled=False):
        return a @ b.T


def prefix_products(rows: Tensor, sizes: Sequence[int]) -> Tensor:
    """Inner products of rows over their first `size` dims, for each size.

    They are running sums over blocks of dims, so that all sizes cost as much as the largest.

    Args:
        rows: `n × d` rows.
        sizes: numbers of leading dims, each from 1 to d, in any order.

    Returns:
        `len(sizes) × n × n` inner products.
    """
    if not all(1 <= size <= rows.shape[1] for size in sizes) or not sizes:
        raise InputError(f"sizes must be from 1 to {rows.shape[1]}, not {list(sizes)}")
    ends = sorted(set(sizes))
    widths = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    blocks = full_precision(rows)[:, : ends[-1]].split_with_sizes(widths, 1)  # one gradient for all, unlike slices
    sums = dict(zip(ends, accumulate(products(block, block) for block in blocks), strict=True))
    return torch.stack([sums[size] for size in sizes])


def minus_distances(inner: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Minus Euclidean distances from inner products `... × n × m` and squared norms `... × n` and `... × m`.

    What is below the rounding error of the inner products counts as 0 and has no gradient: that of a square root is
    infinite at 0.
    """
    size = a[..., :, None] + b[..., None, :]
    squared = size - 2 * inner
    apart = squared > 8 * torch.finfo(size.dtype).eps * size
    return -squared.where(apart, 1).sqrt().where(apart, 0)


def cosines(inner: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Cosines from inner products and squared norms; a row of zeros has cosine 0 with every row."""
    scale_a, scale_b = a.clamp(min=1e-24).rsqrt(), b.clamp(min=1e-24).rsqrt()
    return inner * scale_a[..., :, None] * scale_b[..., None, :]


KINDS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {"distance": minus_distances, "cosine": cosines}
"""Logits from inner products and squared norms, by name."""


def logits_of(inner: Tensor, kind: str) -> Tensor:
    """Logits between the rows of one table, from their inner products `... × n × n`.

    Norms are read off the diagonal: they then carry the same rounding error as the products, and rows that coincide
    have distance 0.
    """
    check_choice("kind", kind)
    norms = inner.diagonal(dim1=-2, dim2=-1)
    return KINDS[kind](inner, norms, norms)


def logits_among(rows: Tensor, kind: str) -> Tensor:
    """`n × n` logits between the rows of one table."""
    return logits_of(prefix_products(rows, rows.shape[1:]), kind)[0]


def own_entries(square: Tensor) -> Tensor:
    """Where a row meets itself: the diagonal."""
    return torch.eye(square.shape[-1], dtype=torch.bool, device=square.device)


def masked_out(scaled: Tensor, mask: Tensor) -> Tensor:
    """Logits that add nothing to a softmax where the mask is set.

    Not minus infinity: the gradient of a row that is left out as a whole would be nan.
    """
    return scaled.masked_fill(mask, torch.finfo(scaled.dtype).min)


def check_choice(name: str, value: str, allowed: tuple[str, ...] = tuple(KINDS)) -> None:
    """One of the allowed words."""
    if value not in allowed:
        raise InputError(f"{name} must be {' or '.join(map(repr, allowed))}, not {value!r}")


def check_temperature(temperature: float | Tensor) -> None:
    """Over 0. A tensor is not looked at: that would wait for its device."""
    if not isinstance(temperature, Tensor) and not temperature > 0:
        raise InputError(f"temperature must be greater than 0, not {temperature}")


def check_labels(labels: Tensor, rows: Tensor) -> None:
    """One for each row of a table."""
    if rows.ndim != 2 or labels.shape != rows.shape[:1]:
        shapes = f"{tuple(labels.shape)} for {tuple(rows.shape)}"
        raise InputError(f"labels must be one for each row of a table, not of shape {shapes}")


def check_same_rows(a: Tensor, b: Tensor) -> None:
    """Two views of the same images: tables of one shape, with at least one row."""
    if a.ndim != 2 or a.shape != b.shape or not len(a):
        raise InputError(f"two views must be tables of one shape, not {tuple(a.shape)} and {tuple(b.shape)}")
