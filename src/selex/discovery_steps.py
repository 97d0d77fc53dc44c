"""The steps of `discover`: decode, crop, embed, cluster, each timed and logged in the run; then all of it published."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from selex.cluster.assign import Assignment
from selex.cluster.distributed.fit import ClusterTask, fit_distributed
from selex.cluster.distributed.group import Group
from selex.cluster.pipeline import FittedClusters, calibrated, fit_clusters
from selex.config import ClusterConfig, Config
from selex.config.groups import FROZEN
from selex.data.clusters import Columns, cluster_columns
from selex.data.crops import AnyImages
from selex.data.store import ImageStore, store_for
from selex.data.table import ImageTable
from selex.errors import InputError
from selex.features.attention_crop import crop_to_attention, saliency
from selex.features.embed import embed, feature_cache
from selex.features.ray_cluster import RayEngine
from selex.features.ray_embed import Embedded, embed_on_ray
from selex.features.ray_fit import fit_on_ray
from selex.models.network import Backbone
from selex.models.trunk import trained_weights
from selex.runs.earlier import Earlier
from selex.runs.naming import lasting_names
from selex.runs.predictor import BLOCK, Model
from selex.runs.results import Results
from selex.runs.run import Run
from selex.runs.writer import RunWriter
from selex.training.fit import classify_features
from selex.training.methods import Method
from selex.types import Hierarchy, KEstimate, variant_for

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Discovery:
    """The steps of `discover`, and what all of them need."""

    run: RunWriter
    config: Config
    backbone: Backbone
    device: str | torch.device
    progress: bool
    tell: Tell

    def __post_init__(self) -> None:
        if self.config.features.attention_crop:
            saliency(self.backbone)  # one that does not show where it looks is refused before any work is done

    def decode(self, table: ImageTable, store: str | Path | None, strict: bool) -> tuple[ImageStore, Path]:
        """Images at the size they are needed in, and the folder that they are stored in."""
        done, size = self.step("decode"), self.config.data.size or 0
        folder = store_for(store, self.config.data.sources, table.root, size)
        images = ImageStore.build(table, folder, size=size, strict=strict, progress=self.progress)
        check_categories(self.config, images.table)
        done(len(images), skipped=len(images.skipped), **({"store": str(folder.absolute())} if store else {}))
        return images, folder

    def content(self, images: ImageStore, store: str | Path | None) -> NDArray[Any]:
        """What tells images from each other in all rounds of a run: digests at the size that the first one had."""
        size = self.run.content_size or images.size
        if size == images.size:
            return images.digests
        return _content_at(size, self.config, images.table, store, self.progress)

    def attention_crop(self, images: ImageStore, folder: Path) -> ImageStore | None:
        """The images cropped to what the backbone attends to, if the settings ask for it."""
        if not self.config.features.attention_crop:
            return None
        done = self.step("attention_crop")
        cut = crop_to_attention(self.backbone, images, folder, device=self.device, progress=self.progress)
        done(len(images))
        return cut

    def embed(self, shown: AnyImages, shared: bool = True) -> Any:
        """Features of the images, by the backbone as it is now; those of a trained one are shared with no other run."""
        done, device, views = self.step("embed"), self.device, self.config.features.views
        cache = feature_cache(self.backbone, device, views) if shared else None
        out, progress = self.run.features, self.progress
        features = embed(self.backbone, shown, out, device=device, views=views, progress=progress, cache=cache)
        done(len(features), **({"made": cache.made} if cache else {}))
        return on_device(features, device)

    def embed_on_ray(self, engine: RayEngine, labels: Any, eye: Backbone | None = None) -> Embedded:
        """Features of images wherever they are, in the run's file; which images they are of."""
        done, data, views = self.step("embed"), self.config.data, self.config.features.views
        how: dict[str, Any] = {"size": data.size or 0, "views": views, "device": self.device, "progress": self.progress}
        images = embed_on_ray(engine, self.backbone, data.sources, labels, self.run.features, eye=eye, **how)
        done(len(images), made=images.made, skipped=len(images.skipped), engine="ray")
        return images

    def cluster(
        self,
        features: Any,
        images: ImageStore | Embedded,
        method: Method | None = None,
        count: int | None = None,
        held_out: NDArray[np.bool_] | None = None,
        like: FittedClusters | None = None,
    ) -> FittedClusters:
        """Categories of the features.

        After training, labels that were `held_out` choose what is `auto` and calibrate confidence, or both are as in
        clusters that they have judged (`like`); without either `auto` is the plain way.
        """
        done, config = self.step("cluster"), self.config.cluster
        held_out = held_out if held_out is not None and held_out.any() else None
        if like or (method and held_out is None):
            fixed: dict[str, Any] = like.selection.settings if like else _after_training(config)
            config = replace(config, **fixed)
        if method and not method.clusters:
            found = classify_features(method, features, images.table.labels)
        else:
            quirks = self.config.train.quirks & {"clustering"} if method else ()
            how: dict[str, Any] = {"variant": variant_for(quirks), "held_out": held_out, "progress": self.progress}
            config = replace(config, categories=count or config.categories)
            found = fit_clusters(features, _labels(images), config, rng=self.config.seed, calibrate=not like, **how)
            if like and like.assigner:
                found = replace(found, selection=like.selection)
                # without shifts: they belong to the clusters they were fitted to
                calibration = like.assigner.calibration._replace(shifts=())
                found = calibrated(found, found.transform(features), images.table.labels, calibration)
        done(len(images), **_about(found))
        self._tell_selected(found.selected(config))
        return replace(found, hierarchy=found.hierarchy.on_host())

    def cluster_distributed(self, images: ImageStore, group: Group) -> FittedClusters:
        """Categories of the features in the run's file, by all processes, which are all in `fit_distributed`."""
        done, config = self.step("cluster"), self.config
        task = ClusterTask(self.run.features, _labels(images), config.cluster, config.seed, str(self.device))
        found = fit_distributed(task, group)
        assert found is not None  # in the first process
        done(len(images), **_about(found, workers=group.size))
        self._tell_selected(found.selected(config.cluster))
        return found

    def cluster_on_ray(self, engine: RayEngine, images: Embedded) -> FittedClusters:
        """Categories of the features in the run's file, by the workers of a Ray cluster."""
        done, config = self.step("cluster"), self.config.cluster
        how: dict[str, Any] = {"seed": self.config.seed, "device": self.device}
        found, workers = fit_on_ray(engine, self.run.features, _labels(images), config, **how)
        done(len(images), **_about(found, workers=workers))
        self._tell_selected(found.selected(config))
        return found

    def resume(self, features: Any, images: ImageStore, earlier: Earlier) -> FittedClusters:
        """Categories that continue from earlier ones."""
        done = self.step("cluster")
        how: dict[str, Any] = {"rng": self.config.seed, "progress": self.progress}
        start = earlier.start(images.table, np.load(self.run.features, mmap_mode="r"))
        found = fit_clusters(features, _labels(images), self.config.cluster, start=start, **how)
        done(len(images), **_about(found, resumed=True))
        return replace(found, hierarchy=found.hierarchy.on_host())

    def step(self, name: str) -> Callable[..., None]:
        """A step begins; call what this returns with the number of images when it is done, and what else to log."""
        begun = time.perf_counter()

        def done(count: int, **more: Any) -> None:
            seconds = time.perf_counter() - begun
            self.run.log(step=name, count=count, seconds=round(seconds, 3), cores=os.cpu_count(), **more)
            made = more.get("made", count)
            rate = f" ({made / seconds:,.0f} images/s)" if seconds >= 1 and made else ""
            new = f", {made} of them new," if made < count else ""
            self.tell(f"{name}: {count} images{new} in {seconds:.1f} s{rate}")

        return done

    def _tell_selected(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.tell(line)


def _about(found: FittedClusters, **more: Any) -> dict[str, Any]:
    """What is logged of clusters."""
    inertia = found.hierarchy.levels[0].inertia
    return {"levels": found.hierarchy.n_clusters, "inertia": inertia, **more, **found.selection.settings}


def on_device(features: Any, device: str | torch.device) -> Any:
    """Features where they are clustered fastest: on a GPU, if there is one."""
    return torch.from_numpy(np.array(features)).to(device) if torch.device(device).type == "cuda" else features


def content_of(run: Run, table: ImageTable, store: str | Path | None, progress: bool) -> NDArray[Any] | None:
    """What tells the images of a table from each other whatever their files are called; "" for what cannot be read."""
    size = run.content_size or run.config.data.size or 0
    with suppress(InputError):  # none of them can be read
        return _content_at(size, run.config, table, store, progress)
    return None


def _content_at(size: int, config: Config, table: ImageTable, store: str | Path | None, progress: bool) -> NDArray[Any]:
    """Digests of images at a size; they are needed decoded in any case."""
    folder = store_for(store, config.data.sources, table.root, size)
    found = ImageStore.build(table, folder, size=size, progress=progress)
    content = np.zeros(len(table), found.digests.dtype)
    content[found.rows] = found.digests
    return content


def check_categories(config: Config, table: ImageTable) -> None:
    """Refuse a number of categories that cannot be, before any work is done."""
    count = config.cluster.categories
    if count is None:
        return
    if count < table.n_known:
        raise InputError(f"{count} categories, but {table.n_known} are labelled: ask for at least {table.n_known}")
    if count > len(table):
        raise InputError(f"{count} categories for {len(table)} images: ask for at most {len(table)}")


def _after_training(config: ClusterConfig) -> dict[str, Any]:
    """What stands for `"auto"`: labels cannot choose where they have taught the network."""
    plain = {"adapt": "off", "search": "swaps", "refine": "none"}
    return {name: way for name, way in plain.items() if getattr(config, name) == "auto"}


def _labels(images: ImageStore | Embedded) -> Any:
    """Labels of the images, None where none has one."""
    return images.table.labels if images.table.n_known else None


def publish(
    run: RunWriter,
    config: Config,
    images: ImageStore | Embedded,
    found: FittedClusters,
    backbone: Backbone,
    numbers_taken: int = 0,
    content: NDArray[Any] | None = None,
) -> None:
    """Everything that is known now, into the run folder: names, the clusters table, the tree of levels, a model."""
    base, table = found.hierarchy.levels[0], images.table
    before = Results.read_if_any(run)
    labels = np.asarray(base.labels)
    names, last = lasting_names(table.categories, table.files, labels, base.n_clusters, before, numbers_taken, content)
    assert found.assigner is not None  # a run folder is for sorting new images too
    assert found.assignment is not None
    model = Model(
        assigner=found.assigner,
        names=names,
        n_known=base.n_known,
        backbone=backbone.name,
        weights=config.features.weights,
        fingerprint=backbone.fingerprint(),
        size=images.size,
        crop=backbone.crop,
        trained=trained_weights(backbone) if config.train.method != FROZEN else {},
        views=config.features.views,
        maps=found.maps,
        attention_crop=config.features.attention_crop,
    )
    tree = {**_tree(found.hierarchy, names, found.estimate), "last_number": last}
    if content is not None:
        tree["content_size"] = run.content_size or images.size
    blocks = _blocks(model, table, found, found.assignment)
    run.publish(config, table.root, blocks, tree, images.skipped, model.save, content)


def _blocks(model: Model, table: ImageTable, found: FittedClusters, assignment: Assignment) -> Iterator[Columns]:
    """The clusters table, some rows at a time."""
    for start in range(0, len(table.files), BLOCK):
        part = slice(start, start + BLOCK)
        files, hierarchy = table.files[part], found.hierarchy.rows(part)
        judged = model.describe(files, assignment.rows(part))
        more = {key: judged[key] for key in ("confidence", "runner_up", "distance")}
        yield cluster_columns("file", files, hierarchy, model.names, table.labelled[part], more)


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
