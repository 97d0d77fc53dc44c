"""`--attention-crop` as a person gives it: discover, predict, go on, in two processes, and on the bench."""

import csv
import json

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from timm.models.vision_transformer import VisionTransformer

from commands import contents, refused, selex, several
from layouts_for_tests import shake, write
from selex import Run, load
from selex.bench.results import read_results
from selex.runs.sorter import Sorter

COLOURS = ["red", "blue", "lime", "yellow"]
KNOWN = 2
BASE = ("--backbone", "file:eye.pth", "--categories", len(COLOURS), "--attention-crop", "--store", "store")
DISCOVER = ("discover", "photos", *BASE)
TRAIN = (*DISCOVER, "--method", "gcd", "--epochs", 2, "--set", "train.batch=8", "--set", "train.lr=0.05")


def eye():
    """A small transformer with random weights, which looks sharply at something."""
    torch.manual_seed(0)
    network = VisionTransformer(
        img_size=224, patch_size=28, embed_dim=64, depth=3, num_heads=1, num_classes=0, global_pool="token"
    )
    shake(network)
    network.blocks[-1].attn.qkv.weight.data[:128] *= 10  # queries and keys
    return network.state_dict()


def colour_photos(folder, each=8):
    """Discs of some colours on noise, a quarter of the first ones labelled; the colour of each file."""
    rng, truth = np.random.default_rng(0), {}
    for number, colour in enumerate(COLOURS):
        for row in range(each):
            name = f"{colour if number < KNOWN and row < each // 4 else 'unlabelled'}/{colour} {row}.png"
            photo = Image.fromarray(rng.integers(0, 60, (90, 140, 3), dtype=np.uint8))
            x, y = rng.integers(0, 100), rng.integers(0, 50)
            ImageDraw.Draw(photo).ellipse((x, y, x + 40, y + 40), fill=colour)
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            photo.save(folder / name)
            truth[name] = colour
    return truth


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    truth = colour_photos(home / "photos")
    write(home / "eye.pth", eye())
    with (home / "labels.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["file", "class", "known"])
        writer.writerows([f"photos/{name}", kind, int(kind in COLOURS[:KNOWN])] for name, kind in truth.items())
    return home


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SELEX_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SELEX_WEIGHTS", raising=False)


def done(*arguments, cwd):
    made = selex(*arguments, cwd=cwd)
    assert (made.returncode, made.stderr) == (0, ""), made.stderr
    return made


@pytest.fixture(scope="module")
def trained(home):
    """A training that was not disturbed."""
    done(*TRAIN, "--out", "trained", cwd=home)
    return home / "trained"


def read(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def same_categories(home, run):
    """What the run's model says of the run's photos is what the run says."""
    done("predict", run, "photos", "--out", f"{run}.csv", "--store", "store", cwd=home)
    found, table = read(home / f"{run}.csv"), read(home / run / "clusters.csv")
    free = [(new, old) for new, old in zip(found, table, strict=True) if old["labelled"] == "0"]
    assert len(free) == 28
    for new, old in free:
        assert new["file"] == old["file"]
        assert float(new["distance"]) == pytest.approx(float(old["distance"]), abs=1e-4)
        assert new["fits"] == "0" or new["category"] == old["category"]
    assert sum(new["fits"] == "1" for new, _ in free) > 20
    return free


def test_a_closer_look_and_a_model_that_takes_it_too(home):
    made = done(*DISCOVER, "--out", "run", cwd=home)
    assert "attention_crop: 32 images in " in made.stdout
    assert json.loads((home / "run" / "config.json").read_text())["config"]["features"]["attention_crop"] is True
    assert json.loads((home / "run" / "model" / "model.json").read_text())["attention_crop"] is True
    steps = [entry["step"] for entry in Run.open(home / "run").metrics]
    assert steps == ["decode", "attention_crop", "embed", "cluster"]
    before = contents(home / "store")
    same_categories(home, "run")
    assert contents(home / "store") == before  # nothing was looked at or decoded again
    done(*(part for part in DISCOVER if part != "--attention-crop"), "--out", "plain", cwd=home)
    plain, close = (Run.open(home / name).embeddings for name in ("plain", "run"))
    assert ((plain * close).sum(1) < 0.999).mean() > 0.8
    assert not load(home / "plain").attention_crop


def test_new_photos_of_a_trained_model_are_cut_where_the_network_looked_first(home, trained):
    model = load(trained)
    assert model.attention_crop
    assert any(name.endswith("attn.qkv.weight") for name in model.trained)  # it looks elsewhere now
    before = contents(home / "store")
    same_categories(home, "trained")
    assert contents(home / "store") == before
    one = next((home / "photos" / "unlabelled").iterdir())
    (alone,) = model.predict(str(one), store=home / "other store")["distance"]
    row = next(row for row in read(trained / "clusters.csv") if row["file"] == f"unlabelled/{one.name}")
    assert alone == pytest.approx(float(row["distance"]), abs=1e-4)
    sorter = Sorter(model)  # of `selex serve`: in memory, and together with others
    files = [one.read_bytes(), *(path.read_bytes() for path in sorted((home / "photos" / "red").iterdir()))]
    assert sorter.sort(files)[0]["distance"] == pytest.approx(alone, abs=1e-4)
    sorter.close()


def test_stopped_and_resumed(home, trained):
    stopped = selex(*TRAIN, "--out", "stopped", cwd=home, kill=("selex.training.steps:Steps.step", 6))  # four an epoch
    assert stopped.returncode == -9
    others = selex(*(part for part in TRAIN if part != "--attention-crop"), "--out", "stopped", cwd=home)
    assert others.returncode == 2
    assert "settings (attention_crop True there, False here)" in others.stderr
    done("train", "stopped", "--resume", "--store", "store", cwd=home)
    found = contents(home / "stopped")
    for name, data in contents(trained).items():  # config.json has a seal whose key is in the cache of each test
        assert name in ("metrics.jsonl", "config.json") or found[name] == data, name
    assert Run.open(home / "stopped").config == Run.open(trained).config


def test_two_processes_are_one(home, trained):
    first, second = several(*TRAIN, "--out", "two", cwd=home)
    assert (first.returncode, first.stderr) == (0, "")
    assert (second.returncode, second.stderr) == (0, "")
    one, two = (
        [entry["loss"] for entry in Run.open(run).metrics if entry["step"] == "epoch"]
        for run in (trained, home / "two")
    )
    assert two == pytest.approx(one, rel=1e-4)


def test_the_bench_looks_closer_with_one_seed(home):
    command = ("bench", "run", "--dataset", "labels.csv", "--method", "frozen", "--backbone", "file:eye.pth")
    more = ("--device", "cpu", "--attention-crop", "--variant", "closer", "--store", home.parent / "bench-store")
    done(*command, *more, "--seed", 1, cwd=home)
    (result,) = read_results(home / "results")
    assert (result.seed, result.variant, result.config["features"]["attention_crop"]) == (1, "closer", True)
    assert " --attention-crop " in result.command
    again = done(*command, *more, "--seed", 1, "--seed", 3, cwd=home)
    assert again.stdout.count("exists, skipped") == 1
    assert sorted(result.seed for result in read_results(home / "results")) == [1, 3]


@pytest.mark.parametrize("backbone", ["pixels", "tiny-vit"])
def test_a_backbone_that_does_not_show_where_it_looks(home, tmp_path, backbone):
    message = f"backbone {backbone} does not show what it attends to; leave --attention-crop out"
    refused(message, *DISCOVER, "--backbone", backbone, "--out", "refused", "--store", "no store", cwd=home)
    command = ("bench", "run", "--dataset", "labels.csv", "--backbone", backbone, "--device", "cpu", "--attention-crop")
    refused(message, *command, "--out", "no results", cwd=home)
    assert not (tmp_path / "cache").exists()  # no image was decoded
