"""From clusters to a run folder: names, the clusters table, the tree of levels, a model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selex.cluster.assign import Assignment
from selex.cluster.pipeline import FittedClusters
from selex.config import Config
from selex.config.groups import FROZEN
from selex.data.clusters import Columns, cluster_columns
from selex.data.store import ImageStore
from selex.data.table import ImageTable
from selex.features.ray_embed import Embedded
from selex.models.network import Backbone
from selex.models.trunk import trained_weights
from selex.runs.naming import lasting_names
from selex.runs.predictor import BLOCK, Model
from selex.runs.results import Results
from selex.runs.writer import RunWriter
from selex.types import Hierarchy, KEstimate


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
