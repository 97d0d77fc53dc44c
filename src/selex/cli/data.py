"""Commands about the benchmark datasets: `selex data ...`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from selex.bench.datasets.check import Finding

app = typer.Typer(rich_markup_mode="markdown")


@app.callback()
def data() -> None:
    """Look at the benchmark datasets on disk."""


@app.command()
def check(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="`cub aircraft cars pets cifar10 cifar100 imagenet100` or `herbarium19`."),
    ],
    root: Annotated[Path, typer.Option(metavar="FOLDER", help="Where its official archives are unpacked.")],
) -> None:
    """Verify a benchmark dataset: sizes, classes, files; what was expected against what was found, and how to mend it.

    Example: `selex data check cub --root datasets/CUB_200_2011`
    """
    from selex.bench.datasets.check import check as check_dataset

    findings = check_dataset(name, root)
    for line in _table(findings):
        typer.echo(line)
    wrong = [finding for finding in findings if not finding.ok]
    for finding in wrong:
        typer.echo(f"{finding.what}: {finding.mend}", err=True)
    typer.echo(f"{name}: {'not as published' if wrong else 'as published, as far as that can be checked'}")
    if wrong:
        raise typer.Exit(2)


def _table(findings: list[Finding]) -> list[str]:
    cells = [("", "expected", "found", "")]
    cells += [(line.what, line.expected or "-", line.found, "" if line.ok else "<- wrong") for line in findings]
    widths = [max(len(row[column]) for row in cells) for column in range(3)]
    return ["  ".join(map(str.ljust, row, [*widths, 0])).rstrip() for row in cells]
