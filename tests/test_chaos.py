"""The short form of `make chaos`: a seeded sample of each case."""

import os
import shutil
import sys
from types import SimpleNamespace

import pytest

from chaos import disk, strangers, suite
from chaos.cases import CASES, Plan, run
from chaos.lab import Lab

NEEDED = os.environ.get("CC", "cc")

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="faults are made by a library that Linux preloads"),
    pytest.mark.skipif(shutil.which(NEEDED) is None, reason="no C compiler to make the library of faults with"),
]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    lab = Lab(tmp_path_factory.mktemp("chaos"))
    yield lab
    lab.warm.close()


@pytest.mark.parametrize("case", suite.SHORT, ids=str)
def test_nothing_is_lost(lab, case):
    row = run(case, lab, Plan(short=True))
    assert row.tries
    assert not row.lost, "\n".join(row.lost)


def test_no_command_and_no_path_is_forgotten():
    """A new command, or an option with a word for its value that nobody has called a path or none, fails here."""
    assert set(strangers.COMMANDS) == set(strangers.commands())
    pairs = list(strangers.options())
    some = {("discover", "photos"), ("review", "table"), ("bench run", "dataset"), ("info", "log_json")}
    assert some <= {(name, param.name) for name, param in pairs}
    assert all(strangers.typed(name, param, "here").count("here") == 1 for name, param in pairs)
    assert set(strangers.settings()) >= {"data.labels", "features.weights"}
    with pytest.raises(ValueError, match="--spot PLACE: is it a path"):
        strangers.is_path(SimpleNamespace(opts=["--spot"], metavar="PLACE", type="str"))


READ_ONLY = {"config", "info", "serve", "evaluate", "data check", "weights list", "weights verify"}
ALIKE = {"demo": "discover", "estimate": "cluster", "bench run": "discover", "bench table": "cluster",
         "bench plot": "cluster"}  # fmt: skip
"""Commands that write nothing, and ones that write as another does."""


def test_every_command_that_writes_is_killed():
    killed = {str(case).rpartition(": ")[2] for case in CASES if case.area == "killed at a random moment"}
    assert killed >= {*disk.COMMANDS, "review", "weights fetch", "discover --engine ray", "--log-json"}
    names = {command.arguments[0] for command in disk.COMMANDS.values()} | {"review", "weights fetch"}
    assert names | READ_ONLY | set(ALIKE) == set(strangers.commands())
    assert set(ALIKE.values()) <= names
