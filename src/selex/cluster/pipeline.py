"""Features and a few labels in, categories out: what `discover`, `selex cluster` and the estimators call.

Estimate K, select by held-out labels whether to adapt, how to search and to refine, whiten, adapt, cluster
level by level, calibrate confidence.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from selex.cluster.adapt import FEW, adapt
from selex.cluster.assign import Assigner, Assignment, Calibration, fit_assigner, margins_of
from selex.cluster.estimate_k import estimate_k
from selex.cluster.hierarchy import hierarchy_on, hssk
from selex.cluster.holdout.calibrate import held_out_calibration
from selex.cluster.holdout.select import REFINED, SEARCHED, Selection, select
from selex.cluster.kmeans import Problem, Settings, as_data, as_labels, prepare
from selex.cluster.refine import of_one_length
from selex.cluster.rows import DEFAULT_MEMORY, Rows, as_rows
from selex.cluster.warm import Start, coarser_levels, continued, with_added, with_kept_centers
from selex.cluster.whiten import FeatureMaps, Whitener, fit_whitener
from selex.config import ClusterConfig
from selex.progress import estimate_bar, progress_bar
from selex.types import SIZED, UNLABELLED, Hierarchy, KEstimate, Refinement, Search, Variant

MOST_TO_SMOOTH = 100_000
"""Rows up to which `"auto"` tries to average them with their neighbours, which takes their distances."""


CHOICE = 0
"""Seed of what `"auto"` tries: features and labels decide what is chosen, whatever the seed of the clustering is."""


@dataclass(frozen=True)
class FittedClusters:
    """Clusters that were found, and what new rows need to be sorted into them.

    Attributes:
        hierarchy: every level, finest first, in the kind of the features and on their device.
        maps: what features go through before they are compared with centres.
        selection: what `"auto"` chose: whether features were adapted, how clusters were searched for and refined.
        estimate: the estimate of the number of clusters, where it was not given.
        assigner: sorts rows that went through `maps` into clusters; None where nothing was calibrated.
        assignment: the cluster of each row, with its confidence; None where nothing was calibrated.
    """

    hierarchy: Hierarchy
    maps: FeatureMaps
    selection: Selection
    estimate: KEstimate | None = None
    assigner: Assigner | None = None
    assignment: Assignment | None = None

    @property
    def labels(self) -> Any:
        """Cluster of every row; known categories first."""
        return self.hierarchy.levels[0].labels

    def selected(self, config: ClusterConfig) -> Iterator[str]:
        """A line about each setting that was `"auto"`: what it came to."""
        for name, value in self.selection.settings.items():
            if getattr(config, name) == "auto":
                yield f"{name}: {value} (auto)"

    def transform(self, features: Any) -> Any:
        """Rows `(n, d)` as they are compared with cluster centres."""
        return self.maps.transform(features)


def fit_clusters(
    features: Any,
    labels: Any,
    config: ClusterConfig | None = None,
    *,
    rng: np.random.Generator | int | None = 0,
    variant: Variant | None = None,
    held_out: NDArray[np.bool_] | None = None,
    calibrate: bool = True,
    memory: int = DEFAULT_MEMORY,
    progress: bool = False,
    start: Start | None = None,
) -> FittedClusters:
    """Known and novel categories of features, at every level of abstraction.

    The same features, labels, settings and seed give the same labels, wherever it is called from. Where features are
    spread over processes, every process makes the same call with a `Shard` of its rows and their labels; it gets the
    labels and the assignment of these, and all else as the others do. The number of processes does not matter,
    up to rounding.

    Args:
        features: `n × d` features: numpy (also memory-mapped), torch on any device, or a `Shard`.
        labels: per row a known category `0 … n_known - 1` or -1; None if no row is labelled.
        config: how to cluster; the defaults of `ClusterConfig` if not given.
        rng: generator or seed.
        variant: differences from the paper, for comparison.
        held_out: labelled rows that had no part in making the features, to choose and to calibrate by.
        calibrate: also compute confidences, and what new rows need.
        memory: bytes that temporary arrays may take.
        progress: show progress on standard error: bars on a terminal, lines elsewhere.
        start: clusters to continue from, in place of a search; what was selected for them holds.

    Returns:
        The clusters, and all that sorting new rows takes.
    """
    if start and start.judged and calibrate and (grown := with_added(features, labels, start, config, memory)):
        return FittedClusters(grown.hierarchy, start.maps, start.selection, None, grown.assigner, grown.assignment)
    rows = as_rows(start.maps.transform(features) if start else features, memory)
    with rows.group.together():
        known = as_labels(labels, rows).cpu().numpy()
    fit = _Fit(features, labels, known, rows.total, config or ClusterConfig(), variant, held_out, memory, progress)
    generator = np.random.default_rng(rng)
    if start:
        found = FittedClusters(fit.resume(rows, start, generator), start.maps, start.selection)
        return calibrated(found, rows, known, start.calibration, memory) if calibrate else found
    del rows  # which may be a copy
    spare = deepcopy(generator)  # so that what is selected gives what it would give if it were asked for
    estimate = fit.estimate(deepcopy(generator))
    count = estimate.n_clusters if estimate else fit.config.categories or 0
    whitener = fit_whitener(features, known, fit.config.whiten, memory)
    selection = fit.select(whitener(features) if whitener else features, count, np.random.default_rng(CHOICE))
    maps = fit.maps(whitener, selection, count, deepcopy(generator))
    rows = maps.transform(features)
    found = FittedClusters(fit.cluster(rows, count, selection, generator), maps, selection, estimate)
    return calibrated(found, rows, known, fit.calibration(found, rows, count, spare), memory) if calibrate else found


def estimate_clusters(
    features: Any,
    labels: Any,
    config: ClusterConfig,
    rng: np.random.Generator | int | None = 0,
    memory: int = DEFAULT_MEMORY,
    progress: bool = False,
) -> KEstimate:
    """How many categories there seem to be, as `fit_clusters` estimates it."""
    with estimate_bar(progress) as tell:
        return estimate_k(features, labels, balanced=config.balanced, rng=rng, memory=memory, progress=tell)


def calibrated(
    found: FittedClusters,
    rows: Any,
    labels: Any,
    calibration: Calibration | None = None,
    memory: int = DEFAULT_MEMORY,
) -> FittedClusters:
    """Clusters with confidences; `rows` are the features after `maps`, None fits the temperature to the labels."""
    assigner = fit_assigner(rows, found.hierarchy.levels[0], labels, memory, calibration)
    judged = assigner(rows, found.labels, memory)
    margins = torch.from_numpy(margins_of(judged, np.asarray(labels) == UNLABELLED, len(assigner.centers)))
    if isinstance(rows, Rows):  # of all processes
        margins = rows.group.sum(margins.to(rows.device)).cpu()
    return replace(found, assigner=replace(assigner, margins=margins.numpy()), assignment=judged)


@dataclass(frozen=True)
class _Fit:
    """The steps, and what all of them need.

    `known` is `labels`, checked, -1 for all rows where there are none; `total` counts the rows of all processes.
    """

    features: Any
    labels: Any
    known: NDArray[np.int64]
    total: int
    config: ClusterConfig
    variant: Variant | None
    held_out: NDArray[np.bool_] | None
    memory: int
    progress: bool

    def estimate(self, rng: np.random.Generator) -> KEstimate | None:
        """The number of clusters, where it is not given."""
        if self.config.categories:
            return None
        return estimate_clusters(self.features, self.labels, self.config, rng, self.memory, self.progress)

    def select(self, rows: Any, count: int, rng: np.random.Generator) -> Selection:
        """What is asked for; of what is `"auto"` that which sorts held-out labels best."""
        tells = of_one_length(as_rows(rows, self.memory))  # others can only be clustered as in the paper
        adapts, searches, refinements = self._adapts(tells), self._searches(count, tells), self._refinements(tells)
        if self.held_out is None and len(adapts) == len(refinements) == len(searches) == 1:
            return Selection(adapts[0], refinements[0], searches[0])
        with progress_bar("choosing by held-out labels, step", self.progress) as advance:
            how = {**self._how, "adapt": adapts, "search": searches, "refine": refinements}
            return select(self.features, self.labels, count, rng=rng, progress=advance, **how)

    def _adapts(self, tells: bool) -> tuple[bool, ...]:
        enough = tells and self.total >= FEW
        return (True, False) if enough and self.config.adapt == "auto" else (self.config.adapt == "on",)

    def _searches(self, count: int, tells: bool) -> tuple[Search, ...]:
        if self.config.search != "auto":
            return (self.config.search,)
        from selex.cluster.search.smoothed import can_smooth

        stays = self.config.refine in ("auto", "none")  # others would undo the sizes
        smooth = tells and stays and self.total <= MOST_TO_SMOOTH and can_smooth(self.total, count)
        return SEARCHED if smooth else SEARCHED[:1]

    def _refinements(self, tells: bool) -> tuple[Refinement, ...]:
        if self.config.refine == "auto":
            return REFINED if tells and self.config.search not in SIZED else ("none",)  # it would undo the sizes
        return (self.config.refine,)

    def maps(
        self, whitener: Whitener | None, selection: Selection, count: int, rng: np.random.Generator
    ) -> FeatureMaps:
        """What features go through: the whitening, adapted where that is selected."""
        if selection.adapt:
            with progress_bar("adapting, epoch", self.progress) as advance:
                how: dict[str, Any] = {"balanced": self.config.balanced, "memory": self.memory, "progress": advance}
                whitener = adapt(self.features, self.labels, count, whitener, rng=rng, **how)
        return FeatureMaps((whitener,) if whitener else ())

    def cluster(self, rows: Any, count: int, selection: Selection, rng: np.random.Generator) -> Hierarchy:
        """All levels of clusters."""
        config = self.config
        with progress_bar("clustering, level", self.progress) as advance:
            return hssk(
                rows,
                self.labels,
                count,
                n_levels=config.levels,
                balanced=config.balanced,
                search=selection.search,
                refine=selection.refine,
                n_iter=config.iterations,
                n_init=config.restarts,
                variant=self.variant,
                probes=config.probes,
                rng=rng,
                memory=self.memory,
                progress=advance,
            )

    def resume(self, rows: Rows, start: Start, rng: np.random.Generator) -> Hierarchy:
        """All levels of clusters that continue from earlier ones."""
        config, count = self.config, len(start.centers)
        settings = Settings(
            config.balanced, config.iterations, config.restarts, self.variant or Variant(), config.probes
        )
        _, known, n_known = prepare(rows, self.labels, self.memory)
        problem = Problem(rows, known, n_known, count - n_known, settings)
        base = continued(problem, start)
        if coarser := coarser_levels(base, rows, start, config.levels):
            found = Hierarchy(tuple(as_data(level, rows, self.features) for level in (base, *coarser)))
        else:
            with progress_bar("clustering, level", self.progress) as advance:
                found = hierarchy_on(base, problem, self.features, config.levels, rng, advance)
        return Hierarchy((with_kept_centers(found.levels[0], start), *found.levels[1:]))

    def calibration(self, found: FittedClusters, rows: Any, count: int, rng: np.random.Generator) -> Calibration | None:
        """That of confidences, by held-out labels: where labels have chosen how to cluster, or have shaped rows."""
        if self.held_out is None and not found.maps and "auto" not in (self.config.refine, self.config.search):
            return None
        chosen = found.selection
        how = {**self._how, "search": chosen.search, "refine": chosen.refine, "adapt": chosen.adapt}
        how["whitener"] = chosen.whitener if chosen.adapt else None
        how["end"] = rows, found.hierarchy.levels[0]
        return held_out_calibration(self.features, self.labels, count, rng=rng, **how)

    @property
    def _how(self) -> dict[str, Any]:
        settings = {"whiten": self.config.whiten, "balanced": self.config.balanced}
        return {**settings, "held_out": self.held_out, "memory": self.memory}
