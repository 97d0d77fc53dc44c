"""The run folder: what a job was asked, what it found, and a model that sorts new images. The contract between steps.

Features grow in `.work/`. Results are staged in `.next/` and moved into place, features with them, once all are there.
Whoever opens a folder in which a move was cut short finishes it, so a crash at any point leaves the last good state or
the new one, never a mixture.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from selex import __version__
from selex.checksums import (
    Damaged,
    check_stamp,
    file_digest,
    known_digest,
    read_lines,
    read_object,
    stamped,
    stamped_line,
)
from selex.config import Config
from selex.data.clusters import Columns, write_columns
from selex.data.index import is_store
from selex.data.names import text_of_cell
from selex.data.parquet import read_parquet, write_parquet
from selex.data.table import real_path
from selex.errors import InputError, Note
from selex.folders import check_outside, check_own_folder, is_vacant, own_folder, remove, remove_folder
from selex.io import (
    first_line,
    is_plain_file,
    is_plain_folder,
    last_bytes,
    locked,
    read_csv,
    remove_leftovers,
    to_disk,
    whole,
)
from selex.seal import is_sealed, seal

FORMAT = 3
"""Changes when a run folder's files do, so that an older program does not misread a newer one."""

EMBEDDINGS = "embeddings.npy"
_FEATURE_FILES = (EMBEDDINGS, EMBEDDINGS + ".json")
BOARD = "tensorboard"
_CONFIG = "config.json"
_METRICS = "metrics.jsonl"
LABELS = "review-labels.csv"
"""The labels that the run was last done again with, if it was."""
_STAGE, _DONE, _WORK, _MODEL = ".next", "complete", ".work", "model"
_MODEL_FILES = tuple(f"{_MODEL}/{name}" for name in ("model.json", "model.safetensors", "trained.safetensors"))
_RESULTS = ("clusters.csv", "clusters.parquet", "skipped.csv", "hierarchy.json", _CONFIG, *_FEATURE_FILES)
_PUBLISHED = (*_RESULTS, *_MODEL_FILES)
"""All that a run's results are; whatever else is in the folder is somebody else's."""
_CHECKPOINT = re.compile(r"checkpoint-\d{5}\.pt")
_LIBRARIES = ("torch", "timm", "numpy", "scikit-learn")


@dataclass(frozen=True)
class Run:
    """A run folder. `create` makes one or resumes one, `open` reads one that is there.

    Attributes:
        folder: where it is.
    """

    folder: Path

    @classmethod
    @contextmanager
    def create(cls, folder: Path, config: Config, root: str) -> Iterator[Run]:
        """The run of `config` in `folder`, for one who writes: new, or one of the same photos to be done again.

        Refused work (an `InputError` before there are features or a checkpoint) leaves no new folder behind. Whatever
        else stops it leaves what is done, to resume from.
        """
        run = cls(folder)
        run._check_place(config)
        made = not folder.exists()
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise InputError(f"{folder}: cannot be made ({error.strerror})") from None
        with locked(folder) as ours:
            if not ours:
                raise InputError(f"{folder}: another selex command is writing to it; wait for it to end")
            new, resumed = not (folder / _CONFIG).exists(), run.work.exists()
            try:
                run._start(config, root)
                yield run
            except InputError:
                if new and not run.features.exists() and not any(map(_CHECKPOINT.fullmatch, _names(run.work))):
                    run._clear(made)
                elif not resumed and run._is_idle():
                    run._drop_work()
                raise

    @classmethod
    def open(cls, folder: str | Path) -> Run:
        """The run in `folder`; refuses what is not one, or one of another format."""
        run = cls(Path(folder))
        if not run.folder.is_dir():
            raise InputError(f"{folder}: no such run folder")
        _ = run.about
        run._recover()  # of a run only: whatever else has a folder of that name keeps it
        return run

    @property
    def about(self) -> dict[str, Any]:
        """What `config.json` says: settings, versions, the digests of result files."""
        path = self.folder / _CONFIG
        if not is_plain_file(path):
            raise InputError(f"{self.folder}: is not a run folder: it has no {_CONFIG}")
        record = read_object(path)
        _check_format(self.folder, record)
        check_stamp(path, record)
        return record

    def has(self, name: str) -> bool:
        """Whether there is such a result file."""
        return name in self.about["files"]

    @property
    def id(self) -> str:
        """Tells this run from others, whatever its results are."""
        return str(self.about["run"])

    @cached_property
    def config(self) -> Config:
        """What the run was asked to do."""
        return Config.from_json(self.about["config"])

    @property
    def root(self) -> Path:
        """The folder that the file names of the clusters table start from."""
        return Path(self.about["root"])

    def image_paths(self, files: Sequence[str]) -> list[str]:
        """Where images of the clusters table are; "" for one that only a run made here may name: outside its root."""
        root = str(self.root)
        paths = [real_path(root, file) for file in files]
        if is_sealed(self.about.get("seal"), root, self.clusters["file"].to_pylist()):
            return paths
        inside = os.path.join(os.path.realpath(root), "")
        if f"{os.path.expanduser('~')}/".startswith(inside):  # no folder of photos: all that a user has is below it
            return [""] * len(paths)
        return [path if os.path.realpath(path).startswith(inside) else "" for path in paths]

    @property
    def complete(self) -> bool:
        """Whether there are results."""
        return bool(self.about["files"])

    @property
    def busy(self) -> bool:
        """Whether a command is writing to it now."""
        if not self.folder.is_dir():
            return False
        with locked(self.folder) as ours:
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
        path = self.result(EMBEDDINGS)
        try:
            features: np.ndarray[Any, Any] = np.load(path, mmap_mode="r")
        except (OSError, ValueError, EOFError) as error:
            raise InputError(f"{path}: cannot be read ({first_line(error)})") from None
        return features

    @property
    def clusters(self) -> pa.Table:
        """The clusters table."""
        path = self.result("clusters.parquet")
        return read_parquet(path, path)

    @property
    def hierarchy(self) -> dict[str, Any]:
        """Categories and levels: names, sizes, parents."""
        path = self.result("hierarchy.json")
        return _checked_tree(path, read_object(path))

    @property
    def skipped(self) -> list[tuple[str, str]]:
        """Images that could not be read, and why."""
        lines = read_csv(self.result("skipped.csv"))[1:]
        return [(text_of_cell(line[0]), text_of_cell(line[-1])) for _, line in lines]

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """What was logged, one entry a step; a line that is damaged, or that a crash cut short, is left out."""
        path = self.folder / _METRICS
        entries, damaged = read_lines(path) if is_plain_file(path) else ([], 0)
        if damaged:
            warnings.warn(f"{path}: {damaged} of its lines are damaged or cut short, and left out", Note, stacklevel=2)
        return entries

    @property
    def store(self) -> Path | None:
        """Where decoded images were kept when the run was last done; None for the cache, or if that is no store now."""
        places = [entry.get("store") for entry in self.metrics if entry.get("step") == "decode"]
        place = places[-1] if places else None
        return Path(place) if isinstance(place, str) and is_store(Path(place)) else None

    def result(self, name: str) -> Path:
        """Where a result file is, which is what `config.json` says of it; one that is not is `Damaged`."""
        for _ in range(2):  # somebody may be putting new results in place
            files = self.about["files"]
            if not files:
                raise InputError(f"{self.folder}: has no results yet; run the same `selex discover` again to finish it")
            wrong = _misfit(self.folder / name, files.get(name))
            if not wrong:
                return self.folder / name
            self._recover()
        again = "`selex recluster`" if name == LABELS else "the same `selex discover`"
        raise Damaged(f"{self.folder / name}: {wrong}; put it back, or run {again} again")

    def labelled_by_review(self, config: Config) -> bool:
        """Whether the labels of `config` are the ones that decisions gave to this run."""
        return config.data.labels is not None and Path(config.data.labels).absolute() == self._labels

    @property
    def _labels(self) -> Path:
        return (self.folder / LABELS).absolute()

    def log(self, **values: Any) -> None:
        """Add a line to `metrics.jsonl`."""
        path = self.folder / _METRICS
        line = stamped_line({"time": round(time.time(), 3), **values})
        try:
            if is_plain_file(path) and last_bytes(path, 1) not in (b"", b"\n"):
                line = f"\n{line}"  # a crash cut the last one short
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o666), "w") as file:
                file.write(line)
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
            own_folder(stage)
            own_folder(stage / _MODEL)
            write_columns(stage / "clusters.csv", columns)
            write_parquet(stage / "clusters.parquet", pa.table(columns))
            files, reasons = zip(*skipped, strict=True) if skipped else ((), ())
            write_columns(stage / "skipped.csv", {"file": list(files), "reason": list(reasons)})
            (stage / "hierarchy.json").write_text(json.dumps(hierarchy, indent=1))
            save_model(stage / _MODEL)
            for name in _FEATURE_FILES:
                os.replace(self.features.with_name(name), stage / name)
            own = {LABELS: file_digest(self._labels)} if self.labelled_by_review(config) else {}
            record = _record(config, root, self.id, _digests(stage) | own)
            (stage / _CONFIG).write_text(stamped({**record, "seal": seal(root, columns["file"])}))
            names = [name for name in _PUBLISHED if (stage / name).exists()]
            for name in (*names, _MODEL):
                to_disk(stage / name)
            with whole(stage / _DONE) as partial:  # and the folder itself is on disk
                partial.write_text("\n".join(names))
        except (OSError, InputError, pa.ArrowException) as error:
            self._drop_stage()
            kept = "the old ones stay" if self.complete else "features are kept"
            raise InputError(f"{self.folder}: results cannot be written ({_reason(error)}); {kept}") from None
        self._settle()
        self.__dict__.pop("config", None)

    def _check_place(self, config: Config) -> None:
        """Refuse a folder that results of `config` may not go to."""
        folder = self.folder
        check_outside(folder, config.data.photos, "an --out")
        if (folder / _CONFIG).exists():
            old = Run.open(folder).config
            if old.data.photos != config.data.photos:
                raise InputError(f"{folder}: holds a run of other photos ({old.data.photos}); choose another --out")
        elif folder.is_dir():
            if not is_vacant(folder):
                raise InputError(f"{folder}: is not empty and not a run; choose another --out")
        elif folder.exists():
            raise InputError(f"{folder}: is a file; give a folder as --out")
        elif not folder.absolute().parent.is_dir():
            raise InputError(f"{folder}: the folder {folder.parent} does not exist; make it first")

    def _start(self, config: Config, root: str) -> None:
        """Write the config of a new run; lay out features of before, which may be the ones needed."""
        if not (self.folder / _CONFIG).exists():
            with whole(self.folder / _CONFIG) as partial:
                partial.write_text(stamped(_record(config, root, _new_id(config, root))))
        for name in (_STAGE, _MODEL, BOARD):
            check_own_folder(self.folder / name)
        try:
            own_folder(self.work)
            remove_leftovers(self.folder)
            remove_leftovers(self.work)
            if self.complete and not any(self.work.iterdir()):
                for name in _FEATURE_FILES:
                    _link(self.folder / name, self.work / name)
        except OSError as error:
            raise InputError(f"{self.folder}: cannot be written ({error.strerror})") from None

    def _is_idle(self) -> bool:
        """Whether nothing is done yet: there is no checkpoint, and features are those that the run has already."""
        made, own = self.features, self.folder / EMBEDDINGS
        same = not is_plain_file(made) or (is_plain_file(own) and made.samefile(own))
        return same and set(_names(self.work)) <= set(_FEATURE_FILES)

    def _clear(self, made: bool) -> None:
        """Leave no trace of a run that was refused: what was made for it, the config last, and nothing else."""
        self._drop_stage()
        self._drop_work()
        if is_plain_folder(self.folder / BOARD):
            shutil.rmtree(self.folder / BOARD)
        remove(self.folder, [_METRICS, _CONFIG])
        if made:
            remove_folder(self.folder, [])

    def _recover(self) -> None:
        """Finish a move that was cut short, or drop a stage that never was complete, unless its writer is at work."""
        if is_plain_folder(self.folder / _STAGE):
            with locked(self.folder, wait=self._staged() is not None) as ours:
                if ours:
                    self._settle()

    def _staged(self) -> list[str] | None:
        """What a complete stage has, or had before some of it was moved; None for one that is not complete."""
        done = self.folder / _STAGE / _DONE
        if not is_plain_folder(done.parent) or not is_plain_file(done):
            return None
        said = done.read_text(errors="replace").splitlines()
        return [name for name in _PUBLISHED if name in said]

    def _settle(self) -> None:
        """Move a complete stage into place; drop one that is not. Every step can be cut off and done again."""
        stage, names = self.folder / _STAGE, self._staged()
        if names is None:
            self._drop_stage()
            return
        try:
            own_folder(self.folder / _MODEL)
            for name in names:
                if is_plain_file(stage / name) and is_plain_folder((stage / name).parent):
                    os.replace(stage / name, self.folder / name)
            for name in set(_MODEL_FILES).difference(names):  # of the results before
                (self.folder / name).unlink(missing_ok=True)
            to_disk(self.folder / _MODEL)
            to_disk(self.folder)
            self._drop_work()
            remove_folder(stage / _MODEL, map(os.path.basename, _MODEL_FILES))
            remove_folder(stage, [*_RESULTS, _DONE])  # the mark last
        except OSError as error:
            raise InputError(
                f"{self.folder}: results are there but cannot be put in place ({first_line(error)}); mend that and try "
                "again"
            ) from None

    def _drop_stage(self) -> None:
        """Throw a stage away, but for features that are not in place yet: they took long."""
        stage = self.folder / _STAGE
        if not is_plain_folder(stage):
            return
        for name in _FEATURE_FILES if is_plain_folder(self.work) else ():
            if is_plain_file(stage / name):
                os.replace(stage / name, self.work / name)
        remove_folder(stage / _MODEL, map(os.path.basename, _MODEL_FILES))
        remove_folder(stage, [_DONE, *_RESULTS])

    def _drop_work(self) -> None:
        """Remove what is not needed once there are results: features in the making, checkpoints."""
        checkpoints = filter(_CHECKPOINT.fullmatch, _names(self.work))
        remove_folder(self.work, [*_FEATURE_FILES, f"{EMBEDDINGS}.part", *checkpoints])


def _record(config: Config, root: str, run: str, files: dict[str, str] | None = None) -> dict[str, Any]:
    settings = {"format": FORMAT, "config": config.to_json(), "root": root, "versions": versions()}
    return {**settings, "run": run, "files": files or {}}


def _check_format(folder: Path, record: dict[str, Any]) -> None:
    """Refuse what another program or another version wrote."""
    given = record.get("format")
    if not isinstance(given, int):
        raise InputError(f"{folder}: is not a run folder: its config.json is something else's")
    if given != FORMAT:
        age = "a newer" if given > FORMAT else "an older"
        said = record.get("versions")
        version = f" ({said['selex']})" if isinstance(said, dict) and "selex" in said else ""
        raise InputError(f"{folder}: was written by {age} version of selex{version}")
    kinds = {"config": dict, "root": str, "run": str, "files": dict}
    if not all(isinstance(record.get(name), kind) for name, kind in kinds.items()):
        raise InputError(f"{folder / _CONFIG}: is damaged: it lacks what every run has")


def _new_id(config: Config, root: str) -> str:
    """The same for the same work: then decisions about one are decisions about the other."""
    return hashlib.sha256(json.dumps([config.to_json(), root]).encode()).hexdigest()[:16]


def _digests(stage: Path) -> dict[str, str]:
    """The digests of result files, but for the table that is there for people, who may change it."""
    names = set(_PUBLISHED) - {"clusters.csv", _CONFIG}
    return {name: file_digest(stage / name) for name in sorted(names) if (stage / name).exists()}


def _misfit(path: Path, digest: str | None) -> str:
    """What is wrong with a result file; nothing if it has this digest."""
    if not is_plain_file(path):
        return "is missing"
    try:
        found = known_digest(path)
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return "" if found == digest else "is damaged, or of another run: its checksum is not the one in config.json"


def _checked_tree(path: Path, tree: dict[str, Any]) -> dict[str, Any]:
    """Refuse a hierarchy that lacks what everybody reads."""
    try:
        named = all(isinstance(name, str) for name in tree["names"])
        sizes = [len(level["sizes"]) for level in tree["levels"]]
        if not named or sizes[0] != len(tree["names"]) or not 0 <= tree["levels"][0]["n_known"] <= sizes[0]:
            raise ValueError("names and sizes differ")
        _ = tree["estimate"], tree["curve"]
        tree["last_number"] = int(tree.get("last_number", 0))  # which the first runs did not have
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise InputError(f"{path}: is not a hierarchy of selex ({type(error).__name__}: {first_line(error)})") from None
    return tree


_ROOMS = ("cluster", "losses", "data", "models", "features", "training")


def versions() -> dict[str, str]:
    """Versions of this package and its code, of what its results depend on, and of Python."""
    found = {library: found for library in _LIBRARIES if (found := _version(library))}
    return {"selex": __version__, "code": code_digest(), **found, "python": platform.python_version()}


@cache
def code_digest() -> str:
    """Changes with whatever may change a result: the code from images to categories, not that of pages and commands."""
    package = Path(__file__).parent
    files = [package / "config.py", *(file for room in _ROOMS for file in sorted((package / room).rglob("*.py")))]
    return hashlib.sha256(b"".join(hashlib.sha256(file.read_bytes()).digest() for file in files)).hexdigest()[:12]


def _version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None


def _names(folder: Path) -> list[str]:
    """What is in a folder of ours, if it is there."""
    return os.listdir(folder) if is_plain_folder(folder) else []


def _link(source: Path, target: Path) -> None:
    """The same file under another name, a copy where that cannot be."""
    if is_plain_file(source):
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
