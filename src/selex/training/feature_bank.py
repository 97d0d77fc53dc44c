"""What the frozen trunk makes of views: computed when asked for, kept for centre crops, or kept in a bank of views.

N images, V views of each in a bank; states are what goes from the trunk to the tail of a network.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from selex.data.crops import AnyImages, AugmentConfig, CropParams
from selex.errors import InputError
from selex.training.cuda import Graph

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
                keep = room(states[0].nbytes * len(self), self.device)
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
            states: Tensor = self.trunk(crops)
            return states
        trunk = self.trunk
        if crops.dtype not in self._recorded:
            self._recorded[crops.dtype] = Graph(lambda given: {"states": trunk(given)})
        return self._recorded[crops.dtype](filled(crops, self.chunk))["states"][: len(crops)]


class FeatureBank:
    """V views of each image behind the frozen trunk: a step then runs the trained blocks only.

    Views are made in chunks, and some chunks are made anew each epoch. What a chunk holds in an epoch is a function of
    the seed, the chunk and how often it was refreshed, so that a bank built in the middle of training is the same one.
    """

    def __init__(self, states: TrunkFeatures, views: int, refresh: float, augment: AugmentConfig, seed: int) -> None:
        self.states, self.views, self.augment, self.seed = states, views, augment, seed
        if not room(LEAST * views * len(states), torch.device("cpu"), share=0.8):
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
            if room(size, device, share=0.8):
                return torch.empty(shape, dtype=like.dtype, device=device)
        raise self._too_large(size)

    def _too_large(self, size: int, about: str = "") -> InputError:
        what = f"a bank of {self.views} views of {len(self.states)} images takes {about}{size / 2**30:.1f} GiB"
        return InputError(f"{what}, more than there is: set a smaller train.view_bank, or 0")


def filled(rows: Tensor, size: int) -> Tensor:
    """Rows of a whole chunk, the last one repeated: one shape for all, so that kernels are chosen and compiled once."""
    missing = size - len(rows)
    return rows if missing <= 0 else torch.cat([rows, rows[-1:].expand(missing, *rows.shape[1:])])


def generator_of(*numbers: int) -> torch.Generator:
    """A generator of the host seeded by several numbers."""
    state = np.random.SeedSequence(numbers).generate_state(2, np.uint32)
    return torch.Generator().manual_seed(int(state[0]) << 31 | int(state[1]) >> 1)


def room(size: int, device: torch.device, share: float = 0.3) -> bool:
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
