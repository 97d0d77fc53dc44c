"""Backbone + images -> L2-normalised features, in row order; what was made before is not made again."""

# n images, d dims of the feature

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch.nn.functional import normalize

from selex.config import FeatureConfig
from selex.data.crops import CropParams, fixed_crops, scales
from selex.errors import InputError
from selex.features.cache import FeatureCache, FeatureFile, Features, SharedRows, Standing
from selex.memory import out_of_memory
from selex.models.network import Backbone
from selex.models.trunk import fold_norms
from selex.progress import images_bar

CPU_BATCH = 32
GPU_BATCH = 512
BYTES_PER_IMAGE = 32 << 20
"""Generous guess of the GPU memory one image takes on its way through a ViT-B."""
SAVE_EVERY = 1.0
"""Seconds between two notes of how far the work is: the most that a crash can lose."""


class Images(Protocol):
    """Images by row."""

    @property
    def key(self) -> str:
        """Changes whenever an image does: features on disk remember what they are of. Read only with `out`."""

    def __len__(self) -> int:
        """How many rows there are."""

    def centre_crops(self, rows: np.ndarray[Any, Any], crop: int) -> torch.Tensor:
        """Centre crops (rows, 3, crop, crop), uint8, of the rows with these numbers."""


def embed(
    backbone: Backbone,
    images: Images,
    out: str | Path | None = None,
    *,
    device: str | torch.device,
    batch_size: int | None = None,
    views: int = 1,
    progress: bool = False,
    doing: str = "embedding",
    cache: FeatureCache | None = None,
) -> Features:
    """Features (n, d) of all images, float32 and L2-normalised, in row order.

    With `out`, a `.npy` file that the result is mapped from: it is there once all rows are done, and only then. Until
    then the rows done are in `out` + ".part", and a call with the same backbone and images resumes from there.
    With `views` of 2 or 10 a feature is the mean over so many fixed views of an image, see `fixed_crops`: images must
    have `crops` as `HostImages` do, and it takes so many times as long. Of `TwoScaleImages` it is the mean over both
    scales. The bar says what it is `doing`.
    With `cache`, see `feature_cache`, features of images that are in it are taken from there, and the others put there:
    images must have `digests`, as those of a store do.
    """
    if batch_size is not None and batch_size < 1:
        raise InputError(f"batch_size is {batch_size}, must be at least 1")
    FeatureConfig(views=views)  # type: ignore[arg-type]  # which checks it
    if views > 1 and not hasattr(images, "crops"):
        raise InputError(
            f"{views} views need images with `crops`, such as HostImages; {type(images).__name__} has none"
        )
    device = torch.device(device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device is {device}, but no GPU can be used here")
    size = batch_size or max(1, default_batch(device) // (views * len(scales(images))))
    work = _Work(backbone, images, device, size, views, doing, cache)
    if out is not None:
        return _embed_to(Path(out), work, batch_size, progress)
    features = np.empty((len(images), backbone.dim), dtype=np.float32)
    _fill(features, 0, work, progress, lambda done: None)
    return features


def feature_cache(backbone: Backbone, device: str | torch.device, views: int = 1) -> FeatureCache:
    """Where features that are made in this way are kept, image by image, for all runs."""
    return FeatureCache(f"{backbone.fingerprint()} {views} views {torch.device(device).type}", backbone.dim)


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
    views: int = 1
    doing: str = "embedding"
    cache: FeatureCache | None = None

    @property
    def n_crops(self) -> int:
        """Crops of an image: views at each scale."""
        return self.views * len(scales(self.images))

    def crops(self, rows: np.ndarray[Any, Any]) -> torch.Tensor:
        """All views of some rows, (scales × views × rows, 3, crop, crop), one of all of them after the other."""
        crop = self.backbone.crop
        if self.views == 1:
            made = [images.centre_crops(rows, crop) for images in scales(self.images)]
        else:
            params = CropParams.join(*fixed_crops(len(rows), self.views))
            made = [images.crops(np.tile(rows, self.views), params, crop) for images in scales(self.images)]
        return made[0] if len(made) == 1 else torch.cat(made)


def _embed_to(out: Path, work: _Work, asked_size: int | None, progress: bool) -> Features:
    key = f"{work.backbone.name} {work.backbone.fingerprint()} {work.images.key}"
    key += f" {work.views} views" if work.views > 1 else ""
    file = FeatureFile(out, Standing(key, len(work.images), work.backbone.dim, work.size))
    if file.complete:
        return file.read()
    # The batches of before, unless asked otherwise: then the features are the same to the last bit.
    size = asked_size or file.standing.batch_size
    _fill(file.rows(), file.standing.done, replace(work, size=size), progress, file.save)
    return file.finish()


def _fill(features: Features, done: int, work: _Work, progress: bool, save: Callable[[int], None]) -> None:
    """Write the features of rows `done` … n - 1; what is done when it is interrupted is kept and noted."""
    shared = SharedRows(work.cache, work.images, features, done)
    todo = np.flatnonzero(~shared.found & (np.arange(len(features)) >= done))
    saved, saved_at, done = done, time.monotonic(), _next(todo, features)
    try:
        for piece in _made(work, todo, progress) if len(todo) else ():
            rows, todo = todo[: len(piece)], todo[len(piece) :]
            _check_finite(piece, rows)
            features[rows] = piece.cpu().numpy()
            done = _next(todo, features)
            if time.monotonic() - saved_at > SAVE_EVERY:
                save(done)
                saved, saved_at = done, time.monotonic()
                shared.add(done)
    finally:
        if done > saved:
            save(done)
        shared.add(done, last=True)


def _next(todo: np.ndarray[Any, Any], features: Features) -> int:
    """The first row that is not done; so many are done before it."""
    return int(todo[0]) if len(todo) else len(features)


def _made(work: _Work, rows: np.ndarray[Any, Any], progress: bool) -> Iterator[torch.Tensor]:
    """Features of these rows in pieces, with a bar."""
    n = len(work.images)
    done = n - len(rows)
    with (
        _evaluating(work.backbone, work.device),
        images_bar(work.doing, n, done, progress) as advance,
        closing(_features(work, rows)) as pieces,
    ):
        for piece in _one_behind(pieces):
            yield piece
            done += len(piece)
            advance(done)


def _check_finite(features: torch.Tensor, rows: np.ndarray[Any, Any]) -> None:
    finite = features.isfinite().all(dim=1)
    if not finite.all():
        row = rows[int((~finite).nonzero()[0, 0])]
        raise InputError(f"the backbone gives no finite feature for row {row}: its weights may be damaged")


def _one_behind(items: Iterator[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Each item once the next is under way: a GPU goes on working while a result is copied from it."""
    last = next(items, None)
    for item in items:
        yield cast(torch.Tensor, last)
        last = item
    if last is not None:
        yield last


def _features(work: _Work, rows: np.ndarray[Any, Any]) -> Generator[torch.Tensor, None, None]:
    """Features of these rows, one batch after the other, on the device."""
    forward = _Forward(work)
    with forward.backbone.in_bfloat16() if forward.on_gpu else nullcontext():
        for crops in _prefetched(work, rows):
            features = forward(crops)
            if work.n_crops > 1:  # all rows of one view come after all rows of another
                features = normalize(features.view(work.n_crops, -1, features.shape[1]).mean(0), dim=1)
            yield features


class _Forward:
    """Crops to normalised features; when memory runs out, in ever smaller pieces."""

    def __init__(self, work: _Work) -> None:
        self.size, self.device = work.size * work.n_crops, work.device
        self.on_gpu = work.device.type == "cuda"
        self.backbone = fold_norms(work.backbone)

    def __call__(self, crops: torch.Tensor) -> torch.Tensor:
        while True:
            try:
                return torch.cat([self._piece(piece) for piece in torch.split(crops, self.size)])
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error, self.device):
                    raise
                if self.size == 1:
                    raise InputError(f"{self.device} has too little memory for even one image") from error
            self.size //= 2
            if self.on_gpu:
                torch.cuda.empty_cache()

    @torch.no_grad()
    def _piece(self, crops: torch.Tensor) -> torch.Tensor:
        return normalize(self.backbone(crops).float(), dim=1)


def _prefetched(work: _Work, rows: np.ndarray[Any, Any]) -> Iterator[torch.Tensor]:
    """Crops in batches on the device; the next batch is read while the last one is worked on."""

    def read(batch: np.ndarray[Any, Any]) -> torch.Tensor:
        crops = work.crops(batch)
        return crops.pin_memory() if work.device.type == "cuda" and not crops.is_cuda else crops

    with ThreadPoolExecutor(1) as reader:
        reading = reader.submit(read, rows[: work.size])
        for start in range(work.size, len(rows) + work.size, work.size):
            crops = reading.result()
            if start < len(rows):
                reading = reader.submit(read, rows[start : start + work.size])
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
