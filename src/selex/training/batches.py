"""What a training step is given: rows drawn for an epoch, two random crops of each behind the frozen trunk.

What the trunk makes of a view (its states) is computed when asked for, kept for centre crops, or kept in a bank of
views. All randomness of an epoch is drawn from the seed and its number.
"""

# N images, V views of each in a bank, b images of a batch on this process, 2b views

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from selex.data.crops import AnyImages, AugmentConfig, CropParams, TwoScaleImages, scales
from selex.errors import InputError
from selex.training.devices import Graph, join_stream, side_stream
from selex.training.methods.base import Batch, Method
from selex.training.windows import Windows

if TYPE_CHECKING:
    from lightning_fabric import Fabric


CPU_CHUNK = 32
LEAST = 64
"""Bytes that the states of a view take at least."""


class TrunkFeatures:
    """What the frozen trunk makes of any view of the images (states); those of centre crops are kept if they fit."""

    def __init__(self, trunk: Any, images: AnyImages, crop: int, device: torch.device, chunk: int = CPU_CHUNK) -> None:
        self.trunk, self.images, self.crop, self.device, self.chunk = trunk, images, crop, device, chunk
        self._kept: list[Tensor] | None = None
        self._recorded: dict[torch.dtype, Graph] = {}

    def __len__(self) -> int:
        return len(self.images)

    def of(self, rows: Tensor, params: CropParams) -> Tensor:
        """States of views of some rows, one each."""
        return self._through(params.alter(self._here(self.images.crops(rows, params, self.crop))))

    def centres(self) -> Iterator[Tensor]:
        """States of the centre crops of all images, in row order, in chunks."""
        if self._kept is not None:
            yield from self._kept
            return
        kept: list[Tensor] = []
        for first in range(0, len(self), self.chunk):
            rows = np.arange(first, min(first + self.chunk, len(self)))
            states = self._through(self._here(self.images.centre_crops(rows, self.crop)))
            if first == 0:
                keep = fits_in_memory(states[0].nbytes * len(self), self.device)
            if keep:
                kept.append(states)
            yield states
        self._kept = kept if keep else None

    def augmented(self, generator: torch.Generator, augment: AugmentConfig) -> Iterator[Tensor]:
        """States of a random view of each image, in row order, in chunks."""
        params = CropParams.draw(len(self), augment, generator)
        for first in range(0, len(self), self.chunk):
            rows = torch.arange(first, min(first + self.chunk, len(self)))
            yield self.of(rows, params[first : first + self.chunk])

    def _here(self, crops: Tensor) -> Tensor:
        same = crops.device.type == self.device.type
        return crops if same else crops.pin_memory().to(self.device, non_blocking=True)

    def _through(self, crops: Tensor) -> Tensor:
        if not crops.is_cuda:
            return self.trunk(crops)
        trunk = self.trunk
        if crops.dtype not in self._recorded:
            self._recorded[crops.dtype] = Graph(lambda given: {"states": trunk(given)})
        return self._recorded[crops.dtype](pad_rows(crops, self.chunk))["states"][: len(crops)]


class FeatureBank:
    """V views of each image behind the frozen trunk: a step then runs the trained blocks only.

    Views are made in chunks, and some chunks are made anew each epoch. What a chunk holds in an epoch is a function of
    the seed, the chunk and how often it was refreshed, so that a bank built in the middle of training is the same one.
    """

    def __init__(self, states: TrunkFeatures, views: int, refresh: float, augment: AugmentConfig, seed: int) -> None:
        self.states, self.views, self.augment, self.seed = states, views, augment, seed
        if not fits_in_memory(LEAST * views * len(states), torch.device("cpu"), share=0.8):
            raise self._too_large(LEAST * views * len(states), "at least ")
        self.n_chunks = -(-views * len(states) // states.chunk)
        self.per_epoch = math.ceil(refresh * self.n_chunks)
        self.rounds = np.full(self.n_chunks, -1)
        self.bank: Tensor | None = None

    def refresh(self, epoch: int) -> None:
        """Bring the bank to what it holds in an epoch."""
        rounds = self._rounds(epoch)
        for chunk in np.flatnonzero(rounds != self.rounds).tolist():
            first = chunk * self.states.chunk
            made = self._make(chunk, int(rounds[chunk]))
            if self.bank is None:
                self.bank = self._empty(made)
            self.bank[first : first + len(made)] = made
        self.rounds = rounds

    def pick(self, rows: Tensor, slots: Tensor) -> Tensor:
        """States of rows, each in the view of the given number."""
        assert self.bank is not None
        entries = (slots * len(self.states) + rows).to(self.bank.device)
        return self.bank.index_select(0, entries).to(self.states.device)

    def _rounds(self, epoch: int) -> Any:
        """How often each chunk was refreshed until an epoch, going round and round through the bank."""
        return -(-(epoch * self.per_epoch - np.arange(self.n_chunks)).clip(min=0) // self.n_chunks)

    def _make(self, chunk: int, round: int) -> Tensor:
        n, size = len(self.states), self.states.chunk
        entries = torch.arange(chunk * size, min((chunk + 1) * size, self.views * n))
        generator = generator_of(self.seed, 2, chunk, round)
        return self.states.of(entries % n, CropParams.draw(len(entries), self.augment, generator))

    def _empty(self, like: Tensor) -> Tensor:
        shape = (self.views * len(self.states), *like.shape[1:])
        size = math.prod(shape) * like.element_size()
        for device in (self.states.device, torch.device("cpu")):
            if fits_in_memory(size, device, share=0.8):
                return torch.empty(shape, dtype=like.dtype, device=device)
        raise self._too_large(size)

    def _too_large(self, size: int, about: str = "") -> InputError:
        what = f"a bank of {self.views} views of {len(self.states)} images takes {about}{size / 2**30:.1f} GiB"
        return InputError(f"{what}, more than there is: set a smaller train.view_bank, or 0")


def pad_rows(rows: Tensor, size: int) -> Tensor:
    """Rows of a whole chunk, the last one repeated: one shape for all, so that kernels are chosen and compiled once."""
    missing = size - len(rows)
    return rows if missing <= 0 else torch.cat([rows, rows[-1:].expand(missing, *rows.shape[1:])])


def generator_of(*numbers: int) -> torch.Generator:
    """A generator of the host seeded by several numbers."""
    state = np.random.SeedSequence(numbers).generate_state(2, np.uint32)
    return torch.Generator().manual_seed(int(state[0]) << 31 | int(state[1]) >> 1)


def fits_in_memory(size: int, device: torch.device, share: float = 0.3) -> bool:
    """Whether a device has room for so many bytes in a share of its free memory."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return size < share * free
    return size < share * _free_memory()


def _free_memory() -> int:
    """Bytes of the host's memory that can be had: what files are cached in counts, the system gives it up."""
    with suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2  # a system that does not say


_SAMPLER, _VIEWS, _AUGMENTED = 1, 3, 5  # uses of randomness; 2 is the feature bank's, 4 the clustering's


@dataclass(frozen=True)
class Data:
    """What is trained on: images, labels (-1 where unknown), file names for messages, pixels the network sees."""

    images: AnyImages
    labels: Any
    files: list[str]
    crop: int


class Batches:
    """The batches of every epoch, and what is clustered before it."""

    def __init__(self, method: Method, data: Data, seed: int, fabric: Fabric) -> None:
        self.method, self.data, self.seed, self.fabric = method, data, seed, fabric
        self.settings, self.device = method.settings, fabric.device
        how = self.settings
        self.augment = AugmentConfig(
            how.flip, how.affine, how.random_crop, how.color_jitter, isinstance(data.images, TwoScaleImages)
        )
        self.labels = torch.as_tensor(data.labels, dtype=torch.long).to(self.device)
        self.states = self._states_of(data.images, how.view_size or data.crop)
        parts = scales(data.images)
        same = len(parts) == 1 and self.states.crop == data.crop
        self.centre_states = [self.states] if same else [self._states_of(part, data.crop) for part in parts]
        self.bank = self._bank()
        self.windows = Windows(data.images, how.shuffle_window)

    def __len__(self) -> int:
        """Batches of an epoch."""
        return len(self.data.images) // self.settings.batch

    def refresh(self, epoch: int) -> None:
        """Bring the feature bank to an epoch, beside what follows; `join` before it is used."""
        if self.bank:
            with side_stream(self.device):
                self.bank.refresh(epoch)

    def join(self) -> None:
        """Wait for `refresh`."""
        if self.bank:
            join_stream(self.device)

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """The share of this process in each batch: drawn with replacement, labelled images more often."""
        size = self.settings.batch
        rng = np.random.default_rng([self.seed, _SAMPLER, epoch])
        order = torch.from_numpy(self.windows.ordered(sample_epoch(self.data.labels, rng), rng))
        share = size // self.fabric.world_size
        mine = slice(self.fabric.global_rank * share, (self.fabric.global_rank + 1) * share)
        views = self.from_bank if self.bank else self.new_views
        for step in range(len(self)):
            rows = order[step * size : (step + 1) * size]
            self.windows.read_ahead(rows.numpy())
            states = views(rows, generator_of(self.seed, _VIEWS, epoch, step), mine)
            here = rows[mine].to(self.device)
            yield Batch(states, here, self.labels[here])

    def centres(self) -> list[Iterator[tuple[Tensor, int]]]:
        """For each scale, chunks of the centre crops of all images in row order, and how many rows of each count."""
        return [self._chunks(states.centres()) for states in self.centre_states]

    def augmented(self, epoch: int) -> Iterator[tuple[Tensor, int]]:
        """The same for one random crop of each image."""
        return self._chunks(self.states.augmented(generator_of(self.seed, _AUGMENTED, epoch), self.augment))

    def close(self) -> None:
        """Hold on to nothing: the device's memory is free once nobody uses the method."""
        self.bank = None
        del self.states, self.centre_states

    def new_views(self, rows: Tensor, generator: torch.Generator, mine: slice) -> Tensor:
        """Two random crops of each of my rows, made now."""
        params = [CropParams.draw(len(rows), self.augment, generator)[mine] for _ in range(2)]
        return self.states.of(rows[mine].repeat(2), CropParams.join(*params))

    def from_bank(self, rows: Tensor, generator: torch.Generator, mine: slice) -> Tensor:
        """Two different views of each of my rows from the bank."""
        assert self.bank
        first = torch.randint(self.bank.views, (len(rows),), generator=generator)
        further = torch.randint(1, self.bank.views, (len(rows),), generator=generator)
        slots = torch.stack([first, (first + further) % self.bank.views])[:, mine]
        return self.bank.pick(rows[mine].repeat(2), slots.flatten())

    def _chunks(self, chunks: Iterator[Tensor]) -> Iterator[tuple[Tensor, int]]:
        return ((pad_rows(chunk, self.states.chunk), len(chunk)) for chunk in chunks)

    def _states_of(self, images: AnyImages, crop: int) -> TrunkFeatures:
        a_step = 2 * self.settings.batch // self.fabric.world_size  # one shape for all
        chunk = a_step if self.device.type == "cuda" else CPU_CHUNK
        trunk = self.method.trunk.to(self.device)
        trunk = trunk if crop == self.data.crop else trunk.resized(crop)
        return TrunkFeatures(trunk, images, crop, self.device, chunk)

    def _bank(self) -> FeatureBank | None:
        settings = self.settings
        if not settings.view_bank:
            return None
        states = self._states_of(self.data.images, self.states.crop)
        return FeatureBank(states, settings.view_bank, settings.refresh, self.augment, self.seed)


def sample_epoch(labels: Any, rng: np.random.Generator) -> Any:
    """Rows of an epoch, N draws with replacement: labelled rows weigh 1, unlabelled ones n_labelled / N."""
    labelled = np.asarray(labels) >= 0
    if not labelled.any():
        return rng.integers(len(labelled), size=len(labelled))
    weights = np.where(labelled, 1.0, labelled.mean())
    return rng.choice(len(labelled), size=len(labelled), p=weights / weights.sum())
