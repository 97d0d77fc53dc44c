"""Writing a run folder: who may, what is logged, how results are published, what refused work leaves (nothing)."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from selex.checksums import file_digest, seal, stamped, stamped_line
from selex.config import Config
from selex.data.clusters import Columns, write_blocks, write_columns
from selex.data.parquet import as_row_groups, read_blocks
from selex.errors import InputError
from selex.folders import check_outside, check_own_folder, is_vacant, own_folder, remove, remove_folder
from selex.io import (
    atomic_path,
    check_parent,
    first_line,
    is_plain_file,
    is_plain_folder,
    last_bytes,
    locked,
    remove_leftovers,
    reported,
)
from selex.progress import step_done
from selex.runs.run import FORMAT, LABELS, METRICS, Run, labelled_by_review
from selex.runs.stage import CONFIG, CONTENT, EMBEDDINGS, FEATURE_FILES, MODEL, PUBLISHED, Stage
from selex.runs.versions import versions_after

BOARD = "tensorboard"
TABLE = "clusters.parquet"


@contextmanager
def write_run(folder: Path, config: Config, root: str) -> Iterator[RunWriter]:
    """The run of `config` in `folder`, for one who writes: new, or one of the same photos to be done again.

    Refused work (an `InputError` before there are features or a checkpoint) leaves no new folder behind. Whatever
    else stops it leaves what is done, to resume from.
    """
    run = RunWriter(folder)
    run._check_place(config)
    made = not folder.exists()
    with reported(f"{folder}: cannot be created"):
        folder.mkdir(exist_ok=True)
    with locked(folder) as ours:
        if not ours:
            raise InputError(f"{folder}: another selex command is writing to it; wait for it to end")
        new, resumed = not (folder / CONFIG).exists(), run.work.exists()
        try:
            run._start(config, root)
            yield run
        except InputError:
            if new and not Stage(folder).has_work():
                run._clear(made)
            elif not resumed and Stage(folder).is_idle():
                Stage(folder).drop_work()
            raise


class RunWriter(Run):
    """A run folder for the one who writes to it, from `write_run`."""

    @property
    def features(self) -> Path:
        """Where the one who writes makes features: they become the run's `embeddings` when results are published."""
        return self.work / EMBEDDINGS

    def log(self, **values: Any) -> None:
        """Add a line to `metrics.jsonl`."""
        step_done(values)
        path = self.folder / METRICS
        line = stamped_line({"time": round(time.time(), 3), **values})
        with reported(f"{path}: cannot be written"):
            if is_plain_file(path) and last_bytes(path, 1) not in (b"", b"\n"):
                line = f"\n{line}"  # a crash cut the last one short
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o666), "w") as file:
                file.write(line)

    def leave(self) -> None:
        """Leave results as they are: there was nothing to do."""
        Stage(self.folder).drop_work()

    def publish(
        self,
        config: Config,
        root: str,
        blocks: Iterable[Columns],
        hierarchy: dict[str, Any],
        skipped: list[tuple[str, str]],
        save_model: Callable[[Path], None],
        content: np.ndarray[Any, Any] | None = None,
    ) -> None:
        """Put new results, the table in `blocks`, and their features in place of the old ones, all together.

        `content` tells images from each other, in the order of the table, whatever their files are called.
        """
        stage = Stage(self.folder)
        try:
            place = stage.new()
            _write_tables(place, blocks, hierarchy, skipped)
            if content is not None:
                np.save(place / CONTENT, content)
            save_model(place / MODEL)
            for name in FEATURE_FILES:
                os.replace(self.features.with_name(name), place / name)
            own = {LABELS: file_digest(self.folder / LABELS)} if labelled_by_review(self.folder, config) else {}
            record = _record(config, root, self.id, _digests(place) | own, self.about.get("versions"))
            files = (block["file"].to_pylist() for block in read_blocks(place / TABLE, ["file"]))
            (place / CONFIG).write_text(stamped({**record, "seal": seal(root, files)}))
            stage.mark()
        except (OSError, InputError, pa.ArrowException) as error:
            stage.drop()
            kept = "the old ones stay" if self.complete else "features are kept"
            raise InputError(f"{self.folder}: results cannot be written ({_reason(error)}); {kept}") from None
        stage.settle()
        self.__dict__.pop("config", None)

    def _check_place(self, config: Config) -> None:
        """Refuse a folder that results of `config` may not go to."""
        folder = self.folder
        for photos in config.data.sources:
            check_outside(folder, photos, "an --out")
        if (folder / CONFIG).exists():
            old = Run.open(folder)
            if not old.is_of(config.data.photos):
                photos = old.config.data.photos
                raise InputError(f"{folder}: holds a run of other photos ({photos}); choose another --out")
        elif folder.is_dir():
            if not is_vacant(folder):
                raise InputError(f"{folder}: is not empty and not a run; choose another --out")
        elif folder.exists():
            raise InputError(f"{folder}: is a file; give a folder as --out")
        else:
            check_parent(folder)

    def _start(self, config: Config, root: str) -> None:
        """Write the config of a new run; lay out features of before, which may be the ones needed."""
        if not (self.folder / CONFIG).exists():
            with atomic_path(self.folder / CONFIG) as partial:
                partial.write_text(stamped(_record(config, root, _new_id(config, root))))
        for path in (Stage(self.folder).folder, self.folder / MODEL, self.folder / BOARD):
            check_own_folder(path)
        with reported(f"{self.folder}: cannot be written"):
            own_folder(self.work)
            remove_leftovers(self.folder)
            remove_leftovers(self.work)
            if self.complete and not any(self.work.iterdir()):
                for name in FEATURE_FILES:
                    _link(self.folder / name, self.work / name)

    def _clear(self, made: bool) -> None:
        """Leave no trace of a run that was refused: what was made for it, the config last, and nothing else."""
        Stage(self.folder).drop()
        Stage(self.folder).drop_work()
        if is_plain_folder(self.folder / BOARD):
            shutil.rmtree(self.folder / BOARD)
        remove(self.folder, [METRICS, CONFIG])
        if made:
            remove_folder(self.folder, [])


def _write_tables(
    place: Path, blocks: Iterable[Columns], hierarchy: dict[str, Any], skipped: list[tuple[str, str]]
) -> None:
    write_blocks(place / "clusters.csv", as_row_groups(place / TABLE, blocks))
    files, reasons = zip(*skipped, strict=True) if skipped else ((), ())
    write_columns(place / "skipped.csv", {"file": list(files), "reason": list(reasons)})
    (place / "hierarchy.json").write_text(json.dumps(hierarchy, indent=1))


def _record(
    config: Config, root: str, run: str, files: dict[str, str] | None = None, before: dict[str, str] | None = None
) -> dict[str, Any]:
    settings = {"format": FORMAT, "config": config.to_json(), "root": root, "versions": versions_after(before or {})}
    return {**settings, "run": run, "files": files or {}}


def _new_id(config: Config, root: str) -> str:
    """The same for the same work: then decisions about one are decisions about the other."""
    return hashlib.sha256(json.dumps([config.to_json(), root]).encode()).hexdigest()[:16]


def _digests(stage: Path) -> dict[str, str]:
    """The digests of result files, but for the table that is there for people, who may change it."""
    names = set(PUBLISHED) - {"clusters.csv", CONFIG}
    return {name: file_digest(stage / name) for name in sorted(names) if (stage / name).exists()}


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
