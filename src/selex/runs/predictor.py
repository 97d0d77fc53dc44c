"""A finished run as something that sorts new images: backbone, centres, names."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes

from selex.checksums import read_object
from selex.cluster.assign import Assigner, Assignment, Calibration
from selex.cluster.whiten import FeatureMaps
from selex.data.clusters import DOUBTFUL, Columns
from selex.data.crops import to_device
from selex.data.store import ImageStore, store_for
from selex.data.table import is_url, read_table
from selex.errors import InputError, Note
from selex.features.attention_crop import crop_to_attention
from selex.features.cache import FeatureCache
from selex.features.embed import embed, feature_cache
from selex.features.ray_cluster import RayEngine
from selex.features.ray_embed import embed_on_ray
from selex.folders import cache_folder
from selex.io import reported, temporary_folder
from selex.models.backbones import load_backbone
from selex.models.network import Backbone
from selex.models.trunk import load_trained
from selex.runs.run import Run

_TRAINED = "trained.safetensors"

NOTHING = "none of these"
"""The category of an image that fits none."""
BLOCK = 1 << 16
"""Images whose predictions are made at a time."""


@dataclass(frozen=True)
class Model:
    """Sorts images into the categories of a run.

    Attributes:
        assigner: the clusters, ready to take new rows.
        names: name of every cluster; the first `n_known` are the known categories.
        n_known: how many categories are known.
        backbone: name of the network that makes features.
        weights: the file its weights came from, where one was given.
        fingerprint: digest of the network's weights; features of other networks are not comparable.
        size: shorter side of stored images, in pixels.
        crop: side of the square that the network looks at, in pixels.
        trained: the weights that training changed, by name; empty if the network was not trained.
        views: how many views of an image its feature is the mean of.
        maps: what features go through before they are compared with the clusters.
        attention_crop: whether features are of attention crops too.
    """

    assigner: Assigner
    names: list[str]
    n_known: int
    backbone: str
    weights: str | None
    fingerprint: str
    size: int
    crop: int
    trained: dict[str, torch.Tensor] = field(default_factory=dict)
    views: int = 1
    maps: FeatureMaps = field(default_factory=FeatureMaps)
    attention_crop: bool = False

    def predict(
        self,
        images: Any,
        *,
        device: str | torch.device = "cpu",
        store: str | Path | None = None,
        strict: bool = False,
        progress: bool = False,
        engine: RayEngine | None = None,
    ) -> Columns:
        """Sort new images into the categories.

        Args:
            images: a folder, a table file, one image file, or a list of paths or PIL images.
            device: where the backbone runs.
            store: where decoded images are kept; in the cache if not given.
            strict: stop at the first image that cannot be read, rather than leaving it out with a note.
            progress: show progress on standard error: bars on a terminal, lines elsewhere.
            engine: a Ray cluster whose workers embed the images, which may be behind a URL; None embeds them here.

        Returns:
            Columns with one entry per image: `file`, `category`, `known` (1 or 0), `confidence`, `runner_up`,
            `distance`, `fits`, `nearest`, `mark`. Where `fits` is 0 the image belongs to no category, and `category`
            says so; `nearest` is the nearest one in any case. `mark` is "unlike any" there, "doubtful" where the
            category is more likely wrong than right, else empty.
        """
        how = {"device": device, "store": store, "strict": strict, "progress": progress, "engine": engine}
        blocks = list(self.predict_blocks(images, **how))
        return {name: [value for block in blocks for value in block[name]] for name in blocks[0]}

    def predict_blocks(self, images: Any, **how: Any) -> Iterator[Columns]:
        """What `predict` returns, a block of images after the other: millions need not be in memory at a time."""
        with _embedded(self, images, **how) as (files, features):
            for start in range(0, len(files), BLOCK):
                part = slice(start, start + BLOCK)
                yield self.describe(files[part], self.assigner(self.maps.transform(features[part])))

    def predict_proba(self, images: Any, **how: Any) -> NDArray[np.float32]:
        """How likely each category is for new images, among all of them. Arguments are those of `predict`.

        Returns:
            `(n, len(names))`, a row for each image in the order of `predict`, a column for each of `names`; rows add
            up to 1. The largest is that of the `nearest` category. The `confidence` in a known category can be lower or
            higher: it is adjusted to how often such names are right, as images of categories that have no cluster get
            them too. Whether an image `fits` is independent of it.
        """
        with _embedded(self, images, **how) as (_, features):
            return self.assigner.probabilities(self.maps.transform(features))

    def embed(
        self,
        backbone: Backbone,
        images: ImageStore,
        cut: ImageStore | None = None,
        *,
        device: str | torch.device = "cpu",
        progress: bool = False,
        cache: FeatureCache | None = None,
    ) -> Any:
        """Features `(n, d)` of stored images and of their attention crops; `maps` makes of them what is compared."""
        shown = to_device(images, torch.device(device), cut)
        return embed(backbone, shown, device=device, views=self.views, progress=progress, cache=cache)

    def untrained(self, backbone: Backbone, device: str | torch.device) -> Backbone:
        """The untrained network, which locates attention crops; `backbone` itself if none was trained."""
        return load_backbone(self.backbone, device, self.weights, self.crop) if self.trained else backbone

    def load_backbone(self, device: str | torch.device = "cpu") -> Backbone:
        """The network, with the very weights that the categories were found with."""
        backbone = load_backbone(self.backbone, device, self.weights, self.crop)
        load_trained(backbone, self.trained)
        if backbone.fingerprint() != self.fingerprint:
            raise InputError(
                f"backbone {self.backbone} has other weights here than when the run was made; put the original "
                "file back"
            )
        return backbone

    def describe(self, files: Sequence[str], found: Assignment) -> Columns:
        """Predictions as columns."""
        fits, labels = found.fits.tolist(), found.labels.tolist()
        return {
            "file": list(files),
            "category": [self.names[label] if fit else NOTHING for label, fit in zip(labels, fits, strict=True)],
            "known": [int(label < self.n_known and fit) for label, fit in zip(labels, fits, strict=True)],
            "confidence": found.confidence.tolist(),
            "runner_up": [self.names[label] if label >= 0 else "" for label in found.runner_up.tolist()],
            "distance": found.distances.tolist(),
            "fits": [int(fit) for fit in fits],
            "nearest": [self.names[label] for label in labels],
            "mark": [_mark(fit, sure) for fit, sure in zip(fits, found.confidence.tolist(), strict=True)],
        }

    def save(self, folder: Path) -> None:
        """Write `model.json` and `model.safetensors`."""
        arrays = {name: getattr(self.assigner, name) for name in ("centers", "reach", "offsets", "margins")}
        about = self.assigner.calibration._asdict()
        if shifts := about.pop("shifts"):
            arrays["shifts"] = np.array(shifts, dtype=np.float32)
        tensors = {name: torch.from_numpy(array).contiguous() for name, array in arrays.items() if array is not None}
        tensors |= {name: tensor.cpu().contiguous() for name, tensor in self.maps.to_tensors().items()}
        (folder / "model.safetensors").write_bytes(to_bytes(tensors))
        if self.trained:
            weights = {name: tensor.cpu().contiguous() for name, tensor in self.trained.items()}
            (folder / _TRAINED).write_bytes(to_bytes(weights))
        about |= {key: value for key, value in self.__dict__.items() if key not in ("assigner", "trained", "maps")}
        (folder / "model.json").write_text(json.dumps(about, indent=1))


def load(run: str | Path) -> Model:
    """The model of a finished `run`: `selex.load("selex-run").predict("new-photos")`."""
    opened = Run.open(run)
    if not opened.complete:
        raise InputError(f"{run}: has no model yet; run the same `selex discover` again to finish it")
    damaged = (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError)
    with reported(f"{opened.folder / 'model'}: cannot be read", *damaged):
        about = read_object(opened.result("model/model.json"))
        tensors = _tensors(opened, "model.safetensors")
        centers, reach = tensors["centers"].numpy(), tensors["reach"].numpy()
        offsets, margins = (tensors[name].numpy() if name in tensors else None for name in ("offsets", "margins"))
        shifts = tuple(tensors["shifts"].tolist()) if "shifts" in tensors else ()
        numbers = {name: about.pop(name) for name in Calibration._fields if name != "shifts"}
        calibration = Calibration(**numbers, shifts=shifts)
        assigner = Assigner(centers, reach, calibration, offsets, margins, about["n_known"])
        trained = _tensors(opened, _TRAINED) if opened.has(f"model/{_TRAINED}") else {}
        return Model(assigner, **about, trained=trained, maps=FeatureMaps.from_tensors(tensors))


@contextmanager
def _embedded(
    model: Model,
    images: Any,
    *,
    device: str | torch.device = "cpu",
    store: str | Path | None = None,
    strict: bool = False,
    progress: bool = False,
    engine: RayEngine | None = None,
) -> Iterator[tuple[Sequence[str], Any]]:
    """Names and features of the images that can be read, as the backbone makes them."""
    if engine is not None:
        with _embedded_on_ray(model, engine, images, device, strict, progress) as found:
            yield found
        return
    if isinstance(images, str) and is_url(images):
        raise InputError(f"{images}: photos at a URL need --engine ray")
    table = read_table(images)
    backbone = model.load_backbone(device)
    folder = store_for(store, images, table.root, model.size)
    stored = ImageStore.build(table, folder, size=model.size, strict=strict, progress=progress)
    _tell_of_skipped(stored.skipped, len(table))
    yield stored.table.files, features_of(model, backbone, stored, folder, device, progress)


def features_of(
    model: Model,
    backbone: Backbone,
    images: ImageStore,
    folder: Path,
    device: str | torch.device,
    progress: bool = False,
) -> Any:
    """Features `(n, d)` of the images of the store in `folder`; the model's `maps` make of them what is compared."""
    how: dict[str, Any] = {"device": device, "progress": progress}
    cut = crop_to_attention(model.untrained(backbone, device), images, folder, **how) if model.attention_crop else None
    cache = None if model.trained else feature_cache(backbone, device, model.views)  # a trained network's are its own
    return model.embed(backbone, images, cut, **how, cache=cache)


@contextmanager
def _embedded_on_ray(
    model: Model, engine: RayEngine, images: Any, device: str | torch.device, strict: bool, progress: bool
) -> Iterator[tuple[Sequence[str], Any]]:
    """The same by workers; features are joined in a file of the cache, which is gone at the end."""
    if not isinstance(images, (str, os.PathLike)):
        raise InputError("a Ray cluster reads photos from a folder, a table or a URL, not from a list in Python")
    place = images if isinstance(images, str) and is_url(images) else os.path.abspath(images)
    how: dict[str, Any] = {"size": model.size, "views": model.views, "device": device, "progress": progress}
    cache_folder().mkdir(parents=True, exist_ok=True)
    with temporary_folder(cache_folder()) as folder:
        out, backbone = folder / "features.npy", model.load_backbone(device)
        eye = model.untrained(backbone, device) if model.attention_crop else None
        found = embed_on_ray(engine, backbone, [place], None, out, eye=eye, **how)
        if strict and found.skipped:
            raise InputError(": ".join(found.skipped[0]))
        _tell_of_skipped(found.skipped, len(found) + len(found.skipped))
        yield found.table.files, np.load(out, mmap_mode="r")


def _tell_of_skipped(skipped: Sequence[tuple[str, str]], count: int) -> None:
    if skipped:
        file, reason = skipped[0]
        left_out = f"{len(skipped)} of {count} images cannot be read and are left out"
        warnings.warn(f"{left_out}; the first is {file}: {reason}", Note, stacklevel=6)


def _mark(fits: bool, confidence: float) -> str:
    """What is odd about a prediction: it resembles nothing, or is more likely something else."""
    if not fits:
        return "unlike any"
    return "doubtful" if confidence < DOUBTFUL else ""


def _tensors(run: Run, name: str) -> dict[str, torch.Tensor]:
    return dict(from_bytes(run.result(f"model/{name}").read_bytes()))
