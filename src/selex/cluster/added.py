"""A few new rows among many that stay where they are: what was said of those is kept, and only new ones are looked at.

What comes out is what `warm.continued` finds, but for rounding: to the last bit for the rows that were there. Shapes:
n rows, m new ones, d dimensions, k clusters.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from selex.cluster.assign import Assigner, Assignment, at_least_rounding, margins_of, reach_of
from selex.cluster.grow import opened, usual_margin
from selex.cluster.rows import DEFAULT_MEMORY, Rows
from selex.cluster.warm import Start, coarser_levels, length_of
from selex.config import ClusterConfig
from selex.types import UNLABELLED, Hierarchy, Level


class Grown(NamedTuple):
    """Clusters with new rows, and all that is said of their rows."""

    hierarchy: Hierarchy
    assigner: Assigner
    assignment: Assignment


def with_added(
    features: Any, labels: Any, start: Start, config: ClusterConfig | None = None, memory: int = DEFAULT_MEMORY
) -> Grown | None:
    """The clusters of a start with its new rows; None where new rows change more than that.

    They do where they open a cluster, and where levels or clusters have to be made anew.
    """
    new = np.flatnonzero(start.clusters == UNLABELLED)
    if start.judged is None or start.margins is None or not start.stays.all() or not len(new):
        return None
    known = np.full(len(start.clusters), UNLABELLED) if labels is None else np.asarray(labels)
    rows = Rows(start.maps.transform(features[new]), memory, torch.from_numpy(start.centers).mean(0))
    where = _places(rows, known[new], start)
    if where is None:
        return None
    clusters = start.clusters.copy()
    clusters[new] = where
    n_known, anywhere = int(known.max()) + 1, np.full(len(start.centers), np.inf, np.float32)
    assigner = Assigner(start.centers, anywhere, start.calibration, start.offsets, n_known=n_known)
    judged = _merged(start.judged, assigner(rows, where, memory), clusters, new)
    reach = at_least_rounding(reach_of(judged.distances.astype(float), clusters, len(start.centers)), start.centers)
    judged = replace(judged, fits=judged.distances <= reach[clusters])
    inertia = float(np.square(judged.distances, dtype=np.float64).sum())
    base = Level(clusters, start.centers, n_known, inertia, 0, start.offsets)
    levels = coarser_levels(base, None, start, config.levels if config else None)
    if levels is None:
        return None
    margins = start.margins + margins_of(judged.rows(new), known[new] == UNLABELLED, len(start.centers))
    hierarchy = Hierarchy((base, *levels)).on_host()
    return Grown(hierarchy, replace(assigner, reach=reach, margins=margins), judged)


def _places(rows: Rows, known: NDArray[Any], start: Start) -> NDArray[np.int64] | None:
    """The cluster of each new row, `(m,)`: its own if it is labelled, else the nearest; None if they open another."""
    centers = torch.from_numpy(start.centers).to(rows.device, rows.dtype) - rows.shift
    offsets = torch.as_tensor(0.0 if start.offsets is None else start.offsets).to(rows.device, rows.dtype)
    free = torch.from_numpy(np.flatnonzero(known == UNLABELLED)).to(rows.device)
    length = None if start.selection.refine == "none" else length_of(centers + rows.shift)
    assert start.margins is not None
    if len(opened(usual_margin(start.margins), centers, rows.take(free), rows.shift, length)):
        return None
    nearest = rows.nearest(centers, offsets.expand(len(centers)))[0].cpu().numpy()
    return np.where(known == UNLABELLED, nearest, known)


def _merged(before: Assignment, added: Assignment, clusters: NDArray[np.int64], new: NDArray[np.int64]) -> Assignment:
    """What is said of all rows, from what was said of those that were there and what is said of new ones."""
    columns = {entry.name: np.array(getattr(before, entry.name)) for entry in fields(Assignment)}
    for name, column in columns.items():
        column[new] = getattr(added, name)
    return Assignment(**{**columns, "labels": clusters})
