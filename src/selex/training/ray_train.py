"""Training by the workers of a Ray cluster: each has a copy of the network and its share of every batch.

Workers are processes of `torch.distributed`, as those of `torchrun` are. The first sends the state after each epoch to
the machine where the command was started, which keeps checkpoints: whoever is lost, training resumes from the last.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import Any

import torch

from selex.config import Config
from selex.data.crops import to_device
from selex.data.store import ImageStore, cached_store
from selex.data.table import ImageTable, is_url
from selex.errors import InputError, Note
from selex.features.attention_crop import cut_to
from selex.features.ray_cache import InUse, photos_in_use, trim
from selex.features.ray_cluster import NOTICE, RayEngine, Worker, attempts, room, running, start_workers, stop_workers
from selex.features.ray_embed import Embedded
from selex.features.sources import Files, Unit
from selex.folders import MARK
from selex.io import locked
from selex.models.network import Backbone
from selex.progress import progress_bar
from selex.runs.writer import RunWriter
from selex.training.checkpoint import Checkpoints, on_host
from selex.training.devices import start_fabric
from selex.training.fit import (
    Seen,
    TrainOptions,
    epoch_log,
    make_method,
    training_data,
    training_identity,
    worth_compiling,
)
from selex.training.loop import Callbacks, Score, train
from selex.training.methods import Method

_READERS = 8  # units that a node reads at a time

Event = tuple[str, Any]
State = dict[str, Any]


@dataclass(frozen=True)
class Lesson:
    """What every worker is told: which network is trained how, and on what."""

    config: Config
    backbone: Backbone
    n_categories: int
    images: Embedded
    seen: Seen
    device: str
    score: Score | None = None


def train_run_on_ray(
    run: RunWriter,
    config: Config,
    backbone: Backbone,
    method: Method,
    images: Embedded,
    seen: Seen,
    engine: RayEngine,
    device: str | torch.device,
    options: TrainOptions,
    again: bool = False,
) -> int:
    """Train the method's backbone, from the newest checkpoint on; the number of epochs that it has seen.

    What is trained `again` has checkpoints of its own.
    """
    identity = training_identity(config, method, images.key, seen)
    checkpoints = Checkpoints(run.work, identity, config.to_json(), again)
    if options.restart and not again:
        checkpoints.clear()
    log, epochs = epoch_log(run, options.tensorboard, again), method.settings.epochs
    lesson = Lesson(config, backbone.to("cpu"), method.task.n_categories, images, seen, str(device), options.score)
    on_gpu = torch.device(device).type == "cuda"
    doing = f"{seen.doing(again)}, epoch"
    with running(engine, torch.device(device)) as asked, progress_bar(doing, options.progress) as advance:

        def hear(event: Event) -> None:
            what, told = event
            if what == "epoch":
                log(told)
            elif what == "state":
                checkpoints.save(told["epoch"], told)
                advance(told["epoch"] + 1, epochs)
            elif what == "refused":
                raise told
            else:
                warnings.warn(told, Note, stacklevel=2)

        def attempt() -> State:
            state = checkpoints.latest()
            if state is None or state["epoch"] + 1 < epochs:
                size = _share(room(asked, on_gpu), method.settings.batch)
                _attempt(lesson, state, lambda: start_workers(_Trainer, engine, size, on_gpu), hear)
                checkpoints.wait()
                state = checkpoints.latest()
            assert state is not None
            return state

        state = attempts("training", attempt)
    method.load_state_dict(state["method"], strict=False)
    backbone.to(device)
    return len(state["history"])


def _share(most: int, batch: int) -> int:
    """As many workers as can share a batch."""
    return max(size for size in range(1, most + 1) if batch % size == 0)


def _attempt(
    lesson: Lesson,
    state: State | None,
    start: Callable[[], tuple[list[Any], dict[str, str]]],
    hear: Callable[[Event], None],
) -> None:
    """Train with new workers; they are gone when it returns."""
    import ray

    workers, place = start()
    size = len(workers)
    try:
        given = ray.put(lesson)
        first = workers[0].lead.options(num_returns="streaming").remote(given, state, size, place)
        others = [worker.follow.remote(given, rank, size, place) for rank, worker in enumerate(workers) if rank]
        _listen(first, others, hear)
    finally:
        stop_workers(workers)


def _listen(first: Any, others: list[Any], hear: Callable[[Event], None]) -> None:
    """Until all workers are done; the first that fails ends it, once Ray knows who else is lost with it."""
    import ray

    left = [first, *others]
    try:
        while left:
            done, left = ray.wait(left)
            if done[0] is not first:
                if refused := ray.get(done[0]):
                    raise refused
                continue
            told = next(first, None)
            if told is not None:
                hear(ray.get(told))
                left.append(first)
    except ray.exceptions.RayError:
        ray.wait(others, num_returns=len(others), timeout=NOTICE) if others else None
        raise


class _Trainer(Worker):
    """An actor: trains together with the others."""

    def lead(self, lesson: Lesson, state: State | None, size: int, place: dict[str, str]) -> Iterator[Event]:
        """The first: what there is to tell, as it happens."""
        events: SimpleQueue[Event | BaseException | None] = SimpleQueue()

        def work() -> None:
            try:
                with warnings.catch_warnings(record=True) as said:
                    warnings.simplefilter("always", Note)
                    self._train(lesson, 0, size, place, _Sent(state, events.put))
                for one in said:
                    if issubclass(one.category, Note):
                        events.put(("note", str(one.message)))
                events.put(None)
            except InputError as error:
                events.put(("refused", error))
                events.put(None)
            except BaseException as error:
                events.put(error)

        threading.Thread(target=work, daemon=True).start()
        while (event := events.get()) is not None:
            if isinstance(event, BaseException):
                raise event
            yield event

    def follow(self, lesson: Lesson, rank: int, size: int, place: dict[str, str]) -> InputError | None:
        """Another: writes nothing; why it refused, if it did."""
        try:
            self._train(lesson, rank, size, place, None)
        except InputError as error:
            return error
        return None

    def _train(self, lesson: Lesson, rank: int, size: int, place: dict[str, str], sent: _Sent | None) -> None:
        self.meet(rank, size, place)
        fabric, config = start_fabric(lesson.device), lesson.config
        boxes = lesson.images.boxes
        with photos_here(lesson.images) as table:
            folder = cached_store(table.root, lesson.images.size)
            folder.parent.mkdir(parents=True, exist_ok=True)
            images = ImageStore.build(table, folder, size=lesson.images.size, strict=True)
            cut = None if boxes is None else cut_to(images, folder, boxes)
        method = make_method(config, lesson.backbone.to(fabric.device), lesson.n_categories, lesson.seen.n_known)
        data = training_data(images, to_device(images, fabric.device, cut), lesson.seen, config)
        how: dict[str, Any] = {"compile": worth_compiling(method, len(images), fabric)}
        if sent is not None:
            how |= {
                "checkpoints": sent,
                "callbacks": Callbacks(lambda entry: sent.tell(("epoch", entry)), lesson.score),
            }
        train(method, data, config.seed, fabric=fabric, **how)


class _Sent(Checkpoints):
    """Checkpoints that are kept elsewhere: states are sent there."""

    def __init__(self, state: State | None, tell: Callable[[Event], None]) -> None:
        self.state, self.tell = state, tell

    def latest(self) -> State | None:
        """The state to begin with."""
        return self.state

    def save(self, epoch: int, state: State) -> None:
        """Send the state after an epoch."""
        self.tell(("state", {**on_host(state), "epoch": epoch}))

    def wait(self) -> None:
        """Whoever keeps it, waits."""

    def last_good(self) -> str:
        """What a message says of where training can be taken up again."""
        return "checkpoints are in the run folder"


@contextmanager
def photos_here(images: Embedded) -> Iterator[ImageTable]:
    """The table of images on this machine's disk: files that it sees as they are, others copied into its cache.

    Copies stay while this lasts; later, other copies may take their room.
    """
    units, table = images.units, images.table
    if all(isinstance(unit, Files) and not is_url(unit.place) for unit in units):
        yield table
        return
    rows = {name: row for row, name in enumerate(table.files)}
    with photos_in_use(images.key[:32]) as place:
        wanted = {_file(row) for row in rows.values()}
        if not wanted <= set(os.listdir(place.folder)):
            place.check_writable()
            with locked(place.folder / MARK, wait=True), ThreadPoolExecutor(_READERS) as pool:
                there = set(os.listdir(place.folder))
                if not wanted <= there:  # else another worker has copied them meanwhile
                    list(pool.map(lambda unit: _copy(unit, place, rows, there), units))
        trim()  # of other jobs
        yield replace(table, sources={row: str(place.folder / _file(row)) for row in rows.values()})


def _copy(unit: Unit, place: InUse, rows: dict[str, int], there: set[str]) -> None:
    """Files of the images of a unit that are not there."""
    if isinstance(unit, Files) and all(_file(rows[name]) in there for name in unit.names if name in rows):
        return
    for image in unit.read():
        row = rows.get(image.name)
        if row is None or _file(row) in there:
            continue
        if image.data is None:
            raise InputError(f"{image.name}: {image.reason}")
        place.put(_file(row), image.data, used=0)  # decoded images are known by this time


def _file(row: int) -> str:
    return f"{row:09}"
