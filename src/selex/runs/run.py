"""The run folder: what a job was asked, what it found, and a model that sorts new images. The contract between steps.

Here it is read; `writer.py` writes it.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from selex.checksums import Damaged, check_stamp, is_sealed, known_digest, read_lines, read_object
from selex.config import Config
from selex.data.decode import Unreadable, decode
from selex.data.labels import text_of_cell
from selex.data.parquet import ROWS, read_blocks, read_parquet
from selex.data.store_files import KIND, pixel_digest
from selex.data.table import real_path
from selex.errors import InputError, Note
from selex.folders import check_name, is_marked
from selex.io import first_line, is_plain_file, read_csv, reported
from selex.runs.stage import CONFIG, CONTENT, EMBEDDINGS, Stage

FORMAT = 3
"""Changes when a run folder's files do, so that an older program does not misread a newer one."""
METRICS = "metrics.jsonl"
LABELS = "review-labels.csv"
"""The labels that the run was last done again with, if it was."""
_LOOKED_AT = 50  # photos, to tell whether a folder was moved


@dataclass(frozen=True)
class ImagePaths(Sequence[str]):
    """Where images are, each worked out when it is asked for."""

    files: Sequence[str]
    place: Callable[[Sequence[str]], list[str]]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, row: Any) -> Any:
        return self.place(self.files[row]) if isinstance(row, slice) else self.place([self.files[row]])[0]

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), ROWS):  # much faster than one by one
            yield from self.place(self.files[start : start + ROWS])


@dataclass(frozen=True)
class Run:
    """An existing run folder: `Run.open` reads one, `write_run` makes one or resumes one.

    Attributes:
        folder: where it is.
    """

    folder: Path

    @classmethod
    def open(cls, folder: str | Path) -> Run:
        """The run in `folder`; refuses what is not one, or one of another format."""
        run = cls(Path(folder))
        check_name(run.folder)
        if not run.folder.is_dir():
            raise InputError(f"{folder}: no such run folder")
        _ = run.about
        Stage(run.folder).recover()  # of a run only: whatever else has a folder of that name keeps it
        return run

    @property
    def about(self) -> dict[str, Any]:
        """What `config.json` says: settings, versions, the digests of result files."""
        path = self.folder / CONFIG
        if not is_plain_file(path):
            raise InputError(f"{self.folder}: is not a run folder: it has no {CONFIG}")
        record = read_object(path)
        _check_format(self.folder, record)
        check_stamp(path, record)
        return record

    def has(self, name: str) -> bool:
        """Whether there is such a result file."""
        return name in self.about["files"]

    @property
    def id(self) -> str:
        """Identifies this run, whatever its results are."""
        return str(self.about["run"])

    @cached_property
    def config(self) -> Config:
        """What the run was asked to do."""
        return Config.from_json(self.about["config"])

    def is_of(self, photos: str) -> bool:
        """Whether its photos are those in `photos`: the same place, or a folder they were moved to."""
        old = self.config.data.photos
        return photos == old or (bool(old) and not os.path.exists(old) and _were_moved(self, photos))

    @property
    def root(self) -> Path:
        """The folder that the file names of the clusters table start from."""
        return Path(self.about["root"])

    def image_paths(self, files: Sequence[str]) -> list[str]:
        """Where images of the clusters table are; "" for one that only a run made here may name: outside its root."""
        return self.places()(files)

    def places(self) -> Callable[[Sequence[str]], list[str]]:
        """The same as a function, which reads the table once to see whether the run was made here."""
        root = str(self.root)
        named = (block["file"].to_pylist() for block in self.blocks("file"))
        return _places(root, is_sealed(self.about.get("seal"), root, named))

    @property
    def complete(self) -> bool:
        """Whether there are results."""
        return bool(self.about["files"])

    @property
    def work(self) -> Path:
        """Where unfinished work is kept: features, checkpoints."""
        return Stage(self.folder).work

    @property
    def embeddings(self) -> np.ndarray[Any, Any]:
        """Features of the images in the order of the clusters table, memory-mapped."""
        path = self.result(EMBEDDINGS)
        with reported(f"{path}: cannot be read", OSError, ValueError, EOFError):
            return np.load(path, mmap_mode="r")

    @property
    def clusters(self) -> pa.Table:
        """The clusters table."""
        path = self.result("clusters.parquet")
        return read_parquet(path, path)

    def blocks(self, *columns: str) -> Iterator[pa.Table]:
        """The clusters table, or some of its columns, 65,536 rows at a time: never all of it in memory."""
        return read_blocks(self.result("clusters.parquet"), columns or None)

    def to_pandas(self) -> Any:
        """The clusters table as a pandas data frame; pandas must be installed."""
        try:
            return self.clusters.to_pandas()
        except ImportError:
            raise InputError("pandas is not installed: pip install pandas, or use run.clusters") from None

    @property
    def hierarchy(self) -> dict[str, Any]:
        """Categories and levels: names, sizes, parents."""
        path = self.result("hierarchy.json")
        return _checked_tree(path, read_object(path))

    @property
    def content_size(self) -> int | None:
        """The size at which images are decoded to tell them apart, that of the first round; None if unknown."""
        try:
            size = self.hierarchy.get("content_size")
        except InputError:  # no results yet, or damaged ones, for which the run is done again
            return None
        return size if isinstance(size, int) and size > 0 else None

    @property
    def skipped(self) -> list[tuple[str, str]]:
        """Images that could not be read, and why."""
        lines = read_csv(self.result("skipped.csv"))[1:]
        return [(text_of_cell(line[0]), text_of_cell(line[-1])) for _, line in lines]

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """What was logged, one entry per step; damaged or truncated lines are left out."""
        path = self.folder / METRICS
        entries, damaged = read_lines(path) if is_plain_file(path) else ([], 0)
        if damaged:
            warnings.warn(f"{path}: damaged or truncated lines skipped: {damaged}", Note, stacklevel=2)
        return entries

    @property
    def store(self) -> Path | None:
        """Where decoded images were kept when the run was last done; None for the cache, or if it is no store now."""
        place = next((entry.get("store") for entry in reversed(self.metrics) if entry.get("step") == "decode"), None)
        if isinstance(place, str) and os.path.isdir(place) and is_marked(Path(place), KIND):
            return Path(place)
        return None

    def result(self, name: str) -> Path:
        """The path of a result file, checked against `config.json`; one that differs is `Damaged`."""
        for _ in range(2):  # somebody may be putting new results in place
            files = self.about["files"]
            if not files:
                raise InputError(f"{self.folder}: has no results yet; run the same `selex discover` again to finish it")
            wrong = _misfit(self.folder / name, files.get(name))
            if not wrong:
                return self.folder / name
            Stage(self.folder).recover()
        again = "`selex recluster`" if name == LABELS else "the same `selex discover`"
        raise Damaged(f"{self.folder / name}: {wrong}; put it back, or run {again} again")


def labelled_by_review(folder: Path, config: Config) -> bool:
    """Whether the labels of `config` are the ones that decisions gave to the run in `folder`."""
    return os.path.abspath(config.data.labels or "") == os.path.abspath(folder / LABELS)


def last_training(metrics: Iterable[Any]) -> list[dict[str, Any]]:
    """What was logged of epochs; where training was resumed, or begun again, the later entries count."""
    kept: list[dict[str, Any]] = []
    for entry in metrics:
        if isinstance(entry, dict) and entry.get("step") == "epoch" and isinstance(entry.get("epoch"), int):
            kept = [earlier for earlier in kept if earlier["epoch"] < entry["epoch"]]
            kept.append(entry)
    return kept


def _were_moved(run: Run, folder: str) -> bool:
    """Whether most of some of a run's photos are in a folder, by name and, where their pixels are known, by these."""
    if not run.complete or not os.path.isdir(folder):
        return False
    files, size = next(run.blocks("file"))["file"].to_pylist(), run.content_size
    own = [row for row, file in enumerate(files) if not os.path.isabs(file)]
    some = own[:: -(-len(own) // _LOOKED_AT) or 1]
    content = np.load(run.result(CONTENT), mmap_mode="r") if size and run.has(CONTENT) else None

    def is_there(row: int) -> bool:
        path = os.path.join(folder, files[row])
        if content is None or not size:
            return os.path.isfile(path)
        try:
            return bool(pixel_digest(decode(path, size)).rstrip(b"\0") == content[row])
        except Unreadable:
            return False

    return 2 * sum(map(is_there, some)) > len(some)


def _places(root: str, made_here: bool) -> Callable[[Sequence[str]], list[str]]:
    """Where images are that a run may name: all of one that was made here, of others those below their root."""
    if made_here:
        return lambda files: [real_path(root, file) for file in files]
    inside = os.path.join(os.path.realpath(root), "")
    if f"{os.path.expanduser('~')}/".startswith(inside):  # no folder of photos: all that a user has is below it
        return lambda files: [""] * len(files)
    return lambda files: [
        path if os.path.realpath(path := real_path(root, file)).startswith(inside) else "" for file in files
    ]


def _check_format(folder: Path, record: dict[str, Any]) -> None:
    """Refuse what another program or another version wrote."""
    given = record.get("format")
    if not isinstance(given, int):
        raise InputError(f"{folder}: is not a run folder: its config.json was written by another program")
    if given != FORMAT:
        age = "a newer" if given > FORMAT else "an older"
        said = record.get("versions")
        version = f" ({said['selex']})" if isinstance(said, dict) and "selex" in said else ""
        raise InputError(f"{folder}: was written by {age} version of selex{version}")
    kinds = {"config": dict, "root": str, "run": str, "files": dict}
    if not all(isinstance(record.get(name), kind) for name, kind in kinds.items()):
        raise InputError(f"{folder / CONFIG}: is damaged: entries are missing")


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
    """Refuse a hierarchy that lacks what everybody reads, or whose levels are not the parents of those below."""
    try:
        named, levels = all(isinstance(name, str) for name in tree["names"]), tree["levels"]
        sizes = [len(level["sizes"]) for level in levels]
        if not named or sizes[0] != len(tree["names"]) or not 0 <= levels[0]["n_known"] <= sizes[0]:
            raise ValueError("names and sizes differ")
        for parents, here, above in zip((level["parents"] for level in levels[:-1]), sizes, sizes[1:], strict=False):
            if len(parents) != here or min(parents) < 0 or max(parents) >= above:
                raise ValueError("levels do not fit each other")
        _ = tree["estimate"], tree["curve"]
        tree["last_number"] = int(tree["last_number"])
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise InputError(f"{path}: is not a hierarchy of selex ({type(error).__name__}: {first_line(error)})") from None
    return tree
