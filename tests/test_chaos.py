"""The short form of `make chaos`: a seeded sample of each case."""

import os
import shutil
import sys

import pytest

from chaos import suite
from chaos.cases import Plan, run
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
