"""A long training: memory and handles are as they were."""

from __future__ import annotations

import os
import time
from pathlib import Path

from chaos import lab as worlds
from chaos.cases import Plan, Tries, case
from chaos.lab import Lab

MB = 1 << 20


@case("soak", "epochs of training")
def epochs(lab: Lab, plan: Plan) -> Tries:
    """300 epochs; from a third of them on nothing grows."""
    lab.restore(worlds.tiny_run)
    count = plan.count(300, few=9)
    child = lab.start("train", "run", *worlds.TINY, "--epochs", str(count))
    seen: dict[int, tuple[int, int]] = {}
    while not child.ended:
        done = _epochs(lab.home / "run" / "metrics.jsonl")
        if done not in seen and not child.ended:
            seen[done] = _use(child.pid)
        time.sleep(0.02)
    end = child.wait()
    assert end.code == 0, end
    base = min((epoch for epoch in seen if epoch >= count // 3), default=0)
    memory, handles = seen[base]
    for epoch in sorted(epoch for epoch in seen if epoch > base):
        grown, more = seen[epoch][0] - memory, seen[epoch][1] - handles
        grows = f"epoch {epoch}: {grown // MB} MB and {more} handles more than at epoch {base}"
        yield grows if grown > 48 * MB or more > 4 else ""


def _epochs(log: Path) -> int:
    return log.read_text().count('"step": "epoch"') if log.exists() else 0


def _use(pid: int) -> tuple[int, int]:
    try:
        memory = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return memory, len(os.listdir(f"/proc/{pid}/fd"))
    except (OSError, IndexError):
        return 0, 0
