"""The images of a job and what is known about them, from a folder, a CSV or parquet file, or a Python list."""

from __future__ import annotations

import os
import unicodedata
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from PIL import Image

from selex.data.labels import (
    LABEL_FILES,
    UNLABELLED_FOLDERS,
    LabelFile,
    NoLabelColumn,
    encode,
    first_repeat,
    label_name,
    read_label_file,
    readings,
    spell,
    unspell,
)
from selex.errors import InputError, Note
from selex.types import UNLABELLED

Source = str | Image.Image
Labels = np.ndarray[Any, np.dtype[np.int64]]

READABLE = (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".tif", ".tiff", ".bmp", ".dib")
# Pictures we cannot read are listed all the same: the store skips them and says so, instead of losing them silently.
PICTURES = (*READABLE, ".svg", ".heic", ".heif", ".avif", ".jxl")
METADATA = ("metadata.csv", "metadata.parquet")


@dataclass(frozen=True, eq=False)
class ImageTable:
    """Images in row order: their names as the user knows them, and a label each, `UNLABELLED` where there is none.

    Row `i` is the file `root/files[i]`, its name spelled as in `data/labels.py`, unless `sources[i]` holds the image.
    `labels` count into `categories`, the known categories in sorted order.
    """

    files: list[str]
    labels: Labels
    categories: list[str]
    root: str = ""
    sources: dict[int, Source] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.files)

    @property
    def labelled(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which rows have a label."""
        return np.not_equal(self.labels, UNLABELLED)

    @property
    def n_known(self) -> int:
        """How many categories are known."""
        return len(self.categories)

    @property
    def label_names(self) -> list[str]:
        """The category of each row, "" where it is unlabelled."""
        return [self.categories[label] if label != UNLABELLED else "" for label in self.labels]

    def source(self, row: int) -> Source:
        """The path of a row's image, or the image itself."""
        return self.sources[row] if row in self.sources else os.path.join(self.root, unspell(self.files[row]))

    def take(self, rows: Sequence[int] | Labels) -> ImageTable:
        """The table of some rows, in that order; a category that loses its last labelled row is no longer known."""
        rows = np.asarray(rows, dtype=np.int64)
        labels = self.labels[rows]
        kept = np.unique(labels[labels != UNLABELLED])
        return ImageTable(
            [self.files[row] for row in rows],
            np.where(labels == UNLABELLED, UNLABELLED, np.searchsorted(kept, labels)),
            [self.categories[label] for label in kept],
            self.root,
            {i: self.sources[row] for i, row in enumerate(rows.tolist()) if row in self.sources},
        )


def read_table(
    source: str | os.PathLike[str] | Sequence[Any] | ImageTable,
    labels: str | os.PathLike[str] | Sequence[Any] | None = None,
    root: str | os.PathLike[str] | None = None,
) -> ImageTable:
    """The images of a folder, a CSV or parquet file, one image file, or a list of paths or PIL images.

    `labels` is a CSV or parquet file, or a sequence with one label per image. It replaces what the source says:
    images it does not name are unlabelled. `root` is where the names in a CSV or parquet source start.
    """
    table = source if isinstance(source, ImageTable) else _read_source(source, labels is not None, root)
    if labels is None:
        return table
    if isinstance(labels, (str, os.PathLike)):
        return _label(table, read_label_file(os.fspath(labels)))
    return label_from_list(table, labels)


def is_url(place: str) -> bool:
    """Whether images are elsewhere than on this disk."""
    return "://" in place


def is_there(place: str) -> bool:
    """Whether a source of photos can be looked into; of a URL nobody knows."""
    return is_url(place) or os.path.exists(place)


def read_sources(sources: Sequence[str], labels: str | os.PathLike[str] | Sequence[Any] | None = None) -> ImageTable:
    """The images of several sources as one table: those of the first, then those of others that are not among them.

    Images that do not lie in the first one's folder are named by their whole path.
    """
    if len(sources) == 1:
        return read_table(sources[0], labels)
    first, *others = (read_table(source) for source in sources)
    files = {
        real_path(first.root, file): (file, name) for file, name in zip(first.files, first.label_names, strict=True)
    }
    for other in others:
        for file, name in zip(other.files, other.label_names, strict=True):
            path = real_path(other.root, file)
            inside = os.path.relpath(path, first.root)
            files.setdefault(path, (spell(path if inside.startswith(os.pardir) else inside), name))
    table = ImageTable([file for file, _ in files.values()], *encode(name for _, name in files.values()), first.root)
    return read_table(table, labels)


def from_folder(folder: str | os.PathLike[str], use_metadata: bool = True) -> ImageTable:
    """Images below a folder: first-level sub-folders are categories, loose files and `unlabelled/` have no label.

    A `metadata.csv` or `metadata.parquet` in the folder replaces the labels that the sub-folders give.
    Hidden files and folders are left out. No image is opened.
    """
    folder = os.fspath(folder)
    if not os.path.isdir(folder):
        raise InputError(f"{folder}: no such folder")
    root = os.path.abspath(folder)
    try:
        paths = sorted(_walk(root))
    except OSError as error:
        raise InputError(f"{error.filename}: cannot list this folder ({error.strerror})") from None
    if not paths:
        raise InputError(f"{folder}: no images in this folder (JPEG, PNG, WebP, GIF, TIFF or BMP)")
    files = [spell(path) for path in paths]
    table = ImageTable(files, *encode(map(folder_label, files)), root)
    return _with_metadata(table) if use_metadata else table


def from_file(path: str | os.PathLike[str], root: str | os.PathLike[str] | None = None) -> ImageTable:
    """Images named by a CSV or parquet file, in its order; names are relative to `root`, else to the file's folder."""
    file = read_label_file(os.fspath(path))
    if not file.names:
        raise InputError(f"{file.path}: no image is named in this file")
    root = os.path.abspath(file.folder if root is None else root)
    names = [_name_on_disk(root, name) for name in file.names]
    file.check_present([row for row, name in enumerate(names) if name is None])
    present = [name for name in names if name is not None]
    file.check_unique([os.path.normpath(os.path.join(root, name)) for name in present])
    return ImageTable([spell(name) for name in present], *encode(file.labels), root)


def from_list(images: Sequence[str | os.PathLike[str] | Image.Image]) -> ImageTable:
    """Paths or PIL images (or some of each), unlabelled; a PIL image is named by its position, as `image-000007`."""
    if not len(images):
        raise InputError("the list of images is empty")
    held: dict[int, Source] = {row: image for row, image in enumerate(images) if isinstance(image, Image.Image)}
    paths = [f"image-{row:06d}" if row in held else _path_name(image, row) for row, image in enumerate(images)]
    absent = [path for row, path in enumerate(paths) if row not in held and not os.path.isfile(path)]
    if absent:
        raise InputError(f"no such image: {absent[0]}" + (f" (and {len(absent) - 1} more)" if absent[1:] else ""))
    if twice := first_repeat(map(os.path.abspath, paths)):
        raise InputError("{} is in the list twice, at {} and {}".format(paths[twice[1]], *twice))
    files = [spell(path) for path in paths]
    return ImageTable(files, *encode([""] * len(files)), os.getcwd(), held)


def label_from_list(table: ImageTable, labels: Sequence[Any]) -> ImageTable:
    """The table with one label per row; None, "", nan and the number -1 say unlabelled."""
    if len(labels) != len(table):
        raise InputError(f"{len(labels)} labels for {len(table)} images")
    numbers, categories = encode(map(label_name, labels))
    return replace(table, labels=numbers, categories=categories)


def real_path(root: str | os.PathLike[str], file: str) -> str:
    """Where the image is that a table of this root calls `file`."""
    return os.path.normpath(os.path.join(root, unspell(file)))


def _read_source(source: str | os.PathLike[str] | Sequence[Any], has_labels: bool, root: Any) -> ImageTable:
    if not isinstance(source, (str, os.PathLike)):
        return from_list(source)
    path = os.fspath(source)
    if os.path.isdir(path):
        return from_folder(path, use_metadata=not has_labels)
    if not os.path.exists(path):
        raise InputError(f"{path}: no such file or folder")
    if path.lower().endswith(LABEL_FILES):
        return from_file(path, root)
    if path.lower().endswith(PICTURES):
        return from_list([path])
    raise InputError(f"{path}: neither a folder of images nor a CSV or parquet file")


def _walk(root: str) -> Iterator[str]:
    """Paths of the images below `root`, relative to it; each folder once, under its own name rather than a link's."""
    seen, folders, links = set(), [""], list[str]()
    while folders or links:
        folder = folders.pop() if folders else links.pop(0)
        here = os.path.join(root, folder)
        status = os.stat(here)
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        with os.scandir(here) as entries:
            visible = sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda e: e.name)
        before = os.path.join(folder, "")
        for entry in visible:
            path = before + entry.name
            if entry.is_symlink() and os.path.isdir(entry.path):
                links.append(path)
            elif entry.is_dir(follow_symlinks=False):
                folders.append(path)
            elif entry.name.lower().endswith(PICTURES) and (entry.is_symlink() or entry.is_file()):
                yield path


def folder_label(file: str) -> str:
    """The category that an image's first-level folder says, "" where it says none."""
    first, _, rest = file.partition("/")
    return "" if not rest or first.lower() in UNLABELLED_FOLDERS else first


def _with_metadata(table: ImageTable) -> ImageTable:
    for path in (os.path.join(table.root, name) for name in METADATA):
        if os.path.isfile(path):
            try:
                return _label(table, read_label_file(path))
            except NoLabelColumn:
                warnings.warn(
                    f"{path} has no column 'label': the sub-folders are used as categories", Note, stacklevel=2
                )
    return table


def _label(table: ImageTable, file: LabelFile) -> ImageTable:
    """The table with the labels of a file; names start at the table's root or at the file's folder."""
    rows = _RowsByPath(table)
    found = [rows.find(name, (table.root, file.folder)) for name in file.names]
    file.check_present([i for i, row in enumerate(found) if row < 0])
    file.check_unique(found)
    names = [""] * len(table)
    for row, label in zip(found, file.labels, strict=True):
        names[row] = label
    labels, categories = encode(names)
    return replace(table, labels=labels, categories=categories)


class _RowsByPath:
    """The rows of a table by the paths of their images."""

    def __init__(self, table: ImageTable) -> None:
        self._exact = {real_path(table.root, file): row for row, file in enumerate(table.files)}
        self._loose = dict[str, int]()
        for path, row in self._exact.items():
            self._loose[_composed(path)] = -1 if _composed(path) in self._loose else row  # of twins neither is meant

    def find(self, cell: str, folders: Sequence[str]) -> int:
        """The row that a cell of a table names, in whichever folder it starts; -1 if there is none."""
        paths = [os.path.normpath(os.path.join(folder, name)) for folder in folders for name in readings(cell)]
        rows = [self._exact.get(path, -1) for path in paths] + [self._loose.get(_composed(path), -1) for path in paths]
        return next((row for row in rows if row >= 0), -1)


def _composed(path: str) -> str:
    """One spelling per path: some systems write é as one character, others as two."""
    return unicodedata.normalize("NFC", path)


def _name_on_disk(root: str, cell: str) -> str | None:
    """The path, from `root`, of the file that a cell of a table names; None if there is none."""
    return next((name for name in readings(cell) if os.path.isfile(os.path.join(root, name))), None)


def _path_name(image: object, position: int) -> str:
    if isinstance(image, (str, os.PathLike)):
        return os.fspath(image)
    raise InputError(f"item {position} of the list is neither a path nor a PIL image but {type(image).__name__}")
