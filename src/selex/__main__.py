"""The command line, from its first moment on: `selex`, and `python -m selex`."""

import sys


def main() -> None:
    """Import the command line and run it; Ctrl-C before it is there is a line too."""
    try:
        from selex.cli import main as run
    except KeyboardInterrupt:
        print("stopped; nothing was written", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
