"""Several `.npy` files as one table: memory-mapped, read where rows are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from selex.errors import InputError

_STEP = 1 << 28  # bytes that are copied at a time


class Pieces:
    """Tables of one width below each other; `part` is what one of several processes has of them."""

    ndim = 2

    def __init__(self, tables: Sequence[NDArray[Any]]) -> None:
        kinds = {(table.shape[1:], table.dtype) for table in tables}
        if len(kinds) != 1 or tables[0].ndim != 2:
            raise InputError("the shards are not tables of one width and one type of number")
        self._tables = [table for table in tables if len(table)] or list(tables[:1])
        self._starts = np.cumsum([0] + [len(table) for table in self._tables])
        self.dtype = tables[0].dtype
        self.shape = (int(self._starts[-1]), int(tables[0].shape[1]))

    def part(self, rank: int, size: int) -> Pieces:
        """The rows of the process `rank` of `size`: as many as the others', or one more or less."""
        first, last = (self.shape[0] * edge // size for edge in (rank, rank + 1))
        if first == last:
            raise InputError(f"{self.shape[0]} rows for {size} processes: start at most {self.shape[0]}")
        edges = zip(self._tables, self._starts, strict=False)
        return Pieces([table[max(first - start, 0) : max(last - start, 0)] for table, start in edges])

    def __getitem__(self, index: slice | NDArray[np.int64]) -> NDArray[Any]:
        if isinstance(index, slice):
            first, last, _ = index.indices(self.shape[0])
            edges = zip(self._tables, self._starts, strict=False)
            return np.concatenate([table[max(first - start, 0) : max(last - start, 0)] for table, start in edges])
        out = np.empty((len(index), self.shape[1]), self.dtype)
        piece = np.searchsorted(self._starts, index, side="right") - 1
        for number in np.unique(piece):
            here = piece == number
            out[here] = self._tables[number][index[here] - self._starts[number]]
        return out

    def to(self, device: str | torch.device) -> Tensor:
        """All of it on a device, in its own type of number, copied a little at a time."""
        out = torch.from_numpy(np.empty((0, self.shape[1]), self.dtype)).new_empty(self.shape, device=device)
        step = max(1, _STEP // (self.shape[1] * self.dtype.itemsize))
        for start in range(0, len(out), step):
            out[start : start + step] = torch.from_numpy(np.ascontiguousarray(self[start : start + step])).to(device)
        return out


def open_pieces(paths: Sequence[str | Path]) -> Pieces:
    """Shards of features, in the given order; `.npy` files of float16, float32 or float64."""
    if not paths:
        raise InputError("no shard of features is named")
    return Pieces([_open(Path(path)) for path in paths])


def _open(path: Path) -> NDArray[Any]:
    try:
        table: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path}: cannot be read as .npy: {error}") from None
    if table.ndim != 2 or table.dtype.kind != "f":
        raise InputError(f"{path}: a shard is a table of floats, not {table.dtype} of shape {table.shape}")
    return table
