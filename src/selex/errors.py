"""What a person did wrong, and what they should know: one line each."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches

INTERRUPTED = 130
"""The exit code for Ctrl-C, as a shell shows it."""
LOST_PROCESS = "another process was lost, and this one cannot continue without it: see its error"
"""What the others say where one of several processes has ended before them."""


class InputError(ValueError):
    """A mistake in what the user gave us. Its message is one line: what is wrong, where, what to do.

    The command line prints the line and exits with code 2; in Python it is a `ValueError`.
    """


class Note(UserWarning):
    """Something unusual but allowed, said once (for example: no row is labelled)."""


def unknown(kind: str, name: str, names: Iterable[str]) -> InputError:
    """The answer to a name that does not exist: the nearest one that does, and all of them."""
    names = list(names)
    small = {name.lower(): name for name in names}
    near = get_close_matches(name.lower(), small, n=1, cutoff=0.3)
    guess = f"did you mean {small[near[0]]!r}? " if near else ""
    return InputError(f"no {kind} {name!r}; {guess}there are: {', '.join(names)}")


def counted(count: int, noun: str = "image") -> str:
    """So many of something, as a line or a page says it: 1 image, 1,234 images, 2 categories."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"


@contextmanager
def needs_extra(extra: str, what: str) -> Iterator[None]:
    """Around imports of packages that only `selex[extra]` installs: where one is missing, a line says so."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("selex"):
            raise
        raise InputError(f"{what} needs {error.name}, which is not installed: pip install 'selex[{extra}]'") from None
