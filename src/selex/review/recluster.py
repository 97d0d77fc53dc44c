"""Close the loop: cluster a run again with what was decided."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from selex.config import Config
from selex.data.names import cell_of_label
from selex.data.store import ImageStore
from selex.data.table import ImageTable, folder_label, read_sources
from selex.discovery import discover
from selex.errors import InputError, Note
from selex.features.prepare import place_for
from selex.io import write_csv
from selex.review.core.ledger import Ledger
from selex.review.core.outcome import Changes, Labels, compare, content_of, labels_of
from selex.review.core.state import State
from selex.review.core.timeline import Timeline
from selex.runs.earlier import Earlier, continues
from selex.runs.naming import renamed
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
    options |= {"store": options.get("store") or run.store, "numbers_taken": before.state.last}
    table = read_sources((config or run.config).data.sources)
    moved = _moved(run, labels, before.state, table, config, options)
    labels = _with_new_names(labels, moved)
    photos = _photos(run, labels, table)
    given = _given(photos, labels, [*before.state.results.files, *moved.values()], config)
    write_csv(folder / LABELS, ["file_name", "label"], [(file, cell_of_label(name)) for file, name in given.items()])
    known = len(set(given.values()))
    tell(f"labels: {len(given)} images in {known} categories, {len(labels.junk)} left out")
    asked = config or change(run.config.change(categories=min(max(labels.categories, known), len(photos))))
    count = asked.cluster.categories and max(asked.cluster.categories, known)
    path = str((folder / LABELS).absolute())
    earlier = _earlier(run, before.state, labels, asked)
    asked = asked.change(labels=path, categories=count)
    done = discover(asked, folder, photos=photos, labels=path, tell=tell, earlier=earlier, **options)
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
    new = ((file, name) for file, name in own if name and file not in decided)
    return given | {file: name for file, name in new if _folders_count(config) or os.path.isabs(file)}


def _moved(
    run: Run, labels: Labels, state: State, table: ImageTable, config: Config | None, options: dict[str, Any]
) -> dict[str, str]:
    """The name that photos have now whose file is gone: that of a new file of the same content.

    Where folders are labels, a photo that went to the folder of another category is labelled anew by that, and one that
    had its label from its folder alone loses it outside. Junk is junk wherever it is.
    """
    seen, there = dict.fromkeys([*state.results.files, *labels.of]), set(table.files)
    gone = [file for file in (*(file for file in seen if file not in labels.junk), *labels.junk) if file not in there]
    new = [row for row, file in enumerate(table.files) if file not in seen and file not in labels.junk]
    before = content_of(run, gone) if gone and new else {}
    if not before:
        return {}
    size = run.config.data.size or 0
    place = place_for(options["store"], run.config.data.sources, table.root, size)
    try:  # they are needed decoded in any case
        came = ImageStore.build(table.take(new), place, size=size, progress=options.get("progress", False))
    except InputError:  # none of them can be read
        return {}
    pairs = renamed(
        [(file, before.get(file, b"")) for file in gone],
        list(zip(came.table.files, came.digests.tolist(), strict=True)),
    )
    moved = {gone[old]: came.table.files[now] for old, now in pairs.items()}
    if not _folders_count(config):
        return moved
    own = dict(zip(came.table.files, came.table.label_names, strict=True))

    def follows(old: str, now: str) -> bool:
        folder = folder_label(old)
        if old in labels.junk or own[now] == folder:
            return True
        return not own[now] and labels.of.get(old) != folder

    return {old: now for old, now in moved.items() if follows(old, now)}


def _folders_count(config: Config | None) -> bool:
    """Whether sub-folders are labels: where settings are given that have it so; a run's own do not tell any more."""
    return config is not None and config.data.labels is None


def _with_new_names(labels: Labels, moved: dict[str, str]) -> Labels:
    """What decisions say about images that have another name now."""
    of = {moved.get(file, file): name for file, name in labels.of.items()}
    return replace(labels, of=of, junk={moved.get(file, file) for file in labels.junk})


def _photos(run: Run, labels: Labels, table: ImageTable) -> ImageTable:
    """The photos of the run that are not junk."""
    kept = [row for row, file in enumerate(table.files) if file not in labels.junk]
    if not kept:
        raise InputError(f"{run.folder}: every image is marked as junk: nothing is left to cluster")
    there = set(table.files)
    gone = [file for file in labels.of if file not in there]
    if gone:
        many = "1 image" if len(gone) == 1 else f"{len(gone)} images"
        text = f"decisions about {many} are ignored, whose files are gone or labelled anew; the first is {gone[0]}"
        warnings.warn(text, Note, stacklevel=3)
    return table.take(kept)


def _changes(run: Run, before: State) -> Changes:
    """What the new results changed; from now on decisions are about them."""
    results = Results.read(run)
    with closing(Ledger(run.folder)) as ledger:
        ledger.round(results)
    return compare(before, results)
