"""The app itself: how it starts, shows progress, and ends when a person made a mistake."""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, NoReturn, TextIO, TypeVar, cast

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup

from selex.cli.log import LOG, check_not_among_photos
from selex.errors import INTERRUPTED, LOST_PROCESS, InputError, Note
from selex.io import first_line
from selex.launch import adopt_slurm, first_process, processes

Function = TypeVar("Function", bound=Callable[..., Any])


class _PlainHelp:
    """A command whose help names no type for flags and arguments; typer would say `<bool>` and `<path>`."""

    def get_params(self, context: Any) -> list[Any]:
        """Arguments and options, as help shows them."""
        params: list[Any] = super().get_params(context)  # type: ignore[misc]
        for param in params:
            param.metavar = " " if getattr(param, "is_flag", False) else param.metavar
            if isinstance(param, TyperArgument):
                vars(param)["display_type_rich"] = lambda **_: None  # of typer 0.2x; others do not ask
        return params


class _Command(_PlainHelp, TyperCommand):
    pass


class _Group(_PlainHelp, TyperGroup):
    pass


class Commands(typer.Typer):
    """Commands that belong together; their help is Markdown."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(cls=_Group, rich_markup_mode="markdown", **settings)

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Function], Function]:
        """Add a command."""
        return super().command(name, cls=_Command, **settings)


app = Commands(name="selex", pretty_exceptions_enable=False)

ON_FEATURES, MORE = "Commands on features", "More commands"  # panels of the help; commands on photos are in the first
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder written by `selex discover`.")]
_shown: set[str] = set()  # notes said so far: each once


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    log_json: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Goes before the command: write progress and events as JSON lines to FILE (`-` for standard error).",
        ),
    ] = None,
) -> None:
    """Generalized category discovery: sort photos, a few of them labelled, into known and novel categories."""
    from selex import __version__

    if version:
        typer.echo(__version__)
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
    elif log_json is not None and first_process():
        check_not_among_photos(log_json, context.invoked_subcommand, sys.argv[1:])
        LOG.open(log_json, command=context.invoked_subcommand, version=__version__)


def main() -> None:
    """Run the command line, and end with its exit code."""
    adopt_slurm()
    code: Any = 1
    try:
        _main()
    except SystemExit as end:
        code = end.code
        raise
    finally:
        LOG.close(code if isinstance(code, int) else 0)


def _main() -> NoReturn:
    """Run a command; a user's mistake is one line and exit code 2, and so is what the system does not allow."""
    warnings.showwarning = _show_note
    guard_output()
    try:
        os.getcwd()
        code = app(prog_name="selex", standalone_mode=False)
    except InputError as error:
        _fail(str(error))
    except OSError as error:
        _fail(_explain(error))
    except (KeyboardInterrupt, typer.Abort):  # Ctrl-C; in some versions of typer it is the code below
        code = INTERRUPTED
    except Exception as error:
        if _lost_process(error):
            _fail(LOST_PROCESS)
        if not hasattr(error, "format_message"):  # not one of the command-line parser's own
            raise
        context = getattr(error, "ctx", None)
        _fail(f"{error.format_message()} (see {context.command_path if context else 'selex'} --help)")
    if code == INTERRUPTED:
        _tell("stopped", "stopped; nothing was written")
    sys.exit(code)


def _lost_process(error: Exception) -> bool:
    """Whether one of several processes has ended before this one."""
    if processes() == 1:
        return False
    from selex.cluster.distributed.group import lost_process

    return lost_process(error)


def _tell(event: str, line: str) -> None:
    """A line for a person, and one for the log; on standard error there is the latter alone."""
    if not LOG.on_stderr:
        typer.echo(line, err=True)
    LOG.write(event, message=line.removeprefix(f"{event}: "))


def tell_of_server(line: str) -> None:
    """What a server does, for a person and for the log, in which there is no token."""
    typer.echo(line)
    LOG.write("server", message=line.partition("?token=")[0])


def _fail(line: str) -> NoReturn:
    with suppress(OSError):  # nobody can be told
        _tell("error", f"error: {' '.join(line.split())}")
    sys.exit(2)


def _explain(error: OSError) -> str:
    """What the system said, and about which file."""
    try:
        os.getcwd()
    except OSError:
        return "the folder this was started in no longer exists; change to another"
    if error.filename is None:
        return error.strerror or str(error)
    return f"{os.fsdecode(error.filename)}: {error.strerror}"


@contextmanager
def resumable(kept: str) -> Iterator[None]:
    """Work of which Ctrl-C leaves something: one line says what, and that the same command resumes from there."""
    try:
        yield
    except KeyboardInterrupt:
        _tell("stopped", f"stopped; {kept}: the same command resumes from there")
        sys.exit(INTERRUPTED)


def _show_note(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
    """Notes are one line for a person; other warnings look as they always do."""
    line = f"note: {message}" if issubclass(category, Note) else warnings.formatwarning(message, category, *place[:2])
    if line not in _shown:
        _shown.add(line)
        _tell("note" if issubclass(category, Note) else "warning", line.rstrip())


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


def estimate_line(n_clusters: int, low: int, high: int, method: str) -> str:
    """An estimated number of categories, in words."""
    return f"estimated number of categories: {n_clusters} (90 % interval {low} to {high}, method {method})"


def find_device(name: str) -> str:
    """Where to compute: `auto` takes a GPU if there is one."""
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    with reported_device(name):
        torch.zeros(1, device=name).item()
    return name


@contextmanager
def reported_device(name: str) -> Iterator[None]:
    """The first use of a device, which may not be there, or be too small."""
    try:
        yield
    except (RuntimeError, AssertionError, TypeError) as error:
        if _lost_process(error):
            raise
        raise InputError(f"--device {name}: {first_line(error)}") from None
