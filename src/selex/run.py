"""The run folder: what a job was asked, what it found, and a model that sorts new images. The contract between steps.

Features grow in `.work/`. Results are staged in `.next/` and moved into place, features with them, once all are there.
Whoever opens a folder in which a move was cut short finishes it, so a crash at any point leaves the last good state or
the new one, never a mixture.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from selex import __version__
from selex.config import Config
from selex.data.clusters import Columns, write_columns
from selex.data.parquet import read_parquet, write_parquet
from selex.errors import InputError
from selex.io import first_line, whole, write_csv

FORMAT = 1
"""Changes when a run folder's files do, so that an older program does not misread a newer one."""

EMBEDDINGS = "embeddings.npy"
_FEATURE_FILES = (EMBEDDINGS, EMBEDDINGS + ".json")
_CONFIG = "config.json"
_STAGE, _DONE, _WORK = ".next", "complete", ".work"
_LEFTOVERS = (_STAGE, _WORK, f".{_CONFIG}.")  # what a kill -9 may leave before there is a config
_LIBRARIES = ("torch", "timm", "numpy", "scikit-learn")


@dataclass(frozen=True)
class Run:
    """A run folder. `create` makes one or goes on with one, `open` reads one that is there.

    Attributes:
        folder: where it is.
    """

    folder: Path

    @classmethod
    @contextmanager
    def create(cls, folder: Path, config: Config, root: str) -> Iterator[Run]:
        """The run of `config` in `folder`, for one who writes: new, or one of the same photos to be done again.

        Refused work (an `InputError` before there are features or a checkpoint) leaves no new folder behind. Whatever
        else stops it leaves what is done, to go on from.
        """
        run = cls(folder)
        run._check_place(config)
        made, new = not folder.exists(), not (folder / _CONFIG).exists()
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise InputError(f"{folder}: cannot be made ({error.strerror})") from None
        with _locked(folder) as ours:
            if not ours:
                raise InputError(f"{folder}: another selex command is writing to it; wait for it to end")
            try:
                run._start(config, root)
                yield run
            except InputError:
                if new and not run.features.exists() and not any(run.work.glob("checkpoint-*.pt")):
                    _clear(folder, made)
                raise

    @classmethod
    def open(cls, folder: str | Path) -> Run:
        """The run in `folder`; refuses what is not one, or one of another format."""
        run = cls(Path(folder))
        if not run.folder.is_dir():
            raise InputError(f"{folder}: no such run folder")
        run._recover()
        record = run._read_json(_CONFIG)
        if not isinstance(record.get("format"), int):
            raise InputError(f"{folder}: is not a run folder: its config.json is something else's")
        if record["format"] != FORMAT:
            age = "a newer" if record["format"] > FORMAT else "an older"
            raise InputError(
                f"{folder}: was written by {age} version of selex ({record.get('versions', {}).get('selex')})"
            )
        return run

    @cached_property
    def config(self) -> Config:
        """What the run was asked to do."""
        return Config.from_json(self._read_json(_CONFIG)["config"])

    @property
    def root(self) -> Path:
        """The folder that the file names of the clusters table start from."""
        return Path(self._read_json(_CONFIG)["root"])

    @property
    def complete(self) -> bool:
        """Whether there are results."""
        return (self.folder / "clusters.parquet").exists()

    @property
    def busy(self) -> bool:
        """Whether a command is writing to it now."""
        if not self.folder.is_dir():
            return False
        with _locked(self.folder) as ours:
            return not ours

    @property
    def work(self) -> Path:
        """Where the one who writes keeps what is not done yet: features, checkpoints."""
        return self.folder / _WORK

    @property
    def features(self) -> Path:
        """Where the one who writes makes features: they become the run's `embeddings` when results are published."""
        return self.work / EMBEDDINGS

    @property
    def embeddings(self) -> np.ndarray[Any, Any]:
        """Features of the images in the order of the clusters table, memory-mapped."""
        self._require(EMBEDDINGS)
        features: np.ndarray[Any, Any] = np.load(self.folder / EMBEDDINGS, mmap_mode="r")
        return features

    @property
    def clusters(self) -> pa.Table:
        """The clusters table."""
        self._require("clusters.parquet")
        return read_parquet(self.folder / "clusters.parquet", self.folder / "clusters.parquet")

    @property
    def hierarchy(self) -> dict[str, Any]:
        """Categories and levels: names, sizes, parents."""
        self._require("hierarchy.json")
        return self._read_json("hierarchy.json")

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """What was logged, one entry a step; a line that a crash cut short is left out."""
        path = self.folder / "metrics.jsonl"
        entries = []
        for line in path.read_text().splitlines() if path.exists() else []:
            with suppress(ValueError):
                entries.append(json.loads(line))
        return entries

    @property
    def store(self) -> Path | None:
        """Where decoded images were kept when the run was last done; None for the cache, or if it is gone."""
        places = [entry.get("store") for entry in self.metrics if entry.get("step") == "decode"]
        return Path(places[-1]) if places and places[-1] and Path(places[-1]).is_dir() else None

    def log(self, **values: Any) -> None:
        """Add a line to `metrics.jsonl`."""
        path = self.folder / "metrics.jsonl"
        try:
            with path.open("a") as file:
                file.write(json.dumps({"time": round(time.time(), 3), **values}) + "\n")
        except OSError as error:
            raise InputError(f"{path}: cannot be written ({error.strerror})") from None

    def publish(
        self,
        config: Config,
        root: str,
        columns: Columns,
        hierarchy: dict[str, Any],
        skipped: list[tuple[str, str]],
        save_model: Callable[[Path], None],
    ) -> None:
        """Put new results and their features in place of the old ones, all together."""
        stage = self.folder / _STAGE
        try:
            self._drop_stage()
            (stage / "model").mkdir(parents=True)
            write_columns(stage / "clusters.csv", columns)
            write_parquet(stage / "clusters.parquet", pa.table(columns))
            write_csv(stage / "skipped.csv", ["file", "reason"], skipped)
            (stage / "hierarchy.json").write_text(json.dumps(hierarchy, indent=1))
            (stage / _CONFIG).write_text(json.dumps(_record(config, root), indent=1))
            save_model(stage / "model")
            for name in _FEATURE_FILES:
                os.replace(self.features.with_name(name), stage / name)
            for path in (*stage.rglob("*"), stage):
                _to_disk(path)
            (stage / _DONE).touch()
        except (OSError, InputError, pa.ArrowException) as error:
            self._drop_stage()
            kept = "the old ones stay" if self.complete else "features are kept"
            raise InputError(f"{self.folder}: results cannot be written ({_reason(error)}); {kept}") from None
        self._settle()
        self.__dict__.pop("config", None)

    def _check_place(self, config: Config) -> None:
        """Refuse a folder that results of `config` may not go to."""
        folder, photos = self.folder, Path(config.photos)
        if config.photos and photos.is_dir() and photos.resolve() in (folder.resolve(), *folder.resolve().parents):
            raise InputError(f"{folder}: lies among the photos, which are only read; choose an --out outside {photos}")
        if (folder / _CONFIG).exists():
            old = Run.open(folder).config
            if old.photos != config.photos:
                raise InputError(f"{folder}: holds a run of other photos ({old.photos}); choose another --out")
        elif folder.is_dir():
            if not all(path.name.startswith(_LEFTOVERS) for path in folder.iterdir()):
                raise InputError(f"{folder}: is not empty and not a run; choose another --out")
        elif folder.exists():
            raise InputError(f"{folder}: is a file; give a folder as --out")
        elif not folder.absolute().parent.is_dir():
            raise InputError(f"{folder}: the folder {folder.parent} does not exist; make it first")

    def _start(self, config: Config, root: str) -> None:
        """Write the config of a new run; lay out features of before, which may be the ones needed."""
        if not (self.folder / _CONFIG).exists():
            with whole(self.folder / _CONFIG) as partial:
                partial.write_text(json.dumps(_record(config, root), indent=1))
        try:
            self.features.parent.mkdir(exist_ok=True)
            if self.complete and not any(self.features.parent.iterdir()):
                for name in _FEATURE_FILES:
                    _link(self.folder / name, self.features.with_name(name))
        except OSError as error:
            raise InputError(f"{self.folder}: cannot be written ({error.strerror})") from None

    def _recover(self) -> None:
        """Finish a move that was cut short, or drop a stage that never was complete, unless its writer is at work."""
        stage = self.folder / _STAGE
        if stage.exists():
            with _locked(self.folder, wait=(stage / _DONE).exists()) as ours:
                if ours:
                    self._settle()

    def _settle(self) -> None:
        """Move a complete stage into place; drop one that is not. Every step can be cut off and done again."""
        stage = self.folder / _STAGE
        if not (stage / _DONE).exists():
            self._drop_stage()
            return
        try:
            for path in stage.iterdir():
                target = self.folder / path.name
                if path.is_dir() and target.exists():
                    shutil.rmtree(target)
                if path.name != _DONE:
                    os.replace(path, target)
            shutil.rmtree(self.folder / _WORK, ignore_errors=True)
            (stage / _DONE).unlink()
            shutil.rmtree(stage, ignore_errors=True)  # not empty where a file was already the one in place
        except OSError as error:
            raise InputError(
                f"{self.folder}: results are there but cannot be put in place ({first_line(error)}); mend that and try "
                "again"
            ) from None

    def _drop_stage(self) -> None:
        """Throw a stage away, but for features that are not in place yet: they took long."""
        stage = self.folder / _STAGE
        for name in _FEATURE_FILES if self.features.parent.exists() else ():
            if (stage / name).exists():
                os.replace(stage / name, self.features.with_name(name))
        shutil.rmtree(stage, ignore_errors=True)

    def _require(self, name: str) -> None:
        if not (self.folder / name).exists():
            raise InputError(f"{self.folder}: has no results yet; run the same `selex discover` again to finish it")

    def _read_json(self, name: str) -> dict[str, Any]:
        try:
            values: dict[str, Any] = json.loads((self.folder / name).read_text())
        except FileNotFoundError:
            raise InputError(f"{self.folder}: is not a run folder: it has no {name}") from None
        except (OSError, ValueError) as error:
            raise InputError(f"{self.folder / name}: cannot be read ({first_line(error)})") from None
        if not isinstance(values, dict):
            raise InputError(f"{self.folder / name}: cannot be read (not an object)")
        return values


def _record(config: Config, root: str) -> dict[str, Any]:
    return {"format": FORMAT, "config": config.to_json(), "root": root, "versions": versions()}


def versions() -> dict[str, str]:
    """Versions of this package, of what its results depend on, and of Python."""
    found = {library: found for library in _LIBRARIES if (found := _version(library))}
    return {"selex": __version__, **found, "python": platform.python_version()}


def _version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None


@contextmanager
def _locked(folder: Path, wait: bool = False) -> Iterator[bool]:
    """Whether nobody else writes to a run while this lasts. The lock goes with the process, however that ends."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        yield _lock(handle, wait)
    finally:
        os.close(handle)


def _lock(handle: int, wait: bool) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: then it is for people to run one command at a time
        return True
    return True


def _clear(folder: Path, made: bool) -> None:
    """Leave no trace of a run that was refused."""
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    if made:
        folder.rmdir()


def _link(source: Path, target: Path) -> None:
    """The same file under another name, a copy where that cannot be."""
    if source.exists():
        try:
            os.link(source, target)
        except OSError:
            shutil.copyfile(source, target)


def _reason(error: BaseException) -> str:
    """Why something cannot be written: what the system said, without the names of our own temporary files."""
    cause = error.__context__ if isinstance(error, InputError) else error
    if isinstance(cause, OSError) and cause.errno:
        return os.strerror(cause.errno)
    return first_line(Exception(str(cause)))


def _to_disk(path: Path) -> None:
    """Wait until a file or folder is on the disk, so that a power cut after the move cannot lose it."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
