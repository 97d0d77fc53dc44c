"""Commands on features: cluster, estimate, evaluate; and the demonstration."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from selex.cli import settings
from selex.cli.app import MORE, ON_FEATURES, app, reported_device
from selex.cli.settings import BASICS, CLUSTERING, configured
from selex.cli.shards import cluster_shards, echo_estimate, echo_selected
from selex.config import Config
from selex.errors import InputError, Note
from selex.launch import processes
from selex.progress import estimate_bar

FeaturesOrShards = Annotated[
    Path,
    typer.Argument(
        metavar="FEATURES",
        help="`.npy` table, `.npz` with `features` and optionally `files`, or a folder of `.npy` shards.",
    ),
]
FeaturesFile = Annotated[
    Path, typer.Argument(metavar="FEATURES", help="`.npy` table, or `.npz` with `features` and optionally `files`.")
]
LABELS = "CSV or parquet: columns `row` (from 0) or `file`, and `label`; empty means unlabelled."
LabelsFile = Annotated[Path | None, settings.value("FILE", LABELS, BASICS, "--labels")]
Device = Annotated[str, typer.Option(metavar="cpu|cuda", help="Device; with `cuda` the features must fit on the GPU.")]
Normalize = Annotated[bool, settings.flag("--normalize", "L2-normalise every row first, as in the paper.")]


@app.command(rich_help_panel=ON_FEATURES)
def cluster(
    features: FeaturesOrShards,
    labels: LabelsFile = None,
    out: Annotated[Path, typer.Option(metavar="CSV", help="The table to write.")] = Path("clusters.csv"),
    preset: settings.Preset = "photos",
    config_file: settings.ConfigFile = None,
    changes: settings.Set = None,
    seed: settings.Seed = None,
    device: Device = "cpu",
    normalize: Normalize = False,
    categories: settings.Categories = None,
    refine: settings.Refine = None,
    published: Annotated[
        bool, settings.flag("--published", "Follow the published code, for comparison.", CLUSTERING)
    ] = False,
) -> None:
    """Cluster features into known and novel categories at every level of abstraction, and write a table.

    Example: `selex cluster features.npz --labels labels.csv --categories 200 --out clusters.csv`
    """
    from selex.cluster.inputs import encode
    from selex.cluster.kmeans import distances_to_own
    from selex.cluster.pipeline import fit_clusters
    from selex.data.clusters import category_names, cluster_columns, is_clusters_table, write_columns
    from selex.io import check_target
    from selex.types import published as published_variant

    given = {"seed": seed, "categories": categories, "refine": refine}
    config = configured(Config.of(preset=preset or "photos"), config_file, changes, **given)
    check_target(out, [path for path in (features, labels) if path], is_clusters_table)
    if features.is_dir() or processes() > 1:
        if published:
            raise InputError("--published needs all features in one file and one process")
        cluster_shards(features, labels, out, config, device, normalize)
        return
    table, names_given = _read(features, labels, normalize)
    classes, known = encode(names_given, len(table.ids))
    values = _on_device(table.values, device)
    how: Any = {"variant": published_variant() if published else None, "calibrate": False, "progress": True}
    found = fit_clusters(values, known, config.cluster, rng=config.seed, **how)
    echo_selected(found, config)
    base = found.hierarchy.levels[0]
    names = category_names(classes.tolist(), base.n_clusters)
    more = {"distance": distances_to_own(found.transform(values), base).tolist()}
    write_columns(out, cluster_columns(table.id_column, table.ids, found.hierarchy, names, known >= 0, more))
    in_known = sum(known_category < base.n_known for known_category in base.labels.tolist())
    typer.echo(
        f"{len(table.ids)} rows: {in_known} in {base.n_known} known categories, {len(table.ids) - in_known} in "
        f"{base.n_novel} novel ones; levels of {', '.join(map(str, found.hierarchy.n_clusters))}"
    )
    typer.echo(f"wrote {out}")


@app.command(rich_help_panel=ON_FEATURES)
def estimate(
    features: FeaturesFile,
    labels: LabelsFile = None,
    out: Annotated[Path, typer.Option(metavar="PNG", help="The plot to write.")] = Path("estimate.png"),
    method: Annotated[
        str,
        typer.Option(
            metavar="auto|combined|accuracy|silhouette",
            help="`combined` and `accuracy` use the labels, `silhouette` needs none; `auto` chooses.",
        ),
    ] = "auto",
    max_categories: Annotated[int | None, typer.Option(min=2, metavar="N", help="The highest count allowed.")] = None,
    config_file: settings.ConfigFile = None,
    changes: settings.Set = None,
    seed: settings.Seed = None,
    device: Device = "cpu",
    normalize: Normalize = False,
) -> None:
    """Estimate the number of categories, with an interval and the curve behind it.

    Example: `selex estimate features.npz --labels labels.csv`
    """
    from selex.cluster.estimate_k import estimate_k
    from selex.cluster.inputs import encode
    from selex.io import check_target
    from selex.report.curves import check_ending, is_plot, plot_estimate

    config = configured(Config(), config_file, changes, seed=seed)
    check_ending(out)
    check_target(out, [path for path in (features, labels) if path], is_plot)
    table, given = _read(features, labels, normalize)
    _, known = encode(given, len(table.ids))
    values = _on_device(table.values, device)
    how: Any = {"method": method, "max_clusters": max_categories, "balanced": config.cluster.balanced}
    with estimate_bar() as tell:
        found = estimate_k(values, known, **how, rng=config.seed, progress=tell)
    plot_estimate(found, out)
    typer.echo(f"{'categories':>10}  {found.method}")
    for count, score in found.curve:
        typer.echo(f"{count:>10}  {score:.4f}{'  <- estimate' if count == found.n_clusters else ''}")
    echo_estimate(found)
    typer.echo(f"wrote {out}")


@app.command(rich_help_panel=ON_FEATURES)
def evaluate(
    clusters: Annotated[
        Path, typer.Argument(metavar="CLUSTERS", help="Table written by `selex cluster` or `selex discover`.")
    ],
    truth: Annotated[
        Path,
        typer.Option(metavar="FILE", help="CSV or parquet: columns `row` or `file`, and `label` (the true category)."),
    ],
    version: Annotated[
        str,
        typer.Option(metavar="v1|v2", help="`v2` matches once over all rows, `v1` known and novel rows separately."),
    ] = "v2",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Score a clusters table against the truth, on its unlabelled rows: accuracy on All, Known and Novel, NMI, ARI.

    Example: `selex evaluate clusters.csv --truth truth.csv`
    """
    import json

    from selex.data.clusters import read_clusters
    from selex.data.features import read_truth
    from selex.metrics import ari, nmi, split_accuracy

    table = read_clusters(clusters)
    true = read_truth(truth, table)
    scored = [row for row, held in enumerate(table.labelled) if not held and true[row]]
    if not scored:
        raise InputError(f"{clusters}: has no unlabelled row with a true category in {truth}; nothing to score")
    without = int((~table.labelled).sum()) - len(scored)
    if without:
        warnings.warn(
            f"{without} unlabelled rows have no true category in {truth} and are not scored", Note, stacklevel=1
        )
    categories, found = [true[row] for row in scored], [table.clusters[row] for row in scored]
    known = [category in table.known_categories for category in categories]
    scores = split_accuracy(categories, found, known, version)  # type: ignore[arg-type]
    more = {"nmi": nmi(categories, found), "ari": ari(categories, found)}
    if as_json:
        parts = {name: value if value == value else None for name, value in scores._asdict().items()}
        typer.echo(json.dumps({"rows": len(scored), "version": version, **parts, **more}))
        return
    typer.echo(f"{len(scored)} unlabelled rows, accuracy ({version})")
    for name, value in zip(("All", "Known", "Novel"), scores, strict=True):
        typer.echo(f"  {name:<6}{100 * value:6.1f} %" if value == value else f"  {name:<6}     - (no such row)")
    typer.echo(f"NMI {more['nmi']:.3f}, ARI {more['ari']:.3f}")


@app.command(rich_help_panel=MORE)
def demo(out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for the results.")] = Path("demo")) -> None:
    """Try it on handwritten digits, 0-4 known and 5-9 to discover: a few minutes on a CPU, no download.

    Example: `selex demo --out demo`
    """
    from selex.cli.demo import run_demo

    run_demo(out, progress=True)


def _read(features: Path, labels: Path | None, normalize: bool) -> tuple[Any, list[str] | None]:
    """The features table and the rows' labels."""
    import numpy as np

    from selex.data.features import Features, load_features, read_labels

    table = load_features(features)
    given = read_labels(labels, table) if labels else None
    if normalize:
        if table.values.dtype.kind not in "fiub":
            raise InputError(f"{features}: features must be real numbers, not {table.values.dtype}")
        values = np.asarray(table.values, dtype=np.result_type(table.values.dtype, np.float32))
        lengths = np.linalg.norm(values, axis=1, keepdims=True)
        usable = np.isfinite(lengths) & (lengths > 0)  # rows that are not numbers are named later, as they are
        table = Features(values / np.where(usable, lengths, 1), table.ids, table.id_column)
    return table, given


def _on_device(values: Any, device: str) -> Any:
    """Features where the work is to be done: as they are, perhaps memory-mapped, or whole on a GPU."""
    if device == "cpu":
        return values
    import numpy as np
    import torch

    with reported_device(device):
        return torch.from_numpy(np.array(values)).to(device)
