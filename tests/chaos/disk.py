"""Kills and a failing disk: at every operation that changes a file, and at random moments."""

from __future__ import annotations

import errno
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec

from chaos import lab as worlds
from chaos.cases import Plan, Tries, case
from chaos.lab import Lab, contents, difference
from chaos.warm import FAIL_FROM, FAIL_ONCE, KILL, Child, Done, Fault


@dataclass(frozen=True)
class Command:
    """Something that writes: the world it starts in, what is typed, or the function that stands for it."""

    world: Callable[[Lab], None]
    arguments: tuple[str, ...] = ()
    call: str = "selex.cli:main"
    environment: dict[str, str] = field(default_factory=dict)

    def start(self, lab: Lab, fault: Fault | None = None) -> Child:
        return lab.start(*self.arguments, fault=fault, call=self.call, environment=self.environment)

    def run(self, lab: Lab, fault: Fault | None = None) -> Done:
        return self.start(lab, fault).wait()


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
    "names": Command(worlds.run, ("names", "run", "--names", "words.txt"), call="chaos.disk:names"),
}
LOGGED = Command(worlds.photos, ("--log-json", "log.jsonl", *COMMANDS["cluster"].arguments))
"""What it writes of what it does is whole lines, or nothing; a power cut may take it."""
RAY = Command(worlds.photos, (*COMMANDS["discover"].arguments, "--engine", "ray", "--workers", "1"))


def names() -> None:
    """`selex names`, with a model that needs no file: a colour for each photo, and one for each word."""
    import numpy as np

    from selex.cli import main
    from selex.review.core import names

    class Colours:
        def embed_images(self, images):
            return np.stack([np.asarray(image, dtype=np.float32).mean((0, 1)) for image in images])

        def embed_texts(self, texts):
            return np.eye(3, dtype=np.float32)[: len(texts)]

    setattr(names, "load_text_image_model", lambda name: Colours())  # noqa: B010
    main()


def operations(lab: Lab, command: Command) -> tuple[int, dict[str, str], float]:
    """How many operations a command does when nothing goes wrong, what it leaves, and how long it takes."""
    lab.restore(command.world)
    journal = lab.base / "count.log"
    journal.unlink(missing_ok=True)
    start = time.monotonic()
    done = command.run(lab, Fault(lab.world, journal=journal))
    assert done.code == 0, done
    return len(journal.read_text().splitlines()), contents(lab.world), time.monotonic() - start


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


def killed_at_writes(lab: Lab, plan: Plan, name: str, command: Command) -> Tries:
    """At each operation that changes a file."""
    count, wanted, _ = operations(lab, command)
    for number in plan.some(range(1, count + 1)):
        lab.restore(command.world)
        done = command.run(lab, Fault(lab.world, KILL, number))
        lost = after(lab, command, wanted)
        yield lost and f"{name}, killed at operation {number} of {count} ({done.code}): {lost}"


def killed_at_random(lab: Lab, plan: Plan, name: str, command: Command, many: int = 20) -> Tries:
    """At moments that are drawn, from its beginning to about its end."""
    rng = random.Random(f"{plan.seed} {name}")
    _, wanted, seconds = operations(lab, command)
    for _ in range(plan.count(many, few=1)):
        lab.restore(command.world)
        child = command.start(lab)
        moment = rng.uniform(0, seconds)
        time.sleep(moment)
        child.kill()
        child.wait()
        lost = after(lab, command, wanted)
        yield lost and f"{name}, killed after {moment:.3f} s: {lost}"


@case("killed at a write", *COMMANDS)
def commands_at_writes(lab: Lab, plan: Plan, name: str) -> Tries:
    yield from killed_at_writes(lab, plan, name, COMMANDS[name])


@case("killed at a write", "--log-json")
def log_at_writes(lab: Lab, plan: Plan) -> Tries:
    yield from killed_at_writes(lab, plan, "--log-json", LOGGED)


@case("killed at a random moment", *COMMANDS)
def commands_at_random(lab: Lab, plan: Plan, name: str) -> Tries:
    yield from killed_at_random(lab, plan, name, COMMANDS[name])


@case("killed at a random moment", "--log-json")
def log_at_random(lab: Lab, plan: Plan) -> Tries:
    yield from killed_at_random(lab, plan, "--log-json", LOGGED)


@case("killed at a random moment", "discover --engine ray")
def ray_at_random(lab: Lab, plan: Plan) -> Tries:
    """Where Ray is installed."""
    if find_spec("ray"):
        yield from killed_at_random(lab, plan, "discover --engine ray", RAY, many=4)


FAILURES = {
    "a write fails (EIO)": (FAIL_ONCE, errno.EIO),
    "disk full (ENOSPC)": (FAIL_FROM, errno.ENOSPC),
    "disk turns read-only (EROFS)": (FAIL_FROM, errno.EROFS),
}


@case("disk", *FAILURES)
def failing(lab: Lab, plan: Plan, failure: str) -> Tries:
    """Exit code 2 and one line, or it did not matter; and the next start is as if nothing had been."""
    kind, error = FAILURES[failure]
    commands = COMMANDS | {"--log-json": LOGGED}
    for name in plan.some(list(commands), few=3):
        command = commands[name]
        count, wanted, _ = operations(lab, command)
        for number in plan.some(range(1, count + 1), few=1):
            lab.restore(command.world)
            done = command.run(lab, Fault(lab.world, kind, number, error))
            lost = after(lab, command, wanted, done)
            yield lost and f"{name}, {failure} at operation {number} of {count}: {lost}"
