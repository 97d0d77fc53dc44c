"""Images wherever they are, in units that a worker reads by itself: files of a folder or URL, tar shards, parquet.

A unit is a small record that travels to a worker; what it `read`s there are encoded images with their names and labels.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple

import fsspec
import pyarrow.parquet as pq

from selex.data.labels import label_name, spell
from selex.data.table import PICTURES, ImageTable, folder_label, is_url, read_sources
from selex.errors import InputError
from selex.io import first_line

PIECE = 256
"""Images of a unit, or of what a larger unit is read in: what is embedded, and kept on disk, at a time."""
SHARDS = (".tar", ".parquet")
_CHANGES = ("size", "ETag", "etag", "mtime", "LastModified", "updated", "last_modified")


class Encoded(NamedTuple):
    """An image as it is on disk; without `data` the `reason` why it cannot be read."""

    name: str
    label: str
    data: bytes | None
    reason: str = ""


@dataclass(frozen=True)
class Files:
    """Single files of one folder, on disk or behind a URL; `versions` change when they do."""

    place: str
    names: tuple[str, ...]
    paths: tuple[str, ...]
    labels: tuple[str, ...]
    versions: tuple[str, ...]

    def read(self) -> Iterator[Encoded]:
        """Each file whole; one that is not there or may not be read has a reason."""
        files = _filesystem(self.place)[0]
        for name, path, label in zip(self.names, self.paths, self.labels, strict=True):
            try:
                data, reason = files.cat_file(path), ""
            except Exception as error:  # file systems behind URLs have errors of their own
                data, reason = None, getattr(error, "strerror", None) or first_line(error)
            yield Encoded(name, label, data, reason)


@dataclass(frozen=True)
class Tar:
    """A shard in WebDataset's layout: `key.jpg`, and beside it `key.cls` with a label, if there is one."""

    place: str
    version: str

    def read(self) -> Iterator[Encoded]:
        """Images in the order of the archive, which is read once from beginning to end."""
        files, path = _filesystem(self.place)
        shard = os.path.basename(path)
        with files.open(path, "rb") as stream, tarfile.open(fileobj=stream, mode="r|*") as archive:
            for _, members in groupby(filter(tarfile.TarInfo.isfile, archive), _sample):
                image, label = None, ""
                for member in members:
                    content = archive.extractfile(member)
                    assert content is not None  # of a file there is one
                    kind = os.path.basename(member.name).partition(".")[2]
                    if f".{kind.lower()}".endswith(PICTURES):
                        image = (member.name, content.read())
                    elif kind == "cls":
                        label = label_name(content.read().decode("utf-8", "replace").strip())
                if image:
                    yield Encoded(_name(shard, f"{shard}/{image[0]}"), label, image[1])


def _sample(member: tarfile.TarInfo) -> tuple[str, str]:
    """What members of one sample have in common: their folder, and their name before the first dot."""
    folder, _, base = member.name.rpartition("/")
    return folder, base.partition(".")[0]


@dataclass(frozen=True)
class RowGroup:
    """A row group of a parquet file with a column `image`: bytes, or a struct with `bytes` as Hugging Face writes."""

    place: str
    version: str
    number: int

    def read(self) -> Iterator[Encoded]:
        """Images in the order of rows; `file_name` and `label` are read where there are such columns."""
        files, path = _filesystem(self.place)
        with files.open(path, "rb") as stream:
            table = pq.ParquetFile(stream).read_row_group(self.number)
        columns = {name: table[name].to_pylist() for name in ("file_name", "label") if name in table.column_names}
        unnamed = [f"{os.path.basename(path)}/{self.number:04}-{row:06}" for row in range(len(table))]
        names, labels = columns.get("file_name", unnamed), columns.get("label", [None] * len(table))
        for name, label, image in zip(names, labels, table["image"].to_pylist(), strict=True):
            data = image.get("bytes") if isinstance(image, dict) else image
            reason = "" if data else "there are no bytes"
            yield Encoded(_name(os.path.basename(path), str(name)), label_name(label), data, reason)


Unit = Files | Tar | RowGroup
"""Images that one worker reads one after the other (`read`), and where they are, for messages (`place`)."""


def _name(shard: str, name: str) -> str:
    """What an image in a shard is called: never by what could be another file, elsewhere on this disk."""
    if name.startswith("/") or ".." in name.split("/"):
        inside = [part for part in name.removeprefix(f"{shard}/").split("/") if part not in ("", ".", "..")]
        name = "/".join([shard, *inside])
    return spell(name)


def find_units(sources: Sequence[str], labels: Any = None) -> tuple[str, list[Unit]]:
    """The root of the images, and the units that they come in; nothing is opened that need not be."""
    place = sources[0]
    if len(sources) > 1 and any(is_url(source) for source in sources):
        raise InputError("photos at a URL cannot be combined with others: give only one source")
    if place.lower().endswith(".tar") or (place.lower().endswith(".parquet") and _holds_images(place)):
        return os.path.dirname(place), _shards([place])
    if is_url(place):
        return place, _behind(place)
    if found := _shards_in(place):
        return os.path.abspath(place), _shards(found)
    table = read_sources(sources, labels)
    return table.root, _files_of(table)


def key_of(unit: Unit) -> str:
    """Changes when the unit, or an image of it, does; not with the labels of files, which features do not depend on."""
    shown = replace(unit, labels=()) if isinstance(unit, Files) else unit
    return hashlib.sha256(repr(shown).encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _files_of(table: ImageTable) -> list[Unit]:
    """A folder or table on a disk that all workers see."""
    paths = [str(table.source(row)) for row in range(len(table))]
    return _in_files(table.root, table.files, paths, table.label_names, [_version(_stat(path)) for path in paths])


def _in_files(
    place: str, names: Sequence[str], paths: Sequence[str], labels: Sequence[str], versions: Sequence[str]
) -> list[Unit]:
    columns = (names, paths, labels, versions)
    cuts = [slice(start, start + PIECE) for start in range(0, len(names), PIECE)]
    return [Files(place, *(tuple(column[cut]) for column in columns)) for cut in cuts]


def _stat(path: str) -> dict[str, Any]:
    try:
        found = os.stat(path)
    except OSError:  # it will be skipped, with a reason
        return {}
    return {"size": found.st_size, "mtime": found.st_mtime_ns}


def _behind(url: str) -> list[Unit]:
    """What is below a URL: images, whose first-level folders are categories, or shards of them."""
    files, root = _filesystem(url)
    try:
        found = files.find(root, detail=True)
    except Exception as error:  # file systems behind URLs have errors of their own
        raise InputError(f"{url}: cannot be listed: {first_line(error)}") from None
    names = {path: os.path.relpath(path, root) for path in sorted(found)}
    shown = {path: name for path, name in names.items() if not any(p.startswith(".") for p in name.split("/"))}
    images = [path for path in shown if path.lower().endswith(PICTURES)]
    if images:
        labels = [folder_label(shown[path]) for path in images]
        versions = [_version(found[path]) for path in images]
        return _in_files(url, [spell(shown[path]) for path in images], images, labels, versions)
    shards = [files.unstrip_protocol(path) for path in shown if path.lower().endswith(SHARDS)]
    if not shards:
        raise InputError(f"{url}: no images and no .tar or .parquet shards there")
    return _shards(shards)


def _shards_in(folder: str) -> list[str]:
    """The shards in a folder on disk that holds no images of its own; a table of labels is no shard."""
    if not os.path.isdir(folder):
        return []
    names = sorted(name for name in os.listdir(folder) if not name.startswith("."))
    found = [os.path.join(folder, name) for name in names if name.lower().endswith(SHARDS)]
    tars = [path for path in found if path.lower().endswith(".tar")]
    return found if tars else [path for path in found if _holds_images(path)]


def _shards(places: Sequence[str]) -> list[Unit]:
    units: list[Unit] = []
    for place in places:
        files, path = _filesystem(place)
        try:
            version = _version(files.info(path))
            if place.lower().endswith(".tar"):
                units.append(Tar(place, version))
            else:
                with files.open(path, "rb") as stream:
                    groups = pq.ParquetFile(stream).num_row_groups
                units += [RowGroup(place, version, number) for number in range(groups)]
        except Exception as error:  # as above
            raise InputError(f"{place}: cannot be read: {first_line(error)}") from None
    return units


def _holds_images(place: str) -> bool:
    files, path = _filesystem(place)
    try:
        with files.open(path, "rb") as stream:
            return "image" in pq.ParquetFile(stream).schema_arrow.names
    except Exception as error:  # as above
        raise InputError(f"{place}: cannot be read: {first_line(error)}") from None


def _version(info: dict[str, Any]) -> str:
    return " ".join(str(info[name]) for name in _CHANGES if name in info)


def _filesystem(place: str) -> tuple[Any, str]:
    """Who reads a place, and how the place is called there."""
    try:
        files, path = fsspec.core.url_to_fs(place)
    except (ImportError, ValueError) as error:
        raise InputError(f"{place}: {first_line(error)}") from None
    return files, str(path)
