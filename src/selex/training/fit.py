"""Training as a step of a job: a config and stored images in, a trained backbone and its method out."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from selex.cluster.distributed.group import is_first_attempt
from selex.cluster.holdout.select import Selection
from selex.cluster.holdout.split import kept_from_training, numbered
from selex.cluster.pipeline import FittedClusters, calibrated
from selex.cluster.whiten import FeatureMaps
from selex.config import Config
from selex.data.crops import AnyImages, to_device
from selex.data.store import ImageStore, store_for
from selex.data.table import ImageTable
from selex.errors import InputError
from selex.features.attention_crop import cut_to
from selex.folders import own_folder
from selex.models.backbones import load_backbone_for
from selex.models.network import Backbone
from selex.models.trunk import load_trained
from selex.runs.run import Run
from selex.runs.writer import BOARD, RunWriter
from selex.training.batches import Data
from selex.training.checkpoint import Checkpoints, checkpoint_paths, newest_checkpoint
from selex.training.loop import Callbacks, Entry, Score, train
from selex.training.methods import Method, Task, find_method
from selex.types import UNLABELLED

WORTH_COMPILING = 4000
"""Steps from which on the minute that compiling takes is won back."""


@dataclass(frozen=True)
class TrainOptions:
    """How a person wants training to go, besides its settings."""

    restart: bool = False  # from the beginning, even if there is a checkpoint to resume from
    tensorboard: bool = False  # write curves for TensorBoard too
    score: Score | None = None  # accuracies of an epoch's clusters, where the truth is known
    progress: bool = False  # show a bar on standard error


class Seen(NamedTuple):
    """What training sees of the labels, and which rows' labels are held out from it."""

    labels: NDArray[Any]
    held_out: NDArray[np.bool_]

    @classmethod
    def of(cls, config: Config, labels: Any) -> Seen:
        """Without a share of the labels, where the method's features are clustered in the end."""
        known = np.asarray(labels)
        share = config.train.holdout if find_method(config.train.method).clusters else 0.0
        held_out = kept_from_training(known, share)
        return cls(numbered(np.where(held_out, UNLABELLED, known)), held_out)

    @classmethod
    def all(cls, labels: Any) -> Seen:
        """With every label."""
        known = np.asarray(labels)
        return cls(known, np.zeros(len(known), dtype=bool))

    def doing(self, again: bool) -> str:
        """Which training this is, in words."""
        first = "training without held-out labels" if self.held_out.any() else "training"
        return "training again with all labels" if again else first

    @property
    def n_known(self) -> int:
        """Categories that a label is left of."""
        return int(self.labels.max(initial=UNLABELLED)) + 1


def make_method(config: Config, backbone: Backbone, n_categories: int, n_known: int) -> Method:
    """The method of a config. A backbone without pretrained weights is trained as a whole."""
    training = config.train
    if backbone.weights is None:
        training = replace(training, trained_blocks=None)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)  # of the head
        task = Task(n_categories, n_known, config.cluster.balanced, config.cluster.whiten)
        return find_method(training.method)(backbone, task, training)


def train_run(
    run: RunWriter,
    config: Config,
    method: Method,
    images: ImageStore,
    cut: ImageStore | None,
    shown: AnyImages,
    seen: Seen,
    fabric: Any,
    options: TrainOptions,
    again: bool = False,
) -> int:
    """Train the method's backbone, from the newest checkpoint on; the number of epochs that it has seen.

    What is trained `again` has checkpoints of its own, so that an interrupted run resumes in the right one.
    """
    identity = training_identity(config, method, images.key, seen)
    checkpoints = Checkpoints(run.work, identity, config.to_json(), again)
    if options.restart and not again and is_first_attempt(str(run.folder)):
        checkpoints.clear()
    # Who follows has waited for this: images are decoded now.
    fabric.broadcast((method.task.n_categories, cut.boxes if cut else None, again))
    log = epoch_log(run, options.tensorboard, again)
    callbacks = Callbacks(log, options.score, options.progress, seen.doing(again))
    compile = worth_compiling(method, len(images), fabric)
    data = training_data(images, shown, seen, config)
    return len(
        train(method, data, config.seed, fabric=fabric, checkpoints=checkpoints, callbacks=callbacks, compile=compile)
    )


def worth_compiling(method: Method, images: int, fabric: Any) -> bool:
    """Whether a GPU has so many steps to make that compiling takes less time than it saves."""
    steps = method.settings.epochs * (images // method.settings.batch)
    return fabric.device.type == "cuda" and steps >= WORTH_COMPILING


def train_worker(config: Config, out: Path, table: ImageTable, fabric: Any, store: Path | None) -> Run:
    """What all processes do but the first: they train with it, and write nothing."""
    backbone, config = load_backbone_for(config, fabric.device)
    before = {name: tensor.detach().clone() for name, tensor in backbone.network.named_parameters()}
    asked = fabric.broadcast(None)
    folder = store_for(store, config.data.sources, table.root, config.data.size or 0)
    images = ImageStore.build(table, folder, size=config.data.size or 0)
    while asked is not None:
        n_categories, boxes, again = asked
        seen = Seen.all(images.table.labels) if again else Seen.of(config, images.table.labels)
        load_trained(backbone, before)
        method = make_method(config, backbone, n_categories, seen.n_known)
        cut = None if boxes is None else cut_to(images, folder, boxes)
        data = training_data(images, to_device(images, fabric.device, cut), seen, config)
        train(method, data, config.seed, fabric=fabric)
        asked = fabric.broadcast(None)
    return Run(out)


def interrupted_config(run: Run) -> Config:
    """What the training that was interrupted in a run was asked to do."""
    found = newest_checkpoint(checkpoint_paths(run.work))
    if found is None:
        raise InputError(f"{run.folder}: has no checkpoint to resume from; leave --resume out")
    path, state = found
    if not isinstance(state.get("more"), dict):
        raise InputError(f"{path}: was written by another version of selex; give --restart to train from the beginning")
    return Config.from_json(state["more"])


def training_identity(config: Config, method: Method, key: str, seen: Seen) -> dict[str, Any]:
    """What makes two trainings the same: a checkpoint of one is no use to another."""
    wanted = {**asdict(config.features), "size": config.data.size, "seed": config.seed}
    del wanted["views"]  # of features that are clustered, not of those that are trained
    wanted |= {"balanced": config.cluster.balanced, "whiten": config.cluster.whiten}
    labels = hashlib.sha256(seen.labels.astype(np.int64).tobytes()).hexdigest()
    found = {"categories": method.task.n_categories, "images": key[:12], "labels": labels[:12]}
    return {**asdict(method.settings), **wanted, **found}


def classify_features(method: Method, features: Any, labels: Any) -> FittedClusters:
    """Categories of trained features by the method's own classifier."""
    rows = features if isinstance(features, torch.Tensor) else torch.from_numpy(np.array(features))
    hierarchy = method.to(rows.device).classify(rows, torch.as_tensor(labels, device=rows.device))
    return calibrated(FittedClusters(hierarchy, FeatureMaps(), Selection(False, "none")), rows, labels)


def training_data(images: ImageStore, shown: AnyImages, seen: Seen, config: Config) -> Data:
    """What training is given."""
    return Data(shown, seen.labels, list(images.table.files), config.features.crop or 0)


def epoch_log(run: RunWriter, tensorboard: bool, again: bool = False) -> Callable[[Entry], None]:
    """Where the metrics of an epoch go; curves of a training that is done again are drawn apart."""
    which = {"again": True} if again else {}
    if not tensorboard:
        return lambda entry: run.log(**entry, **which)
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise InputError("--tensorboard needs the tensorboard package: pip install tensorboard") from None
    own_folder(run.folder / BOARD)
    writer: Any = SummaryWriter(run.folder / BOARD)

    def log(entry: Entry) -> None:
        run.log(**entry, **which)
        for name, value in entry.items():
            if isinstance(value, float):
                writer.add_scalar(f"again/{name}" if again else name, value, entry["epoch"])
        writer.flush()

    return log
