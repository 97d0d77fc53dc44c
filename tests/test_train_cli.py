"""`selex discover --method` and `selex train` as a person runs them."""

import csv
import shutil
import sys
import warnings

import numpy as np
import pytest
from safetensors.torch import load_file

import selex as package
from commands import contents, refused, selex
from selex import discovery_steps
from selex.training.fit import TrainOptions
from selex.types import Variant
from test_discover import FILES

TINY = ("--backbone", "tiny-vit", "--categories", 5)
SHORT = ("--set", "train.batch=16", "--set", "train.lr=0.01", "--epochs", 1)
DISCOVER = ("discover", "photos", *TINY, *SHORT, "--out", "run", "--method")
TRAINED_FILES = sorted([*FILES, "model/trained.safetensors"])


def read(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("method", ["selex", "gcd", "simgcd"])
def test_a_trained_run(place, method):
    done = selex(*DISCOVER, method, cwd=place)
    assert (done.returncode, done.stderr) == (0, "")
    run = place / "run"
    assert sorted(contents(run)) == TRAINED_FILES
    assert [path.name for path in run.iterdir() if path.name.startswith(".")] == []
    lines = done.stdout.splitlines()
    assert [line.split(":")[0].split()[0] for line in lines[:5]] == ["decode", "training", "train", "embed", "cluster"]
    opened = package.Run.open(run)
    assert opened.config.train.method == method
    assert opened.config.train == package.TrainConfig(method=method, epochs=1, batch=16, lr=0.01)
    steps = [entry["step"] for entry in opened.metrics]
    assert steps == ["decode", "epoch", "train", "embed", "cluster"]
    assert lines[1] == f"training {opened.metrics[2]['parameters'] / 1e6:.2f} M parameters"
    backbone = package.load(run).load_backbone()
    assert set(load_file(run / "model" / "trained.safetensors")) == set(dict(backbone.network.named_parameters()))

    info = selex("info", "run", cwd=place)
    assert info.stdout.splitlines()[1] == f"backbone tiny-vit, method {method}, seed 0"
    assert "60 images, 12 of them labelled" in info.stdout

    done = selex("predict", "run", "photos", cwd=place)
    assert (done.returncode, done.stderr) == (0, "")
    found, table = read(place / "predictions.csv"), read(run / "clusters.csv")
    assert [row["file"] for row in found] == [row["file"] for row in table]
    free = [number for number, row in enumerate(table) if row["labelled"] == "0"]
    distances = [[float(rows[number]["distance"]) for number in free] for rows in (found, table)]
    assert distances[0] == pytest.approx(distances[1], abs=1e-4)


def test_a_key_of_the_log_has_one_type_in_all_its_lines(place):
    """Of a run that was made without training, trained in two ways, and made again."""
    for more in ((), ("--method", "selex", "--epochs", 2, "--store", "store"), ("--method", "simgcd", "--restart")):
        done = selex("discover", "photos", *TINY, *SHORT, *more, "--out", "run", cwd=place)
        assert done.returncode == 0, done.stderr
    entries = package.Run.open(place / "run").metrics
    assert {"decode", "embed", "cluster", "train", "epoch"} == {entry["step"] for entry in entries}
    types = {key: {type(entry[key]) for entry in entries if key in entry} for entry in entries for key in entry}
    assert {key: found for key, found in types.items() if len(found) > 1} == {}
    lists = [entry[key] for key, found in types.items() if found == {list} for entry in entries if key in entry]
    assert {type(value) for values in lists for value in values} == {int}


def test_a_run_that_was_refined_can_be_trained_with_a_method_that_has_none(place):
    assert selex(*DISCOVER, "gcd", "--refine", "balanced", cwd=place).returncode == 0
    more = ["--epochs", "1", "--set", "train.batch=16"]
    done = selex("train", "run", "--method", "simgcd", *more, cwd=place)
    assert done.returncode == 0, done.stderr
    assert package.Run.open(place / "run").config.cluster.refine == "auto"


@pytest.mark.parametrize("asked", ["auto", "proportional"])
def test_trained_features_are_clustered_the_papers_way_unless_told_otherwise(place, asked):
    assert selex(*DISCOVER, "gcd", "--refine", asked, cwd=place).returncode == 0
    run, model = package.Run.open(place / "run"), package.load(place / "run")
    assert run.config.cluster.refine == asked
    assert run.metrics[-1]["refine"] == ("none" if asked == "auto" else asked)
    assert (model.assigner.offsets is None) == (asked == "auto")
    assert selex("predict", "run", "photos", cwd=place).returncode == 0
    found, table = read(place / "predictions.csv"), read(place / "run" / "clusters.csv")
    for new, old in zip(found, table, strict=True):
        assert old["labelled"] == "1" or new["fits"] == "0" or new["category"] == old["category"]


def test_other_trained_weights_are_refused(place):
    assert selex(*DISCOVER, "gcd", cwd=place).returncode == 0
    before = load_file(place / "run" / "model" / "trained.safetensors")
    (place / "run" / "model" / "trained.safetensors").unlink()
    refused("trained.safetensors: is missing", "predict", "run", "photos", cwd=place)
    assert len(before) > 10
    (place / "run" / "model" / "trained.safetensors").write_bytes(b"damaged")
    refused("trained.safetensors: is damaged", "predict", "run", "photos", cwd=place)


def test_train_goes_on_from_a_frozen_run(place):
    assert selex("discover", "photos", *TINY, "--out", "run", cwd=place).returncode == 0
    frozen = contents(place / "run")
    assert sorted(frozen) == FILES
    kill = ("selex.training.steps:Steps.step", 2)
    assert selex("train", "run", *SHORT, "--method", "gcd", cwd=place, kill=kill).returncode == -9
    kept = {name: data for name, data in contents(place / "run").items() if name in FILES and name != "metrics.jsonl"}
    assert kept == {name: data for name, data in frozen.items() if name != "metrics.jsonl"}  # until there is better
    done = selex("train", "run", *SHORT, "--method", "gcd", cwd=place)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(contents(place / "run")) == TRAINED_FILES
    assert package.Run.open(place / "run").config.train.method == "gcd"
    assert selex(*DISCOVER, "gcd", "--out", "direct", cwd=place).returncode == 0
    for name in ("clusters.csv", "model/trained.safetensors", "embeddings.npy"):
        assert (place / "run" / name).read_bytes() == (place / "direct" / name).read_bytes()
    done = selex("train", "run", *SHORT, "--method", "frozen", cwd=place)  # and back
    assert (done.returncode, done.stderr) == (0, "")
    assert contents(place / "run")["clusters.csv"] == frozen["clusters.csv"]
    assert sorted(contents(place / "run")) == FILES


def test_what_nothing_would_change_is_not_trained_again(place):
    command, same = (*DISCOVER, "gcd"), "nothing changed since the last training"
    assert same not in selex(*command, cwd=place).stdout

    def results():
        return {name: data for name, data in contents(place / "run").items() if name != "metrics.jsonl"}

    before = results()
    for again in (command, ("train", "run", *SHORT, "--method", "gcd")):
        done = selex(*again, cwd=place)
        assert (done.returncode, done.stderr) == (0, "")
        assert same in done.stdout
        assert "\ntrain" not in done.stdout
        assert "0 images in another category" in done.stdout
        assert results() == before
        assert not (place / "run" / ".work").exists()
    assert "\ntraining 0." in selex(*command, "--restart", cwd=place).stdout
    assert results() == before, "the same once more"
    more = (*command, "--set", "train.weight_decay=0.1")
    assert selex(*more, cwd=place, kill=("selex.training.checkpoint:torch.save", 1)).returncode == -9
    assert "training again: settings changed" in selex(*more, cwd=place).stdout
    photo = next((place / "photos" / "unlabelled").glob("*.png"))
    photo.rename(photo.with_name("other name.png"))
    assert "training again: photos changed" in selex(*more, cwd=place).stdout
    photo.with_name("other name.png").rename(next((place / "photos").glob("digit*")) / "now labelled.png")
    assert "training again: photos changed" in selex(*more, cwd=place).stdout
    assert same in selex(*more, cwd=place).stdout


def test_what_is_refused_leaves_nothing(place):
    (place / "all" / "a").mkdir(parents=True)
    (place / "all" / "b").mkdir()
    for number, path in enumerate(sorted((place / "photos" / "unlabelled").iterdir())[:20]):
        shutil.copy(path, place / "all" / "ab"[number % 2])
    refused("a batch of 61 is larger than the 60 images", *DISCOVER, "gcd", "--set", "train.batch=61", cwd=place)
    labelled = ("discover", "all", *TINY[:2], "--categories", 2, *SHORT, "--method", "gcd", "--out", "run")
    refused("every image is labelled, so there is nothing to discover", *labelled, cwd=place)
    refused(
        "no setting 'train.flap'; did you mean 'train.flip'?",
        *DISCOVER,
        "selex",
        "--set",
        "train.flap=false",
        cwd=place,
    )
    refused("targets must be labels or radii", *DISCOVER, "selex", "--set", "train.targets=x", cwd=place)
    refused("alpha must be from 0 to 1", *DISCOVER, "selex", "--set", "train.alpha=2", cwd=place)
    refused("lr must be greater than 0", *DISCOVER, "selex", "--set", "train.lr=0", cwd=place)
    refused("view_bank must be 0, or at least 2", *DISCOVER, "selex", "--set", "train.view_bank=1", cwd=place)
    pixels = (
        "discover",
        "photos",
        "--backbone",
        "pixels",
        "--categories",
        5,
        *SHORT,
        "--out",
        "run",
        "--method",
        "gcd",
    )
    refused("backbone pixels has nothing to train", *pixels, cwd=place)


def test_a_run_that_cannot_be_trained_as_asked_is_left_as_it_was(place):
    assert selex("discover", "photos", *TINY, "--out", "run", cwd=place).returncode == 0
    before = contents(place / "run")
    done = selex("train", "run", *SHORT, "--set", "train.batch=61", cwd=place)
    assert (done.returncode, done.stderr) == (
        2,
        "error: a batch of 61 is larger than the 60 images: set train.batch to at most 60\n",
    )
    after = contents(place / "run")
    del before["metrics.jsonl"], after["metrics.jsonl"]
    assert after == before
    assert not (place / "run" / ".work").exists()


def test_training_that_diverges(place):
    done = selex(*DISCOVER, "gcd", "--set", "train.lr=1e12", "--epochs", 5, cwd=place)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert "try a smaller train.lr" in line
    assert "finite" in line or "the loss is nan" in line


def test_one_image_of_each_known_category(place):
    for folder in (place / "photos").glob("digit *"):
        for path in sorted(folder.iterdir())[1:]:
            path.unlink()
    done = selex(*DISCOVER, "selex", cwd=place)
    assert done.returncode == 0
    assert done.stderr.splitlines() == ["note: 3 of 3 known categories have a single labelled row each"]


def test_no_labels_at_all_and_no_count(place):
    for folder in (place / "photos").glob("digit *"):
        shutil.rmtree(folder)
    command = ("discover", "photos", "--backbone", "tiny-vit", *SHORT, "--out", "run", "--method", "selex")
    done = selex(*command, "--categories", "auto", cwd=place)
    assert done.returncode == 0, done.stderr
    assert [entry["step"] for entry in package.Run.open(place / "run").metrics][:2] == ["decode", "embed"]
    assert {row["known"] for row in read(place / "run" / "clusters.csv")} == {"0"}


@pytest.mark.parametrize(
    "options",
    [
        ("--set", "train.hssk=false"),
        ("--set", "train.use=false", "--set", "train.sse=false", "--set", "train.flip=false"),
        ("--set", "train.published=true"),
    ],
)
def test_parts_of_selex(place, options):
    done = selex(*DISCOVER, "selex", *options, cwd=place)
    assert (done.returncode, done.stderr) == (0, "")
    training = package.Run.open(place / "run").config.train
    assert training.published == ("train.published=true" in options)
    assert [getattr(training, part) for part in ("hssk", "use", "sse", "flip")] == [
        f"train.{part}=false" not in options for part in ("hssk", "use", "sse", "flip")
    ]


# in one process


@pytest.mark.parametrize(("published", "variant"), [(True, Variant("spread", "growing")), (False, Variant())])
def test_the_final_clustering_follows_the_published_code_too(place, published, variant, monkeypatch):
    seen, real = [], discovery_steps.fit_clusters
    monkeypatch.setattr(
        discovery_steps, "fit_clusters", lambda *given, **how: seen.append(how["variant"]) or real(*given, **how)
    )
    asked = {"method": "selex", "epochs": 1, "batch": 16, "published": published}
    config = package.Config.of(str(place / "photos"), backbone="tiny-vit", categories=5, **asked)
    package.discover(config, place / "run")
    assert seen == [variant]  # levels in order, so that a person can use them


def config(place, **settings):
    training = {"epochs": 2, "batch": 16, "lr": 0.01, "head_dim": 64, **settings}
    return package.Config.of(str(place / "photos"), categories=5, backbone="tiny-vit", method="selex", **training)


def test_an_image_that_is_deleted_during_training(place, tmp_path):
    """The store holds it decoded."""
    expected = package.discover(config(place), tmp_path / "one", store=tmp_path / "store")

    def tell(line):
        if line.startswith("training"):
            next((place / "photos" / "unlabelled").iterdir()).unlink()

    found = package.discover(config(place), tmp_path / "two", store=tmp_path / "store", tell=tell)
    assert len(list((place / "photos").rglob("*.png"))) == 59
    assert found.clusters.equals(expected.clusters)
    assert np.array_equal(found.embeddings, expected.embeddings)


def test_curves_for_tensorboard(place, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the package itself
        run = package.discover(
            config(place), tmp_path / "run", store=tmp_path / "store", options=TrainOptions(tensorboard=True)
        )
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        curves = EventAccumulator(str(run.folder / "tensorboard")).Reload()
    logged = [entry for entry in run.metrics if entry["step"] == "epoch"]
    for part in ("loss", "use", "sse", "lr", "agreement"):
        assert [point.value for point in curves.Scalars(part)] == pytest.approx([entry[part] for entry in logged])
        assert [point.step for point in curves.Scalars(part)] == [0, 1]


def test_without_tensorboard(place, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(
        package.InputError, match="--tensorboard needs the tensorboard package: pip install tensorboard"
    ):
        package.discover(
            config(place), tmp_path / "run", store=tmp_path / "store", options=TrainOptions(tensorboard=True)
        )
    assert not (tmp_path / "run").exists()
