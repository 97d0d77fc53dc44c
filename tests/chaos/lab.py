"""Where things are broken: a small world of photos, runs and a cache, restored before every try and compared after."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from chaos.warm import Done, Warm
from commands import digit_photos

PIXELS = ("--categories", "5", "--backbone", "pixels", "--set", "cluster.restarts=1", "--device", "cpu")
TINY = ("--epochs", "2", "--set", "train.batch=16", "--set", "train.trained_blocks=1", "--device", "cpu")
Make = Callable[["Lab"], None]


@dataclass
class Lab:
    """A folder to work in. `world` is where commands run, and all that they may touch is below it."""

    base: Path
    warm: Warm = field(init=False)

    def __post_init__(self) -> None:
        self.base = Path(os.path.realpath(self.base))
        self.warm = Warm(self.base)

    @property
    def world(self) -> Path:
        return self.base / "world"

    @property
    def home(self) -> Path:
        return self.world / "home"

    def selex(self, *arguments, **more) -> Done:
        """Run a command in the world, with a cache of its own."""
        return self.start(*arguments, **more).wait()

    def start(self, *arguments, environment=None, at=None, **more):
        """The same, not waited for, and perhaps started in another folder (`at`)."""
        own = {"SELEX_CACHE": str(self.world / "cache"), "HOME": str(self.home)}
        return self.warm.start(*arguments, cwd=at or self.home, environment=own | (environment or {}), **more)

    def must(self, *arguments, **more) -> Done:
        """A command that has to work for the suite to mean anything."""
        done = self.selex(*arguments, **more)
        assert done.code == 0, done
        return done

    def restore(self, make: Make) -> None:
        """The world as `make` leaves it; made once, then copied, times and all."""
        kept = self.base / f"as-{make.__name__}"
        if not kept.exists():
            self._empty()
            make(self)
            shutil.copytree(self.world, kept, symlinks=True)
        self._empty()
        shutil.copytree(kept, self.world, symlinks=True)

    def _empty(self) -> None:
        if self.world.exists():
            shutil.rmtree(self.world)


def photos(lab: Lab) -> None:
    """Forty digits, some of them labelled, six new ones, a table of features; of the cache only its key."""
    digit_photos(lab.home / "photos", per_digit=8)
    lab.must("discover", "photos", *PIXELS, "--out", "run")
    for made in (lab.home / "run", *(path for path in (lab.world / "cache").iterdir() if path.is_dir())):
        shutil.rmtree(made)
    digit_photos(lab.home / "new", per_digit=2, n_known=0, digits=3)
    features = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
    np.savez(lab.home / "features.npz", features=features)
    (lab.home / "words.txt").write_text("wren\nrobin\nowl\n")
    (lab.home / "labels.csv").write_text("row,label\n" + "".join(f"{row},{'ab'[row % 2]}\n" for row in range(10)))


def run(lab: Lab) -> None:
    """A finished run of the photos."""
    lab.restore(photos)
    lab.must("discover", "photos", *PIXELS, "--out", "run")


def tiny_run(lab: Lab) -> None:
    """A finished run with a network that can be trained."""
    lab.restore(photos)
    lab.must("discover", "photos", *PIXELS, "--backbone", "tiny-vit", "--out", "run")


def reviewed(lab: Lab) -> None:
    """A run of which a person has decided something."""
    from chaos.review import DECISIONS
    from chaos.server import Server

    lab.restore(run)
    with Server(lab) as server:
        for decision in DECISIONS[:3]:
            status, answer = server.ask("/api/decisions", {"version": server.version, **decision})
            assert status == 200, answer


def snapshot(folder: Path, times: bool = False) -> dict[str, str]:
    """Every file, folder and link below a folder, and what it is; with `times` also when it was changed, and how."""
    found = {}
    for path in sorted(folder.rglob("*")):
        about = path.lstat()
        extra = f" {about.st_mtime_ns} {about.st_mode:o} {about.st_nlink}" if times else ""
        found[str(path.relative_to(folder))] = _what(path, about.st_mode) + extra
    return found


def _what(path: Path, mode: int) -> str:
    if stat.S_ISLNK(mode):
        return f"link to {os.readlink(path)}"
    return hashlib.sha256(path.read_bytes()).hexdigest() if stat.S_ISREG(mode) else f"{stat.S_IFMT(mode):o}"


def contents(folder: Path) -> dict[str, str]:
    """The same as `snapshot`, of what a user would call the contents: a ledger's rows rather than its pages.

    Logs, and where in a store an image lies, may differ from one time to the next; that the files are there may not.
    What the cache has of features is left out: where a disk was full it has less, and nothing is lost. So is what Ray
    keeps in a home.
    """
    others = ("cache/features", "home/.ray")
    found = {name: what for name, what in snapshot(folder).items() if not name.startswith(others)}
    for name in found:
        last = name.rpartition("/")[2]
        if last in ("metrics.jsonl", "images.u8", "index.npz"):
            found[name] = "there"
        elif last == "log.jsonl":
            found[name] = _lines(folder / name)
        elif last == "review.sqlite":
            found[name] = json.dumps(list(events(folder / name)))
    return found


def _lines(log: Path) -> str:
    """Whether all lines of a log are whole: where it is, what it says differs from one time to the next."""
    text = log.read_text()
    try:
        _ = [json.loads(line) for line in text.splitlines()]
    except ValueError as error:
        return f"a broken line ({error})"
    return "whole lines" if text.endswith("\n") else "a line without an end"


def events(ledger: Path) -> Iterator[tuple]:
    """All decisions that a ledger keeps."""
    with closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as db:
        yield from db.execute("SELECT round, kind, decision FROM events ORDER BY number").fetchall()


def difference(before: dict[str, str], after: dict[str, str]) -> str:
    """In words: what is gone, what is new, what is another; nothing where all is the same."""
    gone = [f"{name} is gone" for name in before if name not in after]
    new = [f"{name} is left behind" for name in after if name not in before]
    other = [f"{name} is another" for name in before if after.get(name, before[name]) != before[name]]
    found = [*gone, *new, *other]
    return ", ".join(found[:4]) + (f" and {len(found) - 4} more" if len(found) > 4 else "")
