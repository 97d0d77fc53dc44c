"""Settings: groups, presets, files, `--set`; each described once; a mistake is one line."""

from dataclasses import fields, replace

import pytest

from commands import refused, selex
from selex import ClusterConfig, Config, InputError, TrainConfig
from selex.cli.settings import configured
from selex.config import GROUPS, PAPER, PRESETS, find_setting, settings_of

PATHS = [path for group in ("", *GROUPS) for path, _ in settings_of(group)]


def test_a_name_means_one_setting():
    names = [path.rpartition(".")[2] for path in PATHS]
    assert len(set(names)) == len(names)
    assert {group for group, _ in map(find_setting, names)} == {"", *GROUPS}


@pytest.mark.parametrize("path", PATHS)
def test_every_setting_is_described(path):
    _, about = find_setting(path)
    assert about.metadata["summary"].endswith(".")
    assert about.name in path


def test_the_defaults_are_the_preset_photos():
    assert Config.of(preset="photos") == Config()
    assert PRESETS["photos"] == {}


def test_the_paper():
    train, cluster = PAPER.train, PAPER.cluster
    assert (train.method, train.epochs, train.lr, train.alpha, train.sup_weight) == ("selex", 200, 0.1, 0.5, 0.35)
    assert (train.batch, train.trained_blocks, train.random_crop, train.color_jitter, train.prototypes) == (
        128,
        2,
        0,
        0,
        0,
    )
    assert (cluster.whiten, cluster.refine, cluster.restarts, PAPER.features.views) == (0, "none", 10, 1)


@pytest.mark.parametrize("preset", PRESETS)
def test_what_config_prints_is_read_back(preset, tmp_path):
    done = selex("config", preset, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    (tmp_path / "all.toml").write_text(done.stdout)
    assert configured(Config.of(preset="paper"), tmp_path / "all.toml", None) == Config.of(preset=preset)
    for path in PATHS:
        group, about = find_setting(path)
        assert f"# {about.metadata['summary']}\n{about.name} = " in done.stdout
    for group in GROUPS:
        assert f"\n[{group}]\n" in done.stdout


def test_a_file_may_hold_what_is_needed_alone(tmp_path):
    file = tmp_path / "some.toml"
    file.write_text('seed = 7\n[cluster]\nwhiten = 0\nlevels = "all"\n[train]\nlr = 0.5\n')
    config = configured(Config.of(preset="best", levels=2), file, None)
    assert config == Config.of(preset="best", seed=7, whiten=0, lr=0.5)
    changed = configured(Config(), file, ["train.lr=0.25", "cluster.levels=3"], seed="9", categories=None)
    assert (changed.train.lr, changed.cluster.levels, changed.seed) == (0.25, 3, 9)
    assert changed.cluster.whiten == 0


@pytest.mark.parametrize(
    ("change", "path", "value"),
    [
        ("cluster.whiten=1", "cluster.whiten", 1.0),
        ("cluster.categories=auto", "cluster.categories", None),
        ("cluster.refine=none", "cluster.refine", "none"),
        ("train.trained_blocks=all", "train.trained_blocks", None),
        ("train.flip=false", "train.flip", False),
        ("features.views=10", "features.views", 10),
        ("features.weights=none", "features.weights", None),
        ("train.weight_decay=1e-5", "train.weight_decay", 1e-5),
        ("epochs=3", "train.epochs", 3),
    ],
)
def test_set(change, path, value):
    config = configured(Config.of(categories=3, weights="x.pth", trained_blocks=1), None, [change])
    group, _, name = path.rpartition(".")
    found = getattr(getattr(config, group), name)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"whitten": 1}, "no setting 'whitten'; did you mean 'cluster.whiten'?"),
        ({"train.whiten": 1}, "no setting 'train.whiten'; did you mean 'cluster.whiten'?"),
        ({"cluster.epoch": 1}, "no setting 'cluster.epoch'; did you mean 'train.epochs'?"),
        ({"whiten": 2}, "cluster.whiten must be from 0 to 1, not 2"),
        ({"whiten": "much"}, "cluster.whiten must be a number, not 'much'"),
        ({"whiten": True}, "cluster.whiten must be a number, not True"),
        ({"epochs": 1.5}, "train.epochs must be a whole number, not 1.5"),
        ({"categories": "some"}, "cluster.categories must be a whole number, or 'auto', not 'some'"),
        ({"flip": 1}, "train.flip must be true or false, not 1"),
        ({"lr": float("nan")}, "train.lr must be greater than 0, not nan"),
        ({"lr": float("inf")}, "train.lr is too large: inf"),
        ({"views": 3}, "features.views must be 1, 2 or 10, not 3"),
        ({"kind": "far"}, "train.kind must be distance or cosine, not 'far'"),
        ({"photos": None}, "data.photos must be text, not None"),
        ({"seed": 0.5}, "seed must be a whole number of at least 0, not 0.5"),
        (
            {"published_quirks": "order+typos"},
            "train.published_quirks must be some of order, grouping, crops, targets, clustering, not 'typos'",
        ),
        ({"view_bank": 1}, "train.view_bank must be 0, or at least 2"),
    ],
    ids=str,
)
def test_settings_that_cannot_be(changes, message):
    with pytest.raises(InputError) as error:
        Config().change(**changes)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_mistakes_on_the_command_line_are_one_line(tmp_path):
    discover = ("discover", "photos", "--out", "run")
    refused("no preset 'bestt'; did you mean 'best'?", *discover, "--preset", "bestt", cwd=tmp_path)
    refused("no preset 'bestt'; did you mean 'best'?", "config", "bestt", cwd=tmp_path)
    refused("no setting 'cluster.whitten'; did you mean", *discover, "--set", "cluster.whitten=1", cwd=tmp_path)
    refused("cluster.whiten must be a number, not 'x'", "cluster", "x.npy", "--set", "cluster.whiten=x", cwd=tmp_path)
    refused("--set cluster.whiten: give a setting and its value", *discover, "--set", "cluster.whiten", cwd=tmp_path)
    refused("none.toml: cannot be read (No such file or directory)", *discover, "--config", "none.toml", cwd=tmp_path)
    for text, message in {
        "[cluster\n": "cannot be read (",
        "[cluster]\nwhitten = 1\n": "bad.toml: no setting 'cluster.whitten'; did you mean 'cluster.whiten'?",
        "[clusters]\nwhiten = 1\n": "bad.toml: no setting 'clusters.whiten'; did you mean 'cluster.whiten'?",
        "[cluster]\nwhiten = 2\n": "bad.toml: cluster.whiten must be from 0 to 1, not 2",
        "cluster = 3\n": "bad.toml: no setting 'cluster'",
        "[cluster.whiten]\nx = 3\n": "bad.toml: cluster.whiten must be a number, not {'x': 3}",
        "seed = 2024-01-01\n": "bad.toml: seed must be a whole number",
    }.items():
        (tmp_path / "bad.toml").write_text(text)
        refused(message, *discover, "--config", "bad.toml", cwd=tmp_path)


def test_help_of_discover_fits_a_screen(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    page = selex("discover", "--help", cwd=tmp_path).stdout
    assert len(page.splitlines()) <= 47
    for group in ("Features", "Clustering", "Training", "Ray cluster"):
        assert f"─ {group} ─" in page
    for name in ("categories", "attention_crop", "epochs", "backbone"):
        assert find_setting(name)[1].metadata["summary"].replace("`", "") in page


def test_groups_are_frozen_and_replaced():
    assert replace(ClusterConfig(), whiten=0.25).whiten == 0.25
    assert {field.name for field in fields(Config)} == {*GROUPS, "seed"}
    assert TrainConfig().quirks == frozenset()
    assert TrainConfig(published_quirks="order+crops").quirks == {"order", "crops"}
