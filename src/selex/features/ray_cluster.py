"""A Ray cluster: which one, how it is joined or started, and how many workers it has room for."""

from __future__ import annotations

import logging
import os
import socket
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from selex.errors import InputError, Note, needs_extra
from selex.io import first_line

T = TypeVar("T")
ATTEMPTS = 4
"""How often workers that need each other are started before it is given up."""
PATIENCE = 300
"""Seconds for a worker to start: a cluster may have to find a machine for it."""
NOTICE = 30
"""Seconds for Ray to notice who else is lost."""
ANSWER = 30
"""Seconds for an address to answer."""
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""What gRPC, which Ray speaks, begins with; the answer begins with settings too, which are of kind 4."""
_STARTED = {
    "RAY_BACKEND_LOG_LEVEL": "fatal",  # else Ray warns of what Ray Data does, and of every node that is lost
    "RAY_worker_niceness": "0",  # work is as urgent as without Ray
    "RAY_enable_metrics_collection": "0",  # nobody could read what these gather by the second: it ends with the command
    "RAY_task_events_report_interval_ms": "0",
    "RAY_enable_core_worker_task_event_to_gcs": "0",
    "RAY_event_stats": "0",
}
"""The environment of a Ray that is started here, where the user has not set it."""


@dataclass(frozen=True)
class RayEngine:
    """Which cluster, and how many actors hold the backbone; without an address Ray is started on this machine.

    With `spread` they make the clusters too, each of its part of the features. With `fewer` there may be fewer than
    asked for: a cluster may have lost nodes since the job began.
    """

    address: str | None = None
    workers: int | None = None
    spread: bool = False
    fewer: bool = False


@contextmanager
def running(engine: RayEngine, device: torch.device) -> Iterator[int]:
    """Ray, joined or started here, and how many workers it is asked for; left as it was."""
    with needs_extra("cluster", "--engine ray"):
        import ray
        import ray.data
    ours = not ray.is_initialized()
    if ours:
        _join(ray, engine.address)
        # Else it prints lines about workers that it replaces, whatever `log_to_driver` says. The public filter of
        # lines, RAY_DEDUP_LOGS_SKIP_REGEX, is read once in a process and could not be taken back.
        ray._private.worker._worker_logs_enabled = False
    try:
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # of an error one line is enough, and it is ours
        ray.data.DataContext.get_current().enable_progress_bars = False
        yield _workers(ray.cluster_resources(), engine, device)
    finally:
        if ours:
            ray.shutdown()
            ray._private.worker._worker_logs_enabled = True


def _join(ray: Any, address: str | None) -> None:
    _check_address(address)
    for name, value in _STARTED.items() if address is None else [("RAY_BACKEND_LOG_LEVEL", "fatal")]:
        os.environ.setdefault(name, value)
    here = {} if address else {"num_cpus": max(2, os.cpu_count() or 1), "include_dashboard": False}
    try:
        with _unheard():
            # by itself Ray would join a cluster that happens to run here
            ray.init(address=address or "local", logging_level=logging.ERROR, log_to_driver=False, **here)
    except Exception as error:  # of a start that takes too long no kind of its own
        if address is None:
            raise InputError(f"Ray does not start on this machine: {first_line(error)}") from None
        raise _no_cluster(address, first_line(error)) from None


@contextmanager
def _unheard() -> Iterator[None]:
    """Nothing of what is written to standard error: Ray's own code says there at which level it is silent."""
    sys.stderr.flush()
    try:
        kept = os.dup(2)
    except OSError:  # nobody listens anyway
        yield
        return
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _check_address(address: str | None) -> None:
    """Refuse an address at which nobody answers: Ray itself would go on trying for minutes."""
    host, _, port = (address or "").rpartition(":")
    if address is None or not host or "/" in host:  # auto, or a client's URL, which Ray refuses itself
        return
    if os.environ.get("RAY_USE_TLS", "0") != "0":
        return  # it answers in cipher
    if not port.isdigit():
        raise InputError(f"--address {address}: the port after the colon must be a number")
    try:
        with socket.create_connection((host, int(port)), timeout=5) as there:
            there.settimeout(ANSWER)
            there.sendall(_HELLO)
            answer = there.recv(9)
    except (OSError, OverflowError) as error:
        raise _no_cluster(address, first_line(error)) from None
    if answer[3:4] != b"\x04":
        raise _no_cluster(address, "something else answers")


def _no_cluster(address: str, why: str) -> InputError:
    return InputError(f"no Ray cluster at {address}: {why} (start one: ray start --head)")


def _workers(resources: dict[str, float], engine: RayEngine, device: torch.device) -> int:
    """How many actors: as asked, else one for each GPU, or one for every two cores; for GPUs somebody has to decode."""
    cores, cards = int(resources.get("CPU", 0)), int(resources.get("GPU", 0))
    most = min(cards, cores - 1) if device.type == "cuda" else cores
    asked = min(engine.workers, most) if engine.workers and engine.fewer else engine.workers
    if (asked is not None and asked > most) or most < 1:
        where = f"the cluster has {cores} CPU and {cards} GPU"
        where += ", one CPU of them to decode with" if device.type == "cuda" else ""
        raise InputError(f"{asked or 1} workers on {device.type} are too many: {where}")
    return asked or (most if device.type == "cuda" else max(1, cores // 2))


def threads_each(engine: RayEngine, workers: int) -> int:
    """Threads of a worker on CPUs: its share of this machine if Ray is started here, elsewhere the core it asks for."""
    return 1 if engine.address else max(1, torch.get_num_threads() // workers)


def with_threads(threads: int) -> dict[str, Any]:
    """Options of tasks and actors that compute in so many threads.

    Ray allows one for each core that is asked for, and libraries below torch keep to what they were loaded with.
    """
    return {"num_cpus": 1, "runtime_env": {"env_vars": {"OMP_NUM_THREADS": str(threads)}}}


class Worker:
    """An actor that works together with others, as processes of `torch.distributed` do."""

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)

    def place(self) -> dict[str, str]:
        """Where the others find this one, should it be the first."""
        import ray

        with socket.socket() as free:
            free.bind(("", 0))
            return {"MASTER_ADDR": ray.util.get_node_ip_address(), "MASTER_PORT": str(free.getsockname()[1])}

    def meet(self, rank: int, size: int, place: dict[str, str]) -> None:
        """Say to whoever connects processes what `torchrun` would: every worker is a machine with one process."""
        own = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1}
        own |= {"GROUP_RANK": rank, "GROUP_WORLD_SIZE": size}
        said = {name: str(value) for name, value in own.items()}
        os.environ.update(place, **said, TORCHELASTIC_RUN_ID="ray")


def start_workers(kind: type[Worker], engine: RayEngine, size: int, on_gpu: bool) -> tuple[list[Any], dict[str, str]]:
    """So many new actors, on as many nodes as there are, and where the first one is found."""
    import ray

    threads = threads_each(engine, size)
    remote = ray.remote(**with_threads(threads), num_gpus=int(on_gpu), scheduling_strategy="SPREAD")(kind)
    workers = [remote.remote(threads) for _ in range(size)]
    try:
        return workers, ray.get([worker.place.remote() for worker in workers], timeout=PATIENCE)[0]
    except BaseException:
        stop_workers(workers)
        raise


def stop_workers(workers: list[Any]) -> None:
    """End actors, whatever they do."""
    import ray

    for worker in workers:
        ray.kill(worker)


def room(asked: int, on_gpu: bool) -> int:
    """How many workers: as many as were asked for, if the cluster still has room for them."""
    import ray

    return max(1, min(asked, int(ray.cluster_resources().get("GPU" if on_gpu else "CPU", 0))))


def attempts(doing: str, work: Callable[[], T]) -> T:
    """What the work of all workers comes to; if one is lost it is done again by those that can be started then."""
    from ray.exceptions import RayError

    for attempt in range(1, ATTEMPTS + 1):
        try:
            return work()
        except RayError as error:
            if attempt == ATTEMPTS:
                raise InputError(f"{doing} on the Ray cluster failed {ATTEMPTS} times: {last_line(error)}") from error
        warnings.warn(f"a worker was lost while {doing}: all workers start again", Note, stacklevel=3)
    raise AssertionError  # the last attempt has returned or raised


def last_line(error: Exception) -> str:
    """What an error of Ray's comes to, which is its last line; one of ours without its class."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1].removeprefix("selex.errors.InputError: ")
