"""The main job: images and a few labels in, a run folder with categories out."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from selex.cluster.assign import fit_assigner
from selex.cluster.estimate_k import estimate_k
from selex.cluster.hierarchy import hssk
from selex.cluster.holdout import choose_sizes, held_out_temperature
from selex.cluster.whiten import Whitener, fit_whitener
from selex.config import Config
from selex.data.clusters import Columns, category_names, cluster_columns
from selex.data.crops import to_device
from selex.data.store import ImageStore
from selex.data.table import ImageTable, read_table
from selex.errors import InputError
from selex.features.attention_crop import look_closer
from selex.features.embed import embed
from selex.models.backbones import Backbone
from selex.models.trunk import trained_weights
from selex.predictor import Model, load_backbone_for, place_for
from selex.progress import estimate_bar, progress_bar
from selex.run import Run
from selex.training.distributed import start
from selex.training.fit import TrainOptions, fit, make_method, predict, train_worker
from selex.types import Hierarchy, KEstimate, Sizes

Tell = Callable[[str], None]


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
    tell: Tell = lambda line: None,
) -> Run:
    """Sort images into known and novel categories and write a run folder.

    Args:
        config: what to do; `config.photos` and `config.labels` say where images and labels are.
        out: the run folder, new or one of the same photos (features that are done are not made again).
        photos: images in place of `config.photos`: a list of paths or PIL images.
        labels: labels in place of `config.labels`: one per image, None where unknown.
        device: where the backbone runs.
        store: where decoded images are kept; by default in the cache, shared by all runs of the same photos.
        strict: stop at the first image that cannot be read, rather than skipping it.
        progress: show bars on standard error.
        options: how training shall go, where the method trains: from the beginning, watched by whom.
        tell: called with a line about each step that is done.

    Returns:
        The finished run.
    """
    config = replace(config, backbone=_from_anywhere(config.backbone), weights=_absolute(config.weights))
    table = read_table(photos if photos is not None else config.photos, labels if labels is not None else config.labels)
    check_categories(config, table)
    fabric = start(device) if config.method != "frozen" else None
    if fabric and fabric.global_rank:
        return train_worker(config, Path(out), table, fabric, Path(store) if store else None)
    with Run.create(Path(out), config, table.root) as run:
        backbone, config = load_backbone_for(config, device)
        size = config.size or 0
        with _Step(run, tell, "decode", "images") as step:
            folder = place_for(store, config.photos, table.root, size)
            images = ImageStore.build(table, folder, size=size, strict=strict, progress=progress)
            check_categories(config, images.table)
            step.done(len(images), skipped=len(images.skipped), **({"store": str(folder.absolute())} if store else {}))
        closer = None
        if config.closer:
            with _Step(run, tell, "look", "images") as step:
                closer = look_closer(backbone, images, folder, device=device, progress=progress)
                step.done(len(images))
        shown, labels, found, method = to_device(images, torch.device(device), closer), images.table.labels, None, None
        if config.categories is None or fabric is None:
            with _Step(run, tell, "embed", "images") as step:
                features = embed(backbone, shown, run.features, device=device, views=config.views, progress=progress)
                step.done(len(images))
        if config.categories is None:
            found = estimate(config, on_device(features, device), labels, progress)
        count = config.categories or (found.n_clusters if found else 0)
        if fabric:
            method = make_method(config, backbone, count, images.table.n_known)
            with _Step(run, tell, "train", "images") as step:
                tell(f"training {method.n_trained / 1e6:.2f} M parameters")
                epochs = fit(
                    run, config, method, images, closer, shown, fabric, options or TrainOptions(progress=progress)
                )
                step.done(epochs * len(images), epochs=epochs, parameters=method.n_trained)
            with _Step(run, tell, "embed", "images") as step:
                features = embed(backbone, shown, run.features, device=device, views=config.views, progress=progress)
                step.done(len(images))
        with _Step(run, tell, "cluster", "images") as step:
            rows = on_device(features, device)
            whitener = fit_whitener(rows, labels, config.whiten) if method is None or method.clusters else None
            sizes, temperature = _rehearsed(config, rows, labels, count, whitener, progress)
            rows = whitener(rows) if whitener else rows
            if method:
                hierarchy = predict(config, method, rows, labels, sizes).on_host()
            else:
                hierarchy = cluster(config, rows, labels, count, sizes, progress).on_host()
            step.done(len(images), levels=hierarchy.sizes, inertia=hierarchy.levels[0].inertia, sizes=sizes)
            if config.sizes == "auto" and method is None:
                tell(f"sizes: {sizes} (chosen by --sizes auto)")
        rows = rows.cpu().numpy() if isinstance(rows, torch.Tensor) else rows
        publish(run, config, images, rows, hierarchy, backbone, found, whitener, temperature)
    return run


def on_device(features: Any, device: str | torch.device) -> Any:
    """Features where they are clustered fastest: on a GPU, if there is one."""
    return torch.from_numpy(np.array(features)).to(device) if torch.device(device).type == "cuda" else features


def estimate(config: Config, features: Any, labels: Any, progress: bool = False) -> KEstimate:
    """How many categories there seem to be."""
    known, rng = labels if (labels >= 0).any() else None, np.random.default_rng(config.seed)
    with estimate_bar(progress) as tell:
        return estimate_k(features, known, balanced=config.balanced, rng=rng, progress=tell)


def cluster(
    config: Config, features: Any, labels: Any, count: int, sizes: Sizes = "paper", progress: bool = False
) -> Hierarchy:
    """Categories and levels of the features."""
    known, rng = labels if (labels >= 0).any() else None, np.random.default_rng(config.seed)
    with progress_bar("clustering, level", progress) as advance:
        return hssk(
            features,
            known,
            count,
            n_levels=config.levels,
            balanced=config.balanced,
            sizes=sizes,
            n_init=config.restarts,
            rng=rng,
            progress=advance,
        )


def publish(
    run: Run,
    config: Config,
    images: ImageStore,
    features: Any,
    hierarchy: Hierarchy,
    backbone: Backbone,
    found: KEstimate | None,
    whitener: Whitener | None = None,
    temperature: float | None = None,
) -> None:
    """Everything that is known now, into the run folder; features are those that were clustered."""
    base, table = hierarchy.levels[0], images.table
    names = category_names(table.categories, base.n_clusters)
    assigner = fit_assigner(features, base, table.labels)
    assigner = replace(assigner, temperature=temperature) if temperature else assigner
    model = Model(
        assigner,
        names,
        base.n_known,
        config.backbone,
        config.weights,
        backbone.fingerprint(),
        images.size,
        backbone.crop,
        trained_weights(backbone) if config.method != "frozen" else {},
        config.views,
        whitener,
        config.closer,
    )
    judged = model.describe(table.files, assigner(features, base.labels))
    more: Columns = {key: judged[key] for key in ("confidence", "runner_up", "distance")}
    columns = cluster_columns("file", table.files, hierarchy, names, table.labelled, more)
    run.publish(config, table.root, columns, _tree(hierarchy, names, found), images.skipped, model.save)


def _rehearsed(
    config: Config, features: Any, labels: Any, count: int, whitener: Whitener | None, progress: bool
) -> tuple[Sizes, float | None]:
    """How to end and how sure to be: hidden labels tell, where that is asked or where labels shape the features."""
    how: dict[str, Any] = {"whiten": config.whiten, "balanced": config.balanced}
    how["rng"] = np.random.default_rng(config.seed)
    chooses = config.sizes == "auto" and config.method == "frozen"
    sizes: Sizes = "paper" if config.sizes == "auto" else config.sizes
    if chooses:
        with progress_bar("labels hidden for a moment, step", progress) as advance:
            sizes = choose_sizes(features, labels, count, **how, progress=advance)
    return sizes, held_out_temperature(features, labels, count, sizes=sizes, **how) if chooses or whitener else None


def _absolute(path: str | None) -> str | None:
    return None if path is None else str(Path(path).expanduser().absolute())


def _from_anywhere(backbone: str) -> str:
    """A backbone's name that means the same in every folder: the model remembers it."""
    kind, colon, path = backbone.partition(":")
    return f"file:{_absolute(path)}" if (kind, colon) == ("file", ":") and path else backbone


def check_categories(config: Config, table: ImageTable) -> None:
    """Refuse a number of categories that cannot be, before any work is done."""
    if config.categories is None:
        return
    if config.categories < table.n_known:
        raise InputError(
            f"{config.categories} categories, but {table.n_known} are labelled: ask for at least {table.n_known}"
        )
    if config.categories > len(table):
        raise InputError(f"{config.categories} categories for {len(table)} images: ask for at most {len(table)}")


def _tree(hierarchy: Hierarchy, names: list[str], found: KEstimate | None) -> dict[str, Any]:
    """Levels for `hierarchy.json`: sizes of clusters, and the next level's cluster that most of its rows are in."""
    levels = []
    for level, coarser in zip(hierarchy.levels, [*hierarchy.levels[1:], None], strict=True):
        labels = np.asarray(level.labels)
        sizes = np.bincount(labels, minlength=level.n_clusters).tolist()
        parents = _parents(labels, np.asarray(coarser.labels), level.n_clusters) if coarser else None
        levels.append({"n_known": level.n_known, "sizes": sizes, "parents": parents})
    estimate = found and {"n_clusters": found.n_clusters, "low": found.low, "high": found.high, "method": found.method}
    return {"names": names, "levels": levels, "estimate": estimate, "curve": found.curve if found else None}


def _parents(fine: Any, coarse: Any, n_clusters: int) -> list[int]:
    table = np.zeros((n_clusters, int(coarse.max()) + 1), dtype=np.int64)
    np.add.at(table, (fine, coarse), 1)
    return [int(parent) for parent in table.argmax(1)]


class _Step:
    """Times a step, logs it in the run and tells about it."""

    def __init__(self, run: Run, tell: Tell, name: str, unit: str) -> None:
        self.run, self.tell, self.name, self.unit = run, tell, name, unit

    def __enter__(self) -> _Step:
        self.start = time.perf_counter()
        return self

    def done(self, count: int, **more: Any) -> None:
        """The step has done its work on `count` things."""
        seconds = time.perf_counter() - self.start
        self.run.log(step=self.name, count=count, seconds=round(seconds, 3), cores=os.cpu_count(), **more)
        rate = f" ({count / seconds:,.0f} {self.unit}/s)" if seconds >= 1 else ""  # of what was done before: no rate
        self.tell(f"{self.name}: {count} {self.unit} in {seconds:.1f} s{rate}")

    def __exit__(self, *_: object) -> None:
        """Nothing to tidy up: what a step has done so far is kept by whatever does it."""
