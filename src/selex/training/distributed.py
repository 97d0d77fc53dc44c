"""Fabric: on which device, with which precision, in how many processes."""

from __future__ import annotations

import logging
import os
from typing import Any, cast

import torch

from selex.errors import InputError
from selex.io import first_line

try:
    from lightning_fabric import Fabric
    from lightning_fabric.plugins import environments
except ImportError:  # the same library, as a part of the whole `lightning` package
    from lightning.fabric import Fabric  # type: ignore[import-not-found,no-redef]
    from lightning.fabric.plugins import environments  # type: ignore[import-not-found,no-redef]

__all__ = ["Fabric", "start"]


def start(device: str | torch.device) -> Fabric:
    """Fabric on a device: one process, or one of many where `torchrun` or a cluster started several."""
    place = torch.device(device)
    for library in ("lightning_fabric", "lightning.fabric"):
        logging.getLogger(library).setLevel(logging.WARNING)  # a user sees our own lines only
    accelerator, precision = ("cuda", "bf16-mixed") if place.type == "cuda" else ("cpu", "32-true")
    about: dict[str, Any] = {"accelerator": accelerator, "precision": precision}
    processes, nodes, environment = _launched()
    if processes * nodes == 1:
        return Fabric(devices=[place.index or 0] if place.type == "cuda" else 1, plugins=environment(), **about)
    try:
        fabric = Fabric(devices=processes, num_nodes=nodes, strategy="ddp", plugins=environment(), **about)
    except (RuntimeError, ValueError) as error:  # the cluster was asked for processes in a way that does not work
        raise InputError(f"cannot train with {processes * nodes} processes: {first_line(error)}") from None
    fabric.launch()
    return fabric


def _launched() -> tuple[int, int, Any]:
    """Processes of a node, nodes, and who knows their addresses.

    `torchrun` says it in LOCAL_RANK and others. A cluster says it to the processes that `srun` starts; in a shell or
    script inside an allocation its other variables are there too, but the process is alone.
    """
    say, kinds = os.environ.get, cast(Any, environments)
    if "LOCAL_RANK" in os.environ:
        here, nodes = int(say("LOCAL_WORLD_SIZE", say("WORLD_SIZE", "1"))), int(say("GROUP_WORLD_SIZE", "1"))
        elastic = "TORCHELASTIC_RUN_ID" in os.environ
        return here, nodes, kinds.TorchElasticEnvironment if elastic else kinds.LightningEnvironment
    tasks, nodes = int(say("SLURM_STEP_NUM_TASKS", "1")), int(say("SLURM_STEP_NUM_NODES", "1"))
    if tasks > 1:
        return tasks // nodes, nodes, kinds.SLURMEnvironment
    return 1, 1, kinds.LightningEnvironment
