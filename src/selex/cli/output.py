"""Standard output: any name can be written to it, and it says so when it cannot be written any more."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from selex.errors import InputError


def guard_output() -> None:
    """Guard this process's standard output, if it has one."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name on disk may be no text
        sys.stdout = cast(TextIO, Output(sys.stdout))


class Output:
    """A stream whose failure is a user's to know: the disk is full, or nobody reads it any more."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write, or raise an `InputError`."""
        if text == "":  # how typer finds out what may be written; on a full disk even that fails
            return 0
        with self._named():
            return self._stream.write(text)

    def flush(self) -> None:
        """Write what is left, or raise an `InputError`."""
        with self._named():
            self._stream.flush()

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())  # for what is written at the exit
            raise InputError(f"standard output: {error.strerror}") from None
