"""scikit-learn estimators: numbers and a few labels in, categories out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    ClusterMixin,
    OneToOneFeatureMixin,
    TransformerMixin,
)
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from selex.cluster.assign import offsets_of, probabilities
from selex.cluster.inputs import encode, features_of, generator_of
from selex.cluster.pipeline import fit_clusters
from selex.cluster.rows import DEFAULT_MEMORY, Rows
from selex.cluster.whiten import Whitener, fit_whitener
from selex.config import ClusterConfig
from selex.errors import InputError
from selex.types import Refinement, Search, Variant

if TYPE_CHECKING:
    from selex.types import Array


class HierarchicalKMeans(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClusterMixin, BaseEstimator):  # type: ignore[misc]
    """Hierarchical balanced semi-supervised k-means (HSSK): categories, and ever coarser groups of them.

    What `selex cluster` does, with the same defaults: the same rows and labels give the same clusters (`fit_clusters`).

    Args:
        n_clusters: number of categories, known and novel together, or `"auto"` to estimate it.
        n_levels: maximum number of levels; None makes all, up to 'known' against 'novel'.
        balanced: limit clusters to `ceil(n / n_clusters)` rows while novel centres settle; off for long tails.
        search: how the base level is searched for: `"bssk"` as in the paper, `"swaps"`, `"smoothed"`, `"unequal"`
            or `"consensus"`; `"auto"` chooses among up to three by held-out categories. The setting `cluster.search`
            says what each does.
        refine: soft refinement of the base level: `"none"`, each row in its nearest cluster, as in the paper; or rows
            belong to several clusters, `"proportional"` or `"balanced"` in size (see `refine_level`; they must be of
            equal length); `"auto"` chooses what recovers held-out labels best.
        whiten: strength of whitening by the scatter within labelled categories, from 0 (off, as in the paper) to 1; see
            `Whitening`.
        adapt: learn a linear map of the rows from what clusterings agree on: `"on"`, `"off"` (as in the paper), or
            `"auto"`: with three thousand rows or more, if held-out labels are recovered better.
        n_iter: iterations of the balanced stage, and of the final one.
        n_init: restarts; the one with the lowest inertia is kept. Use 10 for final results.
        variant: differences from the paper, for comparison; see `Variant` and `published`.
        random_state: seed or numpy generator. The same seed gives the same labels on the same device.
        memory: bytes that temporary arrays may take.

    Attributes:
        labels_: cluster of every row, in row order; clusters `0 … len(classes_) - 1` are the known categories.
        cluster_centers_: centres of the clusters, `(n_clusters_, n_features)`, among rows as `maps_` gives them.
        classes_: names of the known categories, in the order of their clusters.
        hierarchy_: every level, finest first: `hierarchy_.levels[i].labels` and `.centers`.
        maps_: what rows go through before they are clustered, whitening and adapting: `maps_.transform(X)`.
        inertia_: sum of squared distances of rows to their own centres.
        n_clusters_: number of clusters.
        n_iter_: number of iterations.
        search_: the search that was used.
        refine_: the refinement that was used.
        k_estimate_: the `KEstimate` behind `n_clusters="auto"`, else None.
        temperature_: the temperature of `predict_proba`, calibrated by the labels.
        n_features_in_: number of columns seen by `fit`.

    Data may be numpy (also memory-mapped) or torch on any device; the output is of the same kind, on the same device.
    float16 and integers are converted to float32.
    """

    def __init__(
        self,
        n_clusters: int | Literal["auto"] = 8,
        *,
        n_levels: int | None = ClusterConfig.levels,
        balanced: bool = ClusterConfig.balanced,
        search: Search | Literal["auto"] = ClusterConfig.search,
        refine: Refinement | Literal["auto"] = ClusterConfig.refine,
        whiten: float = ClusterConfig.whiten,
        adapt: Literal["auto", "on", "off"] = ClusterConfig.adapt,
        n_iter: int = ClusterConfig.iterations,
        n_init: int = ClusterConfig.restarts,
        variant: Variant | None = None,
        random_state: Any = None,
        memory: int = DEFAULT_MEMORY,
    ) -> None:
        self.n_clusters = n_clusters
        self.n_levels = n_levels
        self.balanced = balanced
        self.search = search
        self.refine = refine
        self.whiten = whiten
        self.adapt = adapt
        self.n_iter = n_iter
        self.n_init = n_init
        self.variant = variant
        self.random_state = random_state
        self.memory = memory

    def fit(self, X: Any, y: Any = None) -> HierarchicalKMeans:
        """Find the clusters of `X`; `y` holds the category of each row, -1 (or None, NaN, "") where it is unknown."""
        X = features_of(self, X, reset=True)
        self.classes_, labels = encode(y, len(X))
        found = fit_clusters(
            X,
            labels if y is not None else None,
            self._config(),
            rng=generator_of(self.random_state),
            variant=self.variant,
            memory=self.memory,
        )
        self.hierarchy_, self.maps_ = found.hierarchy, found.maps
        self.search_, self.refine_ = found.selection.search, found.selection.refine
        self.k_estimate_ = found.estimate
        assert found.assigner is not None
        self.temperature_ = found.assigner.temperature
        base = found.hierarchy.levels[0]
        self.labels_, self.cluster_centers_, self.inertia_ = base.labels, base.centers, base.inertia
        self.n_clusters_, self.n_iter_ = base.n_clusters, base.n_iter
        return self

    def fit_predict(self, X: Any, y: Any = None) -> Array:
        """Find the clusters of `X` and return the cluster of every row."""
        return self.fit(X, y).labels_

    def predict(self, X: Any) -> Array:
        """Nearest cluster of every row of `X`. Rows seen by `fit` may have had a label that says otherwise."""
        rows, centers, as_given = self._against(X)
        return as_given(rows.nearest(centers, offsets_of(self.hierarchy_.levels[0], rows))[0])

    def predict_proba(self, X: Any) -> Array:
        """Probability of every cluster for each row of `X`, `(n, n_clusters_)`; rows add up to 1.

        It is largest where `predict` says, and calibrated as the confidence of `selex discover` is.
        """
        rows, centers, as_given = self._against(X)
        offsets = offsets_of(self.hierarchy_.levels[0], rows)
        return as_given(probabilities(rows, centers, offsets, self.temperature_))

    def transform(self, X: Any) -> Array:
        """Distance of every row of `X`, after `maps_`, to every centre, `(n, n_clusters_)`."""
        rows, centers, as_given = self._against(X)
        step = rows.step(len(centers))
        parts = [rows.distances(centers, slice(i, i + step)).sqrt_() for i in range(0, rows.n, step)]
        return as_given(torch.cat(parts))

    @property
    def _n_features_out(self) -> int:
        return self.n_clusters_

    def _config(self) -> ClusterConfig:
        """The parameters as settings of the pipeline, which checks them."""
        auto = isinstance(self.n_clusters, str) and self.n_clusters == "auto"
        if not auto and not (isinstance(self.n_clusters, (int, np.integer)) and self.n_clusters > 0):
            raise InputError(f"n_clusters must be a whole number of at least 1, or 'auto', not {self.n_clusters!r}")
        return ClusterConfig(
            categories=None if auto else self.n_clusters,  # type: ignore[arg-type]  # it is a number
            whiten=self.whiten,
            adapt=self.adapt,
            search=self.search,
            refine=self.refine,
            balanced=self.balanced,
            levels=self.n_levels,
            restarts=self.n_init,
            iterations=self.n_iter,
        )

    def _against(self, X: Any) -> tuple[Rows, Tensor, Callable[[Tensor], Array]]:
        """New rows after `maps_`, the centres in their coordinates, and how to hand back a result."""
        check_is_fitted(self)
        X = features_of(self, X, reset=False)
        centers = torch.as_tensor(self.cluster_centers_)
        # not the mean of X: a row's answer must not depend on the others
        rows = Rows(self.maps_.transform(X), self.memory, centers.mean(0))
        centers = centers.to(rows.device, rows.dtype) - rows.shift
        return rows, centers, Tensor.detach if isinstance(X, Tensor) else Tensor.numpy


class SemiSupervisedKMeans(HierarchicalKMeans):
    """Balanced semi-supervised k-means (BSSK): known categories from labelled rows, novel ones discovered.

    The base level of `HierarchicalKMeans` alone; same attributes, and `hierarchy_` has one level.

    Args:
        n_clusters: number of categories, known and novel together, or `"auto"` to estimate it.
        balanced: limit clusters to `ceil(n / n_clusters)` rows while novel centres settle; off for long tails.
        search: how the clusters are searched for, as in `HierarchicalKMeans`.
        refine: soft refinement, as in `HierarchicalKMeans`.
        whiten: strength of whitening by the scatter within labelled categories, from 0 (off, as in the paper) to 1.
        adapt: learn a linear map of the rows from what clusterings agree on: `"on"`, `"off"` or `"auto"`.
        n_iter: iterations of the balanced stage, and of the final one.
        n_init: restarts; the one with the lowest inertia is kept. Use 10 for final results.
        variant: differences from the paper, for comparison; see `Variant` and `published`.
        random_state: seed or numpy generator. The same seed gives the same labels on the same device.
        memory: bytes that temporary arrays may take.
    """

    def __init__(
        self,
        n_clusters: int | Literal["auto"] = 8,
        *,
        balanced: bool = ClusterConfig.balanced,
        search: Search | Literal["auto"] = ClusterConfig.search,
        refine: Refinement | Literal["auto"] = ClusterConfig.refine,
        whiten: float = ClusterConfig.whiten,
        adapt: Literal["auto", "on", "off"] = ClusterConfig.adapt,
        n_iter: int = ClusterConfig.iterations,
        n_init: int = ClusterConfig.restarts,
        variant: Variant | None = None,
        random_state: Any = None,
        memory: int = DEFAULT_MEMORY,
    ) -> None:
        super().__init__(
            n_clusters,
            n_levels=1,
            balanced=balanced,
            search=search,
            refine=refine,
            whiten=whiten,
            adapt=adapt,
            n_iter=n_iter,
            n_init=n_init,
            variant=variant,
            random_state=random_state,
            memory=memory,
        )


class Whitening(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Features whitened by the scatter within known categories, L2-normalised: a step before clustering.

    Rows of one known category show which differences do not matter; distances along these are made to count less.
    Without a category of two labelled rows features stay as they are.

    Args:
        amount: from 0, features as they are, to 1, all of the scatter; never more than the labels can tell.
        memory: bytes that temporary arrays may take.

    Attributes:
        whitener_: the map, with its `mean` and `matrix`; None where features stay as they are.
        n_features_in_: number of columns seen by `fit`.
    """

    whitener_: Whitener | None

    def __init__(self, amount: float = 0.5, *, memory: int = DEFAULT_MEMORY) -> None:
        self.amount = amount
        self.memory = memory

    def fit(self, X: Any, y: Any = None) -> Whitening:
        """Learn the scatter; `y` holds the category of each row, -1 (or None, NaN, "") where it is unknown."""
        X = features_of(self, X, reset=True, finite=True)
        self.whitener_ = fit_whitener(X, encode(y, len(X))[1], self.amount, self.memory)
        return self

    def transform(self, X: Any) -> Array:
        """The rows of `X`, whitened."""
        check_is_fitted(self)
        X = features_of(self, X, reset=False, finite=True)
        return self.whitener_(X) if self.whitener_ else X
