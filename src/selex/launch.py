"""Processes that were started together: `torchrun` says who is who in variables, and what `srun` says becomes those."""

from __future__ import annotations

import os
import re
from collections.abc import MutableMapping

_SLURM = "slurm-"
_PORTS = range(12_000, 32_000)  # below those that a system hands out


def adopt_slurm(environment: MutableMapping[str, str] = os.environ) -> None:
    """Where SLURM's `srun` started this process beside others, say so as `torchrun` does; what is set stays.

    In a shell or script inside an allocation most of its variables are there too, but the process is alone.
    """
    say = environment.get
    tasks, nodes = int(say("SLURM_STEP_NUM_TASKS", "1")), int(say("SLURM_STEP_NUM_NODES", "1"))
    if tasks < 2 or "LOCAL_RANK" in environment:
        return
    job, step = int(say("SLURM_JOB_ID", "0")), int(say("SLURM_STEP_ID", "0"))
    said = {
        "RANK": say("SLURM_PROCID", "0"),
        "WORLD_SIZE": str(tasks),
        "LOCAL_RANK": say("SLURM_LOCALID", "0"),
        "LOCAL_WORLD_SIZE": str(tasks // nodes),
        "GROUP_RANK": say("SLURM_NODEID", "0"),
        "GROUP_WORLD_SIZE": str(nodes),
        "MASTER_ADDR": first_host(say("SLURM_STEP_NODELIST", "127.0.0.1")),
        "MASTER_PORT": str(_PORTS[(97 * job + step) % len(_PORTS)]),
        "TORCHELASTIC_RUN_ID": f"{_SLURM}{job}-{step}",
    }
    for name, value in said.items():
        environment.setdefault(name, value)


def first_process() -> bool:
    """Of several processes that know of each other, whether this is the first."""
    return os.environ.get("RANK", "0") == "0"


def processes() -> int:
    """How many processes `torchrun` or `srun` has started; a `WORLD_SIZE` alone says nothing."""
    size = os.environ.get("WORLD_SIZE", "")
    return int(size) if size.isdecimal() and {"RANK", "MASTER_ADDR"} <= os.environ.keys() else 1


def started_by_slurm() -> bool:
    """Whether it was `srun` that said who is who."""
    return os.environ.get("TORCHELASTIC_RUN_ID", "").startswith(_SLURM)


def first_host(nodes: str) -> str:
    """The first of a list of nodes, such as `gpu[003-007,9],login`."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)
    assert first is not None  # of anything
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", first[0])
