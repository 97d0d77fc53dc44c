"""Where training runs: Fabric (device, precision, number of processes), and how steps run on a GPU.

Recorded kernels and compiled blocks are for speed; deterministic kernels give the same bits each time.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from selex.cluster.distributed.group import connect, restartable
from selex.errors import InputError, needs_extra
from selex.io import first_line
from selex.launch import adopt_slurm, started_by_slurm
from selex.models.trunk import ClassToken

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def fabric_library() -> Any:
    """Lightning Fabric, alone or as a part of the whole `lightning` package; it comes with `selex[train]`."""
    with suppress(ModuleNotFoundError):
        return import_module("lightning_fabric")
    with needs_extra("train", "training"):
        return import_module("lightning.fabric")


def start_fabric(device: str | torch.device) -> Fabric:
    """Fabric on a device: one process, or one of many where `torchrun` or a cluster started several."""
    make: type[Fabric] = fabric_library().Fabric
    place = torch.device(device)
    for library in ("lightning_fabric", "lightning.fabric"):
        logging.getLogger(library).setLevel(logging.WARNING)  # a user sees our own lines only
    accelerator, precision = ("cuda", "bf16-mixed") if place.type == "cuda" else ("cpu", "32-true")
    about: dict[str, Any] = {"accelerator": accelerator, "precision": precision}
    processes, nodes, environment = _launched()
    if processes * nodes == 1:
        return make(devices=[place.index or 0] if place.type == "cuda" else 1, plugins=environment(), **about)
    try:
        fabric = make(devices=processes, num_nodes=nodes, strategy="ddp", plugins=environment(), **about)
    except (RuntimeError, ValueError) as error:  # the cluster was asked for processes in a way that does not work
        raise InputError(f"cannot train with {processes * nodes} processes: {first_line(error)}") from None
    if (restartable() or started_by_slurm()) and not torch.distributed.is_initialized():
        connect("nccl" if place.type == "cuda" else "gloo")  # before Fabric does: it meets others, or waits for ever
    fabric.launch()
    return fabric


def _launched() -> tuple[int, int, Any]:
    """Processes of a node, nodes, and who knows their addresses, as `torchrun` says it."""
    adopt_slurm()
    say, kinds = os.environ.get, import_module(f"{fabric_library().__name__}.plugins.environments")
    if "LOCAL_RANK" not in os.environ:
        return 1, 1, kinds.LightningEnvironment
    here, nodes = int(say("LOCAL_WORLD_SIZE", say("WORLD_SIZE", "1"))), int(say("GROUP_WORLD_SIZE", "1"))
    if "WORLD_SIZE" in os.environ and here * nodes != int(os.environ["WORLD_SIZE"]):
        raise InputError(
            f"cannot train with {os.environ['WORLD_SIZE']} processes on {nodes} nodes: start the same number "
            "on each (srun --ntasks-per-node)"
        )
    elastic = "TORCHELASTIC_RUN_ID" in os.environ
    return here, nodes, kinds.TorchElasticEnvironment if elastic else kinds.LightningEnvironment


WARMUPS = 3


class Graph:
    """Work on tensors, recorded once and replayed: launching hundreds of small kernels takes longer than they do.

    The work must be the same kernels on the same memory each time, whatever the tensors hold; `forget` has it recorded
    anew.
    """

    def __init__(self, work: Callable[..., dict[str, Tensor]]) -> None:
        self.work, self.warm = work, False
        self.graph: torch.cuda.CUDAGraph | None = None
        self.given: tuple[Tensor, ...]
        self.made: dict[str, Tensor]

    def forget(self) -> None:
        """Something that the work reads is elsewhere now."""
        self.graph = None

    def __call__(self, *tensors: Tensor) -> dict[str, Tensor]:
        """What the work makes of tensors; gradients are left where the work leaves them."""
        if self.graph is None:
            self._record(tensors)
        assert self.graph
        for own, given in zip(self.given, tensors, strict=True):
            own.copy_(given)
        self.graph.replay()
        return {name: value.clone() for name, value in self.made.items()}

    def _record(self, tensors: tuple[Tensor, ...]) -> None:
        self.given = tuple(tensor.clone() for tensor in tensors)
        device = tensors[0].device  # which need not be the current one
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for _ in range(0 if self.warm else WARMUPS):
                self.work(*self.given)
        torch.cuda.current_stream(device).wait_stream(stream)
        self.warm = True
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=stream):  # its own: recorded work may run beside other such work
            self.made = self.work(*self.given)


@contextmanager
def side_stream(device: torch.device) -> Iterator[None]:
    """Work that is given to a GPU in here is done beside what follows; on a CPU it is done at once.

    Nothing may use what it makes before `join_stream`.
    """
    if device.type != "cuda":
        yield
        return
    stream = _side(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        yield


def join_stream(device: torch.device) -> None:
    """From here on, work waits for what was given to the `side_stream`."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).wait_stream(_side(device))


@cache
def _side(device: torch.device) -> Any:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@contextmanager
def deterministic() -> Iterator[None]:
    """While this lasts, kernels that would add up in whatever order threads arrive give way to ones that do not.

    An operation that has only the first kind raises an error. Memory is not filled before it is used: nothing of ours
    reads what it did not write.
    """
    setting: Any = torch.utils.deterministic
    before, warned = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    filled = setting.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    setting.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warned)
        setting.fill_uninitialized_memory = filled


@contextmanager
def compiled_blocks(*modules: nn.Module, on: bool) -> Iterator[None]:
    """While this lasts the transformer blocks inside are compiled, all with one program as they are all alike."""
    from timm.models.vision_transformer import Block

    parts = (part for module in modules for part in module.modules())
    blocks: list[Any] = [part for part in parts if isinstance(part, (Block, ClassToken))]
    for block in blocks if on else ():
        block.compile(dynamic=False)
    try:
        yield
    finally:
        for block in blocks:
            block._compiled_call_impl = None
