"""The rows as the clustering code sees them: nearest centres, distances and sums, never all distances at once.

Each row is compared with all centres; or, for ten thousand centres or more, by an inverted file with the centres of the
groups nearest to it, where some rows miss their nearest centre and get another that is near.
Shapes: n rows, b of a block, d dimensions, k clusters, their centres in g groups, p groups that a row is compared with.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from math import ceil, isqrt, log2
from typing import Any

import numpy as np
import torch
from torch import Tensor

from selex.cluster.blocks import CPU_BLOCK, DEFAULT_MEMORY, Blocks

__all__ = ["DEFAULT_MEMORY", "AllCenters", "InvertedFile", "Rows", "as_rows", "compare_with", "count", "totals"]

_ROUNDS = 5  # of k-means over centres
_BLOCK = 1 << 24  # distances of centres to groups that are worked out at a time
_BITS = 62  # of a whole number, that sums may fill
_ROUNDING = 1e-5  # of the longest centre, squared: lengths that differ by less are the same


class AllCenters:
    """Every row compared with every centre."""

    def __init__(self, centers: Tensor, squares: Tensor) -> None:
        self.centers, self.squares, self.width = centers, squares, len(centers)
        self.room = centers.new_empty(0, len(centers))  # used again by every block

    def nearest(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Of each row `(b, d)` the least `squares - 2 x·c`, and the centre it is of."""
        if len(self.room) < len(x):
            self.room = x.new_empty(len(x), len(self.centers))
        values, labels = torch.addmm(self.squares, x, self.centers.T, alpha=-2, out=self.room[: len(x)]).min(1)
        return values, labels


class InvertedFile:
    """Centres in `√k` groups, made by k-means over the centres: the same groups for the same centres."""

    def __init__(self, centers: Tensor, squares: Tensor, probes: int) -> None:
        groups = _groups(centers, isqrt(len(centers)))
        near = _nearest_group(groups, centers)
        sizes = torch.bincount(near, minlength=len(groups))
        self.groups, sizes = groups[sizes > 0], sizes[sizes > 0]
        self.members = torch.split(near.argsort(stable=True), sizes.tolist())  # of each group, the lowest id first
        self.centers = [centers[own] for own in self.members]
        self.squares = [squares[own] for own in self.members]
        self.probes = min(probes, len(self.groups))
        self.width = len(self.groups) + 4 * self.probes  # numbers that a row needs while it is looked at

    def nearest(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The same among the centres of the groups that are nearest to a row."""
        return self._least(x, lambda group, rows, values: values)

    def under(self, limits: Tensor, x: Tensor, norms: Tensor) -> tuple[Tensor, Tensor]:
        """The least squared distance under the limit of its centre, `(k,)`, and that centre; infinity where none is."""

        def allowed(group: int, rows: Tensor, values: Tensor) -> Tensor:
            distances = values.add_(norms[rows, None]).clamp_(min=0)
            return distances.masked_fill_(distances >= limits[self.members[group]], torch.inf)

        return self._least(x, allowed)

    def _least(self, x: Tensor, change: Callable[[int, Tensor, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        probed = _to_all(self.groups, x).topk(self.probes, largest=False, sorted=False).indices.flatten()
        order = probed.argsort()
        best, label = x.new_empty(len(order)), torch.empty_like(order)
        counts = torch.bincount(probed, minlength=len(self.groups)).tolist()
        for group, pairs in enumerate(torch.split(order, counts)):
            if len(pairs):
                rows = pairs // self.probes
                values = torch.addmm(self.squares[group], x[rows], self.centers[group].T, alpha=-2)
                least = change(group, rows, values).min(1)
                best[pairs], label[pairs] = least.values, self.members[group][least.indices]
        winner = best.view(-1, self.probes).min(1)
        return winner.values, label.view(-1, self.probes).gather(1, winner.indices[:, None])[:, 0]


def compare_with(centers: Tensor, squares: Tensor, probes: int | None) -> AllCenters | InvertedFile:
    """All centres `(k, d)`, or those of `probes` groups where there are more; `squares` are their squared lengths."""
    if probes and probes < isqrt(len(centers)):
        return InvertedFile(centers, squares, probes)
    return AllCenters(centers, squares)


def _groups(centers: Tensor, count: int) -> Tensor:
    """Means `(g, d)` of groups of centres; a group that loses all of its centres stays where it is.

    Sums are of whole numbers, which is exact: a GPU may add them in any order.
    """
    groups = centers[torch.linspace(0, len(centers) - 1, count, device=centers.device).long()]
    largest = float(centers.abs().max())
    scale = 2.0 ** (_BITS - ceil(log2(len(centers) + 1)) - (ceil(log2(largest)) if largest else 0))
    whole = (centers.double() * scale).long()
    for _ in range(_ROUNDS):
        near = _nearest_group(groups, centers)
        sizes = torch.bincount(near, minlength=count)[:, None]
        sums = torch.zeros(count, centers.shape[1], dtype=torch.long, device=centers.device).index_add_(0, near, whole)
        means = (sums.double() / scale / sizes.clamp(min=1)).to(centers.dtype)
        groups = torch.where(sizes > 0, means, groups)
    return groups


def _nearest_group(groups: Tensor, centers: Tensor) -> Tensor:
    """The group `(k,)` that is nearest to each centre; never all distances at once."""
    blocks = torch.split(centers, max(1, _BLOCK // len(groups)))
    return torch.cat([_to_all(groups, block).argmin(1) for block in blocks])


def _to_all(groups: Tensor, x: Tensor) -> Tensor:
    """Squared distances to groups, less the length of each row."""
    return torch.addmm((groups * groups).sum(1), x, groups.T, alpha=-2)


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
        distances, labels = found[0] if len(found) == 1 else (torch.cat(parts) for parts in zip(*found, strict=True))
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
                times: Any = 1 if weights is None else weights[None, part]
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
