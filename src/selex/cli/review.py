"""The review page: `selex review`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from selex.cli.app import RunFolder, app

if TYPE_CHECKING:
    from selex.data.clusters import Columns
    from selex.run import Run


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
