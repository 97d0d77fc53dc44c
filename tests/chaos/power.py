"""Power cuts: what was done is replayed up to some operation, and whatever was not synchronised by then is lost.

Names (files made, renamed, removed) are on the disk in the order in which they were changed, as journalling file
systems keep them. What a file holds is not: it is what it was when it was last synchronised, and a file that never was
is empty or full of zeros.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from chaos.cases import Plan, Tries, case
from chaos.disk import COMMANDS, after, operations
from chaos.lab import Lab


@dataclass
class Thing:
    """A file (its last synchronised copy, how long it is now), a folder or a link."""

    copy: Path | None = None
    size: int = 0
    folder: bool = False
    target: str = ""

    def write(self, path: Path, zeros: bool) -> None:
        """As it is found after the power cut."""
        if self.folder:
            path.mkdir()
        elif self.target:
            path.symlink_to(self.target)
        elif self.copy:
            shutil.copy2(self.copy, path)
        else:
            path.write_bytes(bytes(self.size if zeros else 0))


Tree = dict[str, Thing]


def scan(folder: Path, as_if_in: Path) -> Tree:
    """What is there, all of it on the disk."""
    tree = {}
    for path in sorted(folder.rglob("*")):
        target = os.readlink(path) if path.is_symlink() else ""
        thing = Thing(path, folder=path.is_dir() and not target, target=target)
        tree[str(as_if_in / path.relative_to(folder))] = thing
    return tree


def replay(tree: Tree, journal: Path) -> Iterator[tuple[str, Tree]]:
    """The operation, and the tree after it, again and again."""
    for line in journal.read_text().splitlines():
        kind, path, more = line.split("\t")
        _apply(tree, kind, path, more)
        yield f"{kind} {Path(path).name}", tree


def _apply(tree: Tree, kind: str, path: str, more: str) -> None:
    if kind == "rename":
        _remove(tree, more)
        below = [name for name in tree if name == path or name.startswith(path + "/")]
        for name in below:
            tree[more + name[len(path) :]] = tree.pop(name)
    elif kind == "link":
        tree[more] = tree[path]
    elif kind == "unlink":
        _remove(tree, path)
    elif kind in ("create", "empty"):
        tree[path] = Thing()
    elif kind in ("mkdir", "symlink"):
        tree[path] = Thing(folder=kind == "mkdir", target=more)
    elif kind in ("write", "sync"):
        thing = tree.setdefault(path, _renamed_unseen(tree, path))
        if kind == "sync":
            thing.copy = Path(more)
        else:
            thing.size = int(more)


def _remove(tree: Tree, path: str) -> None:
    for name in [name for name in tree if name == path or name.startswith(path + "/")]:
        del tree[name]


def _renamed_unseen(tree: Tree, path: str) -> Thing:
    """safetensors renames its draft without asking the C library: the draft is this file."""
    drafts = [name for name in tree if Path(name).parent == Path(path).parent and Path(name).name.startswith(".tmp")]
    return tree.pop(drafts[-1]) if drafts and path not in tree else Thing()


def copied(tree: Tree) -> Tree:
    """The tree as it is now; things that have two names stay one thing."""
    same = {id(thing): replace(thing) for thing in tree.values()}
    return {name: same[id(thing)] for name, thing in tree.items()}


def put(lab: Lab, tree: Tree, zeros: bool) -> None:
    """Make the world what the tree says."""
    shutil.rmtree(lab.world)
    lab.world.mkdir()
    for name in sorted(tree):
        tree[name].write(Path(name), zeros)


@case("power cut", *COMMANDS)
def power_cuts(lab: Lab, plan: Plan, name: str) -> Tries:
    command = COMMANDS[name]
    journal = lab.base / "count.log"
    shutil.rmtree(journal.with_suffix(".copies"), ignore_errors=True)
    count, wanted, _ = operations(lab, command)
    start = scan(lab.base / f"as-{command.world.__name__}", lab.world)
    states = [(what, copied(tree)) for what, tree in replay(start, journal)]
    for number in plan.some(range(count)):
        what, tree = states[number]
        put(lab, tree, zeros=bool(number % 2))
        lost = after(lab, command, wanted)
        yield lost and f"{name}, the power goes after operation {number + 1} of {count} ({what}): {lost}"
