"""Commands about what selex works with: weight files (`selex weights ...`), benchmark datasets (`selex data ...`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from selex.cli.app import Commands
from selex.errors import InputError

if TYPE_CHECKING:
    from selex.models.weights import WeightRow

data_app = Commands()


@data_app.callback()
def data() -> None:
    """Check the benchmark datasets on disk."""


@data_app.command()
def check(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="cub, aircraft, cars, pets, cifar10, cifar100, imagenet100, herbarium19."),
    ],
    root: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder in which its official archives were unpacked.")],
) -> None:
    """Check a benchmark dataset: sizes, classes and files, compared with what is expected, and how to fix problems.

    Example: `selex data check cub --root datasets/CUB_200_2011`
    """
    from selex.bench.datasets.splits import check_dataset

    findings = check_dataset(name, root)
    cells = [(line.what, line.expected or "-", line.found, "" if line.ok else "<- wrong") for line in findings]
    _echo_table([("", "expected", "found", ""), *cells])
    wrong = [finding for finding in findings if not finding.ok]
    for finding in wrong:
        typer.echo(f"{finding.what}: {finding.mend}", err=True)
    typer.echo(f"{name}: {'not as published' if wrong else 'as published, as far as this can be checked'}")
    if wrong:
        raise typer.Exit(2)


weights_app = Commands(help="List, fetch and verify the weights of backbones.", no_args_is_help=True)


@weights_app.command("list")
def list_() -> None:
    """List every backbone's weight files and whether they are on this machine.

    Example: `selex weights list`
    """
    from selex.models import list_weights
    from selex.models.weights import weight_folders

    _show(list_weights())
    typer.echo(f"\nfiles are looked for in {' and '.join(map(str, weight_folders()))}, then in the caches of the hubs")


@weights_app.command()
def fetch(
    backbone: Annotated[str, typer.Argument(metavar="BACKBONE", help="Its name; see `selex weights list`.")],
) -> None:
    """Download the weights of a backbone into the cache and verify them.

    Example: `selex weights fetch efficientnet-lite1`
    """
    from selex.models import fetch_weights

    file = fetch_weights(backbone)
    typer.echo(f"{file.path} ({file.origin}), sha256 {file.sha256}")


@weights_app.command()
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
    _echo_table([header, *lines])


def _echo_table(lines: Sequence[tuple[str, ...]]) -> None:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        typer.echo("  ".join(map(str.ljust, line, widths)).rstrip())
