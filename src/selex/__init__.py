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
    from selex.config import ClusterConfig, Config, DataConfig, FeatureConfig, TrainConfig
    from selex.discovery import discover
    from selex.errors import InputError, Note
    from selex.metrics import ari, nmi, split_accuracy
    from selex.runs.predictor import Model, load
    from selex.runs.run import Run
    from selex.types import UNLABELLED, Hierarchy, KEstimate, Level, Scores, Variant, published

__version__ = "0.1.0"

# Matrix products that are the same in every bit each time, see `training.devices.deterministic`: torch looks at this
# once, at the first product on a GPU, which may come long before training.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

# Where each public name lives. Imported when first used: `selex --help` must not wait for torch.
_HOMES = {
    "cluster.estimate_k": ("estimate_k",),
    "cluster.estimators": ("HierarchicalKMeans", "SemiSupervisedKMeans", "Whitening"),
    "cluster.hierarchy": ("hssk",),
    "cluster.kmeans": ("bssk",),
    "cluster.pipeline": ("FittedClusters", "fit_clusters"),
    "config": ("ClusterConfig", "Config", "DataConfig", "FeatureConfig", "TrainConfig"),
    "discovery": ("discover",),
    "errors": ("InputError", "Note"),
    "metrics": ("ari", "nmi", "split_accuracy"),
    "runs.predictor": ("Model", "load"),
    "runs.run": ("Run",),
    "types": ("UNLABELLED", "Hierarchy", "KEstimate", "Level", "Scores", "Variant", "published"),
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
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"selex.{home}"), name)
    raise AttributeError(f"module 'selex' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
