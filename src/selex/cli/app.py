"""The app itself: how it starts, shows progress, and ends when a person made a mistake."""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from selex.errors import InputError, Note

app = typer.Typer(name="selex", pretty_exceptions_enable=False, rich_markup_mode="markdown")

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder that `selex discover` wrote.")]
_INTERRUPTED = 130
_shown: set[str] = set()  # notes said so far: each once


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    """Sort data, some of it labelled, into the categories that are known and the ones nobody has named yet."""
    if version:
        from selex import __version__

        typer.echo(__version__)
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """Run the command line; a user's mistake is one line and exit code 2."""
    warnings.showwarning = _show_note
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a name on disk may be no text
    try:
        code = app(prog_name="selex", standalone_mode=False)
    except InputError as error:
        _fail(str(error))
    except typer.Abort:  # Ctrl-C, in some versions of typer; in others it is the code below
        code = _INTERRUPTED
    except Exception as error:
        if not hasattr(error, "format_message"):  # not one of the command-line parser's own
            raise
        context = getattr(error, "ctx", None)
        _fail(f"{error.format_message()} (see {context.command_path if context else 'selex'} --help)")
    if code == _INTERRUPTED:
        typer.echo("stopped; nothing was written", err=True)
    sys.exit(code)


def _fail(line: str) -> NoReturn:
    typer.echo(f"error: {' '.join(line.split())}", err=True)
    sys.exit(2)


@contextmanager
def resumable(kept: str) -> Iterator[None]:
    """Work of which Ctrl-C leaves something: one line says what, and that the same command goes on from there."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"stopped; {kept}: the same command goes on from there", err=True)
        sys.exit(_INTERRUPTED)


def _show_note(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
    """Notes are one line for a person; other warnings look as they always do."""
    line = f"note: {message}" if issubclass(category, Note) else warnings.formatwarning(message, category, *place[:2])
    if line not in _shown:
        _shown.add(line)
        typer.echo(line.rstrip(), err=True)
