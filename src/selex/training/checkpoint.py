"""Checkpoints of training: whole or not there, the last two kept, written while training continues."""

from __future__ import annotations

import warnings
import zipfile
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from selex.errors import InputError, Note
from selex.io import atomic_path, first_line
from selex.runs.stage import CHECKPOINT

FORMAT = 5
KEPT = 2


class Checkpoints:
    """The checkpoints in a folder. `settings` are those of the training; one of other settings is refused.

    `more` is kept with them, for whoever resumes without giving the settings again. Those of a training that is done
    `again`, with other labels, have names of their own.
    """

    def __init__(
        self, folder: Path, settings: dict[str, Any], more: dict[str, Any] | None = None, again: bool = False
    ) -> None:
        self.folder, self.settings, self.more = folder, settings, more or {}
        self.name = "checkpoint-again" if again else "checkpoint"
        self._writer = ThreadPoolExecutor(1)
        self._writing: Future[None] | None = None

    def latest(self) -> dict[str, Any] | None:
        """The newest checkpoint that can be read, in the host's memory, or None if there is none."""
        found = newest_checkpoint(self.paths())
        if found is None:
            return None
        path, state = found
        self._check(path, state)
        return state

    def save(self, epoch: int, state: dict[str, Any]) -> None:
        """Write the state after an epoch, in the background; what went wrong with the one before is reported now."""
        self.wait()
        about = {"format": FORMAT, "settings": self.settings, "more": self.more, "epoch": epoch}
        state = {**about, **on_host(state)}
        self._writing = self._writer.submit(self._write, epoch, state)

    def wait(self) -> None:
        """Until what was saved is on the disk."""
        if self._writing is not None:
            self._writing.result()

    def paths(self) -> list[Path]:
        """Checkpoints, oldest first."""
        return [path for path in checkpoint_paths(self.folder) if path.name.rpartition("-")[0] == self.name]

    def last_good(self) -> str:
        """What a message says of where training can be taken up again."""
        self.wait()
        paths = self.paths()
        return f"the last good checkpoint is {paths[-1]}" if paths else "there is no checkpoint yet"

    def clear(self) -> None:
        """Delete all checkpoints of the folder."""
        for path in checkpoint_paths(self.folder):
            path.unlink()

    def _write(self, epoch: int, state: dict[str, Any]) -> None:
        path = self.folder / f"{self.name}-{epoch:05d}.pt"
        try:
            with atomic_path(path) as partial:
                torch.save(state, partial)
        except (OSError, RuntimeError, InputError) as error:
            last = self.paths()[-1].name if self.paths() else "none"
            raise InputError(
                f"{path}: cannot be written ({first_line(error)}); the last good checkpoint is {last}"
            ) from None
        for old in self.paths()[:-KEPT]:
            old.unlink()

    def _check(self, path: Path, state: dict[str, Any]) -> None:
        if state.get("format") != FORMAT:
            raise InputError(
                f"{path}: was written by another version of selex; give --restart to train from the beginning"
            )
        theirs = state["settings"]
        other = [key for key in self.settings if self.settings[key] != theirs.get(key)]
        if {"images", "labels"} & {*other} and {*other} <= {"images", "labels", "categories"}:
            raise InputError(
                f"{path}: photos or labels have changed since this training began (set aside, added, decided); add "
                "--restart to train from the beginning with the current ones"
            )
        if other:
            differences = ", ".join(f"{key} {theirs.get(key)} there, {self.settings[key]} here" for key in other)
            raise InputError(
                f"{path}: belongs to a training with other settings ({differences}); use those to resume, or give "
                "--restart to start from the beginning"
            )


def checkpoint_paths(folder: Path) -> list[Path]:
    """Checkpoints in a folder, oldest first."""
    return sorted(path for path in folder.glob("checkpoint-*.pt") if CHECKPOINT.fullmatch(path.name))


def newest_checkpoint(paths: list[Path]) -> tuple[Path, dict[str, Any]] | None:
    """The newest of some checkpoints, oldest first, that can be read, and where it is; None if there is none."""
    damaged = ""
    for path in reversed(paths):
        try:
            _check_members(path)
            state = torch.load(path, map_location="cpu", weights_only=True)
            if not isinstance(state, dict):
                raise ValueError("not a checkpoint")
        except Exception as error:  # a damaged file fails in many ways; the one before it is there for that
            damaged = f"{path}: cannot be read ({_why(error)})"
            continue
        if damaged:
            warnings.warn(f"{damaged}; training resumes from {path.name}", Note, stacklevel=2)
        return path, state
    if damaged:
        raise InputError(f"{damaged}; give --restart to train from the beginning")
    return None


def _why(error: Exception) -> str:
    """What is wrong with a checkpoint; torch's own words would advise to load a hostile one unsafely."""
    return "it holds more than tensors, or is damaged" if isinstance(error, UnpicklingError) else first_line(error)


def _check_members(path: Path) -> None:
    """Refuse a damaged archive: torch itself does not look at the checksums that it writes."""
    with zipfile.ZipFile(path) as archive:
        if damaged := archive.testzip():
            raise ValueError(f"{damaged} is damaged")


def on_host(value: Any) -> Any:
    """A copy in the host's memory, which training does not change while it is written."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: on_host(part) for key, part in value.items()}
    return [on_host(part) for part in value] if isinstance(value, list | tuple) else value
