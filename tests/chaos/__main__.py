"""`make chaos`: every case, one table, and the figures of docs/reliability.md."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from chaos.cases import CASES, Plan, Row, run, table
from chaos.lab import Lab
from chaos.suite import SHORT


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--short", action="store_true", help="a few tries of each case")
    parser.add_argument("--share", type=float, default=1.0, metavar="X", help="this share of the tries of each case")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases that have this in their name")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of whatever is drawn")
    parser.add_argument("--out", type=Path, metavar="JSON", help="where the figures go")
    given = parser.parse_args()
    plan, start, rows = Plan(given.short, given.share, given.seed), time.monotonic(), []
    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(Path(folder))
        for case in SHORT if given.short else CASES:
            if given.only in str(case):
                rows.append(run(case, lab, plan))
                print(_said(rows[-1]), flush=True)
        lab.warm.close()
    print("\n" + table(rows))
    if given.out:
        save(given.out, rows, round(time.monotonic() - start))
    return int(any(row.lost for row in rows))


def _said(row: Row) -> str:
    lines = [f"{row.case}: {row.survived} of {row.tries} survived, {row.seconds} s"]
    return "\n".join([*lines, *(f"  lost: {lost}" for lost in row.lost)])


def save(path: Path, rows: list[Row], seconds: int) -> None:
    """With the machine, the versions, the commit and the command that made them."""
    import torch

    import selex

    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    record = {
        "command": " ".join(["python -m chaos", *sys.argv[1:]]),
        "commit": commit,
        "device": f"{platform.machine()} CPU, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "selex": selex.__version__,
        "seconds": seconds,
        "results": [row.to_json() for row in rows],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
