"""What makes steps faster on a GPU and changes nothing else: recorded kernels, compiled blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from selex.methods.base import Batch

WARMUPS = 3


class Graph:
    """The work of a step, recorded once and replayed: launching hundreds of small kernels takes longer than they do.

    The work must be the same kernels on the same memory each time; `forget` has it recorded anew.
    """

    def __init__(self, work: Callable[[Batch], dict[str, Tensor]]) -> None:
        self.work, self.warm = work, False
        self.graph: torch.cuda.CUDAGraph | None = None
        self.batch: Batch
        self.losses: dict[str, Tensor]

    def forget(self) -> None:
        """Something that the work reads is elsewhere now."""
        self.graph = None

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        """The losses of a batch; gradients are left where the work leaves them."""
        if self.graph is None:
            self._record(batch)
        assert self.graph
        for own, given in zip(_tensors(self.batch), _tensors(batch), strict=True):
            own.copy_(given)
        self.graph.replay()
        return {name: value.clone() for name, value in self.losses.items()}

    def _record(self, batch: Batch) -> None:
        self.batch = Batch(*(tensor.clone() for tensor in _tensors(batch)))
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(0 if self.warm else WARMUPS):
                self.work(self.batch)
        torch.cuda.current_stream().wait_stream(stream)
        self.warm = True
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.losses = self.work(self.batch)


def _tensors(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    return batch.states, batch.rows, batch.labels


@contextmanager
def compiled_blocks(*modules: nn.Module, on: bool) -> Iterator[None]:
    """While this lasts the transformer blocks inside are compiled, all with one program as they are all alike."""
    blocks: list[Any] = [part for module in modules for part in module.modules() if isinstance(part, Block)]
    for block in blocks if on else ():
        block.compile(dynamic=False)
    try:
        yield
    finally:
        for block in blocks:
            block._compiled_call_impl = None
