"""A run in the shape that other programs read: folders, tables, Label Studio tasks, a FiftyOne dataset.

Originals are never moved or changed. What is written appears all at once, or not at all.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from selex.data.clusters import Columns
from selex.data.decode import is_image
from selex.data.labels import spell
from selex.data.parquet import read_header
from selex.errors import InputError
from selex.folders import check_outside
from selex.io import atomic_folder, check_target, check_target_folder
from selex.runs.export_formats import FORMATS, ExportFormat, ExportJob, Progress
from selex.runs.run import Run


@dataclass(frozen=True)
class Exported:
    """What was written: how many images by hard link and by copy (none where they stay in place), what to do next."""

    out: Path
    images: int
    categories: int
    linked: int
    copied: int
    advice: str


def export(
    run: Run,
    to: str,
    out: Path,
    copy: bool = False,
    progress: Progress = lambda done, total: None,
    table: Iterable[Columns] | None = None,
) -> Exported:
    """Write the categories of a run for another program, or for a person with a file manager.

    Args:
        run: a finished run.
        to: one of `FORMATS`.
        out: the folder or file to write; a folder must be new or empty.
        copy: copy images, rather than linking to them where the disk allows that.
        progress: called with how many images are in place, and of how many.
        table: the clusters table as a person has corrected it, in blocks, in place of the run's own.

    Returns:
        What was written.
    """
    if to not in FORMATS:
        raise InputError(f"--to {to}: give one of {', '.join(FORMATS)}")
    form, out = FORMATS[to], Path(out)
    if copy and not form.images:
        raise InputError(f"--copy: --to {to} writes no images; leave it out")
    _check_place(run, form, out)
    if form.table:
        return _export_table(run, form, out, table or (block.to_pydict() for block in run.blocks()))
    names = [] if table else run.hierarchy["names"]  # of corrected categories only those that have images
    whole = _joined(table) if table else run.clusters.to_pydict()
    classes = list(dict.fromkeys([*names, *whole["category"]]))
    root = str(run.root)
    files = whole["file"]
    job = ExportJob(whole, classes, root, run.image_paths(files), lambda: _features(run, files), out, copy, progress)
    _check_images(run, job)
    with atomic_folder(out) as stage:
        advice = form.write(job, stage)
    return Exported(out, len(files), len(set(whole["category"])), job.linked, job.copied, advice)


def _joined(blocks: Iterable[Columns]) -> Columns:
    first, *others = blocks
    return {name: list(chain(values, *(block[name] for block in others))) for name, values in first.items()}


def _export_table(run: Run, form: ExportFormat, out: Path, blocks: Iterable[Columns]) -> Exported:
    """The clusters table and where each image is, spelled as in the table; a block at a time is in memory."""
    counts, place = Counter[str](), run.places()

    def with_path() -> Iterator[Columns]:
        for block in blocks:
            counts.update(block["category"])
            yield {**block, "path": [spell(path) for path in place(block["file"])]}

    advice = form.write(with_path(), out)
    return Exported(out, counts.total(), len(counts), 0, 0, advice)


def _features(run: Run, files: Sequence[str]) -> Any:
    """Features of these images, which are all or some of the run's."""
    names = chain.from_iterable(block["file"].to_pylist() for block in run.blocks("file"))
    row_of = {file: row for row, file in enumerate(names)}
    if not row_of.keys() >= set(files):
        raise InputError(f"{run.folder}: has new results since this export began: export again")
    rows = [row_of[file] for file in files]
    return np.asarray(run.embeddings[rows], dtype=np.float32)


def _check_place(run: Run, form: ExportFormat, out: Path) -> None:
    for photos in run.config.data.sources:
        check_outside(out, photos, "an --out")
    if form.folder:
        check_target_folder(out)
    else:
        check_target(out, [run.folder / f"clusters.{kind}" for kind in ("csv", "parquet")], _is_exported_table)


def _check_images(run: Run, job: ExportJob) -> None:
    """Refuse to hand out what is not there, not an image, or not the run's to name."""
    if "" in job.paths:
        file = job.table["file"][job.paths.index("")]
        raise InputError(
            f"{run.folder}: names {file}, which is not below {job.root}, and was not made here: run `selex discover` "
            "here, then export"
        )
    gone = [path for path in job.paths if not os.path.isfile(path)]
    if gone:
        more = f" (and {len(gone) - 1} more)" if gone[1:] else ""
        raise InputError(f"{gone[0]} no longer exists{more}; put the photos back, or run `selex discover` again")
    if other := next((path for path in job.paths if not is_image(path)), None):
        raise InputError(f"{other}: is not an image (any more): nothing was exported")


def _is_exported_table(path: Path) -> bool:
    """Whether a file is a table that an earlier export wrote."""
    header = read_header(path)
    if not header:
        with path.open(encoding="utf-8", errors="replace") as file:
            header = file.readline().rstrip("\n").split(",")
    return header[:5] == ["file", "cluster", "category", "known", "labelled"] and header[-1] == "path"
