"""A finished run, read once and checked: what every part of the report is made from."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, reduce
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from selex.data.table import real_path
from selex.errors import InputError
from selex.runs.predictor import Model, load
from selex.runs.results import Results
from selex.runs.run import ImagePaths, Run

Floats = NDArray[np.float64]
Numbers = NDArray[np.float32]
Ints = NDArray[np.integer]
_BLOCK = 8192  # rows whose features are looked at together


@dataclass(frozen=True, eq=False, kw_only=True)
class Facts(Results):
    """What a run found, and what made it. `files` are names as the page shows them."""

    title: str  # what the photos are called
    paths: Sequence[str]  # where each image is
    distance: Floats
    features: NDArray[Any]  # rows × dimensions, memory-mapped
    model: Model  # the categories: names, centres, temperature
    tree: dict[str, Any]  # `hierarchy.json`
    metrics: list[dict[str, Any]]  # what was logged
    skipped: list[list[str]]  # images that could not be read, and why

    def whitened(self, rows: Ints | slice) -> Floats:
        """Features of some rows as they are compared with the categories' centres."""
        return self.model.maps.transform(self.features[rows])

    @cached_property
    def sizes(self) -> Ints:
        """How many images each category has."""
        return np.bincount(self.category, minlength=len(self.names))

    @cached_property
    def members(self) -> list[Ints]:
        """Rows of each category, in row order."""
        kind = np.int32 if len(self.category) <= np.iinfo(np.int32).max else np.int64
        order = np.argsort(self.category, kind="stable").astype(kind)
        return np.split(order, np.cumsum(self.sizes)[:-1])

    @cached_property
    def loo_penalty(self) -> Numbers:
        """What each row's category loses, as a logarithm of odds, if the row had not helped to make its centre.

        Without one of its n rows a centre is n / (n - 1) times as far from that row (where rows take part in several
        categories: about so). A row alone knows nothing: inf.
        """
        return self._of_rows(self._loo_penalty)

    def _loo_penalty(self, part: slice) -> Floats:
        sizes = self.sizes[self.category[part]]
        farther = (sizes / np.maximum(sizes - 1, 1)) ** 2 - 1
        lost: Floats = self.distance[part] ** 2 * farther / self.model.assigner.temperature
        return np.where(sizes == 1, np.inf, lost)

    @cached_property
    def log_odds_margin(self) -> Numbers:
        """By how much each row's category is likelier than the next best one, as a logarithm of odds."""
        return self._of_rows(self._log_odds_margin)

    def _log_odds_margin(self, part: slice) -> Floats:
        own, after = self.category[part], self.runner_up[part]
        away = self.whitened(part).astype(np.float64) - self.model.assigner.centers[after]
        farther: Floats = np.einsum("nd,nd->n", away, away) - self.distance[part] ** 2
        offsets = self.model.assigner.offsets
        if offsets is not None:
            farther += offsets[own] - offsets[after]
        return np.where(after >= 0, farther / self.model.assigner.temperature, np.inf)  # where there is no other: inf

    @cached_property
    def loo_confidence(self) -> Numbers:
        """Confidence of each row as if it had not helped to make its centre.

        The odds are those of the confidence. Where it was rounded to 1 they are not more than against the next best.
        """
        return self._of_rows(self._loo_confidence)

    def _loo_confidence(self, part: slice) -> Floats:
        odds = np.minimum(logit(self.confidence[part]), self.log_odds_margin[part])
        penalty = self.loo_penalty[part].astype(np.float64)
        alone = np.isinf(penalty)
        return np.where(alone, 0, expit(odds - np.where(alone, 0, penalty)))

    def _of_rows(self, judge: Callable[[slice], Floats]) -> Numbers:
        """A number for each row, worked out a block at a time, so that only the numbers themselves take room."""
        found = np.empty(len(self.category), np.float32)
        for start in range(0, len(found), _BLOCK):
            part = slice(start, start + _BLOCK)
            found[part] = judge(part)
        return found


def read_facts(run: Run) -> Facts:
    """Read a finished run; refuses one that is not finished, or whose files do not belong together."""
    found, model = Results.read(run, distances=True), load(run.folder)
    table = {entry.name: getattr(found, entry.name) for entry in fields(Results)}
    if run.hierarchy["names"] != model.names:
        raise InputError(f"{run.folder / 'hierarchy.json'}: does not belong to the model of this run")
    return Facts(
        **{**table, "files": _shown(found.files, str(run.root))},
        title=Path(run.config.data.photos).name.removesuffix(".csv").removesuffix(".parquet") or "images",
        paths=ImagePaths(found.files, run.places()),
        features=_features(run, len(found)),
        model=model,
        tree=run.hierarchy,
        metrics=[entry for entry in run.metrics if isinstance(entry, dict)],
        skipped=_skipped(run),
    )


def _features(run: Run, n: int) -> NDArray[Any]:
    features = run.embeddings
    if features.shape[:1] != (n,) or features.ndim != 2:
        raise InputError(f"{run.folder / 'embeddings.npy'}: has shape {features.shape}, the clusters table {n} rows")
    return features


def _skipped(run: Run) -> list[list[str]]:
    """Images that could not be read, and why; of a whole path only the name, as the page may be sent around."""
    return [[os.path.basename(file) if os.path.isabs(file) else file, reason] for file, reason in run.skipped]


def _shown(files: Sequence[str], root: str) -> Sequence[str]:
    """Names for a page that is sent around: of a whole path only what comes after the folder that all share."""
    if not any(map(os.path.isabs, files)):
        return files
    folders = (os.path.dirname(real_path(root, file)) for file in files)
    shared = reduce(lambda one, other: os.path.commonpath([one, other]), folders)
    return ImagePaths(files, lambda some: [os.path.relpath(real_path(root, file), shared) for file in some])
