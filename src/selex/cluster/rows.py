"""The rows as the clustering code sees them: nearest centres, distances and sums, never all distances at once.

Shapes: n rows, d dimensions, k clusters.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor

from selex.cluster.blocks import CPU_BLOCK, DEFAULT_MEMORY, Blocks
from selex.cluster.inverted import compare_with

__all__ = ["DEFAULT_MEMORY", "Rows", "as_rows", "count", "totals"]

_ROUNDING = 1e-5  # of the longest centre, squared: lengths that differ by less are the same


class Rows(Blocks):
    """Rows in blocks, and what clustering asks of them.

    A `Shard` has further rows in the other processes of its `group`: `total` counts them all, `first` those before it.
    """

    probes: int | None = None

    def probing(self, probes: int | None) -> Rows:
        """The same rows, of which `nearest` compares each with the centres of so many groups only; None: with all."""
        view = copy(self)
        view.probes = probes
        return view

    def own(self) -> Any:
        """The rows of this process as they were given."""
        return self._source

    def made(self, data: Any) -> Rows:
        """Other rows in place of these, one for each, in the same process."""
        return Rows(data, self.memory)

    def mapped(self, step: Callable[[Tensor], Tensor]) -> Rows:
        """Rows after a map of each, in this process's memory; worked out in float64, so that blocks do not show."""
        out = torch.empty(self.n, self.d, dtype=self.dtype, device=self.device)
        for part, x in self.blocks(8 * self.d):
            out[part] = step((x + self.shift).double()).to(self.dtype)
        return self.made(out)

    def fetch(self, numbers: Tensor) -> Tensor:
        """The values of some rows, whichever process has them; rows are numbered through all processes."""
        return self.take(numbers)

    def here(self, numbers: Tensor) -> Rows:
        """Some rows, few, as `Rows` of this process, whichever process has them."""
        return self.at(numbers)

    def nearest(self, centers: Tensor, offsets: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """For every row the nearest centre (the lowest id where several are) and the squared distance to it.

        With `offsets`, `(k,)`, the nearest by squared distances less these; the distance is the true one. To a row of
        zeros all centres of one length are equally near: it gets the first of those that only rounding tells apart.
        """
        squares = (centers * centers).sum(1)
        if offsets is not None:
            squares -= offsets
        compared = compare_with(centers, squares, self.probes)
        found = [compared.nearest(x) for _, x in self.blocks(compared.width)]
        distances, labels = (torch.cat([block[i] for block in found]) for i in range(2))
        if self._any_blank:
            labels = labels.where(~self.blank, self._nearest_to_zeros(centers, offsets))
        if offsets is not None:
            distances += offsets.expand(len(centers))[labels]
        return labels, distances.add_(self.norms).clamp_(min=0)

    def _nearest_to_zeros(self, centers: Tensor, offsets: Tensor | None) -> Tensor:
        """The first of the centres that are as near to a row of zeros as rounding can tell."""
        lengths = (centers + self.shift).double().square().sum(1)
        behind = lengths if offsets is None else lengths - offsets
        return (behind <= behind.min() + _ROUNDING * lengths.max()).int().argmax()

    def distances(self, centers: Tensor, index: Tensor | slice = slice(None)) -> Tensor:
        """All squared distances of some rows to all centres, `(len(index), k)`: the caller minds the memory."""
        squares = (centers * centers).sum(1)
        out = torch.addmm(squares, self.take(index), centers.T, alpha=-2)
        return out.add_(self.norms[index, None]).clamp_(min=0)

    def distances_to_own(self, centers: Tensor, labels: Tensor) -> Tensor:
        """Squared distance of every row to the centre of its own cluster, `(n,)`."""
        out = torch.empty(self.n, dtype=self.dtype, device=self.device)
        for part, x in self.blocks(self.d):
            out[part] = (x - centers[labels[part]]).square_().sum(1)
        return out

    def sums(self, labels: Tensor, k: int, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Sum of the rows of each cluster, `(k, d)`, and their number, `(k,)`. Always adds in the same order.

        With `weights`, `(n,)`, each row counts in the sum by its own.
        """
        total = torch.zeros(k, self.d, dtype=self.dtype, device=self.device)
        on_cpu = self.device.type == "cpu"
        for part, x in self.blocks(0 if on_cpu else k):
            if on_cpu:
                total.index_add_(0, labels[part], x if weights is None else x * weights[part, None])
            else:  # on a GPU index_add_ adds in whatever order threads arrive; a product with one-hot rows does not
                one_hot = torch.zeros(k, len(x), dtype=self.dtype, device=self.device)
                times = one_hot.new_ones(1, 1).expand(1, len(x)) if weights is None else weights[None, part]
                total.addmm_(one_hot.scatter_(0, labels[None, part], times), x)
        return total, count(labels, k)

    def by_content(self) -> Tensor:
        """Row numbers in an order that depends on what rows hold and not on where they stand, `(n,)`."""
        return self.content_keys().argsort(stable=True)

    def ranked(self) -> tuple[Tensor, Tensor]:
        """Rows by content, and the place of each in that order."""
        return self.by_content(), torch.arange(self.n, device=self.device)

    def content_keys(self) -> Tensor:
        """A number for every row, `(n,)`, that depends on what it holds alone."""
        direction = torch.from_numpy(np.random.default_rng(0).standard_normal(self.d)).to(self.device)
        keys = [((x + self.shift).double() * direction).sum(1) for _, x in self.blocks(4 * self.d)]
        return torch.cat(keys)


def as_rows(data: Any, memory: int = DEFAULT_MEMORY) -> Rows:
    """Features in working form; a `Shard` is already."""
    return data if isinstance(data, Rows) else Rows(data, memory)


def totals(values: Tensor, labels: Tensor, k: int) -> Tensor:
    """Sum of the values `(n,)` of each cluster, `(k,)` in float64: `bincount` that adds in one order on a GPU too."""
    total = torch.zeros(k, dtype=torch.float64, device=values.device)
    for part in torch.split(torch.arange(len(values), device=values.device), max(1, CPU_BLOCK // (8 * k))):
        table = total.new_zeros(k, len(part))
        total += table.scatter_(0, labels[None, part], values[None, part].double()).sum(1)
    return total


def count(labels: Tensor, k: int) -> Tensor:
    """Rows of each cluster, `(k,)`: `bincount` without its wait for the GPU."""
    return labels.new_zeros(k).scatter_add_(0, labels, torch.ones_like(labels))
