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

    _show(list_weights())


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
    width = max(len(row.backbone) for row in rows)
    for row in rows:
        typer.echo(f"{row.backbone:<{width}}  {row.status:<9}  {row.sha256[:12]:<12}  {row.licence:<12.12}  {row.file}")
