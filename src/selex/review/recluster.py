"""Close the loop: cluster a run again with what was decided."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from selex.config import Config
from selex.data.names import cell_of_label
from selex.data.table import ImageTable, read_sources
from selex.discovery import discover
from selex.errors import InputError, Note
from selex.io import write_csv
from selex.review.core.ledger import Ledger
from selex.review.core.outcome import Changes, Labels, compare, labels_of
from selex.review.core.state import State
from selex.review.core.timeline import Timeline
from selex.runs.earlier import Earlier, continues
from selex.runs.results import Results
from selex.runs.run import LABELS, Run


@dataclass(frozen=True)
class Reclustered:
    """A run done again: what decisions gave to it, and what came of that."""

    run: Run
    labels: Labels
    changes: Changes


def recluster(
    folder: Path,
    *,
    tell: Callable[[str], None] = lambda line: None,
    change: Callable[[Config], Config] = lambda config: config,
    config: Config | None = None,
    **options: Any,
) -> Reclustered:
    """Do a run again with its own settings and its decisions, and without the images that are junk.

    Confirmed images are labelled with the names of their categories. Where settings are as they were and nothing is
    trained, it continues from the categories as they stand; see `cluster.warm`.

    Args:
        folder: a finished run.
        tell: called with a line about each step that is done.
        change: what to change in the settings of the run.
        config: settings in place of the run's, with their number of categories in place of the reviewed one.
        options: `device`, `store` (that of the run, if not given), `strict` and `progress` as `discover` takes them.

    Returns:
        What was given and what changed. The run's results are new, and decisions start anew on them.
    """
    run = Run.open(folder)
    labels = labels_of(run)
    if not labels.decisions:
        raise InputError(
            f"{folder}: nothing has been decided yet: name, merge or confirm something with `selex review {folder}`"
        )
    if not run.config.data.photos:
        raise InputError(f"{folder}: its images came from a list in Python; call discover with the list and new labels")
    number, before = _standing(run)
    photos = _photos(run, labels, (config or run.config).data.sources)
    given = _given(photos, labels, before.state.results.files, config)
    write_csv(folder / LABELS, ["file_name", "label"], [(file, cell_of_label(name)) for file, name in given.items()])
    known = len(set(given.values()))
    tell(f"labels: {len(given)} images in {known} categories, {len(labels.junk)} left out")
    asked = config or change(run.config.change(categories=min(max(labels.categories, known), len(photos))))
    count = asked.cluster.categories and max(asked.cluster.categories, known)
    table = str((folder / LABELS).absolute())
    options |= {"store": options.get("store") or run.store, "numbers_taken": before.state.last}
    earlier = _earlier(run, before.state, labels, asked)
    asked = asked.change(labels=table, categories=count)
    done = discover(asked, folder, photos=photos, labels=table, tell=tell, earlier=earlier, **options)
    changes, late = _changes(done, before.state), _since(folder, number, before.version)
    if late:
        tell(f"note: decisions made in the meantime: {late}; they count the next time")
    return Reclustered(done, labels, changes)


def _earlier(run: Run, state: State, labels: Labels, asked: Config) -> Earlier | None:
    """The categories as they stand, to continue from; None where other settings, or results since, ask for new ones."""
    count = asked.cluster.categories
    same = continues(run.config, asked) and count in (None, labels.categories, run.config.cluster.categories)
    files = set(state.results.files)
    names = {state.names[category] for category in np.unique(state.category)}
    if not same or not {name for file, name in labels.of.items() if file in files} <= names:
        return None
    return Earlier.of(run, state.results, state.category, state.names)


def _standing(run: Run) -> tuple[int, Timeline]:
    """The round of a run's results, and how its categories stand with all decisions."""
    with closing(Ledger(run.folder)) as ledger:
        number = ledger.round(Results.read(run))
        return number, ledger.replay(number)


def _since(folder: Path, number: int, version: int) -> int:
    """How much was decided in a round after a version of it."""
    with closing(Ledger(folder)) as ledger:
        return len(ledger.events(number, version))


def _given(photos: ImageTable, labels: Labels, seen: Sequence[str], config: Config | None) -> dict[str, str]:
    """The label of some photos, by file: what was decided, and what sub-folders say of photos that came since.

    The latter counts of what was added, and where settings are given that have it so; those of a run do not tell after
    the first round.
    """
    kept, decided = set(photos.files), {*seen, *labels.of}
    given = {file: name for file, name in labels.of.items() if file in kept}
    own = zip(photos.files, photos.label_names, strict=True) if config else ()
    counts = config is not None and config.data.labels is None
    new = ((file, name) for file, name in own if name and file not in decided)
    return given | {file: name for file, name in new if counts or os.path.isabs(file)}


def _photos(run: Run, labels: Labels, sources: Sequence[str]) -> ImageTable:
    """The photos of the run that are not junk."""
    table = read_sources(sources)
    kept = [row for row, file in enumerate(table.files) if file not in labels.junk]
    if not kept:
        raise InputError(f"{run.folder}: every image is marked as junk: nothing is left to cluster")
    there = set(table.files)
    gone = [file for file in labels.of if file not in there]
    if gone:
        many = "1 image" if len(gone) == 1 else f"{len(gone)} images"
        text = (
            f"decisions about {many} are ignored: removed, or renamed, which makes a new image; the first is {gone[0]}"
        )
        warnings.warn(text, Note, stacklevel=3)
    return table.take(kept)


def _changes(run: Run, before: State) -> Changes:
    """What the new results changed; from now on decisions are about them."""
    results = Results.read(run)
    with closing(Ledger(run.folder)) as ledger:
        ledger.round(results)
    return compare(before, results)
