"""`selex weights`: which weight files there are, fetching one, and checking those that are here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from selex.errors import InputError

if TYPE_CHECKING:
    from selex.models.weights import WeightRow

app = typer.Typer(help="Weights of backbones: list, fetch, verify.", no_args_is_help=True)


@app.command("list")
def list_() -> None:
    """List every backbone's weight files and whether they are on this machine.

    Example: `selex weights list`
    """
    from selex.models import list_weights
    from selex.models.weights import weight_folders

    _show(list_weights())
    typer.echo(f"\nfiles are looked for in {' and '.join(map(str, weight_folders()))}, then in the caches of the hubs")


@app.command()
def fetch(
    backbone: Annotated[str, typer.Argument(metavar="BACKBONE", help="Its name; see `selex weights list`.")],
) -> None:
    """Fetch the weights of a backbone into the cache, checked.

    Example: `selex weights fetch efficientnet-lite1`
    """
    from selex.models import fetch_weights

    file = fetch_weights(backbone)
    typer.echo(f"{file.path} ({file.origin}), sha256 {file.sha256}")


@app.command()
def verify() -> None:
    """Check the sha256 of every weight file on this machine.

    Example: `selex weights verify`
    """
    from selex.models import verify_weights

    rows = verify_weights()
    _show(rows)
    wrong = [row for row in rows if row.status not in ("ok", "unpinned", "missing")]
    if wrong:
        raise InputError(f"{wrong[0].path}: {wrong[0].status}; remove the file and fetch it again")


def _show(rows: list[WeightRow]) -> None:
    """A line a file; of two files of one backbone, either will do."""
    header = ("backbone", "status", "sha256", "licence", "file")
    lines = [(row.backbone, row.status.partition(":")[0], row.sha256[:12], row.licence, row.file) for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *lines, strict=True)]
    for line in (header, *lines):
        typer.echo("  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip())
