"""The run folder as a library: what is refused, and a publish that may be cut off anywhere."""

import json
import os
import shutil
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from pyarrow import parquet

from commands import digit_photos
from selex import Config, InputError, Run
from selex.checksums import stamped
from selex.cli.results import summary
from selex.data.parquet import read_blocks
from selex.discovery import discover
from selex.errors import Note
from selex.runs.export import export
from selex.runs.stage import EMBEDDINGS
from selex.runs.writer import RunWriter, write_run

CONFIG = Config.of("")


class Cut(BaseException):
    """Stands for kill -9: nothing catches it."""


def fill(run, number):
    """Results that say `number` everywhere."""
    shutil.rmtree(run.features.parent)  # as whoever makes features does: never into the old ones
    run.features.parent.mkdir()
    np.save(run.features, np.full((2, 3), number, dtype=np.float32))
    run.features.with_name(EMBEDDINGS + ".json").write_text(str(number))

    def save_model(folder):
        (folder / "model.json").write_text(str(number))
        (folder / "model.safetensors").write_text(str(number))

    run.publish(
        replace(CONFIG, seed=number),
        f"root {number}",
        [{"file": [name], "cluster": [number]} for name in "ab"],
        {
            "names": [str(number)],
            "levels": [{"n_known": 0, "sizes": [2]}],
            "estimate": None,
            "curve": None,
            "last_number": 0,
        },
        [("c", f"reason {number}")],
        save_model,
    )


def state(folder):
    """Which publish each file is of, or says; all must agree."""
    run = Run.open(folder)
    model = [(folder / "model" / name).read_text() for name in ("model.json", "model.safetensors")]
    numbers = {
        run.config.seed,
        int(run.root.name.split()[1]),
        int(run.embeddings[0, 0]),
        int((folder / f"{EMBEDDINGS}.json").read_text()),
        run.clusters["cluster"][0].as_py(),
        int((folder / "clusters.csv").read_text().split(",")[-1]),
        int(run.hierarchy["names"][0]),
        int((folder / "skipped.csv").read_text().split()[-1]),
        *map(int, model),
    }
    assert len(numbers) == 1, numbers
    return numbers.pop()


@pytest.fixture
def old(tmp_path):
    with write_run(tmp_path / "run", CONFIG, "") as run:
        fill(run, 1)
    assert state(run.folder) == 1
    return run.folder


def cut_after(monkeypatch, owner, name, calls):
    """Let a function work so many times, and stop everything right after the last of them."""
    real, made = getattr(owner, name), []

    def counted(*args, **kwargs):
        result = real(*args, **kwargs)
        made.append(1)
        if len(made) == calls:
            raise Cut
        return result

    monkeypatch.setattr(owner, name, counted)
    return made


@pytest.mark.parametrize("name", ["replace", "fsync", "mkdir", "unlink", "rmdir"])
def test_a_publish_cut_off_after_every_single_step(old, tmp_path, monkeypatch, name):
    """The state is the old one or the new one, never a mixture; the new one as soon as the stage is complete."""
    seen = []
    for calls in range(1, 100):
        folder = tmp_path / f"run {calls}"
        shutil.copytree(old, folder)
        with monkeypatch.context() as patch:
            made = cut_after(patch, os, name, calls)
            try:
                with write_run(folder, CONFIG, "") as run:
                    fill(run, 2)
            except Cut:
                complete = (folder / ".next" / "complete").exists()
            else:
                break
        found = state(folder)
        assert found == 2 or not complete
        assert not (folder / ".next").exists()
        seen.append(found)
        with write_run(folder, CONFIG, "") as run:
            fill(run, 3)
        assert state(folder) == 3
        assert not any(path.name.startswith(".") for path in folder.iterdir())
    assert len(made) < calls
    assert seen == sorted(seen)
    if name == "replace":  # two CSV files, two of features and the mark are staged, nine files put in place
        assert seen == [1] * 4 + [2] * 10


def test_an_error_while_staging_keeps_the_old_and_the_features(old, monkeypatch):
    monkeypatch.setattr("selex.runs.writer.as_row_groups", full)
    with pytest.raises(InputError, match=r"results cannot be written \(No space left on device\); the old ones stay"):
        publish(old, 2)
    assert state(old) == 1
    assert np.load(RunWriter(old).features)[0, 0] == 2


def test_an_error_while_moving_is_mended_by_the_next_who_opens(old, monkeypatch):
    real = os.replace

    def stubborn(source, target):
        if os.fspath(target) == str(old / "hierarchy.json"):
            full()
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", stubborn)
        with pytest.raises(InputError, match="cannot be put in place"):
            publish(old, 2)
    assert state(old) == 2


def publish(folder, number):
    with write_run(folder, CONFIG, "") as run:
        fill(run, number)


def full(*_, **__):
    raise OSError(28, "No space left on device")


def test_a_reader_leaves_a_stage_that_is_being_written(old):
    with write_run(old, CONFIG, "") as run:
        stage = old / ".next"
        stage.mkdir()
        (stage / "clusters.csv").write_text("half")
        assert state(old) == 1
        assert (stage / "clusters.csv").exists()
        with pytest.raises(InputError, match="another selex command is writing to it"), write_run(old, CONFIG, ""):
            pass
        fill(run, 2)
    assert state(old) == 2


def test_refused_work_leaves_no_folder_and_stopped_work_does(tmp_path):
    for made in (False, True):
        folder = tmp_path / f"run {made}"
        if made:
            folder.mkdir()
        with pytest.raises(InputError, match="no"), write_run(folder, CONFIG, ""):
            raise InputError("no")
        assert folder.exists() == made
        assert not made or not any(folder.iterdir())
        with pytest.raises(KeyboardInterrupt), write_run(folder, CONFIG, ""):
            raise KeyboardInterrupt
        assert Run.open(folder).config == CONFIG
        with pytest.raises(InputError, match="no"), write_run(folder, CONFIG, "") as run:
            raise InputError("no")
        assert run.folder.exists()


def test_work_refused_after_its_features_keeps_them(tmp_path):
    run = RunWriter(tmp_path / "run")

    def refuse():
        with write_run(run.folder, CONFIG, ""):
            run.features.write_text("features")
            raise InputError("no")

    with pytest.raises(InputError, match="no"):
        refuse()
    assert run.features.read_text() == "features"
    assert not run.complete


def test_no_permission(tmp_path, monkeypatch):
    def forbidden(*_, **__):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.mkdir", forbidden)
        with pytest.raises(InputError, match=r"run: cannot be created \(Permission denied\)"):
            publish(tmp_path / "run", 1)
    monkeypatch.setattr("selex.io._make_file", forbidden)
    with pytest.raises(InputError, match=r"config.json: cannot be written \(Permission denied\)"):
        publish(tmp_path / "run", 1)
    assert not any(tmp_path.iterdir())


def test_leftovers_of_a_kill_before_the_config_are_no_reason_to_refuse(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / ".selex-0123456789abcdef.tmp.json").touch()
    with write_run(folder, CONFIG, "") as run:
        fill(run, 1)
    assert state(folder) == 1


def test_features_are_copied_where_they_cannot_be_linked(old, monkeypatch):
    monkeypatch.setattr(os, "link", full)
    with write_run(old, CONFIG, "") as run:
        assert np.load(run.features)[0, 0] == 1
    assert state(old) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is not a run folder: it has no config.json"),
        ("{", r"config\.json: cannot be read \(Expecting"),
        ("[1]", r"config\.json: cannot be read \(not an object\)"),
        ("{}", "is not a run folder: its config.json was written by another program"),
        ('{"format": 0, "versions": {"selex": "0.0.1"}}', r"was written by an older version of selex \(0\.0\.1\)"),
        ('{"format": 99, "versions": {"selex": "9.1"}}', r"was written by a newer version of selex \(9\.1\)"),
    ],
)
def test_what_is_not_a_run(tmp_path, content, message):
    folder = tmp_path / "run"
    folder.mkdir()
    if content:
        (folder / "config.json").write_text(content)
    with pytest.raises(InputError, match=message):
        Run.open(folder)
    if content:
        with pytest.raises(InputError, match=message), write_run(folder, CONFIG, ""):
            pass
        assert (folder / "config.json").read_text() == content


def test_no_such_folder_and_no_results_yet(tmp_path):
    with pytest.raises(InputError, match="no such run folder"):
        Run.open(tmp_path / "nowhere")
    with write_run(tmp_path / "run", CONFIG, "") as run:
        pass
    for name in ("embeddings", "clusters", "hierarchy"):
        with pytest.raises(InputError, match="has no results yet; run the same `selex discover` again"):
            getattr(run, name)
    assert run.metrics == []


def test_the_log_survives_a_line_cut_short(old):
    run = RunWriter(old)
    run.log(step="one", count=2)
    with (old / "metrics.jsonl").open("a") as file:
        file.write('{"time": 1, "st')
    for steps in (["one"], ["one", "two"], ["one", "two", "three"]):
        with pytest.warns(Note, match=r"metrics.jsonl: damaged or truncated lines skipped: 1"):
            assert [entry["step"] for entry in run.metrics] == steps
        run.log(step=["two", "three", "four"][len(steps) - 1])


def test_settings_of_another_version(old):
    record = json.loads((old / "config.json").read_text())
    record["config"]["magic"] = 1
    (old / "config.json").write_text(stamped({key: value for key, value in record.items() if key != "sha256"}))
    with pytest.raises(InputError, match="settings of another version of selex: no setting 'magic'"):
        _ = Run.open(old).config


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"categories": 0}, "categories must be at least 1, not 0"),
        ({"levels": 0}, "levels must be at least 1"),
        ({"restarts": -1}, "restarts must be at least 1"),
        ({"size": 0}, "size must be at least 1"),
        ({"seed": -1}, "seed must be a whole number of at least 0, not -1"),
        ({"method": 3}, "train.method must be text, not 3"),
    ],
)
def test_settings_that_cannot_be(setting, message):
    with pytest.raises(InputError, match=message):
        Config.of("photos", **setting)


def test_a_config_comes_back_from_its_json():
    config = Config.of("photos", labels="labels.csv", categories=12, seed=4, balanced=False)
    assert Config.from_json(json.loads(json.dumps(config.to_json()))) == config


def test_a_folder_that_is_no_run_keeps_what_has_our_names(tmp_path):
    for name in (".next/complete", ".work/embeddings.npy", "model/model.json", "clusters.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("config.json\nmine")
    before = {path: path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    for config in (None, "{}", "[]"):
        if config:
            (tmp_path / "config.json").write_text(config)
        with pytest.raises(InputError):
            Run.open(tmp_path)
        assert all(path.read_text() == text for path, text in before.items())


def test_a_table_that_is_written_and_read_in_blocks_is_the_same(tmp_path, monkeypatch):
    digit_photos(tmp_path / "photos")
    config = Config.of(str(tmp_path / "photos"), categories=5, backbone="pixels", refine="none", search="bssk")
    whole = discover(config, tmp_path / "whole", store=tmp_path / "store")
    monkeypatch.setattr("selex.discovery_steps.BLOCK", 7)
    parts = discover(config, tmp_path / "parts", store=tmp_path / "store")
    monkeypatch.setattr("selex.runs.run.read_blocks", partial(read_blocks, size=11))
    assert parquet.ParquetFile(tmp_path / "parts" / "clusters.parquet").num_row_groups == 9
    assert parts.clusters.equals(whole.clusters)
    assert (parts.folder / "clusters.csv").read_bytes() == (whole.folder / "clusters.csv").read_bytes()
    assert [len(block) for block in parts.blocks("file")] == [11] * 5 + [5]
    for to in ("csv", "parquet"):
        for run, table in ((parts, None), (whole, [whole.clusters.to_pydict()])):  # a table in memory is another way
            done = export(run, to, tmp_path / f"{run.folder.name}.{to}", table=table)
            assert (done.images, done.categories) == (60, 5)
    assert (tmp_path / "parts.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()
    exported = [parquet.read_table(tmp_path / f"{name}.parquet") for name in ("parts", "whole")]
    assert exported[0].equals(exported[1])
    assert summary(parts) == summary(whole)
