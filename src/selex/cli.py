"""The command line: a command is a plain function that reads, calls the library and writes."""

from __future__ import annotations

import sys
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from selex.errors import InputError, Note

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from selex.types import KEstimate

app = typer.Typer(
    name="selex",
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)

_INTERRUPTED = 130
_shown: set[str] = set()  # notes said so far: each once

FeaturesFile = Annotated[
    Path, typer.Argument(metavar="FEATURES", help="`.npy` table, or `.npz` with `features` and perhaps `files`.")
]
LabelsFile = Annotated[
    Path | None,
    typer.Option("--labels", metavar="CSV", help="Columns `row` (from 0) or `file`, and `label`; empty is unlabelled."),
]
Seed = Annotated[int, typer.Option(min=0, metavar="N", help="The same seed gives the same result on the same device.")]
Device = Annotated[
    str, typer.Option(metavar="cpu|cuda", help="Where to work; `cuda` needs a GPU that holds the features.")
]
Normalize = Annotated[
    bool,
    typer.Option("--normalize", help="L2-normalise every row first, as the paper does with a backbone's features."),
]
Unbalanced = Annotated[
    bool, typer.Option("--unbalanced", help="Categories of very different size: do not balance clusters.")
]


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


@app.command()
def cluster(
    features: FeaturesFile,
    labels: LabelsFile = None,
    categories: Annotated[
        str, typer.Option(metavar="N|auto", help="How many categories, known and novel together; `auto` estimates it.")
    ] = "auto",
    out: Annotated[Path, typer.Option(metavar="CSV", help="The table to write.")] = Path("clusters.csv"),
    levels: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="At most so many levels of abstraction; all if not given.")
    ] = None,
    restarts: Annotated[int, typer.Option(min=1, metavar="N", help="Runs, of which the tightest is kept.")] = 1,
    seed: Seed = 0,
    device: Device = "cpu",
    normalize: Normalize = False,
    unbalanced: Unbalanced = False,
    published: Annotated[
        bool, typer.Option("--published", help="Follow the published code where it leaves the paper.")
    ] = False,
) -> None:
    """Cluster features into known and novel categories at every level of abstraction, and write a table.

    Example: `selex cluster features.npz --labels labels.csv --categories 200 --out clusters.csv`
    """
    from selex.cluster.estimators import encode
    from selex.cluster.hierarchy import hssk
    from selex.cluster.kmeans import distances_to_own
    from selex.cluster.variant import Variant
    from selex.cluster.variant import published as published_variant
    from selex.data.features import category_names, check_target, is_clusters_table, write_clusters

    count = None if categories == "auto" else _count(categories)
    check_target(out, [path for path in (features, labels) if path], is_clusters_table)
    table, given = _read(features, labels, normalize)
    values = _on_device(table.values, device)
    classes, known = encode(given, len(table.ids))
    if count is None:
        found = _estimate(values, known, "auto", None, unbalanced, seed)
        typer.echo(_summary(found))
        count = found.n_clusters
    with _progress("clustering, level") as advance:
        hierarchy = hssk(
            values,
            known,
            count,
            n_levels=levels,
            balanced=not unbalanced,
            n_init=restarts,
            variant=published_variant() if published else Variant(),
            rng=seed,
            progress=advance,
        )
    base = hierarchy.levels[0]
    names = category_names(classes.tolist(), base.n_clusters)
    distances = distances_to_own(values, base)
    write_clusters(out, table, hierarchy, names, (known >= 0).tolist(), distances.tolist())
    in_known = sum(known_category < base.n_known for known_category in base.labels.tolist())
    typer.echo(
        f"{len(table.ids)} rows: {in_known} in {base.n_known} known categories, "
        f"{len(table.ids) - in_known} in {base.n_novel} novel ones; levels of {', '.join(map(str, hierarchy.sizes))}"
    )
    typer.echo(f"wrote {out}")


@app.command()
def estimate(
    features: FeaturesFile,
    labels: LabelsFile = None,
    out: Annotated[Path, typer.Option(metavar="PNG", help="The plot to write.")] = Path("estimate.png"),
    method: Annotated[
        str,
        typer.Option(
            metavar="auto|accuracy|silhouette",
            help="`accuracy` judges by the labelled rows, `silhouette` needs no labels; `auto` chooses.",
        ),
    ] = "auto",
    max_categories: Annotated[int | None, typer.Option(min=2, metavar="N", help="The highest count to try.")] = None,
    seed: Seed = 0,
    device: Device = "cpu",
    normalize: Normalize = False,
    unbalanced: Unbalanced = False,
) -> None:
    """Estimate how many categories there are: the estimate, an interval, and the curve behind it.

    Example: `selex estimate features.npz --labels labels.csv`
    """
    from selex.cluster.estimators import encode
    from selex.data.features import check_target
    from selex.report.plots import is_plot, plot_estimate

    check_target(out, [path for path in (features, labels) if path], is_plot)
    table, given = _read(features, labels, normalize)
    _, known = encode(given, len(table.ids))
    found = _estimate(_on_device(table.values, device), known, method, max_categories, unbalanced, seed)
    plot_estimate(found, out)
    typer.echo(f"{'categories':>10}  {found.method}")
    for count, score in found.curve:
        typer.echo(f"{count:>10}  {score:.4f}{'  <- estimate' if count == found.n_clusters else ''}")
    typer.echo(_summary(found))
    typer.echo(f"wrote {out}")


@app.command()
def evaluate(
    clusters: Annotated[Path, typer.Argument(metavar="CLUSTERS", help="A table that `selex cluster` wrote.")],
    truth: Annotated[
        Path, typer.Option(metavar="CSV", help="Columns `row` or `file`, and `label`: the true categories.")
    ],
    version: Annotated[
        str, typer.Option(metavar="v1|v2", help="`v2` matches once over all rows; `v1` known and novel apart.")
    ] = "v2",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Score a clusters table against the truth, on its unlabelled rows: accuracy on All, Known and Novel, NMI, ARI.

    Example: `selex evaluate clusters.csv --truth truth.csv`
    """
    import json

    from selex.data.features import read_clusters, read_truth
    from selex.metrics import ari, nmi, split_accuracy

    table = read_clusters(clusters)
    true = read_truth(truth, table)
    scored = [row for row, held in enumerate(table.labelled) if not held and true[row]]
    if not scored:
        raise InputError(f"{clusters}: has no unlabelled row whose true category {truth} gives; nothing to score")
    categories, found = [true[row] for row in scored], [table.clusters[row] for row in scored]
    known = [category in table.known_categories for category in categories]
    scores = split_accuracy(categories, found, known, version)  # type: ignore[arg-type]
    more = {"nmi": nmi(categories, found), "ari": ari(categories, found)}
    if as_json:
        typer.echo(json.dumps({"rows": len(scored), "version": version, **scores._asdict(), **more}))
        return
    typer.echo(f"{len(scored)} unlabelled rows, accuracy ({version})")
    for name, value in zip(("All", "Known", "Novel"), scores, strict=True):
        typer.echo(f"  {name:<6}{100 * value:6.1f} %")
    typer.echo(f"NMI {more['nmi']:.3f}, ARI {more['ari']:.3f}")


@app.command()
def demo(out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where results go.")] = Path("demo")) -> None:
    """Discover handwritten digits: 0-4 known with half their labels, 5-9 to be found. Takes seconds, downloads nothing.

    Example: `selex demo --out demo`
    """
    from selex.demo import run

    run(out)


def main() -> None:
    """Run the command line; a user's mistake is one line and exit code 2."""
    warnings.showwarning = _show_note
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


def _read(features: Path, labels: Path | None, normalize: bool) -> tuple[Any, list[str] | None]:
    """The features table and the rows' labels."""
    import numpy as np

    from selex.data.features import Features, load_features, read_labels

    table = load_features(features)
    given = read_labels(labels, table) if labels else None
    if normalize:
        values = np.asarray(table.values, dtype=np.result_type(table.values.dtype, np.float32))
        lengths = np.linalg.norm(values, axis=1, keepdims=True)
        table = Features(values / np.where(lengths > 0, lengths, 1), table.ids, table.id_column)
    return table, given


def _on_device(values: Any, device: str) -> Any:
    """Features where the work is to be done: as they are, perhaps memory-mapped, or whole on a GPU."""
    if device == "cpu":
        return values
    import numpy as np
    import torch

    try:
        return torch.from_numpy(np.array(values)).to(device)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise InputError(f"--device {device}: {str(error).splitlines()[0]}") from None


def _summary(found: KEstimate) -> str:
    return f"estimate by {found.method}: {found.n_clusters} categories (90 % interval {found.low} to {found.high})"


def _estimate(values: Any, known: Any, method: str, highest: int | None, unbalanced: bool, seed: int) -> KEstimate:
    from selex.cluster.estimate_k import estimate_k

    with _progress("estimating the number of categories, try") as advance:
        tried: list[int] = []

        def tell(count: int, score: float) -> None:
            tried.append(count)
            advance(len(tried), 18)

        return estimate_k(
            values,
            known,
            method=method,  # type: ignore[arg-type]
            max_clusters=highest,
            balanced=not unbalanced,
            rng=seed,
            progress=tell,
        )


@contextmanager
def _progress(text: str) -> Iterator[Callable[[int, int], None]]:
    """A progress line on standard error, shown while it lasts and only to a person."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        MofNCompleteColumn(),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("left:"),
    )
    console = Console(stderr=True)
    with Progress(
        *columns, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(text, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=max(done, total))


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise InputError(f"--categories {text}: give a whole number of at least 1, or auto")
    return int(text)


def _show_note(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
    """Notes are one line for a person; other warnings look as they always do."""
    line = f"note: {message}" if issubclass(category, Note) else warnings.formatwarning(message, category, *place[:2])
    if line not in _shown:
        _shown.add(line)
        typer.echo(line.rstrip(), err=True)
