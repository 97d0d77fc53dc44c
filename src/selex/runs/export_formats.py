"""What `selex export` can write: folders, tables, Label Studio tasks, a FiftyOne dataset."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

import numpy as np
from numpy.lib import format as npy

from selex.data.clusters import DOUBTFUL, Columns, write_blocks, write_columns
from selex.data.labels import Names, safe_name
from selex.data.parquet import as_row_groups
from selex.io import atomic_folder, atomic_path, reported

Progress = Callable[[int, int], None]

ORIGINALS = "originals.csv"
"""In exported folders: where each image came from. It has the columns of a label file too."""

SHARD = 1 << 20
"""Rows of a shard: at least so many, but for the last."""
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class ExportFormat:
    """One way to export: what writes it and says what to do with it, whether it is a folder, and one with images.

    A folder is written from an `ExportJob`, a `table` from blocks of its columns.
    """

    write: Callable[[Any, Path], str]
    folder: bool
    images: bool
    table: bool = False


@dataclass
class ExportJob:
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
                with reported(f"{real}: cannot be copied"):
                    shutil.copy2(real, target)
                self.copied += 1
            self.progress(done, len(targets))


def _folders(job: ExportJob, stage: Path) -> str:
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


def _csv(blocks: Iterator[Columns], out: Path) -> str:
    write_blocks(out, blocks)
    return f"open it in a spreadsheet, or with pandas.read_csv({str(out)!r})"


def _parquet(blocks: Iterator[Columns], out: Path) -> str:
    with atomic_path(out) as partial:
        for _ in as_row_groups(partial, blocks):
            pass
    return f"open it with pandas.read_parquet({str(out)!r})"


def _shards(blocks: Iterator[Columns], out: Path) -> str:
    """The same in several files, which other programs read at the same time."""
    with atomic_folder(out) as stage:
        for number, first in enumerate(blocks):
            for _ in as_row_groups(stage / f"{number:05}.parquet", _of_shard(first, blocks)):
                pass
    return f"open it with pandas.read_parquet({str(out)!r}), or whatever reads a folder of parquet files"


def _of_shard(first: Columns, others: Iterator[Columns]) -> Iterator[Columns]:
    """The first block and as many others as there is room for."""
    rows = 0
    for block in chain([first], others):
        yield block
        rows += len(block["file"])
        if rows >= SHARD:
            return


def _label_studio(job: ExportJob, stage: Path) -> str:
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


def _fiftyone(job: ExportJob, stage: Path) -> str:
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


def _save(path: Path, rows: Any) -> None:
    """As `numpy.save` does, which does not say why it fails."""
    with path.open("wb") as file:
        npy.write_array_header_1_0(file, npy.header_data_from_array_1_0(rows))
        file.write(np.ascontiguousarray(rows).data.cast("B"))


FORMATS = {
    "folders": ExportFormat(_folders, folder=True, images=True),
    "csv": ExportFormat(_csv, folder=False, images=False, table=True),
    "parquet": ExportFormat(_parquet, folder=False, images=False, table=True),
    "parquet-shards": ExportFormat(_shards, folder=True, images=False, table=True),
    "label-studio": ExportFormat(_label_studio, folder=True, images=False),
    "fiftyone": ExportFormat(_fiftyone, folder=True, images=True),
}
"""What `--to` may say."""


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
