"""The command line, from its first moment on: `selex`, and `python -m selex`."""

import os
import sys
from typing import NoReturn

from selex.errors import INTERRUPTED

PATIENT = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Threads that wait for others sleep, in place of keeping a core busy that those need. Read when torch is loaded."""


def main() -> None:
    """Import the command line and run it; Ctrl-C before it is there is a line too."""
    for name, value in PATIENT.items():
        os.environ.setdefault(name, value)
    try:
        from selex.cli import main as run
    except KeyboardInterrupt:
        print("stopped; nothing was written", file=sys.stderr)
        _end_as_interrupted()
    try:
        run()
    except SystemExit as end:
        if end.code == INTERRUPTED:
            _end_as_interrupted()
        raise


def _end_as_interrupted() -> NoReturn:
    """Exit with the code for Ctrl-C, where `python -m` would be ended by the signal that was dealt with.

    CPython notes an interrupt that passes through compiled code, as while torch is loaded, for the end of the process;
    running any statement by the same way clears the note.
    """
    import ctypes

    ctypes.pythonapi.PyRun_SimpleString(b"pass")
    sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
