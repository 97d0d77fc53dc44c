"""Settings on the command line: `--preset`, `--config`, `--set`, and an option each for those that are often changed.

What an option says of itself comes from the setting (`config/groups.py`), as do its values. Beside them are the options
that several commands on photos have.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from selex.config import GROUPS, PRESETS, Config, find_setting, flatten
from selex.config.settings import from_file, metavar, parse
from selex.errors import InputError

if TYPE_CHECKING:
    from selex.features.ray_cluster import RayEngine

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

BASICS, FEATURES, CLUSTERING, TRAINING = None, "Features", "Clustering", "Training"  # None is the first panel
RAY = "Ray cluster"
_WIDE = 16
_PRESETS = " or ".join([", ".join(list(PRESETS)[:-1]), list(PRESETS)[-1]])
_PANELS = {"": BASICS, "data": BASICS, "features": FEATURES, "cluster": CLUSTERING, "train": TRAINING}


def _home(group: str) -> type:
    return GROUPS[group] if group else Config


def option(name: str, *flags: str) -> Any:
    """The option of a setting, described as the setting is."""
    group, about = find_setting(name)
    flags = flags or (f"--{about.name.replace('_', '-')}",)
    home = _home(group)
    shown = metavar(home, about)
    return typer.Option(
        *flags,
        metavar=shown if len(shown) < _WIDE else "NAME",
        help=about.metadata["summary"],
        rich_help_panel=_PANELS[group],
    )


def flag(name: str, about: str, panel: str | None = BASICS) -> Any:
    """An option that is on or off."""
    return typer.Option(name, help=about, rich_help_panel=panel)


def value(shown: str, about: str, panel: str | None = BASICS, *flags: str) -> Any:
    """An option with a value; its default is said where it is described, if anywhere."""
    return typer.Option(*flags, metavar=shown, show_default=False, help=about, rich_help_panel=panel)


Preset = Annotated[str | None, value("NAME", f"Settings preset: {_PRESETS}.")]
ConfigFile = Annotated[Path | None, value("FILE", "TOML file with settings.", BASICS, "--config")]
Set = Annotated[
    list[str] | None, value("KEY=VALUE", "Change a setting (see `selex config`); repeatable.", BASICS, "--set")
]
Seed = Annotated[str | None, option("seed")]
Backbone = Annotated[str | None, option("features.backbone")]
AttentionCrop = Annotated[bool, option("features.attention_crop")]
Categories = Annotated[str | None, option("cluster.categories")]
Refine = Annotated[str | None, option("cluster.refine")]
Method = Annotated[str | None, option("train.method")]
Epochs = Annotated[str | None, option("train.epochs")]

# no settings: where and how a job runs, not what comes of it
Device = Annotated[str, value("NAME", "`cpu`, `cuda` or `auto` (a GPU if there is one).")]
Store = Annotated[Path | None, value("FOLDER", "Where to store decoded images.")]
Strict = Annotated[bool, flag("--strict", "Stop at the first unreadable image.")]
Resume = Annotated[bool, flag("--resume", "Resume interrupted training.", TRAINING)]
Restart = Annotated[bool, flag("--restart", "Train again from the beginning.", TRAINING)]
Board = Annotated[bool, flag("--tensorboard", "Also write curves for TensorBoard.", TRAINING)]
Engine = Annotated[str, value("NAME", "`local`, or `ray` to embed on a Ray cluster.", RAY)]
Address = Annotated[str | None, value("ADDRESS", "Ray cluster to join; `auto` finds a running one.", RAY)]
Workers = Annotated[int | None, value("NUMBER", "Workers, each with a copy of the backbone.", RAY)]
Spread = Annotated[bool, flag("--spread", "Also cluster on the workers.", RAY)]


def configured(base: Config, file: Path | None, changes: list[str] | None, **given: Any) -> Config:
    """Settings with those of a file, of `--set` and of options, the latter of which count most.

    Args:
        base: where to start.
        file: what `--config` says.
        changes: what `--set` says.
        given: settings by name, as they were typed; None where an option was not given.
    """
    config = _with_file(base, file) if file else base
    settings = dict(map(_split, changes or ()))
    settings |= {name: value for name, value in given.items() if value is not None}
    return config.change(**{name: _parsed(name, value) for name, value in settings.items()})


def show_config(
    preset: Annotated[str, typer.Argument(metavar="PRESET", help=f"{_PRESETS}.")] = "photos",
) -> None:
    """Print the settings of a preset as a TOML file for `--config`.

    Example: `selex config best`
    """
    typer.echo(Config.of(preset=preset).to_toml(), nl=False)


def _with_file(base: Config, path: Path) -> Config:
    try:
        with path.open("rb") as file:
            values = flatten(tomllib.load(file))
        return base.change(**{name: _from_file(name, value) for name, value in values.items()})
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error).splitlines()[0]
        raise InputError(f"{path}: cannot be read ({reason})") from None


def _split(change: str) -> tuple[str, str]:
    name, equals, text = change.partition("=")
    if not equals:
        raise InputError(f"--set {change}: give a setting and its value, such as --set cluster.whiten=0")
    return name.strip(), text.strip()


def _parsed(name: str, value: Any) -> Any:
    group, about = find_setting(name)
    return parse(_home(group), about, value) if isinstance(value, str) else value


def _from_file(name: str, value: Any) -> Any:
    group, about = find_setting(name)
    return from_file(_home(group), about, value)


def find_engine(
    name: str, address: str | None, workers: int | None, store: Path | None, spread: bool = False
) -> RayEngine | None:
    """The cluster that embeds, None where this process does."""
    if name == "local":
        if address or workers is not None:
            raise InputError("--address and --workers need --engine ray")
        if spread:
            raise InputError("--spread needs --engine ray: its workers cluster")
        return None
    if name != "ray":
        raise InputError(f"no engine {name!r}; there are: local, ray")
    if workers is not None and workers < 1:
        raise InputError(f"--workers must be at least 1, not {workers}")
    if store is not None:
        raise InputError("--store is for --engine local: a cluster stores no decoded images")
    from selex.features.ray_cluster import RayEngine

    return RayEngine(address, workers, spread)
