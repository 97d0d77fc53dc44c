"""Rows spread over processes: each holds its own, and every sum, draw and limit is over all of them.

Sums are added up as whole numbers, which is exact: centres do not depend on how many processes there are, nor on the
order in which threads of a GPU arrive. Shapes: n rows of this process, d dimensions, k clusters.
"""

from __future__ import annotations

from math import ceil, log2
from typing import Any

import torch
from torch import Tensor

from selex.cluster.distributed.group import Group
from selex.cluster.rows import DEFAULT_MEMORY, Rows, count
from selex.errors import InputError
from selex.types import UNLABELLED

_BITS = 62  # of a whole number, that sums may fill


class Shard(Rows):
    """The rows of this process, beside those of the others in its group: give it to `bssk` or `hssk` as data.

    Every process makes the same calls with its own rows and labels, and the same seed. Labels come back for its own
    rows; centres are the same in every process.
    """

    def __init__(self, data: Any, group: Group | None = None, memory: int = DEFAULT_MEMORY) -> None:
        self.group = group or Group()
        super().__init__(data, memory)

    def _read(self, data: Any) -> None:
        with self.group.together():
            super()._read(data)
        if len(set(map(tuple, self.group.gather(torch.tensor([[self.d, self.dtype.itemsize]])).tolist()))) > 1:
            raise InputError("the rows of the processes differ in width or dtype")
        self._stand()

    def _stand(self) -> None:
        """How many rows there are in all, and how many before this process's."""
        lengths = self.group.gather(torch.tensor([self.n]))
        self.total, self.first = int(lengths.sum()), int(lengths[: self.group.rank].sum())

    def at(self, index: Tensor) -> Shard:
        """Some of this process's rows; every process has to ask, each for its own."""
        view = super().at(index)
        assert isinstance(view, Shard)
        view._stand()
        return view

    def fetch(self, numbers: Tensor) -> Tensor:
        """The values of some rows, from whoever has them."""
        here = (numbers >= self.first) & (numbers < self.first + self.n)
        out = torch.zeros(len(numbers), self.d, dtype=self.dtype, device=self.device)
        out[here] = self.take(numbers[here] - self.first)
        return self.group.sum(out)

    def here(self, numbers: Tensor) -> Rows:
        """The same rows in every process."""
        return Rows(self.fetch(numbers), self.memory, torch.zeros(self.d))

    def made(self, data: Any) -> Shard:
        """Other rows in place of these, one for each; every process has to ask."""
        return Shard(data, self.group, self.memory)

    def places(self, labels: Tensor) -> Tensor:
        """Of labelled rows: the place of each among those of its label in all processes, by what rows hold."""
        held = torch.nonzero(labels != UNLABELLED)[:, 0]
        order, ranks = self.at(held).ranked()
        rank = torch.empty_like(ranks).index_copy_(0, order, ranks)
        every = self.group.gather(torch.stack([labels[held], rank], 1))
        by_label = every[:, 1].argsort()
        by_label = by_label[every[by_label, 0].argsort(stable=True)]
        sizes = torch.bincount(every[:, 0])
        places = torch.empty_like(by_label)
        places[by_label] = (
            torch.arange(len(every), device=labels.device) - (sizes.cumsum(0) - sizes)[every[by_label, 0]]
        )
        before = int(self.group.gather(torch.tensor([len(held)]))[: self.group.rank].sum())
        return places[before : before + len(held)]

    def sums(self, labels: Tensor, k: int, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Sums and numbers over the rows of all processes, exact up to the last bit that is kept; not with weights."""
        if weights is not None:
            mine, number = super().sums(labels, k, weights)
            return self.group.sum(mine.double()).to(self.dtype), self.group.sum(number)
        mine = torch.cat([self._whole_sums(labels, k), count(labels, k)[:, None]], 1)
        total = self.group.sum(mine)
        return (total[:, :-1].double() / self._scale()).to(self.dtype), total[:, -1]

    def _whole_sums(self, labels: Tensor, k: int) -> Tensor:
        total = torch.zeros(k, self.d, dtype=torch.long, device=self.device)
        for part, x in self.blocks(4 * self.d):
            total.index_add_(0, labels[part], (x * self._scale()).long())
        return total

    def _scale(self) -> float:
        """A power of two: rows times it, in whole numbers, cannot add up to more than such a number holds."""
        return float(2.0 ** (_BITS - ceil(log2(self.total + 1)) - self._reach))

    def _norms(self) -> Tensor:
        with self.group.together():
            norms = super()._norms()
        longest = float(self.group.gather(norms.max().reshape(1)).max())
        self._reach = max(ceil(log2(longest) / 2) + 1, -_BITS) if longest else 0
        return norms

    def _mean(self) -> Tensor:
        everything = torch.zeros(self.n, dtype=torch.long, device=self.device)
        return self.sums(everything, 1)[0][0] / self.total

    def mean_norm(self) -> Tensor:
        """Mean squared length of the rows of all processes."""
        return self.group.sum(self.norms.sum(dtype=torch.float64)) / self.total

    def ranked(self) -> tuple[Tensor, Tensor]:
        """Rows by content, and the place of each among those of all processes: each hands its keys round once."""
        keys = self.content_keys()
        order = keys.argsort(stable=True)
        mine = keys[order].contiguous()
        ranks = torch.zeros_like(order)
        for rank in range(self.group.size):
            theirs = self.group.gather(mine if rank == self.group.rank else mine[:0])
            before = torch.searchsorted(theirs, mine, right=rank < self.group.rank)  # among equals the lower row
            ranks += before if rank != self.group.rank else torch.arange(self.n, device=self.device)
        return order, ranks
