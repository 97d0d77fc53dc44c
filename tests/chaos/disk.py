"""Kills and a failing disk: at every operation that changes a file, and at random moments."""

from __future__ import annotations

import errno
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from chaos import lab as worlds
from chaos.cases import Plan, Tries, case
from chaos.lab import Lab, contents, difference
from chaos.warm import FAIL_FROM, FAIL_ONCE, KILL, Done, Fault


@dataclass(frozen=True)
class Command:
    """Something that writes: the world it starts in, what is typed, or the function that stands for it."""

    world: Callable[[Lab], None]
    arguments: tuple[str, ...] = ()
    call: str = "selex.cli:main"

    def run(self, lab: Lab, fault: Fault | None = None) -> Done:
        return lab.selex(*self.arguments, fault=fault, call=self.call)


COMMANDS = {
    "discover": Command(worlds.photos, ("discover", "photos", *worlds.PIXELS, "--out", "run")),
    "discover again": Command(worlds.run, ("discover", "photos", *worlds.PIXELS, "--seed", "1", "--out", "run")),
    "train": Command(worlds.tiny_run, ("train", "run", *worlds.TINY)),
    "export folders": Command(worlds.reviewed, ("export", "run", "--to", "folders", "--out", "sorted")),
    "export copies": Command(worlds.reviewed, ("export", "run", "--to", "fiftyone", "--out", "sorted", "--copy")),
    "export csv": Command(worlds.reviewed, ("export", "run", "--to", "csv", "--out", "sorted.csv")),
    "predict": Command(worlds.run, ("predict", "run", "new", "--out", "predictions.csv", "--device", "cpu")),
    "report": Command(worlds.run, ("report", "run")),
    "cluster": Command(worlds.photos, ("cluster", "features.npz", "--labels", "labels.csv", "--categories", "4")),
    "recluster": Command(worlds.reviewed, ("recluster", "run", "--device", "cpu")),
}


def operations(lab: Lab, command: Command) -> tuple[int, dict[str, str], float]:
    """How many operations a command does when nothing goes wrong, what it leaves, and how long it takes."""
    command_world(lab, command)
    journal = lab.base / "count.log"
    journal.unlink(missing_ok=True)
    start = time.monotonic()
    done = command.run(lab, Fault(lab.world, journal=journal))
    assert done.code == 0, done
    return len(journal.read_text().splitlines()), contents(lab.world), time.monotonic() - start


def command_world(lab: Lab, command: Command) -> None:
    lab.restore(command.world)


def after(lab: Lab, command: Command, wanted: dict[str, str], first: Done | None = None) -> str:
    """The same command once more: what it leaves must be what an undisturbed one leaves."""
    if first and first.trouble:
        return first.trouble
    again = command.run(lab)
    if again.trouble:
        return f"the next start: {again.trouble}"
    if lost := difference(wanted, contents(lab.world)):
        return f"after the next start (exit code {again.code}): {lost} {again.err.strip()}"
    return ""


@case("killed at a write", *COMMANDS)
def killed_at_writes(lab: Lab, plan: Plan, name: str) -> Tries:
    command = COMMANDS[name]
    count, wanted, _ = operations(lab, command)
    for number in plan.some(range(1, count + 1)):
        command_world(lab, command)
        done = command.run(lab, Fault(lab.world, KILL, number))
        lost = after(lab, command, wanted)
        yield lost and f"{name}, killed at operation {number} of {count} ({done.code}): {lost}"


@case("killed at a random moment", "all commands")
def killed_at_random(lab: Lab, plan: Plan) -> Tries:
    rng, known = random.Random(plan.seed), {}
    names = plan.some(list(COMMANDS), few=2)
    for number in range(plan.count(200, few=2)):
        name = names[number % len(names)]
        command = COMMANDS[name]
        if name not in known:
            known[name] = operations(lab, command)
        _, wanted, seconds = known[name]
        command_world(lab, command)
        child = lab.start(*command.arguments, call=command.call)
        moment = rng.uniform(0, seconds)
        time.sleep(moment)
        child.kill()
        child.wait()
        lost = after(lab, command, wanted)
        yield lost and f"{name}, killed after {moment:.3f} s: {lost}"


FAILURES = {
    "a write fails (EIO)": (FAIL_ONCE, errno.EIO),
    "disk full (ENOSPC)": (FAIL_FROM, errno.ENOSPC),
    "disk turns read-only (EROFS)": (FAIL_FROM, errno.EROFS),
}


@case("disk", *FAILURES)
def failing(lab: Lab, plan: Plan, failure: str) -> Tries:
    """Exit code 2 and one line, or it did not matter; and the next start is as if nothing had been."""
    kind, error = FAILURES[failure]
    for name in plan.some(list(COMMANDS), few=3):
        command = COMMANDS[name]
        count, wanted, _ = operations(lab, command)
        for number in plan.some(range(1, count + 1), few=1):
            command_world(lab, command)
            done = command.run(lab, Fault(lab.world, kind, number, error))
            lost = after(lab, command, wanted, done)
            yield lost and f"{name}, {failure} at operation {number} of {count}: {lost}"
