"""The contract of all methods: `prepare` before an epoch, `forward` on a batch; in the end features are clustered.

b images in two views are 2b rows, one view below the other; N images in all; L levels of pseudo-labels, finest first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import normalize

from selex.cluster.hierarchy import hssk
from selex.cluster.whiten import Whitener, fit_whitener
from selex.config import TrainConfig
from selex.losses.similarity import Kind
from selex.models.heads import BOTTLENECK, HIDDEN, ProjectionHead
from selex.models.network import Backbone
from selex.models.trunk import split_backbone
from selex.types import Hierarchy, Level

TINY = 256  # dims of a feature

Gather = Callable[[Tensor], Tensor]
Losses = dict[str, Tensor]


@dataclass(frozen=True)
class Task:
    """What is to be found: so many categories, the first `n_known` of them known.

    Clusters are `balanced` or not; features are whitened by `whiten` before they are clustered.
    """

    n_categories: int
    n_known: int
    balanced: bool = True
    whiten: float = 0.0


@dataclass(frozen=True)
class Batch:
    """A step's images: their states (2b), numbers of their rows (b) and labels (b), -1 where unknown."""

    states: Tensor
    rows: Tensor
    labels: Tensor


def views(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The two views of each image, b rows each, out of 2b."""
    first, second = rows.chunk(2)
    return first, second


def here_only(x: Tensor) -> Tensor:
    """With one process there is nothing to gather."""
    return x


class Method(nn.Module, ABC):
    """A way of training. Subclasses say how states are encoded and what the losses of a batch are."""

    own_kind: Kind = "cosine"
    clusters = True
    """Whether categories are found by clustering features."""
    augmented = False
    """Whether `prepare` is given features of random views rather than of centre crops."""
    whitening_mean: Tensor | None
    whitening_matrix: Tensor | None

    def __init__(self, backbone: Backbone, task: Task, settings: TrainConfig) -> None:
        super().__init__()
        self.task, self.settings = task, settings
        self.tail: nn.Module
        trunk, self.tail = split_backbone(backbone, settings.trained_blocks)
        self._aside = (trunk,)  # in a tuple: its weights are not this module's to move, train or save
        self.head: nn.Module = self.make_head(backbone.dim)
        self.gather: Gather = here_only
        self.register_buffer("whitening_mean", None)
        self.register_buffer("whitening_matrix", None)

    @property
    def trunk(self) -> Any:
        """The frozen half of the backbone: images to states."""
        return self._aside[0]

    @property
    def whitener(self) -> Whitener | None:
        """What whitens features before they are clustered, as of the last `prepare`."""
        mean, matrix = self.whitening_mean, self.whitening_matrix
        return None if mean is None or matrix is None else Whitener(mean, matrix)

    @property
    def n_trained(self) -> int:
        """How many parameters are trained."""
        return sum(parameter.numel() for parameter in self.parameters() if parameter.requires_grad)

    @property
    def in_losses(self) -> list[nn.Parameter]:
        """Weights that the losses use on all rows: every process has their whole gradient, not its share of it."""
        return []

    @property
    def kind(self) -> Kind:
        """How rows are compared."""
        return self.settings.kind or self.own_kind

    def make_head(self, dim: int) -> nn.Module:
        """The head on features of `dim` dims; a small one for a tiny backbone."""
        out, hidden, bottleneck = (1024, 512, 128) if dim < TINY else (65_536, HIDDEN, BOTTLENECK)
        return ProjectionHead(dim, self.settings.head_dim or out, hidden, bottleneck)

    def mapped(self, features: Tensor, labels: Tensor, rng: Any) -> Tensor:
        """Features as they are clustered: whitened."""
        whitener = fit_whitener(features, labels, self.task.whiten) if self.clusters else None
        return self.through(whitener, features)

    def through(self, whitener: Whitener | None, features: Tensor) -> Tensor:
        """Features through the map that is used until the next one."""
        self.whitening_mean, self.whitening_matrix = (whitener.mean, whitener.matrix) if whitener else (None, None)
        return whitener(features) if whitener else features

    def as_clustered(self, features: Tensor) -> Tensor:
        """Features of the network in the space in which they are clustered."""
        rows = normalize(features.float(), dim=1)
        whitener = self.whitener
        return whitener(rows) if whitener else rows

    def prepare(self, epoch: int, features: Callable[[], Tensor], labels: Tensor, rng: Any) -> Level | None:
        """Get ready for an epoch; the base level of the clusters that were made for it, or None if none were."""
        if epoch % self.settings.interval:
            return None
        return self.cluster(features(), labels, rng, n_levels=1).levels[0]

    @abstractmethod
    def encode(self, states: Tensor) -> tuple[Tensor, ...]:
        """What the losses need of each row, from its state alone: batches can be encoded in pieces."""

    @abstractmethod
    def losses(self, encoded: tuple[Tensor, ...], batch: Batch) -> Losses:
        """The loss and its parts, from all encoded rows of a batch."""

    def forward(self, batch: Batch) -> Losses:
        """The loss of a batch, of all processes together, and its parts."""
        return self.losses(self.all_views(self.encode(batch.states)), self.whole(batch))

    def whole(self, batch: Batch) -> Batch:
        """The batches of all processes as one."""
        rows, labels = (self.gather(part[None]).flatten(0, 1) for part in (batch.rows, batch.labels))
        return Batch(batch.states, rows, labels)

    def all_views(self, encoded: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Encoded rows of all processes, the first view of each image before the second."""
        apart = [part.view(1, 2, -1, *part.shape[1:]) for part in encoded]
        gathered = [self.gather(part) for part in apart]  # processes × 2 × b × …
        return tuple(part.transpose(0, 1).flatten(0, 2) for part in gathered)

    def features(self, states: Tensor) -> Tensor:
        """Backbone features of states."""
        return self.tail(states)

    def cluster(self, features: Tensor, labels: Tensor, rng: Any, n_levels: int | None = None) -> Hierarchy:
        """Categories of features at several levels of abstraction, for an epoch."""
        task = self.task
        known = labels if task.n_known else None
        return hssk(features, known, task.n_categories, n_levels=n_levels, balanced=task.balanced, rng=rng)

    def classify(self, features: Tensor, labels: Tensor) -> Hierarchy:
        """The categories in the end, of a method that does not find them by clustering."""
        raise NotImplementedError

    def own_buffers(self) -> dict[str, Tensor]:
        """What an epoch needs of earlier ones, besides weights: the buffers of the method itself that are set."""
        return dict(self.named_buffers(recurse=False))

    def set_buffers(self, buffers: dict[str, Tensor]) -> None:
        """Take up what `own_buffers` gave, whatever its shapes."""
        device = next(self.parameters()).device
        for name in self._buffers:
            setattr(self, name, buffers[name].to(device) if name in buffers else None)

    def trained_state(self) -> dict[str, Tensor]:
        """What training changes: the trained weights and the method's buffers."""
        trained = {name: tensor for name, tensor in self.named_parameters() if tensor.requires_grad}
        return {**trained, **self.own_buffers()}

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *how: Any) -> None:
        """Buffers are taken up as they are: their shapes are those of an epoch."""
        self.set_buffers({name: state_dict[key] for name in self._buffers if (key := prefix + name) in state_dict})
        super()._load_from_state_dict(state_dict, prefix, *how)
