"""The review page: `selex review`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from selex.cli.app import RunFolder, app, resumable
from selex.errors import InputError

if TYPE_CHECKING:
    from selex.data.clusters import Columns
    from selex.run import Run

_WITH_CONTINUE = {"photos", "again", "device", "store", "strict"}


@app.command()
def review(
    run: RunFolder,
    port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="P", help="Where to listen; 0 takes any free port.")
    ] = 8760,
    host: Annotated[
        str,
        typer.Option(
            metavar="HOST",
            help="Listen elsewhere than on this machine alone, as on `0.0.0.0`; the address printed then has a token.",
        ),
    ] = "127.0.0.1",
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Do not open the browser.")] = False,
) -> None:
    """Look through the categories of a run in the browser: name, merge, split, move, confirm; nothing is lost.

    Example: `selex review birds`
    """
    from selex.review.server.serve import serve

    serve(run, host=host, port=port, browser=not no_browser, tell=typer.echo)


def continue_run(context: typer.Context, run: Path, summary: Callable[[Run], None], **options: Any) -> None:
    """`selex discover RUN --continue`: `summary` prints what a run found."""
    from selex.review.recluster import again

    for name in context.params.keys() - _WITH_CONTINUE:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise InputError(f"--continue: the run's own settings count; leave --{name.replace('_', '-')} out")
    with resumable("images, features and whole epochs that are done are kept"):
        done = again(run, tell=typer.echo, **options)
    summary(done.run)
    typer.echo(f"\nchanged: {done.changes}")
    typer.echo(f"next:    selex review {run}")


def decided(run: Run) -> Columns | None:
    """The categories of a run as they were decided; None where nothing was. Says so."""
    from selex.review.core.outcome import reviewed

    found = reviewed(run)
    if found is None:
        return None
    table, count = found
    typer.echo(
        f"with {count} {'decision' if count == 1 else 'decisions'} of `selex review`; --as-found leaves them out"
    )
    return table
