"""Commands on photos: discover, train, recluster, predict. Where a run is there already, `discover` continues it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from selex.cli import settings
from selex.cli.app import RunFolder, app, find_device, resumable
from selex.cli.settings import configured, find_engine, value
from selex.config import Config
from selex.config.groups import FROZEN
from selex.errors import InputError, Note, counted
from selex.launch import first_process, processes

if TYPE_CHECKING:
    from selex.data.clusters import Columns
    from selex.features.ray_cluster import RayEngine
    from selex.review.core.outcome import Changes
    from selex.runs.run import Run


@app.command()
def discover(
    photos: Annotated[
        str,
        typer.Argument(
            metavar="PHOTOS",
            show_default=False,
            help="Folder with a sub-folder for each known category, or CSV or parquet file; with `--add`, a run.",
        ),
    ],
    labels: Annotated[Path | None, settings.option("data.labels")] = None,
    out: Annotated[Path | None, value("RUN", "Run folder to write; default `selex-run`.")] = None,
    add: Annotated[list[Path] | None, value("FOLDER", "Add photos to a run and sort all of them again.")] = None,
    preset: settings.Preset = "photos",
    config_file: settings.ConfigFile = None,
    changes: settings.Set = None,
    seed: settings.Seed = None,
    device: settings.Device = "auto",
    store: settings.Store = None,
    strict: settings.Strict = False,
    backbone: settings.Backbone = None,
    attention_crop: settings.AttentionCrop = False,
    categories: settings.Categories = None,
    refine: settings.Refine = None,
    method: settings.Method = None,
    epochs: settings.Epochs = None,
    restart: settings.Restart = False,
    tensorboard: settings.Board = False,
    engine: settings.Engine = "local",
    address: settings.Address = None,
    workers: settings.Workers = None,
    spread: settings.Spread = False,
) -> None:
    """Sort photos, some of them labelled, into known and novel categories.

    Example: `selex discover photos --categories auto --out birds`
    """
    from selex.data.table import is_url
    from selex.runs.run import Run

    if add and out:
        raise InputError(f"--add writes to the run itself ({photos}): do not give --out")
    out = Path(photos) if add else out or Path("selex-run")
    place = photos if is_url(photos) else str(Path(photos).absolute())
    begin = _with_more(Run.open(photos), add) if add else Config.of(place, preset=preset or "photos")
    config = configured(
        begin,
        config_file,
        changes,
        photos=begin.data.photos,
        added=begin.data.added or None,
        labels=str(labels.absolute()) if labels else None,
        seed=seed,
        backbone=backbone,
        attention_crop=attention_crop or None,
        categories=categories,
        refine=refine,
        method=method,
        epochs=epochs,
    )
    cluster = find_engine(engine, address, workers, store, spread)
    train = {"restart": restart, "tensorboard": tensorboard}
    _discover(config, out, train, True, cluster, device=find_device(device), store=store, strict=strict)


@app.command()
def train(
    run: RunFolder,
    preset: settings.Preset = "photos",
    config_file: settings.ConfigFile = None,
    changes: settings.Set = None,
    device: settings.Device = "auto",
    store: settings.Store = None,
    method: settings.Method = None,
    epochs: settings.Epochs = None,
    resume: settings.Resume = False,
    restart: settings.Restart = False,
    tensorboard: settings.Board = False,
) -> None:
    """Train the network of a run on its photos (with SelEx by default) and sort them again.

    Example: `selex train birds --epochs 50`
    """
    from selex.runs.run import Run, labelled_by_review
    from selex.training.fit import interrupted_config
    from selex.training.methods import find_method

    other = {"--config": config_file, "--set": changes, "--method": method, "--epochs": epochs}
    other |= {"--preset": None if preset == "photos" else preset}
    if resume and (given := [name for name, value in other.items() if value is not None]):
        raise InputError(f"--resume uses the settings of the interrupted training: leave out {given[0]} or --resume")
    opened = Run.open(run)
    base = replace(opened.config, train=replace(Config.of(preset=preset or "photos").train, method="selex"))
    refine = "auto" if method and method != FROZEN and not find_method(method).clusters else None  # nothing to refine
    config = configured(base, config_file, changes, method=method, epochs=epochs, refine=refine)
    config = interrupted_config(opened) if resume else config
    reviewed = not resume or labelled_by_review(run, config)
    if resume and reviewed:  # decisions give the same labels again, and leave the same photos out
        config = config.change(labels=opened.config.data.labels)
    train = {"restart": restart, "tensorboard": tensorboard}
    _discover(config, run, train, reviewed, device=find_device(device), store=store or opened.store, strict=False)


@app.command()
def recluster(
    run: RunFolder,
    config_file: settings.ConfigFile = None,
    changes: settings.Set = None,
    device: settings.Device = "auto",
    store: settings.Store = None,
    strict: settings.Strict = False,
) -> None:
    """Cluster a run again, with the decisions made in `selex review`.

    Example: `selex recluster birds`
    """
    from selex.cli.results import summary
    from selex.review.recluster import recluster as run_recluster

    if processes() > 1:
        raise InputError("reclustering runs in one process: start `selex recluster` without torchrun")
    how: Any = {"device": find_device(device), "store": store, "strict": strict, "progress": True, "tell": typer.echo}
    with resumable("finished images, features and epochs are kept"):
        done = run_recluster(run, change=lambda config: configured(config, config_file, changes), **how)
    typer.echo(summary(done.run))
    typer.echo(f"\nchanged: {done.changes}")
    typer.echo(f"next:    selex review {run}")


def _discover(
    config: Config, out: Path, train: dict[str, Any], reviewed: bool, engine: RayEngine | None = None, **how: Any
) -> None:
    """Do the job and say what was found."""
    from selex.cli.results import echo_next_steps, summary
    from selex.training.fit import TrainOptions

    how |= {"options": TrainOptions(**train, progress=True), "progress": first_process(), "tell": typer.echo}
    done = "images and features" if config.train.method == FROZEN else "images, features and epochs"
    with resumable(f"finished {done} are kept"):
        run, changes = _discover_again(config, out, reviewed, engine, **how)
    if not first_process():
        return
    typer.echo(summary(run))
    if changes:
        typer.echo(f"\nchanged: {changes}")
    echo_next_steps(run, out)


def _discover_again(
    config: Config, out: Path, reviewed: bool, engine: RayEngine | None, **how: Any
) -> tuple[Run, Changes | None]:
    """The finished run and, if there was one before, what changed.

    Categories continue from those before, whose decisions count as labels if `reviewed`.
    """
    from selex.discovery import discover as run_discover
    from selex.review.core.labels import labels_of
    from selex.review.core.outcome import compare
    from selex.review.core.state import State
    from selex.review.recluster import check_places
    from selex.review.recluster import recluster as run_recluster
    from selex.runs.earlier import Earlier, continues
    from selex.runs.results import Results

    before = _earlier(out, config)
    if before and not config.data.added:
        config = config.change(added="\n".join(before.config.data.sources[1:]))
    if before:
        check_places(before, config)
    found = Results.read_if_any(before, distances=True) if before else None
    decided = labels_of(before).decisions if before and found and reviewed else 0
    if before and decided:
        _check_decisions(config, before, decided, alone=not engine and processes() == 1)
        typer.echo(f"with {counted(decided, 'decision')} from `selex review`")
        done = run_recluster(out, config=config, **how)
        return done.run, done.changes
    if before and found and not engine and continues(before.config, config):
        count = config.cluster.categories
        how["earlier"] = Earlier.grown(before, found) if count in (None, before.config.cluster.categories) else None
    run = run_discover(config, out, engine=engine, **how)
    return run, compare(State(found), Results.read(run)) if found and first_process() else None


def _earlier(out: Path, config: Config) -> Run | None:
    """The finished run of the same photos that is there; whatever else is there is refused later."""
    from selex.runs.run import Run

    with suppress(InputError):
        run = Run.open(out)
        return run if run.complete and run.is_of(config.data.photos) else None
    return None


def _check_decisions(config: Config, run: Run, decided: int, alone: bool) -> None:
    """Refuse labels that would replace a person's decisions, and processes that know nothing of these."""
    has = f"{run.folder}: has {counted(decided, 'decision')} from `selex review`"
    if config.data.labels not in (None, run.config.data.labels):
        kept = "leave --labels out (the labels of the run are kept), or choose another --out"
        raise InputError(f"{has}, which --labels would replace; {kept}")
    if not alone:
        raise InputError(f"{has}: use `selex recluster`, in one process, or another --out")


def _with_more(run: Run, folders: list[Path]) -> Config:
    """The settings of a run, with more photos, and without folders added before that no longer exist."""
    from selex.data.table import is_there

    if not run.config.data.photos:
        raise InputError(f"{run.folder}: its images came from a list in Python: call `discover` with a longer list")
    _, *added = run.config.data.sources
    gone = [place for place in added if not is_there(place)]
    for place in gone:
        warnings.warn(f"{place}: no longer exists; its photos are looked for in the other folders", Note, stacklevel=2)
    places = [*(place for place in added if place not in gone), *(str(folder.absolute()) for folder in folders)]
    return run.config.change(added="\n".join(dict.fromkeys(places)))


@app.command()
def predict(
    run: RunFolder,
    photos: Annotated[
        str, typer.Argument(metavar="PHOTOS", show_default=False, help="A folder, a table or a single image.")
    ],
    out: Annotated[
        Path | None, value("CSV", "The table to write; default `predictions.csv`, then `predictions-2.csv` and so on.")
    ] = None,
    device: settings.Device = "auto",
    store: settings.Store = None,
    strict: settings.Strict = False,
    engine: settings.Engine = "local",
    address: settings.Address = None,
    workers: settings.Workers = None,
) -> None:
    """Sort new photos into the categories of a run, with confidence and runner-up; flag those that fit none.

    Example: `selex predict birds new-photos --out predictions.csv`
    """
    from selex.data.clusters import is_predictions_table, write_blocks
    from selex.folders import check_outside
    from selex.io import check_target, free_path
    from selex.runs.predictor import load
    from selex.runs.run import Run

    out = out or free_path(Path("predictions.csv"))
    for folder in (photos, *Run.open(run).config.data.sources):
        check_outside(out, folder, "an --out")
        if store:
            check_outside(store, folder, "a --store")
    check_target(out, [Path(photos)], is_predictions_table)
    cluster = find_engine(engine, address, workers, store)
    counted = _Counted()
    with resumable("finished features are kept") if cluster else nullcontext():
        how = {"device": find_device(device), "store": store, "strict": strict, "progress": True, "engine": cluster}
        blocks = load(run).predict_blocks(photos, **how)
        write_blocks(out, counted.through(blocks))
    typer.echo(counted)
    typer.echo(f"wrote {out}")


class _Counted:
    """Predictions that pass by, counted."""

    images = known = strange = 0

    def through(self, blocks: Iterator[Columns]) -> Iterator[Columns]:
        """The same blocks."""
        for block in blocks:
            self.images += len(block["file"])
            self.known += sum(block["known"])
            self.strange += block["fits"].count(0)
            yield block

    def __str__(self) -> str:
        novel = self.images - self.known - self.strange
        return f"{self.images} images: {self.known} in known categories, {novel} in novel ones, {self.strange} fit none"
