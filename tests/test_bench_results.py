"""Result files: whole, readable again, and answered with one line where they are not."""

import json
import math

import numpy as np
import pytest

from results_for_tests import result
from selex.bench.results import Result, check_versions, read_results
from selex.errors import InputError
from selex.types import Scores


def test_a_result_survives_its_file(tmp_path):
    curve = [{"epoch": 0, "all": 0.5, "known": math.nan, "novel": 0.4, "loss": 3.5}]
    before = result(
        inductive={"v2": Scores(0.6, 0.7, 0.5)}, curve=curve, estimated={"n_clusters": 231, "low": 200, "high": 260}
    )
    path = before.save(tmp_path / "new" / "folder")
    after = Result.load(path)
    assert after.file == str(path)
    assert after.transductive == before.transductive
    assert isinstance(after.inductive["v2"], Scores)
    assert math.isnan(after.curve[0]["known"])
    assert after.to_json() == before.to_json()
    assert list(path.parent.iterdir()) == [path]


def test_the_file_is_the_schema():
    values = json.loads(json.dumps(result((0.7, math.nan, 0.65)).to_json(), allow_nan=False))
    names = (
        "format dataset method variant suite row backbone seed epochs n_categories estimated config versions",
        "commit clean device seconds memory_gb parameters flops transductive inductive curve command",
    )
    assert list(values) == " ".join(names).split()
    assert values["format"] == 1
    assert values["transductive"]["v2"] == [0.7, None, 0.65]
    assert values["inductive"] is None


def test_numbers_of_numpy_and_diverged_losses_can_be_written(tmp_path):
    curve = [{"epoch": np.int64(0), "all": np.float32(0.5), "loss": math.inf}]
    found = Result.load(result(curve=curve, parameters=np.int64(7)).save(tmp_path))
    assert found.parameters == 7
    assert found.curve[0]["all"] == 0.5
    assert math.isnan(found.curve[0]["loss"])


@pytest.mark.parametrize(
    ("more", "name"),
    [
        ({}, "cub-selex-paper-main-dinov2-vits14-reg-e20-s0.json"),
        (
            {"suite": "components", "row": "HSSK+USE", "seed": 2},
            "cub-selex-paper-components-hssk-use-dinov2-vits14-reg-e20-s2.json",
        ),
        (
            {"suite": "alpha", "row": "alpha=0.5", "backbone": "file:my models/x.pt"},
            "cub-selex-paper-alpha-alpha-0.5-file-my-models-x.pt-e20-s0.json",
        ),
    ],
)
def test_file_names_say_what_a_run_is(more, name):
    assert result(**more).file_name == name


def test_a_folder_is_read_in_the_order_of_names_without_what_is_being_written(tmp_path):
    for seed in (1, 0):
        result(seed=seed).save(tmp_path / "deeper")
    (tmp_path / ".cub.json.abc.json").write_text("{")
    (tmp_path / "notes.txt").write_text("mine")
    assert [found.seed for found in read_results(tmp_path)] == [0, 1]


def test_a_missing_and_an_empty_folder_are_told_apart(tmp_path):
    with pytest.raises(InputError, match="holds no results; make some with selex bench run"):
        read_results(tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        read_results(tmp_path / "away")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[:40], r"a\.json: is damaged \(.*\); remove it and run it again"),
        (lambda text: "[1]", r"a\.json: is not a result of selex bench run"),
        (lambda text: '{"device": "x"}', r"a\.json: is not a result of selex bench run"),
        (lambda text: text.replace('"format": 1', '"format": 2'), r"a\.json: is of format 2; .* reads format 1"),
        (lambda text: text.replace('"seed"', '"sead"'), r"a\.json: lacks 'seed'; it is damaged"),
        (lambda text: text.replace('"command"', '"comand"'), r"a\.json: has an unknown entry 'comand'"),
        (lambda text: text.replace('"seed": 0', '"seed": "0"'), r"a\.json: seed is '0', not a whole number"),
        (lambda text: text.replace("0.65", "65.0"), r"a\.json: an accuracy of the transductive ones is 65"),
        (lambda text: text.replace('"v2"', '"v3"'), r"a\.json: has no v2 accuracies"),
        (lambda text: text.replace("0.65,", "").replace("0.65", '"x"'), r"a\.json: is damaged"),
    ],
)
def test_a_damaged_file_is_one_clear_line(tmp_path, change, message):
    path = tmp_path / "a.json"
    result().save(tmp_path).rename(path)
    changed = change(path.read_text())
    assert changed != path.read_text()
    path.write_text(changed)
    with pytest.raises(InputError, match=message) as raised:
        read_results(tmp_path)
    assert "\n" not in str(raised.value)


def test_versions_are_not_mixed_unless_asked(tmp_path):
    result(seed=0).save(tmp_path)
    result(seed=1, versions={"selex": "0.2.0"}).save(tmp_path)
    with pytest.raises(InputError, match=r"several versions of selex: 0.1.0 \(\S+s0.json\), 0.2.0 \(\S+s1.json\)"):
        read_results(tmp_path)
    assert len(read_results(tmp_path, mixed=True)) == 2


def test_other_packages_may_differ():
    check_versions([result(), result(versions={"selex": "0.1.0", "torch": "2.11.0"})])
