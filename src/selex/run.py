"""The run folder: what a job was asked, what it found, and a model that sorts new images. The contract between steps.

Results are staged in `.next/` and moved into place once all are there. Whoever opens a folder in which a move was cut
short finishes it, so a crash at any point leaves the last good state or the new one, never a mixture.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

from selex.config import Config
from selex.data.clusters import Columns, write_columns
from selex.data.files import first_line, whole, write_csv
from selex.errors import InputError

FORMAT = 1
"""Changes when a run folder's files do, so that an older program does not misread a newer one."""

EMBEDDINGS = "embeddings.npy"
_STAGE, _DONE = ".next", "complete"
_LIBRARIES = ("selex", "torch", "timm", "numpy", "scikit-learn")


@dataclass(frozen=True)
class Run:
    """A run folder. `create` makes one or goes on with one, `open` reads one that is there."""

    folder: Path

    @classmethod
    def create(cls, folder: Path, config: Config) -> Run:
        """The run of `config` in `folder`: new, or one of the same photos to be done again with what it has."""
        if (folder / "config.json").exists():
            old = cls.open(folder).config
            if old.photos != config.photos:
                raise InputError(f"{folder}: holds a run of other photos ({old.photos}); choose another --out")
        elif folder.exists() and any(folder.iterdir()):
            raise InputError(f"{folder}: is not empty and not a run; choose another --out")
        run = cls(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{folder}: cannot be made ({error.strerror})") from None
        if not (folder / "config.json").exists():
            run._write_json("config.json", _record(config, ""))
        return run

    @classmethod
    def open(cls, folder: Path) -> Run:
        """The run in `folder`; refuses what is not one, or one of another format."""
        run = cls(Path(folder))
        if not run.folder.is_dir():
            raise InputError(f"{folder}: no such run folder")
        run._recover()
        record = run._read_json("config.json")
        if record.get("format") != FORMAT:
            age = "a newer" if (record.get("format") or 0) > FORMAT else "an older"
            raise InputError(
                f"{folder}: was written by {age} version of selex ({record.get('versions', {}).get('selex')})"
            )
        return run

    @cached_property
    def config(self) -> Config:
        """What the run was asked to do."""
        return Config.from_json(self._read_json("config.json")["config"])

    @property
    def root(self) -> Path:
        """The folder that the file names of the clusters table start from."""
        return Path(self._read_json("config.json")["root"])

    @property
    def complete(self) -> bool:
        """Whether there are results."""
        return (self.folder / "clusters.parquet").exists()

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
        return parquet.read_table(self.folder / "clusters.parquet")

    @property
    def hierarchy(self) -> dict[str, Any]:
        """Categories and levels: names, sizes, parents."""
        return self._read_json("hierarchy.json")

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """What was logged, one entry a step."""
        path = self.folder / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def log(self, **values: Any) -> None:
        """Add a line to `metrics.jsonl`."""
        with (self.folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"time": round(time.time(), 3), **values}) + "\n")

    def publish(
        self,
        config: Config,
        root: str,
        columns: Columns,
        hierarchy: dict[str, Any],
        skipped: list[tuple[str, str]],
        save_model: Callable[[Path], None],
    ) -> None:
        """Put new results in place of the old ones, all together."""
        stage = self.folder / _STAGE
        try:
            shutil.rmtree(stage, ignore_errors=True)
            (stage / "model").mkdir(parents=True)
            write_columns(stage / "clusters.csv", columns)
            parquet.write_table(pa.table(columns), stage / "clusters.parquet")
            write_csv(stage / "skipped.csv", ["file", "reason"], skipped)
            (stage / "hierarchy.json").write_text(json.dumps(hierarchy, indent=1))
            (stage / "config.json").write_text(json.dumps(_record(config, root), indent=1))
            save_model(stage / "model")
            for path in stage.rglob("*"):
                _to_disk(path)
            (stage / _DONE).touch()
            self._recover()
        except (OSError, pa.ArrowException) as error:
            shutil.rmtree(stage, ignore_errors=True)
            raise InputError(
                f"{self.folder}: results cannot be written ({first_line(error)}); the old ones stay"
            ) from None
        self.__dict__.pop("config", None)

    def _recover(self) -> None:
        """Finish a move that was cut short, or drop a stage that never was complete."""
        stage = self.folder / _STAGE
        if not stage.exists():
            return
        if (stage / _DONE).exists():
            for path in stage.iterdir():
                target = self.folder / path.name
                if path.is_dir():
                    shutil.rmtree(target, ignore_errors=True)
                if path.name != _DONE:
                    os.replace(path, target)
            (stage / _DONE).unlink()
        shutil.rmtree(stage, ignore_errors=True)

    def _require(self, name: str) -> None:
        if not (self.folder / name).exists():
            raise InputError(f"{self.folder}: has no results yet; run the same `selex discover` again to finish it")

    def _read_json(self, name: str) -> dict[str, Any]:
        try:
            values: dict[str, Any] = json.loads((self.folder / name).read_text())
        except FileNotFoundError:
            missing = "is not a run folder" if name == "config.json" else f"has no {name}: the run is not finished"
            raise InputError(f"{self.folder}: {missing}") from None
        except (OSError, ValueError) as error:
            raise InputError(f"{self.folder / name}: cannot be read ({first_line(error)})") from None
        return values

    def _write_json(self, name: str, values: dict[str, Any]) -> None:
        with whole(self.folder / name) as partial:
            partial.write_text(json.dumps(values, indent=1))


def _record(config: Config, root: str) -> dict[str, Any]:
    versions = {library: version(library) for library in _LIBRARIES if _installed(library)}
    versions["python"] = platform.python_version()
    return {"format": FORMAT, "config": config.to_json(), "root": root, "versions": versions}


def _installed(library: str) -> bool:
    from importlib.metadata import PackageNotFoundError

    try:
        version(library)
    except PackageNotFoundError:
        return False
    return True


def _to_disk(path: Path) -> None:
    """Wait until a file is on the disk, so that a power cut after the move cannot lose it."""
    if path.is_file():
        with path.open("rb") as file:
            os.fsync(file.fileno())
