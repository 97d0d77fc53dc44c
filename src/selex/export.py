"""A run in the shape that other programs read: folders, tables, Label Studio tasks, a FiftyOne dataset.

Originals are never moved or changed. What is written appears all at once, or not at all.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
from numpy.lib import format as npy

from selex.data.clusters import DOUBTFUL, Columns, write_columns
from selex.data.decode import is_image
from selex.data.names import Names, safe_name, spell
from selex.data.parquet import read_header, write_parquet
from selex.errors import InputError
from selex.folders import check_outside
from selex.io import check_target, check_target_folder, whole, whole_folder
from selex.run import Run

Progress = Callable[[int, int], None]

ORIGINALS = "originals.csv"
"""In exported folders: where each image came from. It has the columns of a label file too."""

_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Exported:
    """What was written: how many images by hard link and by copy (none where they stay in place), what to do next."""

    out: Path
    images: int
    categories: int
    linked: int
    copied: int
    advice: str


@dataclass(frozen=True)
class Format:
    """One way to export: what writes it and says what to do with it, whether it is a folder, and one with images."""

    write: Callable[[_Job, Path], str]
    folder: bool
    images: bool


@dataclass
class _Job:
    """What is exported, and how many images have been put in place."""

    table: Columns
    classes: list[str]
    root: str
    paths: list[str]
    features: Callable[[], Any]
    out: Path
    copy: bool
    progress: Progress
    linked: int = 0
    copied: int = 0

    def place(self, targets: Sequence[Path]) -> None:
        """Each image at its target: a hard link, or a copy where that was asked for or there can be no link."""
        for done, (path, target) in enumerate(zip(self.paths, targets, strict=True), 1):
            real = os.path.realpath(path)  # of a symbolic link the file it leads to
            if not self.copy and _link(real, target):
                self.linked += 1
            else:
                _copy(real, target)
                self.copied += 1
            self.progress(done, len(targets))


def export(
    run: Run,
    to: str,
    out: Path,
    copy: bool = False,
    progress: Progress = lambda done, total: None,
    table: Columns | None = None,
) -> Exported:
    """Write the categories of a run for another program, or for a person with a file manager.

    Args:
        run: a finished run.
        to: one of `FORMATS`.
        out: the folder or file to write; a folder must be new or empty.
        copy: copy images, rather than linking to them where the disk allows that.
        progress: called with how many images are in place, and of how many.
        table: the clusters table as a person has corrected it, in place of the run's own.

    Returns:
        What was written.
    """
    if to not in FORMATS:
        raise InputError(f"--to {to}: give one of {', '.join(FORMATS)}")
    form, out = FORMATS[to], Path(out)
    if copy and not form.images:
        raise InputError(f"--copy: --to {to} writes no images; leave it out")
    _check_place(run, form, out)
    names = [] if table else run.hierarchy["names"]  # of corrected categories only those that have images
    table = table or run.clusters.to_pydict()
    classes = list(dict.fromkeys([*names, *table["category"]]))
    root = str(run.root)
    files = table["file"]
    job = _Job(table, classes, root, run.image_paths(files), lambda: _features(run, files), out, copy, progress)
    if form.folder:
        _check_images(run, job)
        with whole_folder(out) as stage:
            advice = form.write(job, stage)
    else:
        advice = form.write(job, out)
    return Exported(out, len(table["file"]), len(set(table["category"])), job.linked, job.copied, advice)


def _folders(job: _Job, stage: Path) -> str:
    """A folder for each category, and a table that says where each image came from."""
    folders = Names()
    folders.take(ORIGINALS)
    # whose name can be a folder's has it, before another name is changed into the same
    in_turn = sorted(job.classes, key=lambda category: safe_name(category) != category)
    folder_of = {category: folders.take(category) for category in in_turn}
    inside = {category: Names() for category in job.classes}
    files = []
    for file, category in zip(job.table["file"], job.table["category"], strict=True):
        name = inside[category].take(*os.path.splitext(os.path.basename(file)))
        files.append(f"{folder_of[category]}/{name}")
    for category in dict.fromkeys(job.table["category"]):
        (stage / folder_of[category]).mkdir()
    job.place([stage / file for file in files])
    columns = {
        "file_name": files,
        "label": job.table["category"],
        "confidence": job.table["confidence"],
        "original": job.table["file"],
    }
    write_columns(stage / ORIGINALS, columns)
    return f"look through the folders, one for each category; {ORIGINALS} says where each image came from"


def _csv(job: _Job, out: Path) -> str:
    write_columns(out, _with_path(job))
    return f"open it in a spreadsheet, or with pandas.read_csv({str(job.out)!r})"


def _parquet(job: _Job, out: Path) -> str:
    with whole(out) as partial:
        write_parquet(partial, pa.table(_with_path(job)))
    return f"open it with pandas.read_parquet({str(job.out)!r})"


def _label_studio(job: _Job, stage: Path) -> str:
    """Tasks with predictions, and the labelling interface that they fit."""
    # the folder that all images are in: that of the run, unless a table named others
    photos = Path(os.path.commonpath([job.root, *map(os.path.dirname, job.paths)]))
    # Label Studio refuses to serve its document root itself, only a folder in it
    places = [Path(os.path.relpath(path, photos.parent)).as_posix() for path in job.paths]
    tasks = [_task(job.table, row, place) for row, place in enumerate(places)]
    (stage / "tasks.json").write_text(json.dumps(tasks, indent=1))
    view = ElementTree.Element("View")
    ElementTree.SubElement(view, "Image", name="image", value="$image")
    choices = ElementTree.SubElement(view, "Choices", name="category", toName="image", choice="single")
    for name in job.classes:
        ElementTree.SubElement(choices, "Choice", value=_xml_text(name))
    ElementTree.indent(view)
    ElementTree.ElementTree(view).write(stage / "config.xml", encoding="utf-8")
    return (
        "start Label Studio with LABEL_STUDIO_LOCAL_FILES_SERVING_ENABLED=true and "
        f"LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT={photos.parent}, make a project with config.xml as its labelling "
        f"interface, add {photos} as local storage (do not sync it), import tasks.json"
    )


def _fiftyone(job: _Job, stage: Path) -> str:
    """Images in `data`; in `labels.json` what is known of each, by its name without the ending; their features."""
    names = Names()
    parts = [os.path.splitext(os.path.basename(file)) for file in job.table["file"]]
    keys = [names.take(stem) for stem, _ in parts]
    (stage / "data").mkdir()
    job.place([stage / "data" / f"{key}{ending}" for key, (_, ending) in zip(keys, parts, strict=True)])
    number = {name: position for position, name in enumerate(job.classes)}
    labels = {
        key: {"label": number[category], "confidence": sure, "attributes": flags}
        for key, category, sure, flags in zip(
            keys, job.table["category"], job.table["confidence"], _flags(job.table), strict=True
        )
    }
    _save(stage / "embeddings.npy", job.features())
    (stage / "labels.json").write_text(json.dumps({"classes": job.classes, "labels": labels}, indent=1))
    kind = "fiftyone.types.FiftyOneImageClassificationDataset"
    return f"open it with fiftyone.Dataset.from_dir({str(job.out)!r}, dataset_type={kind})"


def _flags(table: Columns) -> Iterator[dict[str, Any]]:
    """What else is known of each image."""
    for row, sure in enumerate(table["confidence"]):
        flags = {name: bool(table[name][row]) for name in ("known", "labelled")} | {"doubtful": sure < DOUBTFUL}
        names = [name for name in ("runner_up", "distance", "file", "review") if name in table]
        yield flags | {name: table[name][row] for name in names}


def _features(run: Run, files: Sequence[str]) -> Any:
    """Features of these images, which are all of the run or, in the same order, some of them."""
    all_rows = enumerate(run.clusters["file"].to_pylist())
    rows = [next(row for row, name in all_rows if name == file) for file in files]
    return np.asarray(run.embeddings[rows], dtype=np.float32)


def _save(path: Path, rows: Any) -> None:
    """As `numpy.save` does, which does not say why it fails."""
    with path.open("wb") as file:
        npy.write_array_header_1_0(file, npy.header_data_from_array_1_0(rows))
        file.write(np.ascontiguousarray(rows).data.cast("B"))


FORMATS = {
    "folders": Format(_folders, folder=True, images=True),
    "csv": Format(_csv, folder=False, images=False),
    "parquet": Format(_parquet, folder=False, images=False),
    "label-studio": Format(_label_studio, folder=True, images=False),
    "fiftyone": Format(_fiftyone, folder=True, images=True),
}
"""What `--to` may say."""


def _check_place(run: Run, form: Format, out: Path) -> None:
    for photos in run.config.data.sources:
        check_outside(out, photos, "an --out")
    if form.folder:
        check_target_folder(out)
    else:
        check_target(out, [run.folder / f"clusters.{kind}" for kind in ("csv", "parquet")], _is_exported_table)


def _check_images(run: Run, job: _Job) -> None:
    """Refuse to hand out what is not there, not an image, or not the run's to name."""
    if "" in job.paths:
        file = job.table["file"][job.paths.index("")]
        raise InputError(
            f"{run.folder}: names {file}, which is not below {job.root}, and was not made here: run `selex discover` "
            "here, then export"
        )
    gone = [path for path in job.paths if not os.path.isfile(path)]
    if gone:
        more = f" (nor {len(gone) - 1} more)" if gone[1:] else ""
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


def _with_path(job: _Job) -> Columns:
    """The clusters table and where each image is, spelled as in the table."""
    return {**job.table, "path": [spell(path) for path in job.paths]}


def _task(table: Columns, row: int, place: str) -> dict[str, Any]:
    """What Label Studio is to show of an image, what it is thought to be, and what a person has said that it is."""
    image = f"/data/local-files/?d={quote(os.fsencode(place))}"
    choice = {
        "id": f"row-{row}",
        "from_name": "category",
        "to_name": "image",
        "type": "choices",
        "value": {"choices": [_xml_text(table["category"][row])]},
    }
    about = {name: table[name][row] for name in ("file", "known", "labelled", "runner_up", "distance")}
    prediction = {"model_version": "selex", "score": table["confidence"][row], "result": [choice]}
    task = {"data": {"image": image, **about}, "predictions": [prediction]}
    given = table["review"][row] == "confirmed" if "review" in table else table["labelled"][row]
    return {**task, "annotations": [{"result": [choice]}]} if given else task


def _xml_text(text: str) -> str:
    """Text without the control characters that XML has no way to write."""
    return _NOT_XML.sub("\ufffd", text)


def _link(source: str, target: Path) -> bool:
    """Whether a hard link could be made: not to another disk, nor on file systems that have none."""
    try:
        os.link(source, target)
    except OSError:
        return False
    return True


def _copy(source: str, target: Path) -> None:
    try:
        shutil.copy2(source, target)
    except OSError as error:
        raise InputError(f"{source}: cannot be copied ({error.strerror or error})") from None
