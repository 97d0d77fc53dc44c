"""selex: sort images, a few of them labelled, into known categories and ones nobody has named yet."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from selex.cluster.estimate_k import estimate_k
    from selex.cluster.estimators import HierarchicalKMeans, SemiSupervisedKMeans, Whitening
    from selex.cluster.hierarchy import hssk
    from selex.cluster.kmeans import bssk
    from selex.cluster.pipeline import FittedClusters, fit_clusters
    from selex.cluster.variant import Variant, published
    from selex.config import ClusterConfig, Config, DataConfig, FeatureConfig, TrainConfig
    from selex.discovery import discover
    from selex.errors import InputError, Note
    from selex.metrics import ari, nmi, split_accuracy
    from selex.runs.predictor import Model, load
    from selex.runs.run import Run
    from selex.types import UNLABELLED, Hierarchy, KEstimate, Level, Scores

__version__ = "0.1.0"

# Matrix products that are the same in every bit each time, see `training.devices.deterministic`: torch looks at this
# once, at the first product on a GPU, which may come long before training.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

# Where each public name lives. Imported when first used: `selex --help` must not wait for torch.
_HOMES = {
    "ClusterConfig": "config",
    "Config": "config",
    "DataConfig": "config",
    "FeatureConfig": "config",
    "FittedClusters": "cluster.pipeline",
    "Hierarchy": "types",
    "HierarchicalKMeans": "cluster.estimators",
    "InputError": "errors",
    "KEstimate": "types",
    "Level": "types",
    "Model": "runs.predictor",
    "Note": "errors",
    "Run": "runs.run",
    "Scores": "types",
    "SemiSupervisedKMeans": "cluster.estimators",
    "TrainConfig": "config",
    "UNLABELLED": "types",
    "Variant": "cluster.variant",
    "Whitening": "cluster.estimators",
    "ari": "metrics",
    "bssk": "cluster.kmeans",
    "discover": "discovery",
    "estimate_k": "cluster.estimate_k",
    "fit_clusters": "cluster.pipeline",
    "hssk": "cluster.hierarchy",
    "load": "runs.predictor",
    "nmi": "metrics",
    "published": "cluster.variant",
    "split_accuracy": "metrics",
}
__all__ = [
    "UNLABELLED",
    "ClusterConfig",
    "Config",
    "DataConfig",
    "FeatureConfig",
    "FittedClusters",
    "HierarchicalKMeans",
    "Hierarchy",
    "InputError",
    "KEstimate",
    "Level",
    "Model",
    "Note",
    "Run",
    "Scores",
    "SemiSupervisedKMeans",
    "TrainConfig",
    "Variant",
    "Whitening",
    "ari",
    "bssk",
    "discover",
    "estimate_k",
    "fit_clusters",
    "hssk",
    "load",
    "nmi",
    "published",
    "split_accuracy",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"selex.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'selex' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
