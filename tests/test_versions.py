"""What a result says of the code that made it: a digest that follows behaviour, and a commit."""

import subprocess

import pytest

from selex.runs.versions import commit_of, digest_of, versions, versions_after

CODE = '''"""Half of things."""

LIMIT = 3
"""The most."""


def half(x: float) -> float:
    """x / 2."""
    return min(x / 2, LIMIT)
'''


@pytest.fixture
def digest(tmp_path):
    """The digest of a file with the given code."""

    def digest(code):
        (tmp_path / "code.py").write_text(code)
        return digest_of([tmp_path / "code.py"])

    return digest


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Half of things.", "What is half."),
        ("The most.", "An upper bound."),
        ('    """x / 2."""\n', ""),
        ("return min(x / 2, LIMIT)", "return min(\n        x / 2,  # exact\n        LIMIT,\n    )"),
    ],
)
def test_words_and_layout_leave_the_digest(digest, old, new):
    assert digest(CODE.replace(old, new)) == digest(CODE)
    assert old in CODE


@pytest.mark.parametrize(
    ("old", "new"), [("LIMIT = 3", "LIMIT = 3.0"), ("x / 2", "x // 2"), ("half(", "third("), (" = 3", " = '''3'''")]
)
def test_whatever_may_change_a_result_changes_the_digest(digest, old, new):
    assert digest(CODE.replace(old, new)) != digest(CODE)


FILES = {
    "halves.py": "import os\nfrom math import ceil, floor\n\ndef half(x):\n    return ceil(x / 2)\n",
    "thirds.py": "def third(x):\n    from selex.halves import half\n\n    return half(x) - x / 6\n",
}
ONE_FILE = """
from __future__ import annotations
import os
from typing import TYPE_CHECKING
from math import floor, ceil

if TYPE_CHECKING:
    from selex.types import Array

def third(x):
    return half(x) - x / 6

def half(x):
    return ceil(x / 2)
"""


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("from math import floor, ceil", "from math import ceil\nfrom math import floor", True),
        ("from selex.types import Array", "from selex.cluster.types import Array", True),
        ("    return half(x)", "    from selex.quarters import half\n    return half(x)", True),
        ("    return half(x)", "    from selex.quarters import quarter as half\n    return half(x)", False),
        ("from math import floor, ceil", "from numpy import floor, ceil", False),
        ("x / 6", "x / 7", False),
        ("def half", "@cache\ndef half", False),
    ],
)
def test_where_code_stands_leaves_the_digest(tmp_path, old, new, same):
    typing = "from __future__ import annotations\nfrom typing import TYPE_CHECKING\n"
    for name, code in FILES.items():
        (tmp_path / name).write_text(typing + code)
    (tmp_path / "one.py").write_text(ONE_FILE)
    apart, one = digest_of([tmp_path / name for name in FILES]), digest_of([tmp_path / "one.py"])
    assert apart == one
    (tmp_path / "one.py").write_text(ONE_FILE.replace(old, new))
    assert (digest_of([tmp_path / "one.py"]) == apart) is same


def test_a_docstring_that_is_returned_is_code(digest):
    assert digest('def f():\n    return "a"\n') != digest('def f():\n    return "b"\n')


def git(folder, *words):
    names = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", *names, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def checkout(tmp_path):
    """A checkout with one package."""
    package = tmp_path / "src" / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(CODE)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "All")
    commit_of.cache_clear()
    yield package
    commit_of.cache_clear()


def test_a_commit_is_named_with_whether_the_code_was_changed_since(checkout):
    head = git(checkout, "rev-parse", "HEAD").strip()
    (checkout.parent.parent / "results.json").write_text("{}")  # beside the code
    assert commit_of(checkout) == (head, True)
    commit_of.cache_clear()
    (checkout / "__init__.py").write_text(CODE.replace("3", "4"))
    assert commit_of(checkout) == (head, False)


def test_a_copy_that_git_does_not_track_has_no_commit(checkout, tmp_path_factory, monkeypatch):
    installed = checkout.parent.parent / "lib" / "package"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text(CODE)
    assert commit_of(installed) == (None, None)
    assert commit_of(tmp_path_factory.mktemp("elsewhere")) == (None, None)
    monkeypatch.setenv("PATH", "")  # no git
    commit_of.cache_clear()
    assert commit_of(checkout) == (None, None)


def test_code_is_read_again_only_if_a_letter_of_it_is_another(monkeypatch):
    first = versions_after({})
    assert first == {**versions(), "source": first["source"]}
    monkeypatch.setattr("selex.runs.versions.code_digest", lambda: "0" * 12)
    assert versions_after(first) == first
    for other in ({**first, "source": "another"}, {**first, "code": "no digest"}, {**first, "code": 7}, "none"):
        assert versions_after(other)["code"] == "0" * 12
