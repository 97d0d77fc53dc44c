"""Other people's files: for every command and every option that names a path, a folder full of them stays as it is."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

from chaos import lab as worlds
from chaos.cases import Plan, Tries, case
from chaos.lab import PIXELS, Lab, difference, snapshot

NAMES = """
photos/holiday.png new/b.png notes.txt .workspace/settings .nextcloud-sync .config.json.bak config.json.bak index.npz
images.u8 lock index.npz.new .work/thesis.tex .next/complete model/model.json checkpoint-00001.pt clusters.csv
clusters.parquet content.npy embeddings.npy embeddings.npy.json hierarchy.json skipped.csv report.html predictions.csv
estimate.png originals.csv review-labels.csv selex-run/diary.txt results/run.json pixels/x gcd/x run/x truth.csv
digits.png .selex-notes.tmp .clusters.csv.abcdefgh.csv exports/mine.csv tensorboard/events demo/x figures/main.png
unlabelled/c.png data/d.png weights/e.safetensors labels.json
""".split()  # noqa: SIM905
LINKS = {"metrics.jsonl": "secret.txt", "link": "folder", ".selex-link": "folder", "dangling": "nowhere"}

COMMANDS: dict[str, tuple[str, ...]] = {
    "discover": ("photos", *PIXELS),
    "train": ("run", "--epochs", "1", "--set", "train.batch=16", "--device", "cpu"),
    "recluster": ("run", "--device", "cpu"),
    "config": (),
    "predict": ("run", "new", "--device", "cpu"),
    "export": ("run", "--to", "folders", "--out", "sorted"),
    "info": ("run",),
    "report": ("run",),
    "review": ("run", "--port", "0", "--no-browser"),
    "names": ("run", "--names", "words.txt"),
    "serve": ("run", "--port", "0", "--device", "cpu"),
    "cluster": ("features.npz", "--categories", "4"),
    "estimate": ("features.npz", "--method", "silhouette"),
    "evaluate": ("clusters.csv", "--truth", "truth.csv"),
    "demo": (),
    "data check": ("cub", "--root", "photos"),
    "bench run": ("--dataset", "dataset.csv", "--root", "photos", "--method", "frozen", "--backbone", "pixels",
                  "--seeds", "1", "--device", "cpu"),
    "bench table": ("results",),
    "bench plot": ("results", "--out", "figures"),
    "weights list": (), "weights verify": (), "weights fetch": ("tiny-vit",),
}  # fmt: skip
"""For each command arguments that it takes; the tests replace a path among them, or add one."""
STAY = {"review", "serve"}
"""Commands that end when they are stopped."""


def world(lab: Lab) -> None:
    """A run beside a folder of somebody else's, which has names like ours and links to a third one."""
    lab.restore(worlds.tiny_run)
    mine, outside = lab.home / "mine", lab.home / "outside"
    for name in NAMES:
        (mine / name).parent.mkdir(parents=True, exist_ok=True)
        (mine / name).write_text(f"{name}: this is mine\n")
    (outside / "folder").mkdir(parents=True)
    for name in ("secret.txt", "folder/complete", "folder/clusters.csv"):
        (outside / name).write_text("nobody but me\n")
    for name, target in LINKS.items():
        (mine / name).symlink_to(outside / target)
    sqlite3.connect(mine / "review.sqlite").execute("CREATE TABLE mine (a)").connection.close()
    os.link(outside / "secret.txt", mine / "hard-link")
    photos = sorted((lab.home / "photos").rglob("*.png"))
    lines = [f"{path.relative_to(lab.home)},{number % 4},{int(number % 4 < 2)}" for number, path in enumerate(photos)]
    (lab.home / "dataset.csv").write_text("\n".join(["file,class,known", *lines]) + "\n")
    (lab.home / "truth.csv").write_text("row,label\n" + "".join(f"{row},{row % 4}\n" for row in range(40)))
    for command in ("cluster", "bench run", "evaluate", "bench table"):
        lab.must(*command.split(), *COMMANDS[command])


PATHS = {"CLUSTERS", "CSV", "FEATURES", "FILE", "FOLDER", "NAME|CSV", "PATH", "PHOTOS", "PNG", "RESULTS", "RUN"}
TEXTS = {"ADDRESS", "BACKBONE", "HOST", "KEY=VALUE", "N", "N|auto", "NAME", "NUMBER", "P", "PRESET", "S", "TEXT"}
"""What options take, as help has it: places on a disk, and what is none. A new word belongs in one of the two."""


@cache
def program() -> Any:
    """The command line."""
    import typer

    from selex.cli import app

    return typer.main.get_command(app)


def commands() -> dict[str, Any]:
    """Every command by its name."""
    return dict(_inside(program()))


def _inside(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _inside(command, f"{prefix}{name} ")
        else:
            yield prefix + name, command


def before_commands() -> list[Any]:
    """The options that stand before any command."""
    return [param for param in program().params if param.expose_value]


def all_options() -> Iterator[tuple[str, Any]]:
    """Every command with each of its options, and one command with those that stand before it."""
    yield from (("config", param) for param in before_commands())
    for name, command in commands().items():
        found = (param for param in command.params if param.param_type_name == "option" and param.expose_value)
        yield from ((name, param) for param in found)


def options() -> Iterator[tuple[str, Any]]:
    """Every command with each of its arguments and options that is a path, those before it too."""
    for name, command in commands().items():
        yield from ((name, param) for param in (*before_commands(), *command.params) if is_path(param))


def settings() -> list[str]:
    """Settings that are paths, which `--set` may name."""
    from selex.config import GROUPS
    from selex.config.settings import metavar

    named = ((group, home, about) for group, home in GROUPS.items() for about in fields(home))
    return [f"{group}.{about.name}" for group, home, about in named if metavar(home, about) in PATHS]


def is_path(param: Any) -> bool:
    """Whether an option takes a path, by its type (in any version of typer) or by its word in the help."""
    if "path" in repr(getattr(param, "type_descriptor", None) or param.type).lower() or param.metavar in PATHS:
        return True
    word = (param.metavar or "").strip()
    if word and word not in TEXTS and not re.fullmatch(r"[a-z0-9-]+(\|[a-z0-9-]+)+", word):
        raise ValueError(f"{param.opts[0]} {word}: is it a path? say so in chaos/strangers.py")
    return False


def typed(command: str, param: Any, *value: Any) -> list[Any]:
    """A command line with an option, or in which one argument is `value`."""
    words = list(COMMANDS[command])
    if param.param_type_name == "argument":
        place = [each.name for each in commands()[command].params].index(param.name)
        return [*command.split(), *words[:place], *value, *words[place + 1 :]]
    if param in before_commands():
        return [param.opts[0], *value, *command.split(), *words]
    return [*command.split(), *words, param.opts[0], *value]


def changed(lab: Lab, before: dict[str, str], words: list[str], cwd: Path | None = None) -> str:
    """What a command did to the folder, and what it said that it should not have."""
    child = lab.start(*words)
    done = child.wait(8 if STAY & set(words) else 60)
    lost = difference(before, strangers(lab)) or ("" if done.code == 124 else done.trouble)
    return lost and f"selex {' '.join(words)}: {lost}"


def strangers(lab: Lab) -> dict[str, str]:
    """Somebody else's folders, times and links and all; and the photos, which `export` may link to."""
    return {
        f"{folder}/{name}": what
        for folder in ("mine", "outside", "photos", "new")
        for name, what in snapshot(lab.home / folder, times=folder in ("mine", "outside")).items()
    }


@case("other people's files", "every path option of every command")
def in_options(lab: Lab, plan: Plan) -> Tries:
    """The folder itself, a link to it, a file in it."""
    lines = [
        typed(command, param, value) for command, param in options() for value in ("mine", "to-mine", "mine/notes.txt")
    ]
    lines += [
        ["discover", *COMMANDS["discover"], "--set", f"{key}={value}"]
        for key in settings()
        for value in ("mine", "mine/notes.txt")
    ]
    for line in plan.some(lines, few=8):
        lab.restore(world)
        (lab.home / "to-mine").symlink_to(lab.home / "mine")
        yield changed(lab, strangers(lab), line)


@case("other people's files", "among the photos")
def among_photos(lab: Lab, plan: Plan) -> Tries:
    """A new file or folder in the folder of photos: by a command that knows it for one, photos are only read."""
    known = [name for name in COMMANDS if {"photos", "new", "run"} & set(COMMANDS[name])]
    lines = [
        typed(command, param, value)
        for command, param in options()
        for value in ("photos/new.csv", "photos/unlabelled/new")
        if command in known and param.name not in ("photos", "run")
    ]
    for line in plan.some(lines, few=6):
        lab.restore(world)
        yield changed(lab, strangers(lab), line)


@case("other people's files", "started among them")
def started_there(lab: Lab, plan: Plan) -> Tries:
    """Commands write where one stands, unless told otherwise: not over what is there."""
    writing = [name for name in COMMANDS if name not in STAY | {"demo", "evaluate"}]
    for command in plan.some(writing, few=2):
        lab.restore(world)
        words = [str(lab.home / word) if (lab.home / word).exists() else word for word in COMMANDS[command]]
        before = strangers(lab)
        done = lab.start(*command.split(), *words, at=lab.home / "mine").wait()
        after = {name: what for name, what in strangers(lab).items() if name in before}
        lost = difference(before, after) or done.trouble
        yield lost and f"selex {command} in the folder: {lost}"


@case("other people's files", "a run folder of theirs")
def strange_run(lab: Lab, plan: Plan) -> Tries:
    """A run in which our own names are links to elsewhere: nothing is written through them."""
    links = (".next", ".work", "metrics.jsonl", "exports", "model", "report.html", "review.sqlite", "review-labels.csv",
             "tensorboard", "clusters.csv", "config.json", "embeddings.npy")  # fmt: skip
    commands = ("info", "train", "report", "export", "predict", "discover")
    pairs = [(link, command) for link in links for command in commands]
    for link, command in plan.some(pairs, few=4):
        lab.restore(world)
        _plant(lab.home / "run" / link, lab.home / "outside")
        before = {name: what for name, what in strangers(lab).items() if name.startswith("outside")}
        words = list(COMMANDS[command]) + (["--out", "run"] if command == "discover" else [])
        done = lab.selex(command, *words)
        after = {name: what for name, what in strangers(lab).items() if name.startswith("outside")}
        lost = difference(before, after) or done.trouble
        yield lost and f"selex {command} of a run whose {link} is a link: {lost}"


def _plant(path: Path, outside: Path) -> None:
    """A link in place of one of our files, to a file or folder that looks like it."""
    if path.is_dir():
        shutil.copytree(path, outside / path.name)
        shutil.rmtree(path)
    elif path.exists():
        path.rename(outside / path.name)
    elif "." in path.name[1:]:
        (outside / path.name).write_text("mine\n")
    else:
        (outside / path.name).mkdir()
        (outside / path.name / "complete").write_text("mine\n")
        (outside / path.name / "clusters.csv").write_text("mine\n")
    path.symlink_to(outside / path.name)
