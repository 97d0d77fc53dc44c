"""The processes that cluster together, each with rows of its own: what they add up, hand round and refuse as one."""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from selex.errors import InputError
from selex.io import first_line
from selex.launch import adopt_slurm, processes, started_by_slurm

_PATIENCE = timedelta(days=7)  # others wait while the first embeds; one that is gone is noticed at once
_SHORT = timedelta(seconds=2)  # for an answer from a process that may be gone
_START = 300  # seconds in which all processes have to be there
_PORT = "selex/port"
_KINDS: dict[type, torch.dtype] = {bool: torch.bool, int: torch.int64, float: torch.float64}
_TORCH: Any = dist  # has stores, which its types do not mention

T = TypeVar("T")


class Group:
    """One process alone: what is asked of all processes is asked of itself."""

    rank = 0
    size = 1

    def sum(self, values: Tensor) -> Tensor:
        """The sum over processes, in each of them."""
        return values

    def gather(self, values: Tensor, lengths: list[int] | None = None) -> Tensor:
        """What every process has, in the order of processes, along the first dimension.

        Where they may differ in length it saves a message to say the `lengths`, if those are known.
        """
        return values

    def all(self, flag: bool) -> bool:
        """Whether it is so in every process."""
        return flag

    def agree(self, value: T) -> T:
        """What the first process has, a tensor or a number, in each of them.

        Machines may differ in the last digit of what all have worked out, but not in what they decide by it: one would
        wait for the others for ever.
        """
        return value

    @contextmanager
    def together(self) -> Iterator[None]:
        """A check that each process makes of its own rows: where one refuses, all do, and none waits for it."""
        yield


ALONE = Group()


class Processes(Group):
    """The processes of `torch.distributed`, which is running already: gloo, or NCCL with a GPU for each process."""

    def __init__(self) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        nccl = dist.get_backend() == "nccl"
        self._device = torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")

    def sum(self, values: Tensor) -> Tensor:
        """An all-reduce; the given tensor stays as it is."""
        sent = values.to(self._device, copy=True).contiguous()
        dist.all_reduce(sent)
        return sent.to(values.device)

    def gather(self, values: Tensor, lengths: list[int] | None = None) -> Tensor:
        """An all-gather of what is padded to one length."""
        kind = torch.uint8 if values.dtype == torch.bool else values.dtype
        if lengths is None:
            lengths = [int(length) for length in self._gather(torch.tensor([len(values)]))]
        sent = torch.zeros(max(lengths), *values.shape[1:], dtype=kind, device=self._device)
        sent[: len(values)] = values
        parts = [part[:length] for part, length in zip(self._gather(sent), lengths, strict=True)]
        return torch.cat(parts).to(values.device, values.dtype)

    def all(self, flag: bool) -> bool:
        """Everyone's flag, gathered."""
        return bool(self.gather(torch.tensor([flag]), [1] * self.size).all())

    def agree(self, value: T) -> T:
        """A broadcast."""
        given = value if isinstance(value, Tensor) else torch.as_tensor(value, dtype=_KINDS[type(value)])
        sent = given.to(self._device, copy=True).contiguous()
        dist.broadcast(sent, 0)
        agreed = sent.to(given.device)
        return cast(T, agreed if isinstance(value, Tensor) else agreed.item())

    def _gather(self, values: Tensor) -> list[Tensor]:
        sent = values.to(self._device)
        parts = [torch.empty_like(sent) for _ in range(self.size)]
        dist.all_gather(parts, sent)
        return parts

    @contextmanager
    def together(self) -> Iterator[None]:
        """Each says whether it refused; the one that did says why."""
        refused: InputError | None = None
        try:
            yield
        except InputError as error:
            refused = error
        wrong = torch.nonzero(self.gather(torch.tensor([refused is not None]), [1] * self.size))[:, 0].tolist()
        if refused is not None:
            raise InputError(f"process {self.rank}: {refused}" if self.size > 1 else str(refused))
        if wrong:
            raise InputError(f"process {wrong[0]} rejected its rows: see its error")


def join(device: str | torch.device = "cpu") -> Group:
    """The processes that `torchrun` or `srun` started, or this one alone; with `cuda` each takes a GPU of its own."""
    adopt_slurm()
    if processes() == 1 and not dist.is_initialized():
        return Group()
    if torch.device(device).type == "cuda":
        place, many = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if place >= many:
            raise InputError(
                f"process {place + 1} of this machine has no GPU (there are {many}): start fewer processes"
            )
        torch.cuda.set_device(place)
    if not dist.is_initialized():
        connect("nccl" if torch.device(device).type == "cuda" else "gloo")
    return Processes()


def connect(kind: str) -> None:
    """Join the processes that were started; after a restart by `torchrun` too."""
    try:
        dist.init_process_group(kind, timeout=_PATIENCE, **_meeting())
    except dist.DistError as error:
        raise InputError(f"cannot connect the processes: {first_line(error)}") from error
    if kind == "nccl":
        atexit.register(lambda: dist.destroy_process_group() if dist.is_initialized() else None)


def check_same_job(group: Group, *said: str) -> None:
    """Refuse processes that were started together to do different jobs: the first alone would write its results."""
    digest = int.from_bytes(hashlib.sha256(os.fsencode("\n".join(said))).digest()[:7], "big")
    if len(set(group.gather(torch.tensor([digest]), [1] * group.size).tolist())) > 1:
        raise InputError(
            "processes that were started together have different settings: start each alone (with SLURM: srun -n 1)"
        )


def lost_process(error: BaseException) -> bool:
    """Whether this is what processes that wait for one that is gone are told by the library that connects them."""
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and re.search(r"(^|[\s\[/])gloo/", str(error)) is not None
    )


def restartable() -> bool:
    """Whether `torchrun --max-restarts` starts all processes again when one is lost."""
    agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return agent and os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0"


def is_first_attempt(what: str) -> bool:
    """Whether this is asked of `what` for the first time: not again when `torchrun` has started all processes again."""
    return not restartable() or _store_of_torchrun().add(f"selex/attempts/{what}", 1) == 1


def _meeting() -> dict[str, Any]:
    """Where the processes meet, if not where `torchrun` says; in a shell that `srun` started, others may be gone."""
    if restartable():
        return _apart()
    if not started_by_slurm():
        return {}
    rank, size, host, port = (os.environ[name] for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))
    try:
        store = _TORCH.TCPStore(host, int(port), int(size), rank == "0", timedelta(seconds=_START))
    except dist.DistError:
        raise InputError(
            f"not all of the {size} tasks of this step started within {_START} seconds; for a single task: srun -n 1"
        ) from None
    store.set_timeout(_PATIENCE)
    return {"store": store, "rank": int(rank), "world_size": int(size)}


def _store_of_torchrun() -> Any:
    host, port, size = (os.environ[name] for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE"))
    return _TORCH.TCPStore(host, int(port), int(size), is_master=False)


def _apart() -> dict[str, Any]:
    """A store that the first process keeps itself, and who is who.

    The store of `torchrun` outlives a restart, with the addresses of processes that are gone: it only says where the
    new one is, and only until all are there. An address from before the restart leads nowhere, and is asked for again.
    """
    rank, size, host = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["MASTER_ADDR"]
    of_torchrun = _store_of_torchrun()
    if rank == 0:
        store = _TORCH.TCPStore(host, 0, size, is_master=True, timeout=_PATIENCE, wait_for_workers=False)
        of_torchrun.set(_PORT, str(store.port))
        store.wait([f"selex/there/{other}" for other in range(1, size)])
        of_torchrun.delete_key(_PORT)
        store.set("selex/all", "there")
    else:
        store = _found(of_torchrun, host, size)
        store.set(f"selex/there/{rank}", "")
        store.wait(["selex/all"])
    return {"store": store, "rank": rank, "world_size": size}


def _found(of_torchrun: Any, host: str, size: int) -> Any:
    """The store of the first process, as soon as it is there."""
    end = time.monotonic() + _START
    while time.monotonic() < end:
        try:
            port = int(of_torchrun.get(_PORT))
            store = _TORCH.TCPStore(host, port, size, is_master=False, timeout=_SHORT, wait_for_workers=False)
        except dist.DistError:
            time.sleep(0.2)
        else:
            store.set_timeout(_PATIENCE)
            return store
    raise InputError(f"the first process has not started within {_START} seconds: see its error")
