"""`selex predict`, `selex info` and `selex weights` as a person runs them, and the model as a library."""

import csv
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import skimage.data
from PIL import Image
from safetensors.torch import load_file, save_file
from scipy.optimize import linear_sum_assignment

from commands import contents, discovered_digits, refused, reseal, selex
from selex import Config, InputError, Note, discover, load
from selex.cli import demo
from selex.runs.predictor import NOTHING

COLUMNS = ["file", "category", "known", "confidence", "runner_up", "distance", "fits", "nearest", "mark"]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return discovered_digits(tmp_path_factory.mktemp("home"))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SELEX_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SELEX_WEIGHTS", raising=False)


def read(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_photos_of_the_run_go_where_they_are(home):
    done = selex("predict", "run", "photos", "--out", "same.csv", "--store", "store", cwd=home)
    assert done.returncode == 0, done.stderr
    found, table = read(home / "same.csv"), read(home / "run" / "clusters.csv")
    assert list(found[0]) == COLUMNS
    assert [row["file"] for row in found] == [row["file"] for row in table]
    free = [(new, old) for new, old in zip(found, table, strict=True) if old["labelled"] == "0"]
    assert len(free) == 120
    for new, old in free:
        assert float(new["distance"]) == pytest.approx(float(old["distance"]), abs=1e-5)
        assert float(new["confidence"]) == pytest.approx(float(old["confidence"]), abs=1e-4)
        assert new["runner_up"] == old["runner_up"]
        if new["fits"] == "1":
            assert (new["category"], new["known"]) == (old["category"], old["known"])
        else:
            assert (new["category"], new["known"]) == ("none of these", "0")
    assert sum(new["fits"] == "1" for new in found) > 0.97 * len(found)
    counts = [sum(row["known"] == "1" for row in found), sum(row["category"].startswith("novel-") for row in found)]
    line = f"150 images: {counts[0]} in known categories, {counts[1]} in novel ones, {150 - sum(counts)} fit none"
    assert done.stdout.splitlines() == [line, "wrote same.csv"]


def test_features_that_are_whitened_and_seen_in_ten_views(home):
    base = ("discover", "photos", "--backbone", "tiny-vit", "--categories", 5, "--store", "store2", "--out", "whitened")
    done = selex(*base, "--set", "cluster.whiten=0.5", "--set", "features.views=10", cwd=home)
    assert done.returncode == 0, done.stderr
    model = load(home / "whitened")
    assert model.views == 10
    assert model.maps.steps[0].matrix.shape == (model.assigner.centers.shape[1],) * 2
    done = selex("predict", "whitened", "photos", "--out", "whitened.csv", "--store", "store2", cwd=home)
    assert done.returncode == 0, done.stderr
    found, table = read(home / "whitened.csv"), read(home / "whitened" / "clusters.csv")
    for new, old in zip(found, table, strict=True):
        if old["labelled"] == "0":
            assert float(new["distance"]) == pytest.approx(float(old["distance"]), abs=1e-4)
            assert new["fits"] == "0" or new["category"] == old["category"]
    done = selex("report", "whitened", cwd=home)
    assert done.returncode == 0, done.stderr
    page = next((home / "whitened").glob("*.html")).read_text()
    assert "tiny-vit, mean of 10 views" in page
    assert "balanced, best of 3, features whitened by 0.5" in page


@pytest.mark.parametrize("refine", ["proportional", "balanced"])
@pytest.mark.parametrize("whiten", [0, 0.5])
def test_categories_that_count_for_more_or_less_take_the_same_photos_again(home, refine, whiten):
    out = f"{refine} {whiten}"
    base = ("discover", "photos", "--backbone", "pixels", "--categories", 5, "--store", "store", "--out", out)
    done = selex(*base, "--refine", refine, "--set", f"cluster.whiten={whiten}", cwd=home)
    assert done.returncode == 0, done.stderr
    assert json.loads((home / out / "config.json").read_text())["config"]["cluster"]["refine"] == refine
    assert load(home / out).assigner.offsets.shape == (5,)
    done = selex("predict", out, "photos", "--out", f"{out}.csv", "--store", "store", cwd=home)
    assert done.returncode == 0, done.stderr
    found, table = read(home / f"{out}.csv"), read(home / out / "clusters.csv")
    free = [(new, old) for new, old in zip(found, table, strict=True) if old["labelled"] == "0"]
    assert len(free) == 120
    for new, old in free:
        assert new["fits"] == "0" or new["category"] == old["category"]
        assert new["runner_up"] == old["runner_up"]
        assert float(new["confidence"]) == pytest.approx(float(old["confidence"]), abs=1e-3)
    assert sum(new["fits"] == "1" for new, _ in free) > 110


def test_a_model_without_what_categories_count_for_is_one_of_before(home, tmp_path):
    """A model file of an older version has centres and reach alone."""
    shutil.copytree(home / "run", tmp_path / "old")
    path = tmp_path / "old" / "model" / "model.safetensors"
    tensors = load_file(path)
    assert set(tensors) == {"centers", "reach", "offsets", "margins", "map0.mean", "map0.matrix"}
    del tensors["offsets"], tensors["margins"]
    save_file(tensors, path)
    reseal(tmp_path / "old")
    assigner = load(tmp_path / "old").assigner
    assert (assigner.offsets, assigner.margins) == (None, None)


def test_what_is_added_to_the_odds_of_single_categories_is_kept(home, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(home / "run", run)
    model = load(run)
    shifts = tuple(np.arange(model.assigner.n_known, dtype=float) - 1)
    calibration = model.assigner.calibration._replace(shifts=shifts)
    replace(model, assigner=replace(model.assigner, calibration=calibration)).save(run / "model")
    reseal(run)
    assert load(run).assigner.calibration == calibration


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--set", "cluster.whiten=1.5", "whiten must be from 0 to 1, not 1.5"),
        ("--set", "features.views=3", "views must be 1, 2 or 10, not 3"),
        ("--refine", "large", "refine must be auto, none, proportional or balanced, not 'large'"),
        ("--set", "train.prototypes=-1", "prototypes must be at least 0, not -1.0"),
        ("--set", "train.random_crop=1.5", "random_crop must be from 0 to 1, not 1.5"),
        ("--set", "train.color_jitter=-0.5", "color_jitter must be from 0 to 1, not -0.5"),
    ],
)
def test_settings_of_features_that_cannot_be(home, option, value, message):
    refused(message, "discover", "photos", option, value, "--out", "not", cwd=home)
    assert not (home / "not").exists()


def test_what_fits_nothing_is_marked(home, tmp_path):
    folder = tmp_path / "new"
    shutil.copytree(home / "photos" / "digit 1", folder)
    noise = np.random.default_rng(0).integers(0, 256, (8, 8), dtype=np.uint8)
    Image.fromarray(noise).save(folder / "noise.png")
    for name in ("astronaut", "coffee", "chelsea"):
        Image.fromarray(getattr(skimage.data, name)()).save(folder / f"{name}.jpg")
    done = selex("predict", home / "run", "new", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = {row["file"]: row for row in read(tmp_path / "predictions.csv")}
    for name in ("noise.png", "astronaut.jpg", "coffee.jpg", "chelsea.jpg"):
        assert (found[name]["category"], found[name]["known"], found[name]["fits"]) == ("none of these", "0", "0")
    others = [row for name, row in found.items() if name[0].isdecimal()]
    assert len(others) == 10
    assert {row["fits"] for row in others} == {"1"}


def test_one_image_and_one_that_cannot_be_read(home, tmp_path):
    image = next((home / "photos" / "digit 0").iterdir())
    done = selex("predict", home / "run", image, "--out", "one.csv", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [row["category"] for row in read(tmp_path / "one.csv")] == ["digit 0"]
    (tmp_path / "new").mkdir()
    shutil.copy(image, tmp_path / "new")
    (tmp_path / "new" / "broken.jpg").write_text("hello")
    done = selex("predict", home / "run", "new", cwd=tmp_path)
    assert done.returncode == 0
    reason = "not a JPEG, PNG, WebP, GIF, TIFF or BMP image"
    line = f"note: 1 of 2 images cannot be read and are left out; the first is broken.jpg: {reason}"
    assert done.stderr.splitlines() == [line]
    assert [row["file"] for row in read(tmp_path / "predictions.csv")] == [image.name]
    refused(f"broken.jpg: {reason}", "predict", home / "run", "new", "--strict", cwd=tmp_path)


def test_predictions_of_before_stay(home, tmp_path):
    command = ("predict", home / "run", home / "photos" / "digit 0")
    (tmp_path / "predictions-2.csv").write_text("mine")
    for name in ("predictions.csv", "predictions-3.csv"):
        done = selex(*command, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert f"wrote {name}\n" in done.stdout
    assert (tmp_path / "predictions-2.csv").read_text() == "mine"
    assert read(tmp_path / "predictions.csv") == read(tmp_path / "predictions-3.csv")
    assert "wrote predictions.csv\n" in selex(*command, "--out", "predictions.csv", cwd=tmp_path).stdout


def test_predict_refuses(home, tmp_path):
    run = home / "run"
    refused("nowhere: no such run folder", "predict", "nowhere", home / "photos", cwd=tmp_path)
    refused("nowhere: no such file or folder", "predict", run, "nowhere", cwd=tmp_path)
    far = "s3://bucket/new: photos at a URL need --engine ray"
    refused(far, "predict", run, "s3://bucket/new", cwd=tmp_path)
    wanted = "--address and --workers need --engine ray"
    refused(wanted, "predict", run, home / "photos", "--workers", 2, cwd=tmp_path)
    refused("is not a run folder", "predict", home / "photos", home / "photos", cwd=tmp_path)
    (tmp_path / "mine.csv").write_text("file,label\n")
    refused("exists and is not what this command writes", "predict", run, home, "--out", "mine.csv", cwd=tmp_path)
    refused("the folder no does not exist", "predict", run, home / "photos", "--out", "no/p.csv", cwd=tmp_path)
    same = ("predict", run, home / "photos", "--store", home / "store")
    (tmp_path / "here").mkdir()  # the cache beside it may have what it needs
    refused("predictions.csv: cannot be written (File too large)", *same, cwd=tmp_path / "here", file_limit=1000)


def test_ctrl_c_writes_nothing(home):
    before = contents(home)
    where = ("selex.runs.predictor:embed", 1)
    done = selex("predict", "run", "photos", "--out", "x.csv", "--store", "store", cwd=home, interrupt=where)
    assert done.returncode == 130
    assert done.stderr == "stopped; nothing was written\n"
    assert contents(home) == before


def test_a_model_in_python(home, tmp_path):
    model = load(home / "run")
    assert model.names == ["digit 0", "digit 1", "digit 2", "novel-1", "novel-2"]
    assert (model.n_known, model.backbone, model.size) == (3, "pixels", 32)
    paths = sorted((home / "photos" / "unlabelled").iterdir())[:5]
    images = [Image.open(path).copy() for path in paths]
    found = model.predict(images, store=tmp_path / "store")
    assert list(found) == COLUMNS
    assert found["file"] == [f"image-{row:06d}" for row in range(5)]
    by_path = model.predict([str(path) for path in paths], store=tmp_path / "store")
    assert by_path["distance"] == pytest.approx(found["distance"], abs=1e-5)
    table = {row["file"]: row for row in read(home / "run" / "clusters.csv")}
    assert found["nearest"] == [table[f"unlabelled/{path.name}"]["category"] for path in paths]
    named = zip(found["category"], found["nearest"], found["mark"], strict=True)
    assert all(category == (NOTHING if mark == "unlike any" else nearest) for category, nearest, mark in named)
    (tmp_path / "broken.png").write_text("hello")
    with pytest.warns(Note, match="1 of 2 images cannot be read and are left out; the first is .*broken.png"):
        model.predict([tmp_path / "broken.png", paths[0]], store=tmp_path / "store")


def test_probabilities_of_all_categories(home, tmp_path):
    model = load(home / "run")
    photos = [str(path) for path in sorted((home / "photos" / "unlabelled").iterdir())]
    found = model.predict(photos, store=tmp_path / "store")
    chances = model.predict_proba(photos, store=tmp_path / "store")
    assert chances.shape == (len(photos), 5)
    np.testing.assert_allclose(chances.sum(1), 1, atol=1e-6)
    assert [model.names[column] for column in chances.argmax(1)] == found["nearest"]
    known = np.array([name in model.names[: model.assigner.n_known] for name in found["nearest"]])
    sure = np.array(found["confidence"])
    np.testing.assert_allclose(chances.max(1)[~known], sure[~known], rtol=1e-5)
    assert (sure[known] <= chances.max(1)[known] + 1e-6).all()
    second = np.argsort(chances, axis=1)[:, -2]
    told = np.flatnonzero(chances[np.arange(len(second)), second] > 1e-30)  # of others all are 0
    assert len(told) > 5
    assert [model.names[second[row]] for row in told] == [found["runner_up"][row] for row in told]
    (tmp_path / "broken.png").write_text("hello")
    with pytest.warns(Note, match="1 of 2 images cannot be read and are left out"):
        one = model.predict_proba([tmp_path / "broken.png", photos[0]], store=tmp_path / "store")
    np.testing.assert_allclose(one, chances[:1], atol=1e-5)


@pytest.fixture
def copy(home, tmp_path):
    shutil.copytree(home / "run", tmp_path / "run")
    return tmp_path / "run"


def test_a_model_that_is_not_whole(copy):
    about = json.loads((copy / "model" / "model.json").read_text())
    for wrong in (about | {"fingerprint": "0" * 64}, about | {"fingerprint": ""}):
        (copy / "model" / "model.json").write_text(json.dumps(wrong))
        reseal(copy)
        with pytest.raises(InputError, match="backbone pixels has other weights here than when the run was made"):
            load(copy).predict([Image.new("RGB", (32, 32))])
    for text in ("{}", "[]", "{", json.dumps(about | {"extra": 1})):
        (copy / "model" / "model.json").write_text(text)
        reseal(copy)
        with pytest.raises(InputError, match=r"model(/model.json)?: cannot be read"):
            load(copy)
    (copy / "model" / "model.json").write_text(json.dumps(about))
    (copy / "model" / "model.safetensors").write_bytes(b"broken")
    reseal(copy)
    with pytest.raises(InputError, match="model: cannot be read"):
        load(copy)
    (copy / "model" / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"model.safetensors: is missing"):
        load(copy)
    reseal(copy, files={})
    with pytest.raises(InputError, match="has no model yet"):
        load(copy)


def test_runs_of_other_versions(copy, tmp_path):
    record = json.loads((copy / "config.json").read_text())
    for number, age in ((0, "an older"), (99, "a newer")):
        (copy / "config.json").write_text(json.dumps(record | {"format": number}))
        refused(f"run: was written by {age} version of selex", "info", "run", cwd=tmp_path)
        refused(f"run: was written by {age} version of selex", "predict", "run", "run", cwd=tmp_path)


def test_info(home):
    done = selex("info", "run", cwd=home)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:2] == [f"photos {home / 'photos'}", "backbone pixels, method frozen, seed 0"]
    assert "150 images, 30 of them labelled" in lines
    refused("photos: is not a run folder", "info", "photos", cwd=home)


def test_weights_list_and_verify(tmp_path, monkeypatch):
    (tmp_path / "weights").mkdir()
    monkeypatch.setenv("SELEX_WEIGHTS", str(tmp_path / "weights"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    listed = selex("weights", "list", cwd=tmp_path)
    assert listed.returncode == 0, listed.stderr
    lines = listed.stdout.splitlines()
    assert lines[0].split() == ["backbone", "status", "sha256", "licence", "file"]
    lite = "efficientnet-lite1  missing  77cc7160d37b  Apache-2.0"
    assert any(line.startswith(lite) and line.endswith(" efficientnet-lite1-77cc7160.pth") for line in lines)
    assert str(tmp_path / "weights") in lines[-1]
    assert selex("weights", "verify", cwd=tmp_path).returncode == 0
    (tmp_path / "weights" / "efficientnet-lite1-77cc7160.pth").write_text("something else")
    done = selex("weights", "verify", cwd=tmp_path)
    assert done.returncode == 2
    assert "efficientnet-lite1-77cc7160.pth: wrong: its sha256 is " in done.stderr
    assert "efficientnet-lite1  wrong" in done.stdout
    refused("no backbone 'lite'", "weights", "fetch", "lite", cwd=tmp_path)


def test_confidence_is_worth_something(tmp_path):
    """On the pixels of the demonstration's digits: among the most confident half at most half the error of all."""
    demo._write_images(tmp_path, seed=0)
    config = Config.of(str(tmp_path / "photos"), preset="paper", categories=10, backbone="pixels", method="frozen")
    run = discover(config, tmp_path / "pixels", store=tmp_path / "store").clusters.to_pydict()
    truth = {row["file"]: int(row["label"]) for row in read(tmp_path / "truth.csv")}
    free = [row for row, held in enumerate(run["labelled"]) if not held]
    true = np.array([truth[run["file"][row]] for row in free])
    found = np.array([run["cluster"][row] for row in free])
    confidence = np.array([run["confidence"][row] for row in free])
    table = np.zeros((10, 10), dtype=int)
    np.add.at(table, (found, true), 1)
    digit_of = linear_sum_assignment(table, maximize=True)[1]
    wrong = digit_of[found] != true
    half = np.argsort(-confidence)[: len(free) // 2]
    assert 0.05 < wrong.mean() < 0.3
    assert wrong[half].mean() <= 0.5 * wrong.mean()
    assert confidence.mean() == pytest.approx(1 - wrong.mean(), abs=0.05)
