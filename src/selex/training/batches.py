"""What a training step is given: rows drawn for an epoch, two random crops of each behind the frozen trunk.

All randomness of an epoch is drawn from the seed and its number.
"""

# N images, b images of a batch on this process, 2b views

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from selex.data.crops import AnyImages, AugmentConfig, CropParams, TwoScaleImages, scales
from selex.training.cuda import join_stream, side_stream
from selex.training.feature_bank import CPU_CHUNK, FeatureBank, TrunkFeatures, filled, generator_of
from selex.training.methods.base import Batch, Method

if TYPE_CHECKING:
    from lightning_fabric import Fabric

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
        order = torch.from_numpy(draw(self.data.labels, np.random.default_rng([self.seed, _SAMPLER, epoch])))
        share = size // self.fabric.world_size
        mine = slice(self.fabric.global_rank * share, (self.fabric.global_rank + 1) * share)
        views = self.from_bank if self.bank else self.new_views
        for step in range(len(self)):
            rows = order[step * size : (step + 1) * size]
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
        return ((filled(chunk, self.states.chunk), len(chunk)) for chunk in chunks)

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


def draw(labels: Any, rng: np.random.Generator) -> Any:
    """Rows of an epoch, N draws with replacement: labelled rows weigh 1, unlabelled ones n_labelled / N."""
    labelled = np.asarray(labels) >= 0
    if not labelled.any():
        return rng.integers(len(labelled), size=len(labelled))
    weights = np.where(labelled, 1.0, labelled.mean())
    return rng.choice(len(labelled), size=len(labelled), p=weights / weights.sum())
