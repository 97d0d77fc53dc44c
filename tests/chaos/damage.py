"""Damage: every file of a run, its cache and its ledger truncated, flipped, emptied, deleted, swapped with another's.

What is read afterwards is what it was before, or one line names what is wrong: never other values in silence.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from chaos import lab as worlds
from chaos.cases import Plan, Tries, case
from chaos.lab import PIXELS, Lab, snapshot
from chaos.server import Server
from chaos.warm import Done

READERS: dict[str, tuple[str, ...]] = {
    "info": ("info", "run"),
    "export": ("export", "run", "--to", "csv", "--out", "read.csv"),
    "predict": ("predict", "run", "new", "--out", "read.csv", "--device", "cpu"),
    "report": ("report", "run", "--out", "read.html"),
    "discover": ("discover", "photos", *PIXELS, "--backbone", "tiny-vit", "--out", "read"),
}
LOGS = ("metrics.jsonl",)
"""Read for curves and for nothing else: damaged lines are left out."""


def trained(lab: Lab) -> None:
    """A trained run with decisions, and another one of other photos beside it."""
    from chaos.review import DECISIONS

    lab.restore(worlds.tiny_run)
    lab.must("train", "run", *worlds.TINY)
    with Server(lab) as server:
        for decision in DECISIONS[:3]:
            assert server.ask("/api/decisions", {"version": server.version, **decision})[0] == 200
    shutil.copytree(lab.home / "photos", lab.home / "more")
    lab.must(
        "discover", "more", *PIXELS, "--backbone", "tiny-vit", "--seed", "7", "--categories", "6", "--out", "other"
    )
    with Server(lab, folder="other") as server:
        assert server.ask("/api/decisions", {"version": server.version, **DECISIONS[0]})[0] == 200


def truncate(path: Path, rng: random.Random) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def flip(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def empty(path: Path, rng: random.Random) -> None:
    path.write_bytes(b"")


def delete(path: Path, rng: random.Random) -> None:
    path.unlink()


def scramble(path: Path, rng: random.Random) -> None:
    size = path.stat().st_size
    path.write_bytes(rng.randbytes(size))


def swap(path: Path, rng: random.Random) -> None:
    """With the same file of the other run, or of another folder of the cache; with another file where there is none."""
    run = path.parent.parent if path.parent.name == "model" else path.parent
    others = [run.with_name("other") / path.relative_to(run), *sorted(path.parent.parent.glob(f"*/{path.name}"))]
    others += [path.parent / "config.json", *sorted(path.parent.iterdir())]
    shutil.copyfile(next(other for other in others if other.is_file() and other != path), path)


DAMAGES: tuple[Callable[[Path, random.Random], None], ...] = (truncate, empty, delete, swap, scramble, *[flip] * 7)


def reading(lab: Lab, name: str) -> tuple[Done, dict[str, str]]:
    """What a reader says and writes. Prints differ in seconds: of `discover` only what is written counts."""
    done = lab.selex(*READERS[name])
    read = {key: value for key, value in snapshot(lab.home).items() if key.startswith("read")}
    kept = {key: value for key, value in read.items() if not key.endswith(LOGS)}
    return done, kept | ({"printed": done.out} if name == "info" else {})


def clean(lab: Lab, names: list[str]) -> dict[str, dict[str, str]]:
    """What each reader gives of an undamaged run."""
    found = {}
    for name in names:
        lab.restore(trained)
        done, found[name] = reading(lab, name)
        assert done.code == 0, done
    return found


def outcome(lab: Lab, wanted: dict[str, dict[str, str]], name: str, log: bool) -> str:
    done, found = reading(lab, name)
    if done.trouble:
        return f"{name}: {done.trouble}"
    if done.code == 0 and found != wanted[name] and not log:
        return f"{name} gives something else in silence"
    return f"{name} leaves a part" if done.code == 2 and found.keys() - {"printed"} else ""


def damaged(lab: Lab, plan: Plan, files: Callable[[], Iterator[Path]], readers: list[str], few: int,
            damages=DAMAGES) -> Tries:  # fmt: skip
    rng, wanted = random.Random(plan.seed), clean(lab, readers)
    lab.restore(trained)
    pairs = [(path, damage) for path in files() for damage in damages]
    for path, damage in plan.some(pairs, few):
        for reader in plan.some(readers, few=1):
            lab.restore(trained)
            damage(path, rng)
            lost = outcome(lab, wanted, reader, path.name in LOGS)
            yield lost and f"{path.relative_to(lab.world)}, {damage.__name__}: {lost}"


@case("damage", "every file of a run")
def of_a_run(lab: Lab, plan: Plan) -> Tries:
    def files() -> Iterator[Path]:
        return (path for path in sorted((lab.home / "run").rglob("*")) if path.is_file() and path.suffix != ".sqlite")

    yield from damaged(lab, plan, files, ["info", "export", "predict", "report"], few=4)


@case("damage", "the ledger")
def of_the_ledger(lab: Lab, plan: Plan) -> Tries:
    """But for its deletion, which is how a person begins anew."""

    def files() -> Iterator[Path]:
        return iter([lab.home / "run" / "review.sqlite"] * 4)

    yield from damaged(lab, plan, files, ["export"], few=2, damages=[each for each in DAMAGES if each is not delete])


@case("damage", "the cache of decoded images")
def of_the_cache(lab: Lab, plan: Plan) -> Tries:
    """A cache is made anew: here nothing may be refused. The key of seals is not: runs have another seal then."""

    def files() -> Iterator[Path]:
        cached = sorted((lab.world / "cache").rglob("*"))
        return (path for path in cached if path.is_file() and path.name != "seal.key")

    yield from damaged(lab, plan, files, ["discover"], few=2)
