"""Close the loop: cluster a run again with what was decided."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from selex.config import Config
from selex.data.labels import cell_of_label
from selex.data.table import ImageTable, folder_label, is_there, read_sources
from selex.discovery import discover
from selex.discovery_steps import content_of
from selex.errors import InputError, Note, counted
from selex.io import write_csv
from selex.review.core.labels import Labels, Photo, labels_of, photos_of, rows_kept
from selex.review.core.ledger import Ledger
from selex.review.core.outcome import Changes, compare
from selex.review.core.state import SET_ASIDE, State
from selex.review.core.timeline import Timeline
from selex.runs.earlier import Earlier, continues
from selex.runs.naming import same_images
from selex.runs.results import Results
from selex.runs.run import LABELS, Run

Array = np.ndarray[Any, Any]


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
    """Do a run again with its own settings and its decisions, and without the images that are set aside.

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
    check_places(run, config or run.config)
    number, before = _standing(run)
    options |= {"store": options.get("store") or run.store, "numbers_taken": before.state.last}
    table = read_sources((config or run.config).data.sources)
    content = content_of(run, table, options["store"], options.get("progress", False))
    kept = rows_kept(folder, labels.left_out, before.state.results, table.files, content)
    photos, left_out = table.take(kept), len(table) - len(kept)
    now = _names_now(labels, before.state, photos, None if content is None else content[kept], config)
    _note_if_gone(labels, now)
    given = _given(photos, labels, now, config)
    write_csv(folder / LABELS, ["file_name", "label"], [(file, cell_of_label(name)) for file, name in given.items()])
    known = len(set(given.values()))
    tell(f"labels: {len(given)} images in {known} categories, {left_out} left out")
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


def check_places(run: Run, config: Config) -> None:
    """Refuse folders of a run's photos that are gone, and say what to type."""
    first, had = config.data.photos, run.config.data.sources
    gone = [place for place in config.data.sources if place in had and not is_there(place)]
    if first in gone:
        raise InputError(f"{first}: no longer exists; if it was moved: selex discover ITS_NEW_PLACE --out {run.folder}")
    if gone:
        raise InputError(
            f"{gone[0]}: was added to this run and no longer exists; if it was moved: selex discover {run.folder} "
            f"--add ITS_NEW_PLACE; to continue without it: selex discover {run.folder} --add {first}"
        )


def _earlier(run: Run, state: State, labels: Labels, asked: Config) -> Earlier | None:
    """The categories as they stand, to continue from; None where other settings, or results since, ask for new ones."""
    count = asked.cluster.categories
    same = continues(run.config, asked) and count in (None, labels.categories, run.config.cluster.categories)
    there = set(photos_of(state, np.ones(len(state.results), dtype=bool)))
    names = {state.names[category] for category in np.unique(state.category)}
    if not same or not {name for photo, name in labels.decided.items() if photo in there} <= names:
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


def _given(photos: ImageTable, labels: Labels, now: dict[Photo, str], config: Config | None) -> dict[str, str]:
    """The label of some photos, by file: what was decided, and what sub-folders say of photos that came since.

    The latter counts of what was added, and where settings are given that have it so; those of a run do not tell after
    the first round.
    """
    kept, seen = set(photos.files), set(now.values())
    decided = ((now[photo], name) for photo, name in labels.decided.items() if photo in now)
    given = {file: name for file, name in decided if file in kept}
    own = zip(photos.files, photos.label_names, strict=True) if config else ()
    new = ((file, name) for file, name in own if name and file not in seen)
    return given | {file: name for file, name in new if _folders_count(config) or os.path.isabs(file)}


def _names_now(
    labels: Labels, state: State, table: ImageTable, there: Array | None, config: Config | None
) -> dict[Photo, str]:
    """The name that photos have now, of those that are there: renamed or swapped ones are found by their content.

    Where folders are labels, a photo that went to the folder of another category is labelled anew by that, and one that
    had its label from its folder alone loses it outside.
    """
    photos = list(dict.fromkeys([*photos_of(state, state.mark != SET_ASIDE), *labels.decided]))
    content = np.array([photo.content for photo in photos], "S16")
    found = same_images([photo.file for photo in photos], table.files, content, there)
    now = {photos[old]: new for old, new in zip(*(rows.tolist() for rows in found), strict=True)}
    own, anew = table.label_names, _folders_count(config)

    def follows(photo: Photo, row: int) -> bool:
        folder = folder_label(photo.file)
        if not anew or photo.file == table.files[row] or own[row] == folder:
            return True
        return not own[row] and labels.decided.get(photo) != folder

    return {photo: table.files[row] for photo, row in now.items() if follows(photo, row)}


def _folders_count(config: Config | None) -> bool:
    """Whether sub-folders are labels: where settings are given that have it so; a run's own do not tell any more."""
    return config is not None and config.data.labels is None


def _note_if_gone(labels: Labels, now: dict[Photo, str]) -> None:
    gone = [photo.file for photo in labels.decided if photo not in now]
    if gone:
        ignored = f"decisions about {counted(len(gone))} are ignored: their files are gone, or their labels are new"
        warnings.warn(f"{ignored}; the first is {gone[0]}", Note, stacklevel=3)


def _changes(run: Run, before: State) -> Changes:
    """What the new results changed; from now on decisions are about them."""
    results = Results.read(run)
    with closing(Ledger(run.folder)) as ledger:
        ledger.round(results)
    return compare(before, results)
