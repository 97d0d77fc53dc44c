"""Decisions on the review page: one that was acknowledged is never missing, whatever happens."""

from __future__ import annotations

import errno
import random
import shutil

from chaos import lab as worlds
from chaos.cases import Plan, Tries, case
from chaos.lab import Lab, snapshot
from chaos.power import copied, put, replay, scan
from chaos.server import GONE, Server
from chaos.warm import FAIL_FROM, FAIL_ONCE, KILL, Fault

DECISIONS = (
    {"kind": "name", "category": 4, "name": "fours"},
    {"kind": "confirm", "category": 3},
    {"kind": "move", "rows": [1, 2], "name": "others"},
    {"kind": "set_aside", "rows": [5]},
    {"kind": "merge", "categories": [0, 1]},
)


def decide(server: Server) -> int:
    """Make the decisions, one after the other, undo the last and redo it; how many were acknowledged."""
    acknowledged = 0
    try:
        for step in (*DECISIONS, "undo", "redo"):
            path, body = (f"/api/{step}", {}) if isinstance(step, str) else ("/api/decisions", step)
            status, _ = server.ask(path, {"version": server.version, **body})
            if status != 200:
                break
            acknowledged += 1
    except GONE:
        pass
    return acknowledged


def missing(lab: Lab, acknowledged: int) -> str:
    """After the next start: are the acknowledged decisions there, and at most one more that was on its way?"""
    with Server(lab) as server:
        if not server.port:
            return f"the next start: {server.child.wait().err.strip()}"
        found = int(server.version.partition(".")[2])
        if not acknowledged <= found <= acknowledged + 1:
            return f"{acknowledged} decisions were acknowledged, {found} are there"
        status, answer = server.ask("/api/decisions", {"version": server.version, "kind": "set_aside", "rows": [9]})
        if status != 200:
            return f"after the next start no decision can be made: {answer}"
    left = [name for name in snapshot(lab.home / "run") if "review.sqlite-" in name]
    return f"{left[0]} is left behind" if left else ""


def undisturbed(lab: Lab) -> int:
    """How many operations the decisions are."""
    lab.restore(worlds.run)
    journal = lab.base / "count.log"
    journal.unlink(missing_ok=True)
    with Server(lab, fault=Fault(lab.world, journal=journal)) as server:
        assert decide(server) == len(DECISIONS) + 2
    return len(journal.read_text().splitlines())


@case("killed at a write", "review")
def killed_at_writes(lab: Lab, plan: Plan) -> Tries:
    count = undisturbed(lab)
    for number in plan.some(range(1, count + 1)):
        lab.restore(worlds.run)
        with Server(lab, fault=Fault(lab.world, KILL, number)) as server:
            acknowledged = decide(server) if server.port else 0
        lost = missing(lab, acknowledged)
        yield lost and f"review, killed at operation {number} of {count}: {lost}"


@case("killed at a random moment", "review")
def killed_at_random(lab: Lab, plan: Plan) -> Tries:
    """The kill comes from another thread while decisions are made."""
    import threading

    rng = random.Random(plan.seed)
    for _ in range(plan.count(40, few=1)):
        lab.restore(worlds.run)
        with Server(lab) as server:
            moment = rng.uniform(0, 0.4)
            timer = threading.Timer(moment, server.child.kill)
            timer.start()
            acknowledged = decide(server)
            timer.join()
        lost = missing(lab, acknowledged)
        yield lost and f"review, killed after {moment:.3f} s: {lost}"


FAILURES = {
    "a write fails (EIO)": (FAIL_ONCE, errno.EIO),
    "disk full (ENOSPC)": (FAIL_FROM, errno.ENOSPC),
    "disk turns read-only (EROFS)": (FAIL_FROM, errno.EROFS),
}


@case("disk", "review, any of the three")
def failing(lab: Lab, plan: Plan) -> Tries:
    """A decision that cannot be kept is refused; those before it are there."""
    count = undisturbed(lab)
    for failure, (kind, error) in FAILURES.items():
        for number in plan.some(range(1, count + 1), few=1):
            lab.restore(worlds.run)
            with Server(lab, fault=Fault(lab.world, kind, number, error)) as server:
                acknowledged = decide(server) if server.port else 0
                done = server.stop()
            trouble = done.trouble if not server.port else "Traceback" in done.err and done.err
            lost = trouble or missing(lab, acknowledged)
            yield lost and f"review, {failure} at operation {number} of {count}: {lost}"


@case("power cut", "review")
def power_cuts(lab: Lab, plan: Plan) -> Tries:
    """The power goes as soon as a decision is acknowledged, or at any operation later."""
    lab.restore(worlds.run)
    journal = lab.base / "review.log"
    journal.unlink(missing_ok=True)
    shutil.rmtree(journal.with_suffix(".copies"), ignore_errors=True)
    acknowledged_at = []
    with Server(lab, fault=Fault(lab.world, journal=journal)) as server:
        for step in DECISIONS:
            assert server.ask("/api/decisions", {"version": server.version, **step})[0] == 200
            acknowledged_at.append(len(journal.read_text().splitlines()))
    count = acknowledged_at[-1]
    states = [(what, copied(tree)) for what, tree in replay(scan(lab.base / "as-run", lab.world), journal)]
    for number in plan.some(range(1, count + 1)):
        what, tree = states[number - 1]
        put(lab, tree, zeros=bool(number % 2))
        lost = missing(lab, sum(at <= number for at in acknowledged_at))
        yield lost and f"review, the power goes after operation {number} of {count} ({what}): {lost}"
