"""The nearest centre of each row, among all, or by an inverted file among the centres of the groups nearest to it.

In an inverted file some rows miss their nearest centre and get another that is near: for ten thousand centres or more.
Shapes: b rows of a block, d dimensions, k centres in g groups, p groups that a row is compared with.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, isqrt, log2

import torch
from torch import Tensor

_ROUNDS = 5  # of k-means over centres
_BLOCK = 1 << 24  # distances of centres to groups that are worked out at a time
_BITS = 62  # of a whole number, that sums may fill


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
