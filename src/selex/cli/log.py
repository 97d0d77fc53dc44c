"""`--log-json`: what happens, as JSON lines for programs. `docs/programs.md` says which keys there are."""

from __future__ import annotations

import json
import math
import os
import stat
import sys
import time
import warnings
from contextlib import ExitStack, suppress
from datetime import datetime, timezone
from typing import Any, TextIO

from selex.errors import InputError, Note
from selex.progress import listening, watching

EVERY = 1.0
"""Seconds between two lines about the same work."""
STDERR = "-"


class JsonLog:
    """JSON lines, to standard error or to the end of a file; until it is opened, nowhere."""

    def __init__(self) -> None:
        self._stream: TextIO | None = None
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
        line = {"time": now, "event": event, **{key: value for key, value in fields.items() if _is_sayable(value)}}
        line["time"] = now  # not that of a run's own log
        try:
            print(json.dumps(line), file=self._stream, flush=True)
        except OSError as error:
            self._stream = None  # the work itself goes on
            warnings.warn(f"--log-json: cannot be written ({error.strerror}); it ends here", Note, stacklevel=2)

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
        with suppress(OSError):  # what was left of a line that could not be written: a note has said so
            self._while_open.close()


def _is_sayable(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def _open(path: str) -> TextIO:
    """A file to add lines to: a new or empty one, or a log of before. Whatever else is there stays as it is."""
    try:
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW, 0o666)
        if not stat.S_ISREG(os.fstat(file).st_mode) or not _is_log(os.pread(file, 4096, 0)):
            os.close(file)
            raise InputError(f"--log-json {path}: is something else; give a new file, or a log to add to")
    except OSError as error:
        raise InputError(f"--log-json {path}: {error.strerror}") from None
    return os.fdopen(file, "a", encoding="utf-8")


def _is_log(beginning: bytes) -> bool:
    return not beginning or (beginning.startswith(b'{"time": "') and b'"event": "start"' in beginning.split(b"\n")[0])


LOG = JsonLog()
"""The log of this command."""
