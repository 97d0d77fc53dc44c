"""Commands on a run: info, report, review, serve, export."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from selex.cli.app import RunFolder, app, estimate_line, find_device, tell_of_server
from selex.cli.settings import Device, value
from selex.errors import counted, needs_extra
from selex.progress import progress_bar

if TYPE_CHECKING:
    from selex.data.clusters import Columns
    from selex.runs.run import Run


Port = Annotated[int, typer.Option(min=0, max=65535, metavar="P", help="Port to listen on; 0 for any free port.")]
Host = Annotated[
    str,
    typer.Option(
        metavar="HOST",
        help="Address to listen on, such as `0.0.0.0` for all; the printed address then includes a token.",
    ),
]


@app.command()
def export(
    run: RunFolder,
    to: Annotated[
        str,
        typer.Option(
            metavar="folders|csv|parquet|parquet-shards|label-studio|fiftyone",
            help="`folders`: a folder for each category; `csv`, `parquet`: a table; `parquet-shards`: the table in "
            "files of a million rows; `label-studio`: tasks with predictions; `fiftyone`: a classification dataset.",
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="PATH", help="The folder (new or empty) or the table to write.")],
    copy: Annotated[bool, typer.Option("--copy", help="Copy images instead of making hard links.")] = False,
    as_found: Annotated[bool, typer.Option("--as-found", help="Ignore decisions made in `selex review`.")] = False,
) -> None:
    """Export the categories of a run for other programs; photos are never moved or changed.

    Example: `selex export birds --to folders --out sorted`
    """
    from selex.runs.export import export as run_export
    from selex.runs.run import Run

    opened = Run.open(run)
    with progress_bar("images") as show:
        done = run_export(opened, to, out, copy, show, None if as_found else _decided(opened))
    placed = [f"{count} {way}" for count, way in ((done.linked, "hard links"), (done.copied, "copies")) if count]
    typer.echo(f"{done.images} images in {done.categories} categories" + (f": {', '.join(placed)}" if placed else ""))
    typer.echo(f"wrote {out}")
    typer.echo(f"next: {done.advice}")


@app.command()
def info(
    run: RunFolder,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Summarise a run and what it found.

    Example: `selex info birds`
    """
    from selex.runs.run import Run

    opened = Run.open(run)
    config = opened.config
    if as_json:
        typer.echo(json.dumps(_about(opened), indent=1))
        return
    labels = f", labels {config.data.labels}" if config.data.labels else ""
    unfinished = "not finished: run the same `selex discover` again to resume it"
    typer.echo(
        f"photos {config.data.photos}{labels}\n"
        f"backbone {config.features.backbone}, method {config.train.method}, seed {config.seed}\n"
        f"{summary(opened) if opened.complete else unfinished}"
    )


@app.command()
def report(
    run: RunFolder,
    out: Annotated[Path | None, value("FILE", "The HTML file to write; default `report.html` in RUN.")] = None,
    truth: Annotated[
        Path | None,
        value("FILE", "CSV or parquet: columns `file` and `label` (the true category), to report accuracy."),
    ] = None,
    title: Annotated[str | None, value("TEXT", "Title of the page; default: the name of the photos.")] = None,
) -> None:
    """Write a report of a run as one HTML file with example images, to open in a browser or send by e-mail.

    Example: `selex report birds`
    """
    from selex.report.html import NAME, write_report
    from selex.review.core.outcome import count_decisions
    from selex.runs.run import Run

    opened = Run.open(run)
    with progress_bar("report, step") as show:
        path = write_report(opened, out or run / NAME, truth, show, title)
    typer.echo(f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB): open it in a browser")
    if count := count_decisions(opened):
        typer.echo(f"it shows what the run found, without {counted(count, 'decision')} from `selex review`;")
        typer.echo(f"to include them: selex recluster {run}, then selex report {run}")


@app.command()
def names(
    run: RunFolder,
    names: Annotated[Path, typer.Option("--names", metavar="FILE", help="Word list: one name per line.")],
    model: Annotated[str | None, value("NAME", "Text-image model from open_clip or transformers.")] = None,
) -> None:
    """Suggest names for novel categories from your word list, with a text-image model; you decide on the review page.

    Example: `selex names birds --names species.txt`
    """
    from selex.review.core.names import load_text_image_model, read_words, suggest_names, write_suggested
    from selex.runs.results import Results
    from selex.runs.run import Run

    opened, words = Run.open(run), read_words(str(names))
    results, loaded = Results.read(opened), load_text_image_model(model)
    with progress_bar("naming, category") as show:
        found = suggest_names(opened, words, loaded, show)
    for category, best in found.items():
        typer.echo(f"{category}: {', '.join(f'{word} ({score:.2f})' for word, score in best)}")
    path = write_suggested(run, results, model or "default", found)
    typer.echo(f"wrote {path}: selex review {run} suggests these names")


@app.command()
def review(
    run: RunFolder,
    port: Port = 8760,
    host: Host = "127.0.0.1",
    table: Annotated[
        Path | None, value("FILE", "CSV or parquet file with `file_name` and columns to filter photos by.")
    ] = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Do not open the browser.")] = False,
) -> None:
    """Review the categories of a run in the browser: name, merge, split, move, confirm, with undo.

    Example: `selex review birds`
    """
    from selex.runs.run import Run

    images = sum(Run.open(run).hierarchy["levels"][0]["sizes"])
    tell_of_server(f"reading {run}: {counted(images)}")
    with needs_extra("review", "the review page"):
        from selex.review.server.serve import serve

    serve(run, host=host, port=port, browser=not no_browser, table=table, tell=tell_of_server)


@app.command()
def serve(
    run: RunFolder,
    port: Port = 8770,
    host: Host = "127.0.0.1",
    device: Device = "auto",
) -> None:
    """Sort new photos for other programs over HTTP: post an image, get its category.

    Example: `selex serve birds`
    """
    from selex.runs.run import Run

    Run.open(run)
    tell_of_server(f"loading the network of {run}; this takes a few seconds")
    with needs_extra("review", "the server"):
        from selex.serve import serve as run_server

    run_server(run, host=host, port=port, device=find_device(device), tell=tell_of_server)


def _about(run: Run) -> dict[str, Any]:
    """What a run is and what it found, as plain values; what it found only if it is complete."""
    about = {name: run.about[name] for name in ("format", "run", "root", "versions", "config")}
    if not run.complete:
        return {**about, "complete": False}
    found, tree = _tally(run), run.hierarchy
    n_known = tree["levels"][0]["n_known"]
    tallies = [found.categories.get(name, (0, 0.0)) for name in tree["names"]]
    categories = [
        {"name": name, "known": number < n_known, "images": images, "confidence": total / images if images else None}
        for number, (name, (images, total)) in enumerate(zip(tree["names"], tallies, strict=True))
    ]
    count = sum(images for images, _ in tallies)
    counts = {"images": count, "labelled": found.labelled, "skipped": len(run.skipped)}
    return {**about, "complete": True, **counts, "estimate": tree["estimate"], "categories": categories}


def _decided(run: Run) -> Iterator[Columns] | None:
    """The categories of a run as they were decided; None where nothing was. Says so."""
    from selex.review.core.outcome import reviewed

    found = reviewed(run)
    if found is None:
        return None
    table, count = found
    typer.echo(f"with {counted(count, 'decision')} from `selex review`; --as-found ignores them")
    return table


class _Tally(NamedTuple):
    """How many images are labelled; how many each category has, and their confidence in all, as they first appear."""

    labelled: int
    categories: dict[str, tuple[int, float]]


def _tally(run: Run) -> _Tally:
    """Counted through the table, some rows of which are in memory at a time."""
    labelled, categories = 0, dict[str, tuple[int, float]]()
    for block in run.blocks("category", "labelled", "confidence"):
        table = block.to_pydict()
        labelled += sum(table["labelled"])
        for category, confidence in zip(table["category"], table["confidence"], strict=True):
            images, total = categories.get(category, (0, 0.0))
            categories[category] = images + 1, total + confidence
    return _Tally(labelled, categories)


def summary(run: Run) -> str:
    """What was found, as a person wants to read it. In one piece: `selex info RUN | head -1` is nobody's mistake."""
    tree, found = run.hierarchy, _tally(run)
    n_known, count = tree["levels"][0]["n_known"], sum(images for images, _ in found.categories.values())
    known = set(tree["names"][:n_known])
    sure = {name: tally for name, tally in found.categories.items() if name not in known}
    in_known, labelled = count - sum(images for images, _ in sure.values()), found.labelled
    lines = [f"\n{count} images, {labelled} of them labelled{_skipped(run)}"]
    for images, number, kind in ((in_known, n_known, "known"), (count - in_known, len(sure), "novel")):
        lines += [f"{images:>8} in {counted(number, f'{kind} category')}"]
    if estimate := tree["estimate"]:
        lines += [estimate_line(*(estimate[name] for name in ("n_clusters", "low", "high", "method")))]
    return "\n".join([*lines, *(_new_categories(sure) if sure else [])])


def _skipped(run: Run) -> str:
    count = len(run.skipped)
    return f"; {count} more could not be read: see {run.folder / 'skipped.csv'}" if count else ""


def _new_categories(sure: dict[str, tuple[int, float]]) -> list[str]:
    """The new categories, largest first."""
    width = max(len("novel category"), *map(len, sure))
    lines = [f"\n{'novel category':<{width}}  images  mean confidence"]
    ranked = sorted(sure.items(), key=lambda item: -item[1][0])
    for category, (images, total) in ranked[:_SHOWN]:
        lines += [f"{category:<{width}}  {images:>6}  {total / images:>15.2f}"]
    return [*lines, *([f"... and {len(ranked) - _SHOWN} more"] if len(ranked) > _SHOWN else [])]


_SHOWN = 15


def echo_next_steps(run: Run, out: Path) -> None:
    """Say where the table is, and what can be done with a run."""
    typer.echo(f"\ntable:  {out / 'clusters.csv'}")
    steps = next_steps(run, out)
    width = max(map(len, steps))
    for number, (command, use) in enumerate(steps.items()):
        typer.echo(f"{'' if number else 'next:':<8}{command:<{width}}  {use}")


def next_steps(run: Run, out: Path) -> dict[str, str]:
    """What can be done with a run, and what for. Images of URLs and archives are neither shown nor put into folders."""
    files = next(run.blocks("file"))["file"][:1].to_pylist()
    there = all(os.path.exists(path) for path in run.image_paths(files))
    shown = "" if there else "; photos are grey squares"
    how = "--to folders --out sorted" if there else "--to csv --out sorted.csv"
    return {
        f"selex report {out}": f"write one HTML page with examples, to look at or send{shown}",
        f"selex review {out}": f"name and correct the categories in the browser{shown}",
        f"selex export {out} {how}": "one folder per category" if there else "a table for other programs",
        f"selex predict {out} NEW_PHOTOS": "sort new photos",
    }
