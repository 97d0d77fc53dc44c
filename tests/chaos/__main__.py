"""`make chaos`: every case, one table, and the figures of docs/reliability.md."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from chaos.cases import CASES, Plan, Row, run, table
from chaos.lab import Lab
from chaos.suite import SHORT
from selex.io import locked


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--short", action="store_true", help="a few tries of each case")
    parser.add_argument("--minutes", type=float, metavar="N", help="as many tries of each case as there is time for")
    parser.add_argument("--only", action="append", metavar="TEXT", help="cases that have one of these in their names")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of whatever is drawn")
    parser.add_argument("--out", type=Path, metavar="JSON", help="where the figures go")
    given = parser.parse_args()
    wanted = given.only or [""]
    cases = [case for case in (SHORT if given.short else CASES) if any(text in str(case) for text in wanted)]
    start, rows, commit = time.monotonic(), [], program()
    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(Path(folder))
        for case in cases:
            left = None if given.minutes is None else 60 * given.minutes - (time.monotonic() - start)
            limit = None if left is None else max(0.0, left / (len(cases) - len(rows)))
            rows.append(run(case, lab, Plan(given.short, limit, given.seed)))
            print(_said(rows[-1]), flush=True)
            if given.out:
                save(given.out, rows[-1:], commit)
        lab.warm.close()
    print("\n" + table(rows))
    return int(any(row.lost for row in rows))


def _said(row: Row) -> str:
    lines = [f"{row.case}: {row.survived} of {row.tries} survived, {row.seconds} s"]
    return "\n".join([*lines, *(f"  lost: {lost}" for lost in row.lost)])


def program() -> str:
    """The last commit that changed what is tested."""
    words = ["git", "log", "-1", "--format=%h", "--", "src"]
    return subprocess.run(words, capture_output=True, text=True).stdout.strip()


def save(path: Path, rows: list[Row], commit: str) -> None:
    """With machines and versions, a line each; every row with its commit; those of other cases stay as they were."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.parent, wait=True):  # others may run other cases at the same time
        _merge(path, rows, commit)


def _merge(path: Path, rows: list[Row], commit: str) -> None:
    import torch

    import selex

    old = json.loads(path.read_text()) if path.exists() else {"results": []}
    before, command = old["results"], " ".join(["python -m chaos", *map(shlex.quote, sys.argv[1:])])
    found = {row["case"]: row for row in before if row["tries"]} | {
        row.case: row.to_json() | {"commit": commit} for row in rows
    }
    here = {
        "command": command,
        "device": f"{platform.machine()} CPU, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    record = {
        **{key: "\n".join(dict.fromkeys([*old.get(key, "").splitlines(), value])) for key, value in here.items()},
        "selex": selex.__version__,
        "results": [found.get(str(case)) or Row(str(case)).to_json() for case in CASES],
    }
    path.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
