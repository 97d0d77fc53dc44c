"""The loop: pseudo-labels, steps, a checkpoint, again. One device or many, the same code.

All randomness of an epoch is drawn from the seed and its number, so that training which is cut off resumes from the
last checkpoint to the same result.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from selex.config import TrainConfig
from selex.errors import InputError
from selex.io import first_line
from selex.memory import out_of_memory
from selex.metrics import matched
from selex.progress import training_bar
from selex.training.batches import Batches, Data
from selex.training.checkpoint import Checkpoints
from selex.training.devices import compiled_blocks
from selex.training.methods.base import Method
from selex.training.steps import Steps
from selex.types import Level

if TYPE_CHECKING:
    from lightning_fabric import Fabric

LAST_LR = 1e-3  # of the first
_CLUSTERS = 4  # use of randomness, see `batches`

Entry = dict[str, Any]
Score = Callable[[Any], dict[str, float]]


@dataclass
class Callbacks:
    """Called at the end of each epoch: `log` with its metrics, `score` with its clusters where the truth is known.

    `progress` is shown under the name of what it is `doing`.
    """

    log: Callable[[Entry], None] = lambda entry: None
    score: Score | None = None
    progress: bool = False
    doing: str = "training"


def train(
    method: Method,
    data: Data,
    seed: int,
    *,
    fabric: Fabric,
    checkpoints: Checkpoints | None = None,
    callbacks: Callbacks | None = None,
    compile: bool = False,
) -> list[Entry]:
    """Train a method's network in place; the metrics of every epoch."""
    check_trainable(method, data, fabric.world_size)
    loop = Loop(method, data, seed, fabric, checkpoints, callbacks or Callbacks(), compile)
    try:
        return loop.run()
    except RuntimeError as error:
        if not out_of_memory(error, fabric.device):
            raise
        smaller = max(1, (method.settings.micro_batch or method.settings.batch) // 4)
        raise InputError(
            f"{fabric.device} has too little memory for this training: set train.micro_batch={smaller} (the result is "
            "the same), train.view_bank=0, or a smaller train.batch"
        ) from error
    finally:
        loop.close()


def check_trainable(method: Method, data: Data, processes: int = 1) -> None:
    """Refuse what cannot be trained on, before anything is done."""
    n, settings = len(data.images), method.settings
    if settings.batch > n:
        raise InputError(f"a batch of {settings.batch} is larger than the {n} images: set train.batch to at most {n}")
    if settings.batch < 2:
        raise InputError(
            "a batch needs at least 2 images, which are compared with each other: set a larger train.batch"
        )
    if settings.batch % processes:
        near = max(1, settings.batch // processes) * processes
        raise InputError(
            f"a batch of {settings.batch} cannot be divided among {processes} processes: set train.batch={near}"
        )
    if (np.asarray(data.labels) >= 0).all():
        raise InputError("every image is labelled, so there is nothing to discover: leave some unlabelled")


@dataclass(eq=False)
class Loop:
    """One training, from its parts."""

    method: Method
    data: Data
    seed: int
    fabric: Fabric
    checkpoints: Checkpoints | None = None
    callbacks: Callbacks = field(default_factory=Callbacks)
    compile: bool = False

    def __post_init__(self) -> None:
        self.settings = self.method.settings
        self.steps = Steps(self.method, self.fabric)
        self.batches = Batches(self.method, self.data, self.seed, self.fabric)
        self.clusters: Any = None  # of the epoch before, to see what changed
        self.history: list[Entry] = []

    def run(self) -> list[Entry]:
        """All epochs, from the newest checkpoint on; the metrics of each."""
        shown = self.callbacks.progress and self.fabric.is_global_zero
        with (
            compiled_blocks(self.method, self.method.trunk, on=self.compile),
            training_bar(self.settings.epochs, len(self.batches), shown, self.callbacks.doing) as bar,
        ):
            for epoch in range(self.resume(), self.settings.epochs):
                begun = time.perf_counter()
                seen = self.prepare(epoch)
                prepared = time.perf_counter()
                losses = self.epoch(epoch, bar)
                seconds = {"prepared": prepared - begun, "seconds": time.perf_counter() - begun}
                entry = {"step": "epoch", "epoch": epoch, **losses, **seen, **seconds}
                self.end(epoch, entry)
        if self.checkpoints and self.fabric.is_global_zero:
            self.checkpoints.wait()
        return self.history

    def prepare(self, epoch: int) -> Entry:
        """Pseudo-labels, made once and shared by all processes, and metrics of them."""
        self.batches.refresh(epoch)
        metrics = self.cluster(epoch) if self.fabric.is_global_zero else {}
        if self.fabric.world_size > 1:
            buffers = {name: buffer.cpu() for name, buffer in self.method.own_buffers().items()}
            self.method.set_buffers(self.fabric.broadcast(buffers))
        self.batches.join()
        self.steps.update_graph_inputs()
        return metrics

    def cluster(self, epoch: int) -> Entry:
        """The method's own preparation of an epoch, and what can be seen of the clusters it made."""
        made: list[Tensor] = []
        rng = np.random.default_rng([self.seed, _CLUSTERS, epoch])

        def features() -> Tensor:
            made.append(self.method.mapped(self.features(epoch), self.batches.labels, rng))
            return made[0]

        level = self.method.prepare(epoch, features, self.batches.labels, rng)
        if level is None:
            return {}
        clusters, before = torch.as_tensor(level.labels).cpu(), self.clusters
        metrics = cluster_metrics(level, clusters, made[0], self.batches.labels, before)
        self.clusters = clusters
        scores = self.callbacks.score(clusters.numpy()) if self.callbacks.score else {}
        return metrics | {name: float(score) for name, score in scores.items()}

    def features(self, epoch: int) -> Tensor:
        """L2-normalised features of all images as the network is now."""
        if self.method.augmented:
            features = self.steps.features(self.batches.augmented(epoch))
        else:
            made = [self.steps.features(chunks) for chunks in self.batches.centres()]
            features = made[0] if len(made) == 1 else normalize(torch.stack(made).mean(0), dim=1)
        if not features.isfinite().all():
            raise InputError(
                f"features are not finite before epoch {epoch}; {self._last_good()}; try a smaller train.lr"
            )
        return features

    def epoch(self, epoch: int, bar: Callable[[int, float], None]) -> Entry:
        """All steps of an epoch; the mean of each loss, and the learning rate."""
        lr = cosine_lr(self.settings, epoch)
        self.steps.set_lr(lr)
        totals: dict[str, Tensor] = {}
        behind: tuple[int, Tensor, Tensor] | None = None
        for step, batch in enumerate(self.batches.epoch(epoch)):
            losses = self.steps.step(batch)
            if behind is not None:
                bar(epoch, self._checked(epoch, *behind))  # of the step before: the device need not wait for us
            behind = (step, losses["loss"], batch.rows)
            for name, value in losses.items():
                totals[name] = totals.get(name, 0) + value
        assert behind is not None
        bar(epoch, self._checked(epoch, *behind))
        if not self.steps.finite():  # the last loss can be finite and its gradient not: no checkpoint of that
            raise InputError(f"weights are not finite after epoch {epoch}; {self._last_good()}; try a smaller train.lr")
        return {name: float(total) / (behind[0] + 1) for name, total in totals.items()} | {"lr": lr}

    def end(self, epoch: int, entry: Entry) -> None:
        """After an epoch: tell of it, and keep what is needed to resume from here."""
        self.history.append(entry)
        if not self.fabric.is_global_zero:
            return
        self.callbacks.log(entry)
        if self.checkpoints:
            state = {"method": self.method.trained_state(), "optimizer": self.steps.optimizer.state_dict()["state"]}
            self.checkpoints.save(epoch, {**state, "clusters": self.clusters, "history": self.history})

    def resume(self) -> int:
        """Load the newest checkpoint; the epoch to resume with."""
        state = self.checkpoints.latest() if self.checkpoints else None
        if self.fabric.world_size > 1:
            state = self.fabric.broadcast(state)  # the first process alone has checkpoints
        if state is None:
            return 0
        try:
            return self._load_checkpoint(state)
        except (RuntimeError, KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            why = f"the checkpoint does not fit this training ({first_line(error)})"
            raise InputError(f"{why}; give --restart to train from the beginning") from None

    def _load_checkpoint(self, state: dict[str, Any]) -> int:
        _check_shapes(state, self.method, self.steps.optimizer)
        if state["clusters"] is not None and len(state["clusters"]) != len(self.data.files):
            raise ValueError(f"clusters of {len(state['clusters'])} images, not {len(self.data.files)}")
        self.method.load_state_dict(state["method"], strict=False)
        groups = self.steps.optimizer.state_dict()["param_groups"]
        self.steps.optimizer.load_state_dict({"state": state["optimizer"], "param_groups": groups})
        self.clusters, self.history = state["clusters"], state["history"]
        return int(state["epoch"]) + 1

    def close(self) -> None:
        """Hold on to nothing."""
        self.steps.close()
        self.batches.close()

    def _checked(self, epoch: int, step: int, loss: Tensor, rows: Tensor) -> float:
        value = float(loss)
        if not math.isfinite(value):
            files = ", ".join(self.data.files[row] for row in rows[:3].tolist())
            raise InputError(
                f"the loss is {value} in epoch {epoch}, step {step} (batch of {files}, …); {self._last_good()}; try a "
                "smaller train.lr"
            )
        return value

    def _last_good(self) -> str:
        return self.checkpoints.last_good() if self.checkpoints else "no checkpoint is kept"


def cosine_lr(settings: TrainConfig, epoch: int) -> float:
    """Learning rate of an epoch: a cosine from `lr` to a thousandth of it."""
    fall = (1 + math.cos(math.pi * epoch / settings.epochs)) / 2
    return settings.lr * (LAST_LR + (1 - LAST_LR) * fall)


def _check_shapes(state: dict[str, Any], method: Method, optimizer: torch.optim.Optimizer) -> None:
    """Refuse weights that are not all there, and momentum of other weights: torch takes both without a word."""
    if missing := method.trained_state().keys() - state["method"].keys():
        raise ValueError(f"it lacks {min(missing)}")
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    for number, kept in state["optimizer"].items():
        for name, value in kept.items():
            if isinstance(value, Tensor) and value.shape != weights[number].shape:
                raise ValueError(f"{name} {number} is {tuple(value.shape)}, not {tuple(weights[number].shape)}")


def cluster_metrics(level: Level, clusters: Tensor, features: Tensor, labels: Tensor, before: Tensor | None) -> Entry:
    """Sizes of the clusters of an epoch, how labelled rows agree with them, what changed since the epoch `before`."""
    sizes = np.bincount(clusters.numpy(), minlength=level.n_clusters)
    metrics: Entry = {"smallest": int(sizes.min()), "median": float(np.median(sizes)), "largest": int(sizes.max())}
    if level.n_known:
        held = labels >= 0
        nearest = torch.cdist(features[held], torch.as_tensor(level.centers).to(features)).argmin(1)
        metrics["agreement"] = float((nearest == labels[held]).float().mean())
    if before is not None:
        metrics["changed"] = 1 - float(matched(before.numpy(), clusters.numpy()).mean())
    return metrics
