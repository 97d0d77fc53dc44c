"""Backbone + images -> L2-normalised features, in row order; interrupted work goes on where it stopped."""

# n images, d dims of the feature

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import numpy as np
import torch
from numpy.lib.format import open_memmap
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch.nn.functional import normalize

from selex.errors import InputError
from selex.models.backbones import Backbone

Features = np.ndarray[tuple[int, int], np.dtype[np.float32]]

CPU_BATCH = 32
GPU_BATCH = 512
BYTES_PER_IMAGE = 32 << 20
"""Generous guess of the GPU memory one image takes on its way through a ViT-B."""
SAVE_EVERY = 1.0
"""Seconds between two notes of how far the work is: the most that a crash can lose."""


class Images(Protocol):
    """Images by row. Where there is a `key` (a string that changes with the images), features on disk remember it."""

    def __len__(self) -> int:
        """How many rows there are."""

    def centre_crops(self, rows: slice, crop: int) -> torch.Tensor:
        """Centre crops (rows, 3, crop, crop), uint8, of some rows."""


@dataclass(frozen=True)
class Progressed:
    """What stands beside features on disk: what they are of, and how many rows are done."""

    key: str
    rows: int
    dim: int
    batch_size: int
    done: int = 0


def embed(
    backbone: Backbone,
    images: Images,
    out: str | Path | None = None,
    *,
    device: str | torch.device,
    batch_size: int | None = None,
    progress: bool = False,
    compile: bool = False,
) -> Features:
    """Features (n, d) of all images, float32 and L2-normalised, in row order.

    With `out`, a `.npy` file that the result is mapped from: it is there once all rows are done, and only then. Until
    then the rows done are in `out` + ".part", and a call with the same backbone and images goes on from there.
    `compile` speeds up a GPU after a minute of compiling.
    """
    if batch_size is not None and batch_size < 1:
        raise InputError(f"batch_size is {batch_size}, must be at least 1")
    device = torch.device(device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device is {device}, but no GPU can be used here")
    work = _Work(backbone, images, device, batch_size or default_batch(device), compile)
    if out is not None:
        return _embed_to(Path(out), work, batch_size, progress)
    features = np.empty((len(images), backbone.dim), dtype=np.float32)
    _fill(features, 0, work, progress, lambda done: None)
    return features


def default_batch(device: torch.device) -> int:
    """Images in one batch: as many as a GPU's free memory surely takes, a few on CPU."""
    if device.type != "cuda":
        return CPU_BATCH
    free, _ = torch.cuda.mem_get_info(device)
    return max(1, min(GPU_BATCH, free // BYTES_PER_IMAGE))


@dataclass(frozen=True)
class _Work:
    """What is to be done, and in batches of which size."""

    backbone: Backbone
    images: Images
    device: torch.device
    size: int
    compile: bool

    @property
    def key(self) -> str:
        return f"{self.backbone.name} {self.backbone.fingerprint()} {getattr(self.images, 'key', '')}"


def _embed_to(out: Path, work: _Work, asked_size: int | None, progress: bool) -> Features:
    start = Progressed(work.key, len(work.images), work.backbone.dim, work.size)
    state = _resumable(out, start)
    if state.done == state.rows and out.is_file() and not _part(out).is_file():
        return _open(out, "r")
    if state.done:
        # The same batches as before, unless asked otherwise: then the features are the same to the last bit.
        state = replace(state, batch_size=asked_size or state.batch_size)
        features = _open(_part(out), "r+")
    else:
        state = start
        features = _begin(out, state)
    _fill(features, state.done, replace(work, size=state.batch_size), progress, _saver(out, state))
    del features
    os.replace(_part(out), out)
    return _open(out, "r")


def _part(out: Path) -> Path:
    return out.with_name(out.name + ".part")


def _note(out: Path) -> Path:
    return out.with_name(out.name + ".json")


def _open(path: Path, mode: Literal["r", "r+"]) -> Features:
    return cast(Features, np.load(path, mmap_mode=mode))


def _resumable(out: Path, wanted: Progressed) -> Progressed:
    """How far the features at `out` are, if they are of the same backbone and images; else nothing is done."""
    try:
        state = Progressed(**json.loads(_note(out).read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return wanted
    same = (state.key, state.rows, state.dim) == (wanted.key, wanted.rows, wanted.dim)
    usable = _holds(_part(out), state) or (state.done == state.rows and _holds(out, state))
    return state if same and usable else wanted


def _holds(path: Path, state: Progressed) -> bool:
    """Whether a file of the right shape is there."""
    try:
        return _open(path, "r").shape == (state.rows, state.dim)
    except (OSError, ValueError):
        return False


def _begin(out: Path, state: Progressed) -> Features:
    """An empty file for the features. The note goes first and comes last: it must never speak of another file."""
    with _told(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        _note(out).unlink(missing_ok=True)
        features = open_memmap(_part(out), mode="w+", dtype=np.float32, shape=(state.rows, state.dim))
        _claim_disk(_part(out))
    _saver(out, state)(0)
    return cast(Features, features)


def _claim_disk(path: Path) -> None:
    """Take a sparse file's space now: a disk that fills up under a mapped file kills the process."""
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


def _saver(out: Path, state: Progressed) -> Callable[[int], None]:
    """A function that notes how many rows are done."""

    def save(done: int) -> None:
        temporary = _note(out).with_name(f"{_note(out).name}.{os.getpid()}")
        with _told(out):
            temporary.write_text(json.dumps(asdict(replace(state, done=done))))
            os.replace(temporary, _note(out))

    return save


@contextmanager
def _told(out: Path) -> Iterator[None]:
    """A failure to write, told in one line."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot write features to {out}: {error.strerror or error}") from error


def _fill(features: Features, done: int, work: _Work, progress: bool, save: Callable[[int], None]) -> None:
    """Write the features of rows `done` … n - 1; what is done when it is interrupted is kept and noted."""
    saved, saved_at = done, time.monotonic()
    try:
        with _evaluating(work.backbone, work.device), _bar(len(work.images), done, progress) as advance:
            for piece in _one_behind(_features(work, done)):
                features[done : done + len(piece)] = _finite(piece.cpu(), done)
                done += len(piece)
                advance(len(piece))
                if time.monotonic() - saved_at > SAVE_EVERY:
                    _flush(features)
                    save(done)
                    saved, saved_at = done, time.monotonic()
    finally:
        if done > saved:
            _flush(features)
            save(done)


def _flush(features: Features) -> None:
    if isinstance(features, np.memmap):
        features.flush()


def _finite(features: torch.Tensor, first_row: int) -> Features:
    finite = features.isfinite().all(dim=1)
    if not finite.all():
        row = first_row + int((~finite).nonzero()[0, 0])
        raise InputError(f"the backbone gives no finite feature for row {row}: its weights may be damaged")
    return cast(Features, features.numpy())


def _one_behind(items: Iterator[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Each item once the next is under way: a GPU goes on working while a result is copied from it."""
    last = next(items, None)
    for item in items:
        yield cast(torch.Tensor, last)
        last = item
    if last is not None:
        yield last


def _features(work: _Work, start: int) -> Iterator[torch.Tensor]:
    """Features of one batch after the other, on the device."""
    forward = _Forward(work)
    for crops in _prefetched(work, start):
        yield forward(crops)


class _Forward:
    """Crops to normalised features; when memory runs out, in ever smaller pieces."""

    def __init__(self, work: _Work) -> None:
        self.size, self.device = work.size, work.device
        self.on_gpu = work.device.type == "cuda"
        self.compiled = work.compile and self.on_gpu
        self.network: Any = torch.compile(work.backbone, dynamic=False) if self.compiled else work.backbone

    def __call__(self, crops: torch.Tensor) -> torch.Tensor:
        while True:
            try:
                return torch.cat([self._piece(piece) for piece in torch.split(crops, self.size)])
            except (torch.OutOfMemoryError, MemoryError) as error:
                if self.size == 1:
                    raise InputError(f"{self.device} has too little memory for even one image") from error
            self.size //= 2
            if self.on_gpu:
                torch.cuda.empty_cache()

    @torch.no_grad()
    def _piece(self, crops: torch.Tensor) -> torch.Tensor:
        n = len(crops)
        if self.compiled and n < self.size:  # one shape, one compilation
            crops = torch.cat([crops, crops[-1:].expand(self.size - n, -1, -1, -1)])
        with torch.autocast("cuda", dtype=torch.bfloat16) if self.on_gpu else nullcontext():
            features = self.network(crops)[:n]
        return normalize(features.float(), dim=1)


def _prefetched(work: _Work, start: int) -> Iterator[torch.Tensor]:
    """Crops in batches on the device; the next batch is read while the last one is worked on."""
    n = len(work.images)

    def read(row: int) -> torch.Tensor:
        crops = work.images.centre_crops(slice(row, min(row + work.size, n)), work.backbone.crop)
        return crops.pin_memory() if work.device.type == "cuda" and not crops.is_cuda else crops

    with ThreadPoolExecutor(1) as reader:
        waiting = deque(reader.submit(read, row) for row in range(start, n, work.size)[:1])
        for row in range(start + work.size, n + work.size, work.size):
            crops = waiting.popleft().result()
            if row < n:
                waiting.append(reader.submit(read, row))
            yield crops.to(work.device, non_blocking=True)


@contextmanager
def _evaluating(backbone: Backbone, device: torch.device) -> Iterator[None]:
    """The backbone on the device and in evaluation mode; its mode is put back afterwards."""
    training = backbone.training
    backbone.to(device).eval()
    try:
        yield
    finally:
        backbone.train(training)


@contextmanager
def _bar(total: int, done: int, shown: bool) -> Iterator[Callable[[int], None]]:
    """A progress bar on standard error: rows, images/s, time left."""
    columns = (
        TextColumn("embedding"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]:,.0f} images/s"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), disable=not shown) as bar:
        task = bar.add_task("", total=total, completed=done, rate=0.0)
        start, first = time.monotonic(), done

        def advance(rows: int) -> None:
            nonlocal done
            done += rows
            bar.update(task, completed=done, rate=(done - first) / max(time.monotonic() - start, 1e-9))

        yield advance
