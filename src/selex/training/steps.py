"""How a batch becomes a step of the optimiser: plainly, recorded on a GPU, in micro-batches, over several processes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from selex.training.devices import Graph, deterministic
from selex.training.methods.base import Batch, Losses, Method, here_only

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class Steps:
    """A method's steps, with their optimiser."""

    def __init__(self, method: Method, fabric: Fabric) -> None:
        self.method, self.fabric = method, fabric
        self.settings, self.device = method.settings, fabric.device
        method.to(self.device)
        method.gather = self._gather
        self.graph = Graph(self.forward_backward) if self._can_graph() else None
        self.embed = Graph(self._embed) if self.device.type == "cuda" else self._embed
        self.trained = [parameter for parameter in method.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.SGD(
            self.trained,
            lr=self.settings.lr,
            momentum=self.settings.momentum,
            weight_decay=self.settings.weight_decay,
            fused=self.device.type == "cuda",
        )
        self._buffers: dict[str, Tensor] = {}  # what a recorded step reads

    def step(self, batch: Batch) -> Losses:
        """One step of the optimiser; the losses."""
        work = self.graph or self.forward_backward
        losses = work(batch.states, batch.rows, batch.labels)
        if self.fabric.world_size > 1:
            self._all_reduce_grads()
        self.optimizer.step()
        return losses

    def set_lr(self, lr: float) -> None:
        """The learning rate from here on."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr

    @torch.no_grad()
    def features(self, chunks: Iterable[tuple[Tensor, int]]) -> Tensor:
        """L2-normalised features of chunks of what the trunk made, of which so many rows count."""
        return torch.cat([self.embed(states)["features"][:count] for states, count in chunks])

    def update_graph_inputs(self) -> None:
        """The method's buffers, put where they were at the last epoch: that is where a recorded step reads them."""
        if not self.graph:
            return
        old, new = self._buffers, self.method.own_buffers()
        moved = old.keys() != new.keys()
        for name, buffer in new.items():
            if name in old and _alike(old[name], buffer):
                new[name] = old[name].copy_(buffer)
            else:
                moved = True
        if moved:
            self.graph.forget()
        self.method.set_buffers(new)
        self._buffers = new

    def finite(self) -> bool:
        """Whether all trained weights are."""
        return all(bool(parameter.isfinite().all()) for parameter in self.trained)

    def close(self) -> None:
        """Hold on to nothing: the device's memory is free once nobody uses the method."""
        self.method.gather, self.graph = here_only, None
        del self.embed

    def forward_backward(self, *tensors: Tensor) -> Losses:
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

    def _grad_cache_step(self, batch: Batch) -> Losses:
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

    @torch.no_grad()
    def _embed(self, states: Tensor) -> dict[str, Tensor]:
        with self.fabric.autocast(), deterministic():
            features = self.method.features(states)
        return {"features": normalize(features.float(), dim=1)}

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

    def _can_graph(self) -> bool:
        """One GPU, whole batches: then the work of a step is the same sequence of kernels each time."""
        alone = self.fabric.world_size == 1 and not self.settings.micro_batch
        return self.device.type == "cuda" and alone


def _alike(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are of one kind."""
    return (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)
