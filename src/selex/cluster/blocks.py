"""Numbers in blocks: read where they lie, centred, on their own device, within a memory budget.

They may lie in several `.npy` files, which are memory-mapped as one table. Shapes: n rows, d dimensions, b rows of a
block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from math import inf
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from selex.cluster.distributed.group import Group
from selex.errors import InputError
from selex.io import reported

_STEP = 1 << 28  # bytes that are copied at a time


class Pieces:
    """Tables of one width below each other; `part` is what one of several processes has of them."""

    ndim = 2

    def __init__(self, tables: Sequence[NDArray[Any]]) -> None:
        kinds = {(table.shape[1:], table.dtype) for table in tables}
        if len(kinds) != 1 or tables[0].ndim != 2:
            raise InputError("the shards differ in width or dtype")
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
        raise InputError("no shards of features were given")
    return Pieces([_open(Path(path)) for path in paths])


def _open(path: Path) -> NDArray[Any]:
    with reported(f"{path}: cannot be read as .npy", OSError, ValueError, EOFError):
        table: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    if table.ndim != 2 or table.dtype.kind != "f":
        raise InputError(f"{path}: a shard is a table of floats, not {table.dtype} of shape {table.shape}")
    return table


DEFAULT_MEMORY = 1 << 30
"""Bytes that temporaries may take unless the caller says otherwise: 1 GiB."""

CPU_BLOCK = 16 << 20
"""Bytes of a block on a CPU, where it should stay in the cache."""

_FAR = 16.0  # rows are centred where their mean is so much longer, squared, than they are spread around it
_SHARED = [np.dtype(kind) for kind in ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8")]
View = TypeVar("View", bound="Blocks")


class Blocks:
    """`n × d` numbers, read in blocks: a numpy array (memory-mapped too), a tensor on any device, or nested lists.

    Blocks come out in at least float32, and less a given `shift`, or less their mean where all rows are far from the
    origin: `|x|² + |c|² - 2 x·c` loses digits there. `at(index)` is a view of some rows, `along(columns)` of some
    dimensions, `take(index)` are the values of some rows.
    """

    group = Group()

    def __init__(self, data: Any, memory: int = DEFAULT_MEMORY, shift: Tensor | None = None) -> None:
        if memory < 1:
            raise InputError(f"memory must be at least 1 byte, not {memory}")
        self._index: Tensor | None = None
        self._columns: Tensor | None = None
        self._ready: Tensor | None = None
        self._centred = False
        self.memory = memory
        self._read(data)
        self.shift = torch.zeros(self.d, dtype=self.dtype, device=self.device)
        self.norms = self._norms()
        self.blank = self.norms == 0
        self._any_blank = bool(self.blank.any())
        mean = self._mean() if shift is None else shift.to(self.device, self.dtype)
        if shift is not None or self.group.agree(self._is_far(mean)):
            self._centred, self.shift = True, mean
            self.norms = self._norms()
        if self.n * self.d * self.dtype.itemsize <= memory // 4:  # small: no pass need read it again
            self._ready = self.take(slice(None))

    def _read(self, data: Any) -> None:
        """What the data are: how many, of which kind, where."""
        self._source = _source(data)
        self.n, self.d = (int(size) for size in self._source.shape)
        self.total, self.first = self.n, 0
        self.device = self._source.device if isinstance(self._source, Tensor) else torch.device("cpu")
        is_double = self._source.dtype.itemsize >= 8 and _is_float(self._source)
        self.dtype = torch.float64 if is_double else torch.float32

    def at(self: View, index: Tensor) -> View:
        """The rows of `index`, in that order, as numbers of their own (same centring)."""
        view = copy(self)
        view.n = view.total = len(index)
        view.norms, view.blank = self.norms[index], self.blank[index]
        if self._ready is not None:
            view._ready = self._ready[index]
        else:
            view._index = index if self._index is None else self._index[index]
        return view

    def along(self: View, columns: Tensor) -> View:
        """The same rows in some of their dimensions, as numbers of their own (same centring)."""
        view = copy(self)
        view.d = len(columns)
        view._columns = columns if self._columns is None else self._columns[columns]
        view.shift = self.shift[columns]
        if self._ready is not None:
            view._ready = self._ready[:, columns]
        view.norms = view._norms()
        return view

    def take(self, index: Tensor | slice) -> Tensor:
        """The values of some rows, centred: `(len(index), d)`."""
        if self._ready is not None:
            return self._ready[index]
        where = index if self._index is None else self._index[index]
        if isinstance(self._source, Tensor):
            values = self._source[where].to(self.dtype)
        else:
            picked = self._source[where.numpy() if isinstance(where, Tensor) else where]
            values = torch.from_numpy(np.array(picked, dtype=str(self.dtype).removeprefix("torch.")))
        if self._columns is not None:
            values = values[:, self._columns]
        return values - self.shift if self._centred else values

    def blocks(self, width: int) -> Iterator[tuple[slice, Tensor]]:
        """`(slice, values)` over all rows, in blocks that leave room for `width` more numbers a row."""
        step = self.step(width)
        for start in range(0, max(self.n, 1), step):  # without any row: one empty block
            part = slice(start, min(start + step, self.n))
            yield part, self.take(part)

    def step(self, width: int) -> int:
        """Rows of one block: as many as the memory budget (on a CPU: the cache) has room for."""
        budget = min(self.memory, CPU_BLOCK) if self.device.type == "cpu" else self.memory
        return max(1, budget // (self.dtype.itemsize * (2 * width + 2 * self.d)))

    def _mean(self) -> Tensor:
        """Mean row, from a pass that also notices entries that are not numbers."""
        total = torch.zeros(self.d, dtype=torch.float64, device=self.device)
        for _, x in self.blocks(self.d):
            total += x.sum(0, dtype=torch.float64)
        if not torch.isfinite(total).all():
            self._refuse()
        return (total / self.n).to(self.dtype)

    def _is_far(self, mean: Tensor) -> bool:
        return bool(mean.square().sum() > _FAR * (self.mean_norm() - mean.square().sum()).clamp(min=0))

    def mean_norm(self) -> Tensor:
        """Mean squared length of all rows."""
        return self.norms.mean()

    def _norms(self) -> Tensor:
        """Squared length of every row, `(n,)`."""
        out = torch.empty(self.n, dtype=self.dtype, device=self.device)
        for part, x in self.blocks(self.d):
            out[part] = (x * x).sum(1)
        if not torch.isfinite(out.sum()):
            self._refuse()
        return out

    def _refuse(self) -> NoReturn:
        """Name the first entry that is not a number, or else the largest one."""
        largest = (0.0, 0, 0)
        for part, x in self.blocks(self.d):
            size = (x + self.shift).abs().nan_to_num_(nan=inf, posinf=inf)
            row, column = divmod(int(size.argmax()), self.d)
            largest = max(largest, (float(size[row, column]), part.start + row, column), key=lambda entry: entry[0])
        _, row, column = largest
        value = float((self.take(slice(row, row + 1)) + self.shift)[0, column])
        what = (
            "NaN"
            if value != value
            else "infinity"
            if abs(value) == inf
            else f"a number too large to square, {value:.3g}"
        )
        raise InputError(f"features contain {what}: row {row}, column {column}; fix or drop that row")


def _is_float(source: Any) -> bool:
    return source.is_floating_point() if isinstance(source, Tensor) else source.dtype.kind == "f"


def _source(data: Any) -> Any:
    """`data` as a 2-d tensor where that costs no copy (so not where numpy's memory is read-only), else as an array."""
    source = data.detach() if isinstance(data, Tensor) else data if isinstance(data, Pieces) else np.asanyarray(data)
    if source.ndim != 2:
        raise InputError(f"features must be a table, rows × dimensions, not of shape {tuple(source.shape)}")
    if 0 in source.shape:
        raise InputError(f"features are empty: {source.shape[0]} rows × {source.shape[1]} dimensions")
    if isinstance(source, Tensor):
        if source.is_complex():
            raise InputError("features must be real numbers, not complex ones")
        return source
    if source.dtype.kind not in "fiub":
        raise InputError(f"features must be real numbers, not {source.dtype}")
    if isinstance(source, Pieces):
        return source
    shareable = source.dtype in _SHARED and source.flags.writeable and min(source.strides) >= 0
    return torch.from_numpy(np.asarray(source)) if shareable else source
