"""`discover` on a folder that may hold a run already: its decisions count as labels, its categories continue."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from selex.cli.app import decisions, first_process, processes
from selex.config import Config
from selex.errors import InputError

if TYPE_CHECKING:
    from selex.features.ray_cluster import RayEngine
    from selex.review.core.outcome import Changes
    from selex.runs.run import Run


def discover_again(
    config: Config, out: Path, reviewed: bool, engine: RayEngine | None, **how: Any
) -> tuple[Run, Changes | None]:
    """The finished run and, if there was one before, what changed; its decisions count as labels if `reviewed`."""
    from selex.discovery import discover
    from selex.review.core.labels import labels_of
    from selex.review.core.outcome import compare
    from selex.review.core.state import State
    from selex.review.recluster import recluster
    from selex.runs.earlier import Earlier, continues
    from selex.runs.results import Results

    before = _earlier(out, config)
    if before and not config.data.added:
        config = config.change(added=before.config.data.added)
    found = Results.read_if_any(before, distances=True) if before else None
    decided = labels_of(before).decisions if before and found and reviewed else 0
    if before and decided:
        _check_labels(config, before, decided)
        if engine or processes() > 1:
            raise InputError(
                f"{out}: has {decisions(decided)} from `selex review`: use `selex recluster`, in one process, or "
                "another --out"
            )
        typer.echo(f"with {decisions(decided)} from `selex review`")
        done = recluster(out, config=config, **how)
        return done.run, done.changes
    if before and found and not engine and continues(before.config, config):
        count = config.cluster.categories
        how["earlier"] = Earlier.grown(before, found) if count in (None, before.config.cluster.categories) else None
    run = discover(config, out, engine=engine, **how)
    return run, compare(State(found), Results.read(run)) if found and first_process() else None


def _earlier(out: Path, config: Config) -> Run | None:
    """The finished run of the same photos that is there; whatever else is there is refused later."""
    from selex.runs.run import Run

    with suppress(InputError):
        run = Run.open(out)
        return run if run.complete and run.config.data.photos == config.data.photos else None
    return None


def _check_labels(config: Config, run: Run, decided: int) -> None:
    """Refuse labels that would replace a person's decisions."""
    if config.data.labels not in (None, run.config.data.labels):
        raise InputError(
            f"{run.folder}: has {decisions(decided)} from `selex review`, which --labels would replace; leave --labels "
            "out (the labels of the run are kept), or choose another --out"
        )


def with_more(run: Run, folders: list[Path]) -> Config:
    """The settings of a run, with more photos."""
    if not run.config.data.photos:
        raise InputError(f"{run.folder}: its images came from a list in Python: call `discover` with a longer list")
    places = [*run.config.data.sources[1:], *(str(folder.absolute()) for folder in folders)]
    return run.config.change(added="\n".join(dict.fromkeys(places)))
