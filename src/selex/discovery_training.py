"""Training as a step of `discover`: without some labels, which tell whether it pays, and if so with all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from selex.cluster.holdout.select import safest
from selex.cluster.pipeline import FittedClusters, estimate_clusters
from selex.data.crops import AnyImages
from selex.data.store import ImageStore
from selex.discovery_steps import Job
from selex.models.network import Backbone
from selex.models.trunk import check_view_size, load_trained, trained_weights
from selex.training.fit import Seen, TrainOptions, make_method, train_run
from selex.training.methods import Method

Weights = dict[str, torch.Tensor]
CLEARLY = 2.0
"""Standard errors by which held-out labels must speak against training: a single row is one."""


@dataclass(frozen=True)
class Training:
    """What training needs: the job, its images (`cut` to attention, or None, and as the backbone is `shown` them)."""

    job: Job
    images: ImageStore
    cut: ImageStore | None
    shown: AnyImages
    fabric: Any
    options: TrainOptions

    def run(self) -> FittedClusters:
        """Categories after training the backbone, unless labels that training did not see prefer those before it."""
        job, config, known = self.job, self.job.config, self.images.table.labels
        check_view_size(job.backbone, config.train.view_size, config.train.trained_blocks)
        seen, estimate = Seen.of(config, known), None
        features = job.embed(self.shown) if seen.hidden.any() or not config.cluster.categories else None
        if not config.cluster.categories:
            labels = known if self.images.table.n_known else None
            estimate = estimate_clusters(features, labels, config.cluster, config.seed, progress=job.progress)
        count = config.cluster.categories or (estimate.n_clusters if estimate else 0)
        if seen.hidden.any():
            untrained = job.cluster(features, self.images, count=count, hidden=seen.hidden)
            found = self._best_network(untrained, seen, count)
        else:
            found = self._clustered(count)(self._train(seen, count))
        self.fabric.broadcast(None)  # the other processes may go
        return replace(found, estimate=estimate)

    def _best_network(self, untrained: FittedClusters, seen: Seen, count: int) -> FittedClusters:
        """Categories of a network that was trained, of the one before, or of their mean: what held-out labels prefer.

        Where training pays it is done again with all labels, to be clustered and to be as sure as the first one.
        """
        job, backbone = self.job, self.job.backbone
        before = {name: tensor.detach().clone() for name, tensor in backbone.network.named_parameters()}
        method = self._train(seen, count)
        clustered = self._clustered(count, hidden=seen.hidden)
        ways = {"untrained": untrained, "trained": clustered(method)}
        _average(backbone, before)
        ways["averaged"] = clustered(method)
        told = all(way.selection.right for way in ways.values())
        kept, about = compare(ways, job.tell) if told else ("trained", {})
        load_trained(backbone, before)
        if kept == "untrained":
            backbone.requires_grad_(False)  # nothing of it was trained
            job.embed(self.shown)
            found = untrained
        else:
            job.tell("training again, with all labels")
            method = self._train(Seen.all(self.images.table.labels), count, again=True)
            if kept == "averaged":
                _average(backbone, before)
            found = self._clustered(count, like=ways[kept])(method)
        if about:
            job.run.log(step="kept", **about, **found.selection.settings)
        return found

    def _train(self, seen: Seen, count: int, again: bool = False) -> Method:
        """Train the backbone with the labels that are seen; the method that did it."""
        job = self.job
        method = make_method(job.config, job.backbone, count, seen.n_known)
        done = job.step("train")
        job.tell(f"training {method.n_trained / 1e6:.2f} M parameters")
        data, how = (self.images, self.cut, self.shown, seen), (self.fabric, self.options)
        epochs = train_run(job.run, job.config, method, *data, *how, again=again)
        done(epochs * len(self.images), epochs=epochs, parameters=method.n_trained)
        return method

    def _clustered(self, count: int, **how: Any) -> Callable[[Method], FittedClusters]:
        """Makes categories of the features of the backbone as it is now, in the way of `Job.cluster`."""
        job = self.job
        return lambda method: job.cluster(job.embed(self.shown, shared=False), self.images, method, count, **how)


def compare(ways: dict[str, FittedClusters], tell: Callable[[str], None]) -> tuple[str, dict[str, Any]]:
    """The network that does best on labels training did not see, and what is logged of it.

    The untrained one is kept only if it is ahead by more than chance.
    """
    right = {name: way.selection.right for name, way in ways.items()}
    correct = {name: sum(parts) for name, parts in right.items()}
    ahead = max(("trained", "averaged"), key=lambda name: correct[name])
    kept = safest({name: [np.array(right[name])] for name in (ahead, "untrained")}, lambda way: CLEARLY)
    chance = " (within chance)" if kept != "untrained" and correct["untrained"] > correct[kept] else ""
    before, after, mean = (f"{correct[name]:.1%}" for name in ("untrained", "trained", "averaged"))
    shares = f"{before} correct before training, {after} after, {mean} with the average of both{chance}"
    tell(f"held-out labels: {shares}: {kept} network kept")
    return kept, {"kept": kept, **correct}


def _average(backbone: Backbone, before: Weights) -> None:
    """Give a trained backbone the mean of its weights and those before."""
    after = trained_weights(backbone)
    load_trained(backbone, {name: (tensor + before[name]) / 2 for name, tensor in after.items()})
