"""Commands about the paper's benchmark: `selex bench ...`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from selex.cli import settings
from selex.cli.app import Commands, find_device, resumable
from selex.cli.settings import configured, value
from selex.config import Config

if TYPE_CHECKING:
    from selex.bench.paper import Row
    from selex.bench.runner import BenchJob

app = Commands(no_args_is_help=True)

STAMP = "written by selex bench table"


Count = Literal["true", "auto"]
Dataset = Annotated[
    str,
    typer.Option(
        metavar="NAME|CSV",
        help="cub, aircraft, cars, pets, cifar10, cifar100, imagenet100, herbarium19, or your own CSV file with "
        "the columns `file`, `class` and `known` (1 or 0).",
    ),
]
BenchMethod = Annotated[
    str,
    typer.Option(
        metavar="selex|gcd|simgcd|frozen|kmeans",
        help="As in `selex discover`; `kmeans` is plain k-means on the pretrained features, without labels.",
    ),
]
Results = Annotated[Path, typer.Argument(metavar="RESULTS", help="The folder of result files.")]
Mixed = Annotated[bool, typer.Option("--mixed-versions", help="Accept results of several versions of selex.")]


@app.callback()
def bench() -> None:
    """Run the paper's benchmark and compare the results with the paper's."""


@app.command()
def run(
    dataset: Dataset,
    root: Annotated[Path | None, value("FOLDER", "Folder of the dataset.")] = None,
    method: BenchMethod = "selex",
    backbone: settings.Backbone = None,
    preset: settings.Preset = "paper",
    config_file: settings.ConfigFile = None,
    changes: settings.Set = None,
    suite: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Suite to run (see `selex bench table`), all its rows unless `--row` is given."
        ),
    ] = "main",
    row: Annotated[list[str] | None, value("NAME", "Only this row of the suite; repeatable.")] = None,
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="Run with seeds 0 to N - 1.")] = 3,
    seed: Annotated[list[int] | None, typer.Option(min=0, metavar="S", help="Only this seed; repeatable.")] = None,
    categories: Annotated[
        Count, typer.Option(metavar="true|auto", help="The true number of categories, or an estimate.")
    ] = "true",
    refine: settings.Refine = None,
    attention_crop: settings.AttentionCrop = False,
    epochs: settings.Epochs = None,
    variant: Annotated[str | None, value("NAME", "Name of these settings in tables; default `paper`.")] = None,
    out: Annotated[Path, typer.Option(metavar="RESULTS", help="The folder of result files.")] = Path("results"),
    runs: Annotated[Path | None, value("FOLDER", "Keep run folders here, with models for `selex predict`.")] = None,
    store: settings.Store = None,
    device: Annotated[str, typer.Option(metavar="auto|cpu|cuda", help="Device to run on.")] = "auto",
) -> None:
    """Run the benchmark on a dataset, with one result file per run; runs that have a file already are skipped.

    Example: `selex bench run --dataset cub --root data/CUB_200_2011 --method selex --seeds 3 --out results`
    """
    from selex.bench.runner import BenchJob
    from selex.models import default_backbone

    device = find_device(device)
    given = {"refine": refine, "attention_crop": attention_crop or None, "epochs": epochs, "backbone": backbone}
    config = configured(_usual(preset, dataset), config_file, changes, **given)
    job = BenchJob(
        dataset=dataset,
        root=root,
        method=method,
        backbone=config.features.backbone or default_backbone(device),
        config=config,
        variant=variant or ("published" if config.train.published else "paper"),
        suite=suite,
        device=device,
        store=store,
        runs=runs,
    )
    _run_all([replace(job, row=each) for each in _rows(suite, row, categories)], seed or range(seeds), out)


def _rows(suite: str, names: list[str] | None, categories: Count) -> list[Row]:
    """The rows of a suite that are asked for, all where none is named."""
    from selex.bench.paper import find_suite

    chosen = find_suite(suite)
    rows = [chosen.row(name) for name in names] if names else chosen.rows
    return [replace(row, categories="auto") if categories == "auto" else row for row in rows]


def _usual(preset: str | None, dataset: str) -> Config:
    """The settings of a preset; those of the paper are a dataset's own."""
    from selex.bench.paper import OF_DATASET

    usual = Config.of(preset=preset or "paper")
    return usual.change(**OF_DATASET.get(dataset, {})) if preset in (None, "paper") else usual


def _run_all(jobs: list[BenchJob], seeds: Iterable[int], out: Path) -> None:
    """Every job with every seed, but for those whose result is there."""
    from selex.bench.results import RESULTS
    from selex.bench.runner import RUNS, as_main, check_dataset, result_name, run_job
    from selex.folders import check_folder, check_outside, take_folder

    check_folder(out, RESULTS)
    for job in map(as_main, jobs):
        for option, place in (("an --out", out), ("a --runs", job.runs), ("a --store", job.store)):
            if place:
                check_outside(place, job.root, option)
        if job.runs:
            check_folder(job.runs, RUNS)
        for seed in seeds:
            if (out / result_name(job, seed)).exists():
                check_dataset(job, out / result_name(job, seed))
                typer.echo(f"{result_name(job, seed)}: exists, skipped")
                continue
            with resumable("finished runs are kept"):
                result = run_job(job, seed, _command(), True, typer.echo)
            take_folder(out, RESULTS)
            result.save(out)


def _command() -> str:
    """What was typed, without the folders of this machine."""
    words = [word if not Path(word).is_absolute() else Path(word).name for word in sys.argv[1:]]
    return shlex.join(["selex", *words])


@app.command()
def table(
    results: Results,
    suite: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="main, components, levels, alpha, lambda, label-ratio, frozen-blocks, estimated-k, long-tail, "
            "published, row-order, time or holdout.",
        ),
    ] = "main",
    to: Annotated[
        Literal["markdown", "latex"], typer.Option(metavar="markdown|latex", help="Output format.")
    ] = "markdown",
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Output file; printed if not given.")] = None,
    inductive: Annotated[
        bool, typer.Option("--inductive", help="Accuracy on test images instead of the unlabelled training images.")
    ] = False,
    match: Annotated[
        Literal["v2", "v1"],
        typer.Option(metavar="v2|v1", help="`v1` matches known and novel rows separately, as older tables do."),
    ] = "v2",
    all_methods: Annotated[
        bool, typer.Option("--all-methods", help="Also list the other methods compared in the paper.")
    ] = False,
    mixed_versions: Mixed = False,
) -> None:
    """Make a table of results next to the paper's numbers: mean ± standard deviation over seeds.

    Example: `selex bench table results --suite components --to latex --out components.tex`
    """
    from selex.bench.paper import find_suite
    from selex.bench.results import read_results
    from selex.bench.tables import Show, make_tables, to_latex, to_markdown
    from selex.io import atomic_path, check_target

    find_suite(suite)
    if out:
        check_target(out, [], _is_table)
    show = Show("inductive" if inductive else "transductive", match, all_methods)
    render = to_latex if to == "latex" else to_markdown
    text = "\n\n".join(map(render, make_tables(read_results(results, mixed_versions), suite, show)))
    if out is None:
        typer.echo(text)
        return
    stamp = f"% {STAMP}" if to == "latex" else f"<!-- {STAMP} -->"
    with atomic_path(out) as partial:
        partial.write_text(f"{stamp}\n\n{text}\n", encoding="utf-8")
    typer.echo(f"wrote {out}")


@app.command()
def plot(
    results: Results,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for the figures; created if missing.")],
    to: Annotated[Literal["png", "svg", "pdf"], typer.Option(metavar="png|svg|pdf", help="Output format.")] = "png",
    mixed_versions: Mixed = False,
) -> None:
    """Draw the paper's figures from results: radar, accuracy over epochs, and one for each ablation with results.

    Example: `selex bench plot results --out figures`
    """
    from selex.bench.plots import figures
    from selex.bench.results import read_results
    from selex.errors import InputError
    from selex.folders import take_folder
    from selex.io import check_parent, check_target
    from selex.report.curves import is_plot, save_figure

    drawn = figures(read_results(results, mixed_versions))
    if not drawn:
        raise InputError(f"{results}: has no results that can be plotted; for tables: selex bench table {results}")
    paths = {out / f"{name}.{to}": figure for name, figure in drawn.items()}
    check_parent(out)
    take_folder(out, "folder of figures")
    for path in paths:
        check_target(path, [], is_plot)
    for path, figure in paths.items():
        save_figure(figure, path)
        typer.echo(f"wrote {path}")


def _is_table(path: Path) -> bool:
    """Whether a file is one that this command wrote."""
    with path.open("rb") as file:
        return STAMP.encode() in file.readline(200)
