"""Features whitened by the scatter within known categories.

What varies among the images of one category (pose, light, background) tells no categories apart, known or novel. The
labelled rows show which directions that are; there, distances are made to count less. n rows, d dims.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from selex.cluster.rows import DEFAULT_MEMORY, Rows, as_rows
from selex.errors import InputError
from selex.types import UNLABELLED


@dataclass(frozen=True)
class Whitener:
    """Features of one kind to features whose scatter within categories is more even, L2-normalised."""

    mean: Tensor  # of all features, (d,)
    matrix: Tensor  # (d, d)

    def __call__(self, features: Any) -> Any:
        """The same rows `(n, d)`, whitened: a tensor for a tensor, an array for an array, a `Shard` for a `Shard`."""
        if isinstance(features, Rows):
            return features.mapped(self)
        if isinstance(features, Tensor):
            features = features if features.is_floating_point() else features.float()
            mean, matrix = self.mean.to(features), self.matrix.to(features)
            return normalize((features - mean) @ matrix, dim=1)
        out = np.empty(features.shape, dtype=np.float64 if features.dtype == np.float64 else np.float32)
        for start in range(0, len(out), _BLOCK):
            part = slice(start, start + _BLOCK)
            out[part] = self(torch.from_numpy(np.array(features[part], dtype=out.dtype))).numpy()
        return out


@dataclass(frozen=True)
class FeatureMaps:
    """Linear maps, each of which leaves rows L2-normalised, in the order in which they are applied."""

    steps: tuple[Whitener, ...] = ()  # none leaves features as they are

    def __bool__(self) -> bool:
        return bool(self.steps)

    def transform(self, features: Any) -> Any:
        """Rows `(n, d)` as they are compared with cluster centres: a tensor for a tensor, an array for an array."""
        for step in self.steps:
            features = step(features)
        return features

    def to_tensors(self) -> dict[str, Tensor]:
        """The maps by name, for a file of tensors."""
        named = ((f"map{number}", step) for number, step in enumerate(self.steps))
        return {f"{name}.{part}": getattr(step, part) for name, step in named for part in ("mean", "matrix")}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> FeatureMaps:
        """The maps of such a file, which may hold other tensors too."""
        count = sum(name.startswith("map") and name.endswith(".matrix") for name in tensors)
        steps = (Whitener(tensors[f"map{number}.mean"], tensors[f"map{number}.matrix"]) for number in range(count))
        return cls(tuple(steps))


_BLOCK = 1 << 14  # rows
_ROUNDING = 64  # equal rows are no further from their mean, in units of rounding


def fit_whitener(features: Any, labels: Any, amount: float, memory: int = DEFAULT_MEMORY) -> Whitener | None:
    """What whitens features, learned from the rows that are labelled.

    With S the covariance of labelled rows about the means of their categories, scaled to a mean variance of 1,
    distances become those of Mahalanobis under `a·S + (1 - a)·I`: no direction counts more than `1 / sqrt(1 - a)` times
    as much as before. `a` is the amount, but not more than the labels can tell: `n / (n + d)` with n labelled rows,
    the first of each category not counted.

    Args:
        features: `n × d` features: numpy (memory-mapped too), torch on any device, or a `Shard` with its own labels.
        labels: per row a known category `0 … n_known - 1` or -1.
        amount: from 0, features as they are, to 1, all of the scatter.
        memory: bytes that temporary arrays may take.

    Returns:
        The map, or None where there is nothing to whiten: no amount, or no category with two different rows.
    """
    if not 0 <= amount <= 1:
        raise InputError(f"whiten must be from 0 to 1, not {amount}")
    if not amount:
        return None
    rows = as_rows(features, memory)
    known = torch.as_tensor(labels).to(rows.device)
    index = torch.nonzero(known != UNLABELLED)[:, 0]
    held, own = rows.at(index), known[index].long()
    if not held.total:
        return None
    n_known = int(rows.group.gather(known.max().reshape(1)).max()) + 1
    scatter, free = _scatter(held, own, n_known)
    scale = scatter.trace() / rows.d
    spread = scale * rows.d > held.mean_norm() * (_ROUNDING * torch.finfo(rows.dtype).eps) ** 2
    if not rows.group.agree(bool(spread)):
        return None
    amount = min(amount, free / (free + rows.d))
    even = amount * scatter / scale + (1 - amount) * torch.eye(rows.d, dtype=scatter.dtype, device=scatter.device)
    root: Tensor = torch.linalg.cholesky(even)
    matrix = torch.linalg.solve_triangular(root, torch.eye(rows.d, dtype=root.dtype, device=root.device), upper=False)
    sums = torch.as_tensor(sum(x.sum(0, dtype=torch.float64) for _, x in rows.blocks(rows.d)))
    mean = rows.group.sum(sums) / rows.total + rows.shift
    return Whitener(mean.float(), rows.group.agree(matrix.T.float().contiguous()))


def _scatter(rows: Rows, labels: Tensor, k: int) -> tuple[Tensor, int]:
    """Covariance of rows about the means of their categories, `(d, d)`, and how many rows tell of it."""
    sums, counts = rows.sums(labels, k)
    means = sums / counts.clamp(min=1)[:, None]
    total = torch.zeros(rows.d, rows.d, dtype=torch.float64, device=rows.device)
    for part, x in rows.blocks(rows.d):
        away = (x - means[labels[part]]).double()
        total += away.T @ away
    free = int((counts - 1).clamp(min=0).sum())
    return rows.group.sum(total) / max(free, 1), free
