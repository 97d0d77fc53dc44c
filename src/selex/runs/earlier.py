"""Categories to continue from: those that a run has, and what was decided about them since."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from itertools import compress
from typing import Any

import numpy as np

from selex.cluster.select import Selection
from selex.cluster.warm import Start
from selex.config import Config
from selex.data.parquet import read_parquet
from selex.data.table import ImageTable
from selex.errors import InputError
from selex.models.network import Backbone
from selex.runs.predictor import Model, load
from selex.runs.results import Results
from selex.runs.run import Run
from selex.types import REFINEMENTS, SEARCHES, UNLABELLED

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Earlier:
    """Categories by name, as they stand.

    Attributes:
        category: of images, by file.
        centers: of the categories that are as the run had them.
        offsets: of all of them; None where no category has one.
        model: that of the run.
        selection: how the run searched for categories and refined them.
        given: labels that images had, by file, where these must be as they were; None where decisions changed them.
        coarser: cluster of every image at each coarser level, in the order of `category`; none where a level is to be
            clustered anew.
    """

    category: dict[str, str]
    centers: dict[str, Array]
    offsets: dict[str, float] | None
    model: Model
    selection: Selection
    given: dict[str, str] | None = None
    coarser: tuple[Array, ...] = ()

    @classmethod
    def of(cls, run: Run, results: Results, category: Array, names: Sequence[str]) -> Earlier | None:
        """Those of a run whose images are in the categories `category` now, called `names`; None where it cannot tell.

        A category has the number it has in `results`, or a larger one. One is as it was if its images are.
        """
        model, selection = _model(run), _selection(run)
        if model is None or selection is None or model.trained:
            return None
        return cls.standing(model, selection, results, category, names)

    @classmethod
    def standing(
        cls, model: Model, selection: Selection, results: Results, category: Array, names: Sequence[str]
    ) -> Earlier:
        """The same from a model and its results."""
        moved = category != results.category
        changed = {*category[moved].tolist(), *results.category[moved].tolist()}
        live = {number: names[number] for number in np.unique(category).tolist()}
        centers, offsets = model.assigner.centers, model.assigner.offsets
        return cls(
            {file: live[number] for file, number in zip(results.files, category.tolist(), strict=True)},
            {name: centers[number] for number, name in live.items() if number not in changed},
            offsets
            if offsets is None
            else {name: float(offsets[results.category[category == number]].mean()) for number, name in live.items()},
            model,
            selection,
        )

    @classmethod
    def grown(cls, run: Run, results: Results) -> Earlier | None:
        """Those of a run that photos come to, or go from, and nothing else."""
        found = cls.of(run, results, results.category, results.names)
        if found is None:
            return None
        given = {file: found.category[file] for file in compress(results.files, results.labelled.tolist())}
        return replace(found, given=given, coarser=_coarser(run))

    def fits(self, backbone: Backbone, table: ImageTable) -> bool:
        """Whether features of these images compare with the categories, and there is a reason to continue from them."""
        if backbone.fingerprint() != self.model.fingerprint:
            return False
        if self.given is None:
            return True
        names = zip(table.files, table.label_names, strict=True)
        same = all(self.given.get(file, "") == name for file, name in names if file in self.category)
        there = set(table.files)
        return same and there != self.category.keys() and set(self.given.values()) <= {*table.categories}

    def start(self, table: ImageTable) -> Start:
        """The same for the images of a table, whose labels are fixed."""
        free = [file for file, held in zip(table.files, table.labelled, strict=True) if not held]
        found = dict.fromkeys(self.category[file] for file in free if file in self.category)
        names = list(dict.fromkeys([*table.categories, *found]))
        number = {name: place for place, name in enumerate(names)}
        zeros = np.zeros(self.model.assigner.centers.shape[1], dtype=np.float32)
        row_of = {file: row for row, file in enumerate(self.category)}
        rows = np.array([row_of.get(file, UNLABELLED) for file in table.files])
        usual = float(np.mean(list(self.offsets.values()))) if self.offsets else 0.0
        return Start(
            np.array([number.get(self.category.get(file, ""), UNLABELLED) for file in table.files]),
            np.array([self.centers.get(name, zeros) for name in names]),
            np.array([name in self.centers for name in names]),
            np.array([self.offsets.get(name, usual) for name in names], dtype=np.float32) if self.offsets else None,
            self.model.maps,
            self.selection,
            self.model.assigner.temperature,
            tuple(np.where(rows == UNLABELLED, UNLABELLED, level[rows]) for level in self.coarser),
        )


def continues(had: Config, asked: Config) -> bool:
    """Whether settings ask for the features and the clustering that a run had: what they leave open is as it was.

    The number of categories may be another, and the photos.
    """
    if "frozen" not in {had.train.method} & {asked.train.method}:
        return False
    groups = ((had.features, asked.features), (had.cluster, replace(asked.cluster, categories=None)))
    return all(
        getattr(new, one.name) in (None, getattr(old, one.name)) for old, new in groups for one in fields(new)
    ) and asked.data.size in (None, had.data.size)


def _model(run: Run) -> Model | None:
    """The model of a run, if it can be read."""
    with suppress(InputError):  # damaged: it is done anew
        return load(run.folder)
    return None


def _coarser(run: Run) -> tuple[Array, ...]:
    """Clusters of a run's images at each coarser level."""
    path = run.result("clusters.parquet")
    names = [f"level_{number}" for number in range(2, len(run.hierarchy["levels"]) + 1)]
    table = read_parquet(path, path, names)
    return tuple(table[name].to_numpy().astype(np.int64) for name in names if name in table.column_names)


def _selection(run: Run) -> Selection | None:
    """What was selected when a run was last clustered, by its log; where training was undone, that of the start."""
    done = [entry for entry in run.metrics if entry.get("step") in ("cluster", "kept")][-1:]
    if not done or done[0].get("refine") not in REFINEMENTS or done[0].get("search") not in SEARCHES:
        return None
    return Selection(done[0].get("adapt") == "on", done[0]["refine"], done[0]["search"])
