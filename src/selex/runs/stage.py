"""Results on their way into a run folder: staged in `.next/`, marked once all are on disk, then moved into place.

Features grow in `.work/` and are moved with them. Whoever opens a folder in which a move was cut short finishes it, so
a crash at any point leaves the last good state or the new one, never a mixture.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from selex.errors import InputError
from selex.folders import own_folder, remove_folder
from selex.io import atomic_path, first_line, is_plain_file, is_plain_folder, locked, to_disk

EMBEDDINGS = "embeddings.npy"
FEATURE_FILES = (EMBEDDINGS, EMBEDDINGS + ".json")
CONFIG = "config.json"
CONTENT = "content.npy"
MODEL = "model"
_DONE = "complete"
_MODEL_FILES = tuple(f"{MODEL}/{name}" for name in ("model.json", "model.safetensors", "trained.safetensors"))
_RESULTS = ("clusters.csv", "clusters.parquet", "skipped.csv", "hierarchy.json", CONTENT, CONFIG, *FEATURE_FILES)
PUBLISHED = (*_RESULTS, *_MODEL_FILES)
"""All that a run's results are; whatever else is in the folder is somebody else's."""
CHECKPOINT = re.compile(r"checkpoint-(again-)?\d{5}\.pt")


class Stage:
    """The stage of a run folder.

    Attributes:
        run: the run folder.
        folder: where results are staged.
        work: where the one who writes keeps what is not done yet: features, checkpoints.
    """

    def __init__(self, run: Path) -> None:
        self.run, self.folder, self.work = run, run / ".next", run / ".work"

    def new(self) -> Path:
        """An empty stage, to be filled."""
        self.drop()
        own_folder(self.folder)
        own_folder(self.folder / MODEL)
        return self.folder

    def mark(self) -> None:
        """Say that all results are there, once they are on disk."""
        names = [name for name in PUBLISHED if (self.folder / name).exists()]
        for name in (*names, MODEL):
            to_disk(self.folder / name)
        with atomic_path(self.folder / _DONE) as partial:  # and the folder itself is on disk
            partial.write_text("\n".join(names))

    def recover(self) -> None:
        """Finish a move that was cut short, or drop a stage that never was complete, unless its writer is at work."""
        if is_plain_folder(self.folder):
            with locked(self.run, wait=self._marked() is not None) as ours:
                if ours:
                    self.settle()

    def settle(self) -> None:
        """Move a complete stage into place; drop one that is not. Every step can be cut off and done again."""
        names = self._marked()
        if names is None:
            self.drop()
            return
        try:
            own_folder(self.run / MODEL)
            for name in names:
                if is_plain_file(self.folder / name) and is_plain_folder((self.folder / name).parent):
                    os.replace(self.folder / name, self.run / name)
            for name in set(_MODEL_FILES).difference(names):  # of the results before
                (self.run / name).unlink(missing_ok=True)
            to_disk(self.run / MODEL)
            to_disk(self.run)
            self.drop_work()
            self._remove([*_RESULTS, _DONE])  # the mark last
        except OSError as error:
            raise InputError(
                f"{self.run}: results are there but cannot be put in place ({first_line(error)}); fix that and try "
                "again"
            ) from None

    def drop(self) -> None:
        """Throw a stage away, but for features that are not in place yet: they took long."""
        if not is_plain_folder(self.folder):
            return
        for name in FEATURE_FILES if is_plain_folder(self.work) else ():
            if is_plain_file(self.folder / name):
                os.replace(self.folder / name, self.work / name)
        self._remove([_DONE, *_RESULTS])

    def has_work(self) -> bool:
        """Whether there is something to resume from: features or a checkpoint."""
        return (self.work / EMBEDDINGS).exists() or bool(self._checkpoints())

    def is_idle(self) -> bool:
        """Whether nothing is done yet: there is no checkpoint, and features are those that the run has already."""
        made, own = self.work / EMBEDDINGS, self.run / EMBEDDINGS
        same = not is_plain_file(made) or (is_plain_file(own) and made.samefile(own))
        return same and set(self._in_work()) <= set(FEATURE_FILES)

    def drop_work(self) -> None:
        """Remove what is not needed once there are results: features in the making, checkpoints."""
        remove_folder(self.work, [*FEATURE_FILES, f"{EMBEDDINGS}.part", *self._checkpoints()])

    def _checkpoints(self) -> list[str]:
        return list(filter(CHECKPOINT.fullmatch, self._in_work()))

    def _in_work(self) -> list[str]:
        return os.listdir(self.work) if is_plain_folder(self.work) else []

    def _remove(self, names: list[str]) -> None:
        remove_folder(self.folder / MODEL, map(os.path.basename, _MODEL_FILES))
        remove_folder(self.folder, names)

    def _marked(self) -> list[str] | None:
        """What a complete stage has, or had before some of it was moved; None for one that is not complete."""
        done = self.folder / _DONE
        if not is_plain_folder(self.folder) or not is_plain_file(done):
            return None
        said = done.read_text(errors="replace").splitlines()
        return [name for name in PUBLISHED if name in said]
