"""The main job: images and a few labels in, a run folder with categories out."""

from __future__ import annotations

import json
import os
import warnings
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from selex.cluster.distributed.fit import fit_distributed
from selex.cluster.distributed.group import ALONE, Group, check_same_job, join
from selex.cluster.pipeline import FittedClusters
from selex.config import Config
from selex.config.groups import FROZEN
from selex.data.crops import AnyImages, to_device
from selex.data.store import ImageStore
from selex.data.table import ImageTable, folder_label, is_url, read_sources, read_table
from selex.discovery_steps import Discovery, Tell, check_categories, content_of, on_device, publish
from selex.discovery_training import Training, is_trained
from selex.errors import InputError, Note
from selex.features.ray_cluster import RayEngine, running
from selex.models.backbones import default_backbone, load_backbone_for
from selex.review.core.labels import rows_kept, set_aside
from selex.runs.earlier import Earlier
from selex.runs.results import Results
from selex.runs.run import LABELS, Run, labelled_by_review
from selex.runs.writer import write_run
from selex.training.devices import fabric_library, start_fabric
from selex.training.fit import Seen, TrainOptions, train_run, train_worker
from selex.training.methods import Method, check_method
from selex.training.ray_train import train_run_on_ray


def discover(
    config: Config,
    out: str | Path,
    *,
    photos: Any = None,
    labels: Any = None,
    device: str | torch.device = "cpu",
    store: str | Path | None = None,
    strict: bool = False,
    progress: bool = False,
    options: TrainOptions | None = None,
    engine: RayEngine | None = None,
    tell: Tell = lambda line: None,
    earlier: Earlier | None = None,
    numbers_taken: int = 0,
) -> Run:
    """Sort images into known and novel categories and write a run folder.

    Args:
        config: what to do; `config.data` says where images and labels are.
        out: the run folder, new or one of the same photos (finished features are reused).
        photos: images in place of `config.data.photos`: a list of paths or PIL images.
        labels: labels in place of `config.data.labels`: one per image, None where unknown.
        device: where the backbone runs.
        store: where decoded images are kept; by default in the cache, shared by all runs of the same photos.
        strict: stop at the first image that cannot be read, rather than skipping it.
        progress: show progress on standard error: bars on a terminal, lines elsewhere.
        options: how to train, if the method trains: restart, TensorBoard, scoring.
        engine: a Ray cluster whose workers embed the images, which may be behind a URL; None embeds them here.
        tell: called with a line about each step that is done.
        earlier: categories to continue from, in place of a search, where nothing is trained.
        numbers_taken: new novel categories get numbers above this one.

    Returns:
        The finished run.
    """
    config, out, options = _resolved(config, device), Path(out), options or TrainOptions(progress=progress)
    labels = _labels(config, out) if labels is None else labels
    if engine is not None:
        if photos is not None:
            raise InputError("a Ray cluster reads photos from a folder, a table or a URL, not from a list in Python")
        return _discover_on_ray(config, out, labels, engine, device, strict, progress, tell, options)
    table, left_out = _table(config, out, photos, labels, store, progress)
    fabric, group = _processes(config, out, device)
    if group.rank:
        return _follow(config, out, table, store, fabric, group)
    with write_run(out, config, table.root) as run:
        backbone, config = load_backbone_for(config, device)
        job = Discovery(run, config, backbone, device, progress, tell)
        if left_out:
            tell(f"left out: {left_out} images that were set aside in `selex review`")
        images, folder = job.decode(table, store, strict)
        content = job.content(images, store)
        if fabric and not isinstance(photos, ImageTable) and is_trained(job, images, content, options):
            fabric.broadcast(None)  # the other processes may go
            run.leave()
            return run
        cut = job.attention_crop(images, folder)
        shown = to_device(images, torch.device(device), cut)
        if fabric:
            found = _with_training(job, images, cut, shown, fabric, options)
        else:
            found, config = _without_training(job, images, shown, group, earlier, content)
        publish(run, config, images, found, backbone, numbers_taken, content)
    return run


def _labels(config: Config, out: Path) -> str | None:
    """The labels that settings name; those that decisions gave to this run must be as they were written."""
    if labelled_by_review(out, config):
        Run.open(out).result(LABELS)
    return config.data.labels


def _table(
    config: Config, out: Path, photos: Any, labels: Any, store: str | Path | None, progress: bool
) -> tuple[ImageTable, int]:
    """Which images there are and how they are labelled, and how many more were set aside.

    What cannot be sorted is refused before any work.
    """
    if photos is None and is_url(config.data.photos):
        raise InputError(f"{config.data.photos}: photos at a URL need --engine ray")
    everything = read_sources(config.data.sources, labels) if photos is None else read_table(photos, labels)
    reviewed = isinstance(photos, ImageTable)  # by who clusters a run again, with all that was decided
    table = everything if reviewed else _photos_left(Run(out), config, everything, store, progress)
    check_categories(config, table)
    if photos is None and labels is None:
        _note_if_all_labelled(table)
    return table, len(everything) - len(table)


def _photos_left(run: Run, config: Config, table: ImageTable, store: str | Path | None, progress: bool) -> ImageTable:
    """The photos but for those that a person set aside in `selex review`, and did not take back."""
    aside = set_aside(run.folder)
    if not aside or not run.is_of(config.data.photos):  # a run of others is refused, before any work
        return table
    content = content_of(run, table, store, progress)
    return table.take(rows_kept(run.folder, aside, Results.read_if_any(run), table.files, content))


def _processes(config: Config, out: Path, device: str | torch.device) -> tuple[Any, Group]:
    """What trains, None where nothing does, and the processes that were started together, all for this job."""
    fabric = start_fabric(device) if config.train.method != FROZEN else None
    group = join(device) if (fabric and fabric.world_size > 1) or (not fabric and _started()) else ALONE
    check_same_job(group, str(out), json.dumps(config.to_json(), sort_keys=True, default=str))
    return fabric, group


def _follow(config: Config, out: Path, table: ImageTable, store: str | Path | None, fabric: Any, group: Group) -> Run:
    """What all processes do but the first: they train or cluster with it, and write nothing."""
    if fabric:
        return train_worker(config, out, table, fabric, Path(store) if store else None)
    fit_distributed(None, group)
    return Run(out)


def _with_training(
    job: Discovery, images: ImageStore, cut: ImageStore | None, shown: AnyImages, fabric: Any, options: TrainOptions
) -> FittedClusters:
    """Categories by the backbone after training, in which all processes take part."""

    def fit(method: Method, seen: Seen, again: bool) -> int:
        return train_run(job.run, job.config, method, images, cut, shown, seen, fabric, options, again)

    found = Training(job, images, partial(job.embed, shown), fit).run()
    fabric.broadcast(None)  # the other processes may go
    return found


def _without_training(
    job: Discovery, images: ImageStore, shown: AnyImages, group: Group, earlier: Earlier | None, content: NDArray[Any]
) -> tuple[FittedClusters, Config]:
    """Categories by the backbone as it came, continued from earlier ones where that is possible; and the config."""
    config, earlier = job.config, earlier and earlier.of_images(job.backbone, images.table, content)
    if earlier is None:
        features = job.embed(shown)
        return job.cluster(features, images) if group.size == 1 else job.cluster_distributed(images, group), config
    if group.size > 1:
        fit_distributed(None, group)  # nothing to search for: the others may go
    found = job.resume(job.embed(shown), images, earlier)
    count, asked = found.hierarchy.levels[0].n_clusters, config.cluster.categories
    return found, config.change(categories=asked and max(count, asked))


def _discover_on_ray(
    config: Config,
    out: Path,
    labels: Any,
    engine: RayEngine,
    device: str | torch.device,
    strict: bool,
    progress: bool,
    tell: Tell,
    options: TrainOptions,
) -> Run:
    """The same with images that workers of a Ray cluster read, decode and embed; they may train and cluster too."""
    trains = config.train.method != FROZEN
    if set_aside(out):
        raise InputError(f"{out}: photos are set aside in `selex review`: use `selex recluster`, or another --out")
    if engine.spread and trains:
        raise InputError("--spread needs --method frozen: after training, features are clustered on this machine")
    if trains:
        fabric_library()  # which may be missing here
    ray = running(engine, torch.device(device)) if trains else nullcontext()  # once for all steps
    with ray, write_run(out, config, config.data.photos) as run:
        backbone, config = load_backbone_for(config, device)
        job = Discovery(run, config, backbone, device, progress, tell)
        eye = (deepcopy(backbone) if trains else backbone) if config.features.attention_crop else None
        images = job.embed_on_ray(engine, labels, eye)
        if strict and images.skipped:
            raise InputError(": ".join(images.skipped[0]))
        check_categories(config, images.table)
        made_by, engine = backbone.fingerprint(), replace(engine, fewer=True)

        def embedded(shared: bool) -> Any:
            nonlocal made_by
            if backbone.fingerprint() != made_by:
                if job.embed_on_ray(engine, labels, eye).key != images.key:
                    raise InputError(f"{config.data.photos}: photos changed during training; run the command again")
                made_by = backbone.fingerprint()
            return on_device(np.load(run.features, mmap_mode="r"), device)

        def fit(method: Method, seen: Seen, again: bool) -> int:
            return train_run_on_ray(run, config, backbone, method, images, seen, engine, device, options, again)

        if trains:
            found = Training(job, images, embedded, fit).run()
        elif engine.spread:
            found = job.cluster_on_ray(engine, images)
        else:
            found = job.cluster(embedded(True), images)
        publish(run, config, images, found, backbone)
    return run


def _note_if_all_labelled(table: ImageTable) -> None:
    """Say so, before any work, where sub-folders label every photo: what is to be sorted is perhaps one of them."""
    named = zip(table.files, table.label_names, strict=True)
    if len(table) and table.labelled.all() and all(folder_label(file) == name for file, name in named):
        counts = np.bincount(table.labels)
        name, count = table.categories[int(counts.argmax())], int(counts.max())
        text = (
            f"every photo is in a sub-folder, which is its category: none is left to sort. The largest is {name} "
            f"({count:,}); if these are not of one category, call that folder “unlabelled”"
        )
        warnings.warn(text, Note, stacklevel=4)


def _started() -> bool:
    """Whether `torchrun` started this process as one of several; clusters set some of its variables in any shell."""
    return "LOCAL_RANK" in os.environ and not dist.is_initialized()


def _resolved(config: Config, device: str | torch.device) -> Config:
    """The config, checked, with a backbone, and with paths that mean the same everywhere: the model remembers them."""
    check_method(config)
    backbone = config.features.backbone or default_backbone(device)
    kind, colon, path = backbone.partition(":")
    backbone = f"file:{_absolute(path)}" if (kind, colon) == ("file", ":") and path else backbone
    return config.change(backbone=backbone, weights=_absolute(config.features.weights))


def _absolute(path: str | None) -> str | None:
    return None if path is None else str(Path(path).expanduser().absolute())
