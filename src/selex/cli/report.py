"""The command that writes a report of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from selex.cli.app import RunFolder, app
from selex.progress import progress_bar


@app.command()
def report(
    run: RunFolder,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The HTML file to write; `report.html` in RUN if not given.")
    ] = None,
    truth: Annotated[
        Path | None,
        typer.Option(metavar="CSV", help="Columns `file` and `label`: the true categories, to show accuracy too."),
    ] = None,
) -> None:
    """Write what a run found as one HTML file with example images, to open in a browser or to send by mail.

    Example: `selex report birds`
    """
    from selex.report.html import NAME, write_report
    from selex.review.core.outcome import count_decisions
    from selex.run import Run

    opened = Run.open(run)
    with progress_bar("images") as show:
        path = write_report(opened, out or run / NAME, truth, show)
    typer.echo(f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB): open it in a browser")
    if count := count_decisions(opened):
        typer.echo(f"it shows what the run found, without {count} decided in `selex review`;")
        typer.echo(f"to take that in: selex recluster {run}, then selex report {run}")
