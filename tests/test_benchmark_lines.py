"""Lines of a benchmark say what made them, and a result takes what it says of its making from its lines."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest


@pytest.fixture
def common(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "benchmarks")
    return importlib.import_module("common")


def line(seed, code="a", device="x", commit="c"):
    made = {"device": device, "threads": 1, "torch": "2", "selex": "0", "code": code, "commit": commit}
    return json.dumps({"seed": seed, "made by": made}) + "\n"


def saved(common, tmp_path, *lines):
    file = tmp_path / "lines.jsonl"
    file.write_text("".join(lines))
    common.save("some", [], tmp_path, quiet=True, lines=common.Lines(file))
    return json.loads((tmp_path / "some.json").read_text())


def test_a_measured_line_says_what_made_it(common, tmp_path):
    common.Lines(tmp_path / "lines.jsonl").once({"seed": 0}, lambda: {"all": 1.0})
    stored = json.loads((tmp_path / "lines.jsonl").read_text())
    assert stored == {"seed": 0, "all": 1.0, "made by": common.made_by()}
    again = common.Lines(tmp_path / "lines.jsonl").once({"seed": 0}, lambda: pytest.fail("measured twice"))
    assert again == stored


def test_a_result_says_what_made_its_lines_and_not_what_wrote_it(common, tmp_path):
    record = saved(common, tmp_path, line(0), line(1, device="y"))
    assert (record["device"], record["code"], record["commit"]) == ("x and y", "a", "c")


def test_lines_of_the_very_code_that_is_here_are_of_its_commit(common, tmp_path, monkeypatch):
    monkeypatch.setattr(common, "commit_of", lambda: ("here", True))
    assert saved(common, tmp_path, line(0, common.code_digest(), commit=None))["commit"] == "here"
    assert saved(common, tmp_path, line(0, commit=None))["commit"] is None


def test_changed_code_has_no_commit(common, monkeypatch):
    monkeypatch.setattr(common, "commit_of", lambda: ("here", False))
    assert common.made_by()["commit"] is None


def test_a_gpu_that_was_not_used_made_nothing(common, monkeypatch):
    monkeypatch.setattr(common.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(common.torch.cuda, "get_device_name", lambda: "some GPU")
    assert str(common.made_by()["device"]).endswith(" CPU")
    monkeypatch.setattr(common.torch.cuda, "is_initialized", lambda: True)
    assert common.made_by()["device"] == "some GPU"


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ((line(0), line(1, code="b")), "lines of different code (a, b)"),
        ((line(0), '{"seed": 1}\n'), "1 of 2 lines do not say what made them"),
    ],
)
def test_mixed_lines_are_refused(common, tmp_path, lines, says):
    with pytest.raises(SystemExit, match=says.replace("(", r"\(").replace(")", r"\)")):
        saved(common, tmp_path, *lines)


def test_nothing_is_measured_to_go_beside_lines_of_other_code(common, tmp_path):
    (tmp_path / "lines.jsonl").write_text(line(0))
    with pytest.raises(SystemExit, match="different code"):
        common.Lines(tmp_path / "lines.jsonl").once({"seed": 1}, lambda: pytest.fail("measured"))
