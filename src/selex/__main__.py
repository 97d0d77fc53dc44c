"""The command line, from its first moment on: `selex`, and `python -m selex`."""

import os
import sys

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
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
