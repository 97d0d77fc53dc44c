"""Two at once on every folder: each ends well or is told to wait, and what is there is what one alone would leave."""

from __future__ import annotations

import threading

from chaos import lab as worlds
from chaos.cases import Plan, Tries, case
from chaos.disk import COMMANDS
from chaos.lab import Lab, contents, difference, events
from chaos.review import DECISIONS
from chaos.server import Server


@case("two at once", "the same command twice")
def same(lab: Lab, plan: Plan) -> Tries:
    for name in plan.some(list(COMMANDS), few=3):
        command = COMMANDS[name]
        lab.restore(command.world)
        assert command.run(lab).code == 0
        wanted = contents(lab.world)
        for _ in range(plan.count(5, few=1)):
            lab.restore(command.world)
            both = [lab.start(*command.arguments, call=command.call) for _ in range(2)]
            ends = [child.wait() for child in both]
            trouble = " and ".join(done.trouble for done in ends if done.trouble)
            none = "" if any(done.code == 0 for done in ends) else "neither was done"
            lost = trouble or none or difference(wanted, contents(lab.world))
            yield lost and f"{name}, twice at once: {lost}"


@case("two at once", "a reader while a run is done again")
def reader(lab: Lab, plan: Plan) -> Tries:
    """It sees the old results or the new ones."""
    writer, read = COMMANDS["discover again"], ("export", "run", "--to", "csv", "--out", "read.csv")
    results = []
    for again in (False, True):
        lab.restore(worlds.run)
        assert not again or writer.run(lab).code == 0
        lab.must(*read)
        results.append((lab.home / "read.csv").read_bytes())
    for _ in range(plan.count(15, few=1)):
        lab.restore(worlds.run)
        child, lost = lab.start(*writer.arguments), ""
        while not child.ended:
            done = lab.selex(*read)
            lost = lost or done.trouble
            if done.code == 0 and (lab.home / "read.csv").read_bytes() not in results:
                lost = "a mixture was read"
        lost = lost or child.wait().trouble
        yield lost and f"export while discover works: {lost}"


@case("two at once", "two review pages")
def pages(lab: Lab, plan: Plan) -> Tries:
    """Every decision that either acknowledges is kept, once."""
    for _ in range(plan.count(10, few=1)):
        lab.restore(worlds.run)
        acknowledged: list[str] = []
        with Server(lab) as one, Server(lab) as two:
            both = [threading.Thread(target=_name, args=(server, number, acknowledged))
                    for number, server in enumerate((one, two))]  # fmt: skip
            for thread in both:
                thread.start()
            for thread in both:
                thread.join()
        kept = [decision for _, _, decision in events(lab.home / "run" / "review.sqlite")]
        missing = [name for name in acknowledged if sum(f'"{name}"' in text for text in kept) != 1]
        extra = len(kept) - len(acknowledged)
        yield (
            f"{len(missing)} acknowledged decisions are missing, {extra} more than that are kept"
            if missing or extra
            else ""
        )


def _name(server: Server, number: int, acknowledged: list[str]) -> None:
    for turn in range(2 * len(DECISIONS)):
        name = f"name {number} {turn}"
        decision = {"kind": "name", "category": number, "name": name}
        if server.ask("/api/decisions", {"version": server.version, **decision})[0] == 200:
            acknowledged.append(name)
