"""Fabric: on which device, with which precision, in how many processes."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from selex.cluster.group import connect, restartable
from selex.errors import InputError, needs_extra
from selex.io import first_line

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def fabric_library() -> Any:
    """Lightning Fabric, alone or as a part of the whole `lightning` package; it comes with `selex[train]`."""
    with suppress(ModuleNotFoundError):
        return import_module("lightning_fabric")
    with needs_extra("train", "training"):
        return import_module("lightning.fabric")


def start(device: str | torch.device) -> Fabric:
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
    if restartable() and not torch.distributed.is_initialized():
        connect("nccl" if place.type == "cuda" else "gloo")  # before Fabric does, which would meet processes of before
    fabric.launch()
    return fabric


def _launched() -> tuple[int, int, Any]:
    """Processes of a node, nodes, and who knows their addresses.

    `torchrun` says it in LOCAL_RANK and others. A cluster says it to the processes that `srun` starts; in a shell or
    script inside an allocation its other variables are there too, but the process is alone.
    """
    say, kinds = os.environ.get, import_module(f"{fabric_library().__name__}.plugins.environments")
    if "LOCAL_RANK" in os.environ:
        here, nodes = int(say("LOCAL_WORLD_SIZE", say("WORLD_SIZE", "1"))), int(say("GROUP_WORLD_SIZE", "1"))
        elastic = "TORCHELASTIC_RUN_ID" in os.environ
        return here, nodes, kinds.TorchElasticEnvironment if elastic else kinds.LightningEnvironment
    tasks, nodes = int(say("SLURM_STEP_NUM_TASKS", "1")), int(say("SLURM_STEP_NUM_NODES", "1"))
    if tasks > 1:
        return tasks // nodes, nodes, kinds.SLURMEnvironment
    return 1, 1, kinds.LightningEnvironment
