"""The loop: pseudo-labels, steps, a checkpoint, again. One device or many, the same code.

All randomness of an epoch is drawn from the seed and its number, so that training which is cut off goes on from the
last checkpoint to the same result.
"""

# N images, b images of a step on this process, 2b views

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from selex.data.crops import AnyImages, AugmentConfig, CropParams, TwoScaleImages, scales
from selex.errors import InputError
from selex.metrics import matched
from selex.progress import training_bar
from selex.training.checkpoint import Checkpoints
from selex.training.cuda import Graph, compiled_blocks, deterministic, join_stream, side_stream
from selex.training.distributed import Fabric
from selex.training.feature_bank import CPU_CHUNK, FeatureBank, TrunkFeatures, filled, generator_of
from selex.training.methods.base import Batch, Method, here_only
from selex.types import Level

LAST_LR = 1e-3  # of the first
_SAMPLER, _VIEWS, _CLUSTERS, _AUGMENTED = 1, 3, 4, 5  # uses of randomness; 2 is the view bank's

Entry = dict[str, Any]
Score = Callable[[Any], dict[str, float]]


@dataclass(frozen=True)
class Data:
    """What is trained on: images, labels (-1 where unknown), file names for messages, pixels the network sees."""

    images: AnyImages
    labels: Any
    files: list[str]
    crop: int


@dataclass
class Callbacks:
    """Who is told: of an epoch, of its end with the metrics; `score` gives accuracies where the truth is known."""

    log: Callable[[Entry], None] = lambda entry: None
    score: Score | None = None
    progress: bool = False


def train(
    method: Method,
    data: Data,
    seed: int,
    *,
    fabric: Fabric,
    checkpoints: Checkpoints | None = None,
    watch: Callbacks | None = None,
    compile: bool = False,
) -> list[Entry]:
    """Train a method's network in place; the metrics of every epoch."""
    check(method, data, fabric.world_size)
    loop = _Loop(method, data, seed, fabric, checkpoints, watch or Callbacks(), compile)
    try:
        return loop.run()
    except torch.OutOfMemoryError:
        smaller = max(1, (method.settings.micro_batch or method.settings.batch) // 4)
        raise InputError(
            f"{fabric.device} has too little memory for this training: set train.micro_batch={smaller} (the result is "
            "the same), no view bank, or a smaller train.batch"
        ) from None
    finally:
        loop.close()


def check(method: Method, data: Data, processes: int = 1) -> None:
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
            f"a batch of {settings.batch} cannot be shared by {processes} processes: set train.batch={near}"
        )
    if (np.asarray(data.labels) >= 0).all():
        raise InputError("every image is labelled, so there is nothing to discover: leave some unlabelled")


class _Loop:
    """One training, from its parts."""

    def __init__(
        self,
        method: Method,
        data: Data,
        seed: int,
        fabric: Fabric,
        checkpoints: Checkpoints | None,
        watch: Callbacks,
        compile: bool,
    ) -> None:
        self.method, self.data, self.seed, self.fabric = method, data, seed, fabric
        self.checkpoints, self.watch = checkpoints, watch
        self.settings, self.device = method.settings, fabric.device
        how = self.settings
        self.augment = AugmentConfig(how.flip, how.warp, how.zoom, how.jitter, isinstance(data.images, TwoScaleImages))
        method.to(self.device)
        method.gather = self._gather
        self.labels = torch.as_tensor(data.labels, dtype=torch.long).to(self.device)
        self.states = self._states(data.images)
        parts = scales(data.images)
        self.scales = [self._states(part) for part in parts] if len(parts) > 1 else [self.states]
        self.bank = self._bank()
        self.compile = compile
        self.graph = Graph(self._forward_backward) if self._can_graph() else None
        self.embed = Graph(self._embed) if self.device.type == "cuda" else self._embed
        self.trained = [parameter for parameter in method.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.SGD(
            self.trained,
            lr=self.settings.lr,
            momentum=self.settings.momentum,
            weight_decay=5e-5 if "decay" in self.settings.differences else self.settings.weight_decay,
            fused=self.device.type == "cuda",
        )
        self.kept: dict[str, Any] = {}  # what a recorded step reads
        self.clusters: Any = None  # of the epoch before, to see what changed
        self.history: list[Entry] = []

    def run(self) -> list[Entry]:
        steps = len(self.data.images) // self.settings.batch
        with (
            compiled_blocks(self.method, self.method.trunk, on=self.compile),
            training_bar(self.settings.epochs, steps, self.settings.batch, self._shows()) as bar,
        ):
            for epoch in range(self.resume(), self.settings.epochs):
                begun = time.perf_counter()
                seen = self.prepare(epoch)
                prepared = time.perf_counter()
                losses = self.epoch(epoch, bar)
                seconds = {"prepared": prepared - begun, "seconds": time.perf_counter() - begun}
                entry = {"step": "epoch", "epoch": epoch, **losses, "lr": self.rate(epoch), **seen, **seconds}
                self.end(epoch, entry)
        if self.checkpoints and self.fabric.is_global_zero:
            self.checkpoints.wait()
        return self.history

    def close(self) -> None:
        """Hold on to nothing: the device's memory is free once nobody uses the method."""
        self.method.gather, self.graph, self.bank = here_only, None, None
        del self.embed, self.states, self.scales

    def prepare(self, epoch: int) -> Entry:
        """Pseudo-labels, made once and shared by all processes, and what can be seen of them."""
        seen: Entry = {}
        if self.bank:
            with side_stream(self.device):
                self.bank.refresh(epoch)
        if self.fabric.is_global_zero:
            rows: list[Tensor] = []

            def features() -> Tensor:
                rows.append(self.method.whitened(self.features(epoch), self.labels))
                return rows[0]

            rng = np.random.default_rng([self.seed, _CLUSTERS, epoch])
            level = self.method.prepare(epoch, features, self.labels, rng)
            seen = self._cluster_metrics(level, rows[0]) if level is not None else {}
        if self.fabric.world_size > 1:
            memory = {name: _host(value) for name, value in self.method.memory().items()}
            self.method.remember(_to(self.fabric.broadcast(memory), self.device))
        if self.bank:
            join_stream(self.device)
        if self.graph:
            self._update_graph_inputs(self.graph)
        return seen

    def _update_graph_inputs(self, graph: Graph) -> None:
        """What the method remembers, put where it was at the last epoch: that is where a recorded step reads it."""
        old, kept = self.kept, self.method.memory()
        moved = old.keys() != kept.keys()
        for name, new in kept.items():
            if _alike(old.get(name), new):
                kept[name] = old[name].copy_(new)
            else:
                moved |= isinstance(new, Tensor) or old.get(name) != new
        if moved:
            graph.forget()
        self.method.remember(kept)
        self.kept = kept

    @torch.no_grad()
    def features(self, epoch: int) -> Tensor:
        """L2-normalised features of all images as the network is now."""
        if self.method.augmented:
            generator = generator_of(self.seed, _AUGMENTED, epoch)
            features = self._embedded(self.states.augmented(generator, self.augment))
        else:
            made = [self._embedded(states.centres()) for states in self.scales]
            features = made[0] if len(made) == 1 else normalize(torch.stack(made).mean(0), dim=1)
        if not features.isfinite().all():
            raise InputError(
                f"features are not finite before epoch {epoch}; {self._last_good()}; try a smaller train.lr"
            )
        return features

    def _embedded(self, chunks: Iterator[Tensor]) -> Tensor:
        made = [self.embed(filled(states, self.states.chunk))["features"][: len(states)] for states in chunks]
        return torch.cat(made)

    @torch.no_grad()
    def _embed(self, states: Tensor) -> dict[str, Tensor]:
        with self.fabric.autocast(), deterministic():
            features = self.method.features(states)
        return {"features": normalize(features.float(), dim=1)}

    def epoch(self, epoch: int, bar: Any) -> Entry:
        """All steps of an epoch; the mean of each loss."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate(epoch)
        totals: dict[str, Tensor] = {}
        behind: tuple[int, Tensor, Tensor] | None = None
        for step, batch in enumerate(self.batches(epoch)):
            losses = self.step(batch)
            if behind is not None:
                bar(epoch, self._checked(epoch, *behind))  # of the step before: the device need not wait for us
            behind = (step, losses["loss"].detach(), batch.rows)
            for name, value in losses.items():
                totals[name] = totals.get(name, 0) + value.detach()
        assert behind is not None
        bar(epoch, self._checked(epoch, *behind))
        self._check_weights(epoch)
        return {name: float(total) / (behind[0] + 1) for name, total in totals.items()}

    def batches(self, epoch: int) -> Iterator[Batch]:
        """The steps' images, this process's share of each: drawn with replacement, labelled ones more often."""
        settings, n = self.settings, len(self.data.images)
        order = torch.from_numpy(draw(self.data.labels, np.random.default_rng([self.seed, _SAMPLER, epoch])))
        share = settings.batch // self.fabric.world_size
        mine = slice(self.fabric.global_rank * share, (self.fabric.global_rank + 1) * share)
        views = self._bank_views if self.bank else self._new_views
        for step in range(n // settings.batch):
            rows = order[step * settings.batch : (step + 1) * settings.batch]
            states = views(rows, generator_of(self.seed, _VIEWS, epoch, step), mine)
            here = rows[mine].to(self.device)
            yield Batch(states, here, self.labels[here])

    def step(self, batch: Batch) -> dict[str, Tensor]:
        """One step of the optimiser; the losses."""
        work = self.graph or self._forward_backward
        losses = work(batch.states, batch.rows, batch.labels)
        if self.fabric.world_size > 1:
            self._all_reduce_grads()
        self.optimizer.step()
        return losses

    def _forward_backward(self, *tensors: Tensor) -> dict[str, Tensor]:
        """The losses of a batch, and the gradient of the first of them in place of the one before."""
        batch = Batch(*tensors)
        self.optimizer.zero_grad(set_to_none=True)
        with deterministic():
            if self.settings.micro_batch:
                return self._grad_cache_step(batch)
            with self.fabric.autocast():
                losses = self.method(batch)
            losses["loss"].backward()
        return {name: value.detach() for name, value in losses.items()}

    def _grad_cache_step(self, batch: Batch) -> dict[str, Tensor]:
        """The same gradient with less memory: rows are encoded in pieces, first for the loss, then for its gradient."""
        method, pieces = self.method, torch.split(batch.states, 2 * (self.settings.micro_batch or 1))
        with self.fabric.autocast(), torch.no_grad():
            parts = [method.encode(piece) for piece in pieces]
        leaves = [torch.cat(part).requires_grad_() for part in zip(*parts, strict=True)]
        with self.fabric.autocast():
            losses = method.losses(method.all_views(tuple(leaves)), method.whole(batch))
        losses["loss"].backward()  # type: ignore[no-untyped-call]
        splits = [
            (None,) * len(pieces) if leaf.grad is None else torch.split(leaf.grad, [len(piece) for piece in pieces])
            for leaf in leaves
        ]
        for piece, *gradients in zip(pieces, *splits, strict=True):
            with self.fabric.autocast():
                encoded = method.encode(piece)
            wanted = [(out, gradient) for out, gradient in zip(encoded, gradients, strict=True) if out.requires_grad]
            outputs, weights = zip(*wanted, strict=True)
            torch.autograd.backward(outputs, weights)
        return {name: value.detach() for name, value in losses.items()}

    def end(self, epoch: int, entry: Entry) -> None:
        """After an epoch: tell of it, and keep what is needed to go on from here."""
        self.history.append(entry)
        if not self.fabric.is_global_zero:
            return
        self.watch.log(entry)
        if self.checkpoints:
            state = {"method": self.trained_state(), "optimizer": self.optimizer.state_dict()["state"]}
            memory = {"clusters": self.clusters, **self.method.memory()}
            self.checkpoints.save(epoch, {**state, "memory": memory, "history": self.history})

    def resume(self) -> int:
        """Take up the newest checkpoint; the epoch to go on with."""
        state = self.checkpoints.latest() if self.checkpoints else None
        if self.fabric.world_size > 1:
            state = self.fabric.broadcast(state)  # the first process alone has checkpoints
        if state is None:
            return 0
        self.method.load_state_dict(state["method"], strict=False)
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": state["optimizer"], "param_groups": groups})
        self.clusters = state["memory"].pop("clusters")
        self.method.remember(_to(state["memory"], self.device))
        self.history = state["history"]
        return int(state["epoch"]) + 1

    def trained_state(self) -> dict[str, Tensor]:
        """Weights that change."""
        return {name: tensor for name, tensor in self.method.named_parameters() if tensor.requires_grad}

    def rate(self, epoch: int) -> float:
        """Learning rate of an epoch: a cosine from `lr` to a thousandth of it."""
        fall = (1 + math.cos(math.pi * epoch / self.settings.epochs)) / 2
        return self.settings.lr * (LAST_LR + (1 - LAST_LR) * fall)

    def _states(self, images: AnyImages) -> TrunkFeatures:
        a_step = 2 * self.settings.batch // self.fabric.world_size  # one shape for all
        chunk = a_step if self.device.type == "cuda" else CPU_CHUNK
        return TrunkFeatures(self.method.trunk.to(self.device), images, self.data.crop, self.device, chunk)

    def _bank(self) -> FeatureBank | None:
        settings = self.settings
        if not settings.view_bank:
            return None
        return FeatureBank(self._states(self.data.images), settings.view_bank, settings.renew, self.augment, self.seed)

    def _new_views(self, rows: Tensor, generator: torch.Generator, mine: slice) -> Tensor:
        places = [CropParams.draw(len(rows), self.augment, generator)[mine] for _ in range(2)]
        return self.states.of(rows[mine].repeat(2), CropParams.join(*places))

    def _bank_views(self, rows: Tensor, generator: torch.Generator, mine: slice) -> Tensor:
        assert self.bank
        first = torch.randint(self.bank.views, (len(rows),), generator=generator)
        further = torch.randint(1, self.bank.views, (len(rows),), generator=generator)
        slots = torch.stack([first, (first + further) % self.bank.views])[:, mine]
        return self.bank.pick(rows[mine].repeat(2), slots.flatten())

    def _gather(self, x: Tensor) -> Tensor:
        """`1 × …` of this process to `processes × …`, with gradient to what is ours.

        Every process has the loss of all rows, and its gradient for its own; their sum is the whole gradient.
        """
        if self.fabric.world_size == 1:
            return x
        parts = list(self.fabric.all_gather(x.detach()[0]))
        parts[self.fabric.global_rank] = x[0]
        return torch.stack(parts)

    def _all_reduce_grads(self) -> None:
        whole = {id(parameter) for parameter in self.method.in_losses}
        for parameter in self.trained:
            if parameter.grad is not None:
                how = "mean" if id(parameter) in whole else "sum"
                total: Any = self.fabric.all_reduce(parameter.grad, reduce_op=how)
                parameter.grad = total

    def _cluster_metrics(self, level: Level, features: Tensor) -> Entry:
        """What can be seen of the clusters before an epoch."""
        clusters = torch.as_tensor(level.labels).cpu()
        sizes = np.bincount(clusters.numpy(), minlength=level.n_clusters)
        seen: Entry = {"sizes": [int(sizes.min()), float(np.median(sizes)), int(sizes.max())]}
        if level.n_known:
            seen["agreement"] = _agreement(features, self.labels, level)
        if self.clusters is not None:
            seen["changed"] = 1 - float(matched(self.clusters.numpy(), clusters.numpy()).mean())
        self.clusters = clusters
        scores = self.watch.score(clusters.numpy()) if self.watch.score else {}
        return seen | {name: float(score) for name, score in scores.items()}

    def _checked(self, epoch: int, step: int, loss: Tensor, rows: Tensor) -> float:
        value = float(loss)
        if not math.isfinite(value):
            files = ", ".join(self.data.files[row] for row in rows[:3].tolist())
            raise InputError(
                f"the loss is {value} in epoch {epoch}, step {step} (batch of {files}, …); {self._last_good()}; try a "
                "smaller train.lr"
            )
        return value

    def _check_weights(self, epoch: int) -> None:
        """The last step's loss can be finite and its gradient not: such weights must not become a checkpoint."""
        if not all(bool(parameter.isfinite().all()) for parameter in self.trained):
            raise InputError(f"weights are not finite after epoch {epoch}; {self._last_good()}; try a smaller train.lr")

    def _last_good(self) -> str:
        if not self.checkpoints:
            return "no checkpoint is kept"
        self.checkpoints.wait()
        paths = self.checkpoints.paths()
        return f"the last good checkpoint is {paths[-1]}" if paths else "there is no checkpoint yet"

    def _can_graph(self) -> bool:
        """One GPU, whole batches: then the work of a step is the same sequence of kernels each time."""
        alone = self.fabric.world_size == 1 and not self.settings.micro_batch
        return self.device.type == "cuda" and alone

    def _shows(self) -> bool:
        return self.watch.progress and self.fabric.is_global_zero


def draw(labels: Any, rng: np.random.Generator) -> Any:
    """Rows of an epoch, N draws with replacement: labelled rows weigh 1, unlabelled ones n_labelled / N."""
    labelled = np.asarray(labels) >= 0
    if not labelled.any():
        return rng.integers(len(labelled), size=len(labelled))
    weights = np.where(labelled, 1.0, labelled.mean())
    return rng.choice(len(labelled), size=len(labelled), p=weights / weights.sum())


def _agreement(features: Tensor, labels: Tensor, level: Level) -> float:
    """Share of labelled rows that are nearest to the centre of their own category."""
    held = labels >= 0
    nearest = torch.cdist(features[held], torch.as_tensor(level.centers).to(features)).argmin(1)
    return float((nearest == labels[held]).float().mean())


def _alike(a: Any, b: Any) -> bool:
    """Whether two are tensors of one kind."""
    both = isinstance(a, Tensor) and isinstance(b, Tensor)
    return both and (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)


def _host(value: Any) -> Any:
    return value.cpu() if isinstance(value, Tensor) else value


def _to(memory: dict[str, Any], device: torch.device) -> dict[str, Any]:
    return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in memory.items()}
