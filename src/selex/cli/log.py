"""`--log-json`: what happens, as JSON lines for programs. `docs/programs.md` says which keys there are."""

from __future__ import annotations

import json
import math
import os
import re
import stat
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TextIO

from selex.errors import InputError, Note
from selex.folders import MARK, check_outside, is_vacant
from selex.io import reported
from selex.progress import listening, watching

EVERY = 1.0
"""Seconds between two lines about the same work."""
STDERR = "-"
_LONGEST = 1 << 16  # bytes of a line


class Lines:
    """The end of a file of lines: each is added whole, or not at all."""

    def __init__(self, file: int) -> None:
        self._file = file

    def write(self, line: str) -> None:
        """Add a line; what a full disk has room for of it is taken back."""
        data = line.encode()
        done = 0
        try:
            while done < len(data):
                done += os.write(self._file, data[done:])
        except OSError:
            end = os.lseek(self._file, 0, os.SEEK_CUR)
            if done and end == os.fstat(self._file).st_size:  # else somebody has written after it
                os.ftruncate(self._file, end - done)
            raise

    def flush(self) -> None:
        """Nothing waits."""


class JsonLog:
    """JSON lines, to standard error or to the end of a file; until it is opened, nowhere."""

    def __init__(self) -> None:
        self._stream: TextIO | Lines | None = None
        self._while_open = ExitStack()
        self._begun = 0.0
        self._task, self._since, self._first, self._last, self._told = "", 0.0, 0, 0, 0.0
        self.on_stderr = False

    def open(self, target: str, **first: Any) -> None:
        """Begin, with a line that says what is done."""
        self.on_stderr, self._begun = target == STDERR, time.monotonic()
        self._stream = sys.stderr if self.on_stderr else self._while_open.enter_context(_open(target))
        self._while_open.enter_context(listening(self.progress))
        self._while_open.enter_context(watching(lambda entry: self.write("step", **entry)))
        self.write("start", **first)

    def write(self, event: str, **fields: Any) -> None:
        """A line, if anybody wants one; numbers that JSON has no word for are left out."""
        if self._stream is None:
            return
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        sayable = {key: value for key, value in fields.items() if not isinstance(value, float) or math.isfinite(value)}
        line = {"time": now, "event": event, **sayable}
        line["time"] = now  # not that of a run's own log
        try:
            self._stream.write(json.dumps(line) + "\n")
            self._stream.flush()
        except OSError as error:
            self._stream = None  # the work itself goes on
            warnings.warn(f"--log-json: cannot be written ({error.strerror}); logging stops here", Note, stacklevel=2)

    def progress(self, text: str, done: int, total: int) -> None:
        """How far some work is: when it begins, now and then, and when it is done."""
        now = time.monotonic()
        if text != self._task or done < self._last:  # other work, or the same of something else
            self._task, self._since, self._first, self._told = text, now, done, -math.inf
        self._last = done
        if now - self._told < EVERY and done < total:
            return
        self._told = now
        task, _, unit = text.partition(", ")
        rate = (done - self._first) / max(now - self._since, 1e-9) if done > self._first else 0.0
        left = {"seconds_left": round((total - done) / rate, 1)} if rate else {}
        self.write("progress", task=task, unit=unit, done=done, total=total, rate=round(rate, 3), **left)

    def close(self, exit_code: int) -> None:
        """The last line."""
        self.write("end", exit_code=exit_code, seconds=round(time.monotonic() - self._begun, 3))
        self._stream = None
        with suppress(OSError):  # some file systems tell of a failure only now
            self._while_open.close()


@contextmanager
def _open(path: str) -> Iterator[Lines]:
    """A file to add lines to: a new or empty one, or a log of before. Whatever else is there stays as it is."""
    failed = f"--log-json {path}: cannot be written"
    with reported(failed):
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW, 0o666)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode) or not _is_log(os.pread(file, 4096, 0)):
            raise InputError(f"--log-json {path}: is not a log of selex; give a new file, or such a log to append to")
        with reported(failed):
            _end_last_line(file)
        yield Lines(file)
    finally:
        os.close(file)


_FIRST = b'{"time": "0000-00-00T00:00:00.000+00:00", "event": "start", "command": "'


def _is_log(beginning: bytes) -> bool:
    """Whether a file begins as a log does, or has no more than a part of that: what a kill or a power cut left."""
    first = re.sub(rb"[0-9]", b"0", beginning)[: len(_FIRST)]
    return not first or (len(first) > len(b'{"time": "') and _FIRST.startswith(first))


def _end_last_line(file: int) -> None:
    """Lines begin at the beginning of a line: what a kill left of the last one is removed."""
    size = os.fstat(file).st_size
    end = os.pread(file, _LONGEST, max(0, size - _LONGEST))
    last = end.rpartition(b"\n")[2]
    if last and len(last) < _LONGEST:
        try:
            json.loads(last)
        except ValueError:
            os.ftruncate(file, size - len(last))
        else:
            os.write(file, b"\n")


WITHOUT_PHOTOS = ("cluster", "estimate", "evaluate", "weights", "config")
"""Commands that are given no folder of photos."""


def check_not_among_photos(target: str, command: str, words: Sequence[str]) -> None:
    """Refuse a log in a folder that a command line names as photos, or in the photos of a run that it names.

    Args:
        target: what `--log-json` says.
        command: what is to be done.
        words: what was typed.
    """
    if command in WITHOUT_PHOTOS:
        return
    typed = words[words.index(command) + 1 :] if command in words else words
    named = {part for word in typed for part in (word, word.partition("=")[2])} - {"", target}
    for photos in (folder for part in sorted(named) for folder in _photos_of(Path(part)) if target != STDERR):
        check_outside(Path(target), photos, "a --log-json")


def _photos_of(folder: Path) -> list[str]:
    """The photos of a run; a folder itself where it is neither empty nor ours."""
    from selex.runs.run import Run
    from selex.runs.stage import CONFIG

    try:
        if not folder.is_dir() or is_vacant(folder) or (folder / MARK).exists():
            return []
        return Run(folder).config.data.sources if (folder / CONFIG).exists() else [str(folder)]
    except InputError:  # somebody else's file of that name
        return [str(folder)]
    except OSError:  # the command itself says what is wrong with it
        return []


LOG = JsonLog()
"""The log of this command."""
