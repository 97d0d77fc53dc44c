"""Odd places: locales, time zones, homes, networks, streams. The results are the same, or one line says why not."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field

from chaos import lab as worlds
from chaos.cases import Plan, Tries, case
from chaos.lab import PIXELS, Lab
from chaos.warm import Done

NOWHERE = "http://127.0.0.1:9"


@dataclass(frozen=True)
class Place:
    """What is odd: variables (None: unset), how the command is started, whether it may be refused."""

    variables: dict[str, str | None] = field(default_factory=dict)
    shell: str = 'exec "$@"'
    may_refuse: bool = False


PLACES = {
    "locale C": Place({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}),
    "locale POSIX, ASCII": Place({"LC_ALL": "POSIX", "PYTHONIOENCODING": "ascii"}),
    "locale unknown": Place({"LC_ALL": "xx_XX.KOI8-R", "LANG": "xx"}),
    "Turkish": Place({"LC_ALL": "tr_TR.UTF-8", "LANG": "tr_TR.UTF-8"}),
    "time zone Kathmandu": Place({"TZ": "Asia/Kathmandu"}),
    "time zone nonsense": Place({"TZ": "Not/AZone:::"}),
    "no home": Place({"HOME": None, "XDG_CACHE_HOME": None}),
    "home that is not there": Place({"HOME": "/nonexistent/home"}),
    "home that is a file": Place({"HOME": "/etc/passwd"}),
    "home with an odd name": Place({"HOME": "/tmp/caf\udce9 \n'\"$x"}),
    "no network": Place({"HTTP_PROXY": NOWHERE, "HTTPS_PROXY": NOWHERE, "ALL_PROXY": NOWHERE}),
    "no variables at all": Place(shell='exec env -i SELEX_CACHE="$SELEX_CACHE" PYTHONPATH="$PYTHONPATH" "$@"'),
    "no temporary folder": Place({"TMPDIR": "/nonexistent"}),
    "narrow terminal": Place({"COLUMNS": "1", "TERM": "dumb"}),
    "umask 077": Place(shell='umask 077; exec "$@"'),
    "cache without a name": Place({"SELEX_CACHE": ""}),
    "cache that is a file": Place({"SELEX_CACHE": "/etc/passwd"}, may_refuse=True),
    "cache on /proc": Place({"SELEX_CACHE": "/proc/cache"}, may_refuse=True),
    "stdin closed": Place(shell='exec "$@" <&-'),
    "stdout closed": Place(shell='exec "$@" >&-', may_refuse=True),
    "stdout full": Place(shell='exec "$@" >/dev/full', may_refuse=True),
    "stdout to who does not listen": Place(shell='"$@" | true; exit "${PIPESTATUS[0]}"', may_refuse=True),
    "stderr closed": Place(shell='exec "$@" 2>&-'),
    "few handles": Place(shell='ulimit -n 64; exec "$@"', may_refuse=True),
    "a folder that is gone": Place(shell='mkdir gone; cd gone; rmdir ../gone; exec "$@"', may_refuse=True),
}


def command(lab: Lab, where: Place, *words: str) -> Done:
    """Run a command there, from the very start: a locale is chosen before anything else."""
    own = {"SELEX_CACHE": str(lab.world / "cache"), "HOME": str(lab.home), "OMP_NUM_THREADS": "1"}
    given = {key: value for key, value in (os.environ | own | where.variables).items() if value is not None}
    line = ["bash", "-c", where.shell, "bash", sys.executable, "-m", "selex", *words]
    done = subprocess.run(line, cwd=lab.home, env=given, capture_output=True, timeout=300)
    return Done(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"), 0)


def found(lab: Lab) -> bytes:
    path = lab.home / "run" / "clusters.csv"
    return path.read_bytes() if path.exists() else b""


@case("place", "locale, time zone, home, network, streams")
def places(lab: Lab, plan: Plan) -> Tries:
    words = ("discover", str(lab.home / "photos"), *PIXELS, "--out", str(lab.home / "run"))
    lab.restore(worlds.photos)
    lab.must(*words)
    wanted = found(lab)
    for name in plan.some(list(PLACES), few=2):
        where = PLACES[name]
        lab.restore(worlds.photos)
        done = command(lab, where, *words)
        refused = done.code == 2 and where.may_refuse
        lost = done.trouble or ("" if refused else _judge(done, found(lab), wanted))
        yield lost and f"{name}: {lost}"


def _judge(done: Done, results: bytes, wanted: bytes) -> str:
    if done.code:
        return f"exit code {done.code}: {done.err.strip()}"
    return "" if results == wanted else "other results"
