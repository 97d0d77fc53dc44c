"""Training as a step of `discover`: without some labels, which tell whether it pays, and if so with all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from selex.cluster.holdout.select import safest
from selex.cluster.pipeline import FittedClusters, estimate_clusters
from selex.config import Config
from selex.config.groups import FROZEN
from selex.data.store import ImageStore
from selex.data.table import ImageTable
from selex.discovery_steps import Discovery
from selex.errors import InputError
from selex.features.ray_embed import Embedded
from selex.models.network import Backbone
from selex.models.trunk import check_view_size, load_trained, trained_weights
from selex.runs.predictor import load
from selex.runs.results import Results
from selex.runs.run import Run
from selex.runs.versions import versions_after
from selex.training.checkpoint import checkpoint_paths
from selex.training.fit import Seen, TrainOptions, make_method
from selex.training.methods import METHODS, Method
from selex.types import UNLABELLED

Weights = dict[str, torch.Tensor]
Embed = Callable[[bool], Any]
"""Features of all images by the backbone as it is now; whether they are shared with other runs."""
Fit = Callable[[Method, Seen, bool], int]
"""Trains a method's backbone on the labels that are seen, for the first time or again; the number of epochs."""
CLEARLY = 2.0
"""Standard errors by which held-out labels must speak against training: a single row is one."""


@dataclass(frozen=True)
class Training:
    """What training needs: the job, its images, what embeds them with the backbone as it is, and what trains that."""

    job: Discovery
    images: ImageStore | Embedded
    embed: Embed
    fit: Fit

    def run(self) -> FittedClusters:
        """Categories after training the backbone, unless labels that training did not see prefer those before it."""
        job, config, known = self.job, self.job.config, self.images.table.labels
        check_view_size(job.backbone, config.train.view_size, config.train.trained_blocks)
        seen, estimate = Seen.of(config, known), None
        features = self.embed(True) if seen.held_out.any() or not config.cluster.categories else None
        if not config.cluster.categories:
            labels = known if self.images.table.n_known else None
            estimate = estimate_clusters(features, labels, config.cluster, config.seed, progress=job.progress)
        count = config.cluster.categories or (estimate.n_clusters if estimate else 0)
        if seen.held_out.any():
            untrained = job.cluster(features, self.images, count=count, held_out=seen.held_out)
            found = self._best_network(untrained, seen, count)
        else:
            found = self._clustered(self._train(seen, count), count)
        return replace(found, estimate=estimate)

    def _best_network(self, untrained: FittedClusters, seen: Seen, count: int) -> FittedClusters:
        """Categories of a network that was trained, of the one before, or of their mean: what held-out labels prefer.

        Where training pays it is done again with all labels, to be clustered and to be as sure as the first one; not
        where every image has a label, which would leave nothing to discover.
        """
        job, backbone, labels = self.job, self.job.backbone, np.asarray(self.images.table.labels)
        before = {name: tensor.detach().clone() for name, tensor in backbone.network.named_parameters()}
        method = self._train(seen, count)
        after = {name: tensor.clone() for name, tensor in trained_weights(backbone).items()}
        ways = {"untrained": untrained, "trained": self._clustered(method, count, held_out=seen.held_out)}
        _average(backbone, before)
        ways["averaged"] = self._clustered(method, count, held_out=seen.held_out)
        told = all(way.selection.right for way in ways.values())
        kept, about = compare(ways, job.tell) if told else ("trained", {})
        again = kept != "untrained" and bool((labels == UNLABELLED).any())
        load_trained(backbone, before if again or kept == "untrained" else after)
        if again:
            job.tell("training again, with all labels")
            method = self._train(Seen.all(labels), count, again=True)
        if kept == "averaged":
            _average(backbone, before)
        if kept == "untrained":
            backbone.requires_grad_(False)  # nothing of it was trained
        if again:
            found = self._clustered(method, count, like=ways[kept])
        else:
            self.embed(kept == "untrained")
            found = ways[kept]
        if about:
            job.run.log(step="kept", **about, **found.selection.settings)
        return found

    def _train(self, seen: Seen, count: int, again: bool = False) -> Method:
        """Train the backbone with the labels that are seen; the method that did it."""
        job = self.job
        method = make_method(job.config, job.backbone, count, seen.n_known)
        done = job.step("train")
        without = f" without {seen.held_out.sum()} held-out labels; if that pays off, again with all labels"
        job.tell(f"training {method.n_trained / 1e6:.2f} M parameters{without if seen.held_out.any() else ''}")
        epochs = self.fit(method, seen, again)
        which = {"again": True} if again else {}
        done(epochs * len(self.images), epochs=epochs, parameters=method.n_trained, **which)
        return method

    def _clustered(self, method: Method, count: int, **how: Any) -> FittedClusters:
        """Categories of the features of the backbone as it is now, see `Discovery.cluster`."""
        return self.job.cluster(self.embed(False), self.images, method, count, **how)


def is_trained(job: Discovery, images: ImageStore, content: NDArray[Any], options: TrainOptions) -> bool:
    """Whether training would give what the run has already: it is told, or else what has changed since.

    A method that is not ours is trained again, since its code may have changed; what was interrupted is resumed.
    """
    run, config = job.run, job.config
    ours = config.train.method in METHODS and not (options.restart or options.tensorboard)
    if not ours or not run.complete or run.config.train.method == FROZEN or checkpoint_paths(run.work):
        return False
    changed = list(_changed(run, config, images.table, content))
    if changed:
        job.tell(f"training again: {', '.join(changed)} changed since the last training")
    else:
        job.tell("nothing changed since the last training: results stay as they are (--restart trains again)")
    return not changed


def _changed(run: Run, config: Config, table: ImageTable, content: NDArray[Any]) -> Iterator[str]:
    """What is not as it was when a run was trained."""
    if run.config != config:
        yield "settings"
    found = Results.read_if_any(run)
    if found is None:
        yield "the run's files"
    elif list(found.files) != list(table.files) or not np.array_equal(np.asarray(found.content), content):
        yield "photos"
    else:
        given = (found.names[c] if held else "" for c, held in zip(found.category, found.labelled, strict=True))
        if list(given) != list(table.label_names):
            yield "labels"
    had = run.about.get("versions") or {}
    if had.get("code") != versions_after(had)["code"]:
        yield "selex itself"
    try:
        load(run.folder).load_backbone()
    except InputError:  # damaged, or of a network that has other weights by now
        yield "the network"


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
