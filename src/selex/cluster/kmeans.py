"""BSSK: balanced semi-supervised k-means (paper algorithms 1, 2 and 4).

Labelled rows never move, so k-means runs over the *free* (unlabelled) rows, with the labelled ones as a constant mass
in their known clusters. Shapes: n rows, d dimensions, k = n_known + n_novel clusters; centres in centred coordinates.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

import numpy as np
import torch
from torch import Tensor

from selex.cluster.balance import stable_match, sweep
from selex.cluster.rows import DEFAULT_MEMORY, Rows, as_rows, count
from selex.cluster.seeding import draw_apart, draw_spread
from selex.errors import InputError, Note
from selex.types import UNLABELLED, Level, Variant


@dataclass(frozen=True)
class Settings:
    """How to run BSSK; shared by every level of a hierarchy."""

    balanced: bool = True
    n_iter: int = 10
    n_init: int = 1
    variant: Variant = field(default_factory=Variant)
    probes: int | None = None

    def __post_init__(self) -> None:
        for name in ("n_iter", "n_init") if self.probes is None else ("n_iter", "n_init", "probes"):
            value = getattr(self, name)
            if not isinstance(value, (int, np.integer)) or value < 1:
                raise InputError(f"{name} must be a whole number of at least 1, not {value!r}")


def bssk(
    data: Any,
    labels: Any,
    n_clusters: int,
    *,
    balanced: bool = True,
    n_iter: int = 10,
    n_init: int = 1,
    variant: Variant | None = None,
    probes: int | None = None,
    rng: np.random.Generator | int | None = None,
    memory: int = DEFAULT_MEMORY,
) -> Level:
    """Balanced semi-supervised k-means.

    Args:
        data: `n × d` features: numpy (also memory-mapped) or torch on any device.
        labels: per row a known category `0 … n_known - 1` or -1; None if no row is labelled.
        n_clusters: K, known and novel together.
        balanced: seed apart and balance cluster sizes at `ceil(n / K)`; off for long tails.
        n_iter: iterations of the balanced stage, and of the final one.
        n_init: restarts; the one with the lowest inertia is kept.
        variant: differences from the paper, for comparison.
        probes: while centres move, compare a row with the centres of so many of `√K` groups only; None: with all.
        rng: generator or seed.
        memory: bytes that temporary arrays may take.

    Returns:
        The base `Level`: labels, centres (in the data's kind, on its device; float32 for anything narrower), inertia.
    """
    settings = Settings(balanced, n_iter, n_init, variant or Variant(), probes)
    rows, known, n_known = prepare(data, labels, memory)
    n_novel = novel_clusters(n_clusters, n_known, known, rows)
    return as_data(run(rows, known, n_known, n_novel, settings, np.random.default_rng(rng)), rows, data)


def prepare(data: Any, labels: Any, memory: int) -> tuple[Rows, Tensor, int]:
    """Check features and labels and put them into working form: rows, labels on their device, number of known ones."""
    rows = as_rows(data, memory)
    with rows.group.together():
        known = as_labels(labels, rows)
    n_known = int(rows.group.gather(known.max().reshape(1)).max()) + 1
    counts = rows.group.sum(count(known + 1, n_known + 1))[1:].cpu().numpy()
    if (counts == 0).any():
        raise InputError(f"category {np.argmin(counts)} has no labelled row: number the categories 0 … n_known - 1")
    if labels is not None and not len(counts):
        note("no row is labelled: every cluster will be novel")
    if (counts == 1).any():
        note(f"{np.sum(counts == 1)} of {len(counts)} known categories have a single labelled row each")
    if counts.sum() == rows.total:
        note("every row is labelled: nothing is left to discover, there will be no novel cluster")
    return rows, known, n_known


def novel_clusters(n_clusters: int, n_known: int, known: Tensor, rows: Rows) -> int:
    """How many of `n_clusters` are novel: what the known categories leave, if unlabelled rows can fill them."""
    if not isinstance(n_clusters, (int, np.integer)):
        raise InputError(f"the number of clusters must be a whole number, not {n_clusters!r}")
    if n_clusters < max(n_known, 1):
        raise InputError(f"{n_clusters} clusters for {n_known} known categories: ask for at least {max(n_known, 1)}")
    if n_clusters > rows.total:
        raise InputError(f"{n_clusters} clusters for {rows.total} rows: ask for at most {rows.total}")
    n_free, n_novel = int(rows.group.sum((known == UNLABELLED).sum())), n_clusters - n_known
    if 0 < n_free < n_novel:
        note(f"{n_free} unlabelled rows cannot fill {n_novel} novel clusters: there will be {n_free}")
    return min(n_free, n_novel)


def run(rows: Rows, known: Tensor, n_known: int, n_novel: int, settings: Settings, rng: np.random.Generator) -> Level:
    """The best of `n_init` runs. Centres are in the centred coordinates of `rows`."""
    return Problem(rows, known, n_known, n_novel, settings).best(rng)


def as_data(level: Level, rows: Rows, data: Any) -> Level:
    """The level in the caller's coordinates and kind: tensors for tensors, numpy arrays otherwise."""
    moved = replace(level, centers=torch.as_tensor(level.centers) + rows.shift)
    return moved if isinstance(data, Tensor) else moved.on_host()


def distances_to_own(data: Any, level: Level) -> Any:
    """Distance of every row to the centre of its own cluster, in the data's kind."""
    rows = Rows(data)
    centers = torch.as_tensor(level.centers) - rows.shift
    distances = rows.distances_to_own(centers, torch.as_tensor(level.labels)).sqrt_()
    return distances if isinstance(data, Tensor) else distances.numpy()


class Problem:
    """One clustering problem: what stays the same over restarts."""

    def __init__(self, rows: Rows, known: Tensor, n_known: int, n_novel: int, settings: Settings) -> None:
        self.rows, self.known, self.settings = rows, known, settings
        self.n_known, self.k = n_known, n_known + n_novel
        self.size = ceil(rows.total / self.k)
        self.free_index = torch.nonzero(known == UNLABELLED)[:, 0]
        held_index = torch.nonzero(known != UNLABELLED)[:, 0]
        self.held, self.held_labels = rows.at(held_index), known[held_index]
        self.free = rows.at(self.free_index) if self.held.total else rows
        self.moving = self.free.probing(settings.probes) if settings.probes else self.free  # while centres move
        self.n_free = rows.total - self.held.total
        self.mass, self.counts = self.held.sums(self.held_labels, self.k)
        self.capacity = (self.size - self.counts).clamp(min=0)

    def best(self, rng: np.random.Generator) -> Level:
        """The best of `n_init` runs."""
        return min((self.solve(rng) for _ in range(self.settings.n_init)), key=lambda level: level.inertia)

    def solve(self, rng: np.random.Generator) -> Level:
        """One run from new seeds."""
        centers, refined = self.seed(rng), 0
        if self.n_free:
            centers, refined = self.refine(centers)
        return self.ended(centers, refined)

    def ended(self, centers: Tensor, n_iter: int = 0) -> Level:
        """The level that stage 3 reaches from these centres, after so many iterations before it."""
        labels = self.free_index
        if self.n_free:
            centers, labels, finished = self.finish(centers)
            n_iter += finished
        everywhere = self.known.clone()
        everywhere[self.free_index] = labels
        # worked out from differences: the distances above lose digits where clusters are tight
        own = [self.free.distances_to_own(centers, labels), self.held.distances_to_own(centers, self.held_labels)]
        inertia = self.rows.group.sum(torch.cat(own).sum(dtype=torch.float64))
        return Level(everywhere, centers, self.n_known, float(inertia), n_iter)

    def seed(self, rng: np.random.Generator) -> Tensor:
        """Stage 1: means of labelled rows for known clusters, drawn rows for novel ones."""
        anchors = self.mass[: self.n_known] / self.counts[: self.n_known, None]
        count = self.k - self.n_known
        if not count:
            return anchors
        order, ranks = self.free.ranked()  # a draw picks the same rows wherever they stand
        pool = self.free_index[order]
        drawn = pool[:0]
        if self.settings.balanced and self.settings.variant.seeding == "apart":
            drawn = draw_apart(self.rows, anchors, pool, count, self.size, rng, ranks)
        if len(drawn) < count:
            centers = torch.cat([anchors, self.rows.fetch(drawn)])
            left = ~torch.isin(pool + self.rows.first, drawn)
            more = draw_spread(self.rows, centers, pool[left], count - len(drawn), rng, ranks[left])
            drawn = torch.cat([drawn, more])
        return torch.cat([anchors, self.rows.fetch(drawn)])

    def refine(self, centers: Tensor) -> tuple[Tensor, int]:
        """Stage 2: move novel centres while known ones stay, each cluster limited to its capacity.

        Returns the centres and the iterations made.
        """
        previous = None
        for iteration in range(self.settings.n_iter):
            labels, _, centers = self.repaired(*self._assign(centers, iteration), centers)
            converged = previous is not None and self._equal(labels, previous)
            if converged and self.settings.variant.balancing == "stable":  # a growing number of sweeps may go on
                break
            previous = labels
            centers = torch.cat([centers[: self.n_known], self.means(labels)[self.n_known :]])
        return centers, iteration + 1

    def finish(self, centers: Tensor) -> tuple[Tensor, Tensor, int]:
        """Stage 3: plain semi-supervised k-means over all centres; ends early once no row changes cluster.

        With `probes` the last assignment is to the nearest of all centres.
        """
        labels, _, centers = self.repaired(*self.moving.nearest(centers), centers)
        n_iter, previous = 0, None
        while n_iter < self.settings.n_iter and (previous is None or not self._equal(labels, previous)):
            centers, previous = self.means(labels), labels
            labels, _, centers = self.repaired(*self.moving.nearest(centers), centers)
            n_iter += 1
        if self.moving is not self.free:
            labels, _, centers = self.repaired(*self.free.nearest(centers), centers)
        return centers, labels, n_iter

    def _equal(self, labels: Tensor, previous: Tensor) -> bool:
        return self.rows.group.all(torch.equal(labels, previous))

    def _assign(self, centers: Tensor, iteration: int) -> tuple[Tensor, Tensor]:
        """Nearest cluster of every free row; where balanced, within the clusters' capacity."""
        if self.settings.balanced and self.settings.variant.balancing == "stable":
            return stable_match(self.moving, centers, self.capacity)
        labels, distances = self.moving.nearest(centers)
        for _ in range(iteration if self.settings.balanced else 0):
            labels, distances = sweep(self.free, centers, labels, distances, self.capacity)
        return labels, distances

    def means(self, labels: Tensor) -> Tensor:
        """Mean of each cluster's rows, labelled ones included."""
        sums, counts = self.free.sums(labels, self.k)
        return (self.mass + sums) / (self.counts + counts)[:, None]

    def repaired(self, labels: Tensor, distances: Tensor, centers: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Move every empty cluster onto the row farthest from its centre, among clusters that can spare one."""
        counts = self.counts + self.rows.group.sum(count(labels, self.k))
        if counts.all():
            return labels, distances, centers
        labels, distances, centers = labels.clone(), distances.clone(), centers.clone()
        for cluster in torch.nonzero(counts == 0)[:, 0].tolist():
            row, left = self._farthest(labels, distances, counts)
            counts[left] -= 1
            counts[cluster] += 1
            centers[cluster] = self.free.fetch(row[None])[0]
            here = row - self.free.first
            if 0 <= here < self.free.n:
                labels[here], distances[here] = cluster, 0
        return labels, distances, centers

    def _farthest(self, labels: Tensor, distances: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """The row farthest from its centre, among clusters of more than one, and its cluster; the first of equals."""
        best = torch.tensor([[-torch.inf, 0, 0]], dtype=torch.float64, device=labels.device)
        if self.free.n:
            spare = torch.where((counts > 1)[labels], distances, -1)
            row = spare.argmax()
            best = torch.stack([spare[row].double(), row + self.free.first, labels[row]])[None]
        best = self.rows.group.gather(best, [1] * self.rows.group.size)
        _, row, cluster = best[best[:, 0].argmax()].long().unbind()
        return row, cluster


def as_labels(labels: Any, rows: Rows) -> Tensor:
    """Labels as a tensor of ints beside the rows."""
    if labels is None:
        return torch.full((rows.n,), UNLABELLED, device=rows.device)
    given = np.asarray(labels.cpu() if isinstance(labels, Tensor) else labels)
    if given.shape != (rows.n,):
        raise InputError(f"labels have shape {given.shape} for {rows.n} rows: one label per row, -1 where unknown")
    if given.dtype.kind not in "iu":
        raise InputError(f"labels must be whole numbers, -1 where unknown, not {given.dtype}")
    wrong = np.flatnonzero((given < UNLABELLED) | (given >= rows.total))
    if len(wrong):
        row = int(wrong[0])
        raise InputError(f"label {given[row]} in row {row}: labels are 0 … n_known - 1, or -1 where unknown")
    return torch.from_numpy(given.astype(np.int64)).to(rows.device)


def note(text: str) -> None:
    """Tell the caller something unusual but allowed."""
    warnings.warn(text, Note, stacklevel=4)
