"""A Ray cluster: which one, how it is joined or started, and how many workers it has room for."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from selex.errors import InputError, needs_extra
from selex.io import first_line


@dataclass(frozen=True)
class RayEngine:
    """Which cluster, and how many actors hold the backbone; without an address Ray is started on this machine.

    With `spread` they make the clusters too, each of its part of the features.
    """

    address: str | None = None
    workers: int | None = None
    spread: bool = False


@contextmanager
def running(engine: RayEngine, device: torch.device) -> Iterator[int]:
    """Ray, joined or started here, and how many workers it is asked for; left as it was."""
    with needs_extra("cluster", "--engine ray"):
        import ray
        import ray.data
    ours = not ray.is_initialized()
    if ours:
        _join(ray, engine.address)
    try:
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        ray.data.DataContext.get_current().enable_progress_bars = False
        yield _workers(ray.cluster_resources(), engine.workers, device)
    finally:
        if ours:
            ray.shutdown()


def _join(ray: Any, address: str | None) -> None:
    _check_address(address)
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # a user sees our own lines only
    here = {} if address else {"num_cpus": max(2, os.cpu_count() or 1), "include_dashboard": False}
    try:
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False, **here)
    except (ConnectionError, ValueError, RuntimeError) as error:
        line = first_line(error)
        raise InputError(f"no Ray cluster at {address}: {line} (start one: ray start --head)") from None


def _check_address(address: str | None) -> None:
    """Refuse an address at which nobody listens: Ray itself would go on trying for minutes."""
    host, _, port = (address or "").rpartition(":")
    if not host or "/" in host:  # auto, or a client's URL, which Ray refuses itself
        return
    if not port.isdigit():
        raise InputError(f"--address {address}: the port after the colon must be a number")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, OverflowError) as error:
        raise InputError(f"no Ray cluster at {address}: {first_line(error)} (start one: ray start --head)") from None


def _workers(resources: dict[str, float], asked: int | None, device: torch.device) -> int:
    """How many actors: as asked, else one for each GPU, or one for every two cores; somebody has to decode."""
    cores, cards = int(resources.get("CPU", 0)), int(resources.get("GPU", 0))
    most = min(cards, cores - 1) if device.type == "cuda" else cores - 1
    if (asked is not None and asked > most) or most < 1:
        where = f"the cluster has {cores} CPU and {cards} GPU, one CPU of them to decode with"
        raise InputError(f"{asked or 1} workers on {device.type} are too many: {where}")
    return asked or (most if device.type == "cuda" else max(1, cores // 2))
