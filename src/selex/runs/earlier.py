"""Categories to continue from: those that a run has, and what was decided about them since."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from itertools import compress
from typing import Any

import numpy as np

from selex.cluster.assign import Assignment, Calibration
from selex.cluster.holdout.select import Selection
from selex.cluster.warm import Start
from selex.config import Config
from selex.data.parquet import read_parquet
from selex.data.table import ImageTable
from selex.errors import InputError
from selex.models.network import Backbone
from selex.runs.naming import same_images
from selex.runs.predictor import Model, load
from selex.runs.results import Results
from selex.runs.run import Run
from selex.runs.stage import EMBEDDINGS
from selex.types import REFINEMENTS, SEARCHES, UNLABELLED

Array = np.ndarray[Any, Any]
_BLOCK = 4096  # rows that are compared at a time


@dataclass(frozen=True, eq=False)
class Earlier:
    """Categories by name, as they stand; what is said of images is in the order of `category`."""

    category: dict[str, str]  # of images, by file
    numbers: dict[str, int]  # that categories have in the model, of those that are as the run had them
    offsets: dict[str, float] | None  # of all of them; None where no category has one
    model: Model  # that of the run
    selection: Selection  # how the run searched for categories and refined them
    given: dict[str, str] | None = None  # labels that images must have as before, by file; None: decisions changed them
    coarser: tuple[Array, ...] = ()  # clusters of images at coarser levels; none where these are to be clustered anew
    results: Results | None = None  # what the run says of its images, with distances; None where that may have changed
    features: Array | None = None  # that the run had of them
    content: Array | None = None  # tells images from each other; None where that is not known

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
        offsets = model.assigner.offsets
        return cls(
            {file: live[number] for file, number in zip(results.files, category.tolist(), strict=True)},
            {name: number for number, name in live.items() if number not in changed},
            offsets
            if offsets is None
            else {
                # in float64, in which the mean of equal numbers is that number
                name: float(offsets[results.category[category == number]].mean(dtype=np.float64))
                for number, name in live.items()
            },
            model,
            selection,
            content=results.content,
        )

    @classmethod
    def grown(cls, run: Run, results: Results) -> Earlier | None:
        """Those of a run that photos come to, or go from, and nothing else."""
        found = cls.of(run, results, results.category, results.names)
        if found is None:
            return None
        given = {file: found.category[file] for file in compress(results.files, results.labelled.tolist())}
        return replace(found, given=given, coarser=_coarser(run), results=results, features=_features(run))

    def of_images(self, backbone: Backbone, table: ImageTable, content: Array) -> Earlier | None:
        """The same under the names that a table has for its images, whose content is given.

        None where their features do not compare with the categories, or there is no reason to continue from these.
        """
        if backbone.fingerprint() != self.model.fingerprint:
            return None
        found = self._following(table, content)
        if found.given is None:
            return found
        names = zip(table.files, table.label_names, strict=True)
        same = all(found.given.get(file, "") == name for file, name in names if file in found.category)
        changed = set(table.files) != found.category.keys() or list(found.category) != list(self.category)
        return found if same and changed and set(found.given.values()) <= {*table.categories} else None

    def _following(self, table: ImageTable, content: Array) -> Earlier:
        """The same with images that were renamed under the name they have now, unless their labels changed."""
        names, labels, there = list(self.category), table.label_names, set(table.files)
        old, new = same_images(names, table.files, self.content, content)
        now = {
            names[row]: table.files[place]
            for row, place in zip(old.tolist(), new.tolist(), strict=True)
            if names[row] == table.files[place] or self.given is None or self.given.get(names[row], "") == labels[place]
        }
        # the name of one that is gone may be that of another now; no file is called as it is then
        of = {file: now.get(file, f"\0{file}" if file in there else file) for file in names}
        given = self.given and {of[file]: name for file, name in self.given.items()}
        return replace(self, category={of[file]: c for file, c in self.category.items()}, given=given)

    def start(self, table: ImageTable, features: Array | None = None) -> Start:
        """The same for the images of a table, whose labels are fixed; `features` tell whether images are as before."""
        free = [file for file, held in zip(table.files, table.labelled, strict=True) if not held]
        found = dict.fromkeys(self.category[file] for file in free if file in self.category)
        names = list(dict.fromkeys([*table.categories, *found]))
        number = {name: place for place, name in enumerate(names)}
        before = np.array([self.numbers.get(name, UNLABELLED) for name in names], dtype=np.int64)
        stays = before != UNLABELLED
        row_of = {file: row for row, file in enumerate(self.category)}
        rows = np.array([row_of.get(file, UNLABELLED) for file in table.files])
        usual = float(np.mean(list(self.offsets.values()))) if self.offsets else 0.0
        judged = None if features is None else self._judged(rows, features, number)
        return Start(
            np.array([number.get(self.category.get(file, ""), UNLABELLED) for file in table.files]),
            np.where(stays[:, None], self.model.assigner.centers[before], np.float32(0)),
            stays,
            np.array([self.offsets.get(name, usual) for name in names], dtype=np.float32) if self.offsets else None,
            self.model.maps,
            self.selection,
            self._calibration(table.categories),
            tuple(np.where(rows == UNLABELLED, UNLABELLED, level[rows]) for level in self.coarser),
            judged,
            self._margins(names),
        )

    def _calibration(self, categories: Sequence[str]) -> Calibration:
        """That of confidences; the usual one for known categories that were not known, or not as they are now."""
        calibration = self.model.assigner.calibration
        if not calibration.shifts:
            return calibration
        own, usual = dict(enumerate(calibration.shifts)), float(np.median(calibration.shifts))
        numbers = (self.numbers.get(name, UNLABELLED) for name in categories)
        return calibration._replace(shifts=tuple(own.get(number, usual) for number in numbers))

    def _margins(self, names: list[str]) -> Array | None:
        """How distinct the categories were, in this order; None if that of one is not known."""
        margins = self.model.assigner.margins
        if margins is None or any(name not in self.numbers for name in names) or len(names) < len(margins):
            return None
        return margins[[self.numbers[name] for name in names]]

    def _judged(self, rows: Array, features: Array, number: dict[str, int]) -> Assignment | None:
        """What was said of images in these rows, with the numbers that categories have now; None if that has changed.

        It has where an image is gone, or has other features.
        """
        results, old = self.results, np.flatnonzero(rows != UNLABELLED)
        if results is None or results.distance is None or self.features is None or len(old) < len(results):
            return None
        if not _same(self.features, rows[old], features, old):
            return None
        renumbered = np.array([*(number.get(name, UNLABELLED) for name in results.names), UNLABELLED])
        confidence, distance = (values[rows].astype(np.float32) for values in (results.confidence, results.distance))
        return Assignment(
            renumbered[results.category[rows]],
            confidence,
            renumbered[results.runner_up[rows]],
            distance,
            np.ones(len(rows), dtype=bool),
            np.zeros(len(rows), dtype=np.float32),
        )


def continues(had: Config, asked: Config) -> bool:
    """Whether settings ask for the features and the clustering that a run had: what they leave open is as it was.

    The number of categories may be another, and the photos. A search that is to be chosen has been.
    """
    if "frozen" not in {had.train.method} & {asked.train.method}:
        return False
    search = had.cluster.search if asked.cluster.search == "auto" else asked.cluster.search
    groups = ((had.features, asked.features), (had.cluster, replace(asked.cluster, categories=None, search=search)))
    return all(
        getattr(new, one.name) in (None, getattr(old, one.name)) for old, new in groups for one in fields(new)
    ) and asked.data.size in (None, had.data.size)


def _model(run: Run) -> Model | None:
    """The model of a run, if it can be read."""
    with suppress(InputError):  # damaged: it is done anew
        return load(run.folder)
    return None


def _features(run: Run) -> Array | None:
    """Features of a run, if they can be read; whether they are still what they were is for who compares them."""
    with suppress(OSError, ValueError, EOFError):
        return np.load(run.folder / EMBEDDINGS, mmap_mode="r")
    return None


def _same(before: Array, rows: Array, now: Array, others: Array) -> bool:
    """Whether `rows` of features before are to the last bit the rows `others` of those now."""
    if before.shape[1:] != now.shape[1:] or before.dtype != now.dtype or len(before) <= rows.max(initial=-1):
        return False
    parts = (slice(start, start + _BLOCK) for start in range(0, len(rows), _BLOCK))
    return all(np.array_equal(before[rows[part]], now[others[part]]) for part in parts)


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
