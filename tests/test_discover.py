"""`selex discover` as a person runs it: a process of its own, real image files, run folders, exit codes."""

import csv
import json
import os
import shutil
from dataclasses import asdict

import numpy as np
import pyarrow.parquet as parquet
import pytest
import skimage.data
from PIL import Image

import selex as package
from commands import contents, digit_photos, refused, selex
from layouts_for_tests import small_vit, write
from selex.runs.writer import write_run

FILES = [
    "clusters.csv",
    "clusters.parquet",
    "config.json",
    "content.npy",
    "embeddings.npy",
    "embeddings.npy.json",
    "hierarchy.json",
    "metrics.jsonl",
    "model/model.json",
    "model/model.safetensors",
    "skipped.csv",
]
BASE = ("discover", "photos", "--backbone", "pixels", "--out", "run")
FIVE = (*BASE, "--categories", 5)


def forget_features():
    """Embedding begins anew, as on another machine."""
    shutil.rmtree(os.path.join(os.environ["SELEX_CACHE"], "features"), ignore_errors=True)


def read(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def results(run):
    """What a run found: all but the times in it, what is being worked on, and the run's own name with its checksum."""
    found = {
        name: data for name, data in contents(run).items() if name != "metrics.jsonl" and not name.startswith(".work")
    }
    if "config.json" in found:
        config = json.loads(found["config.json"])
        found["config.json"] = {key: value for key, value in config.items() if key not in ("run", "sha256")}
    return found


def test_a_run_folder_file_by_file(place):
    done = selex(*FIVE, "--seed", 3, cwd=place)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert sorted(contents(place / "run")) == FILES
    assert sorted(path.name for path in (place / "run").iterdir() if path.name.startswith(".")) == []

    table = read(place / "run" / "clusters.csv")
    levels = ["level_1", "level_2"]
    names = ["file", "cluster", "category", "known", "labelled", "confidence", "runner_up", "distance", *levels]
    assert list(table[0]) == names
    files = sorted(str(path.relative_to(place / "photos")) for path in (place / "photos").rglob("*.png"))
    assert [row["file"] for row in table] == files
    known = ["digit 0", "digit 1", "digit 2"]
    for row in table:
        folder = row["file"].split("/")[0]
        assert row["labelled"] == str(int(folder != "unlabelled"))
        assert row["category"] == (folder if folder != "unlabelled" else row["category"])
        assert row["category"] == [*known, "novel-1", "novel-2"][int(row["cluster"])]
        assert row["known"] == str(int(row["category"] in known))
        assert row["cluster"] == row["level_1"]
        assert row["runner_up"] != row["category"]
        assert 0 < float(row["confidence"]) <= 1
        assert 0 <= float(row["distance"]) < 2

    columns = parquet.read_table(place / "run" / "clusters.parquet").to_pydict()
    assert list(columns) == names
    assert columns["category"] == [row["category"] for row in table]
    assert columns["confidence"] == pytest.approx([float(row["confidence"]) for row in table], rel=1e-5)

    record = json.loads((place / "run" / "config.json").read_text())
    assert record["format"] == 3
    assert record["root"] == str(place / "photos")
    assert set(record["versions"]) >= {"selex", "torch", "timm", "numpy", "python"}
    assert record["config"] == {
        "data": {"photos": str(place / "photos"), "added": "", "labels": None, "size": 32},
        "features": {"backbone": "pixels", "weights": None, "crop": 32, "views": 1, "attention_crop": False},
        "cluster": {**asdict(package.ClusterConfig()), "categories": 5},
        "train": asdict(package.TrainConfig()),
        "seed": 3,
    }
    features = np.load(place / "run" / "embeddings.npy", mmap_mode="r")
    assert features.shape == (60, 768)
    assert np.linalg.norm(features, axis=1) == pytest.approx(1, abs=1e-5)
    tree = json.loads((place / "run" / "hierarchy.json").read_text())
    assert tree["names"] == [*known, "novel-1", "novel-2"]
    assert tree["estimate"] is None
    assert [sum(level["sizes"]) for level in tree["levels"]] == [60] * len(levels)
    assert [level["n_known"] for level in tree["levels"]] == [3, 1]
    assert len(tree["levels"][0]["parents"]) == 5
    assert tree["levels"][-1]["parents"] is None
    steps = [json.loads(line) for line in (place / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [(step["step"], step["count"]) for step in steps] == [("decode", 60), ("embed", 60), ("cluster", 60)]
    assert (place / "run" / "skipped.csv").read_text() == "file,reason\n"

    in_known = sum(row["known"] == "1" for row in table)
    lines = done.stdout.splitlines()
    assert "refine: proportional (auto)" in lines
    assert "60 images, 12 of them labelled" in lines
    assert f"{in_known:>8} in 3 known categories" in lines
    assert f"{60 - in_known:>8} in 2 novel categories" in lines
    sizes = {name: sum(row["category"] == name for row in table) for name in ("novel-1", "novel-2")}
    shown = [line.split()[:2] for line in lines if line.startswith("novel-")]
    assert shown == [[name, str(size)] for name, size in sorted(sizes.items(), key=lambda item: -item[1])]
    assert any("selex predict run NEW_PHOTOS" in line for line in lines)


def test_one_seed_one_result(place):
    for out in ("one", "two"):
        assert selex(*FIVE, "--out", out, cwd=place).returncode == 0
    assert results(place / "one") == results(place / "two")
    other = selex(*FIVE, "--out", "three", "--seed", 1, cwd=place)
    assert other.returncode == 0


def test_labels_from_a_file(place):
    names = sorted(path.name for path in (place / "photos" / "unlabelled").iterdir())
    lines = [f"unlabelled/{names[0]},zero", f"unlabelled/{names[-1]},four", f"unlabelled/{names[1]},"]
    (place / "labels.csv").write_text("\n".join(["file_name,label", *lines]) + "\n")
    done = selex(*BASE, "--labels", "labels.csv", "--categories", 4, cwd=place)
    assert done.returncode == 0, done.stderr
    table = {row["file"]: row for row in read(place / "run" / "clusters.csv")}
    assert sum(row["labelled"] == "1" for row in table.values()) == 2
    assert table[f"unlabelled/{names[0]}"]["category"] == "zero"
    assert table[f"unlabelled/{names[-1]}"]["category"] == "four"
    assert {row["category"] for row in table.values()} == {"zero", "four", "novel-1", "novel-2"}
    assert done.stderr.splitlines() == ["note: 2 of 2 known categories have a single labelled row each"]


def test_a_table_names_the_photos(place):
    files = sorted(str(path.relative_to(place)) for path in (place / "photos").rglob("*.png"))[:20]
    (place / "some.csv").write_text("file_name,label\n" + "".join(f"{name},\n" for name in files))
    done = selex("discover", "some.csv", "--backbone", "pixels", "--categories", 3, "--out", "run", cwd=place)
    assert done.returncode == 0, done.stderr
    assert [row["file"] for row in read(place / "run" / "clusters.csv")] == files


def test_no_labels_at_all_and_no_count(place):
    for number, path in enumerate(sorted((place / "photos").rglob("*.png"))):
        path.rename(place / "photos" / f"{number:03}.png")
    done = selex(*BASE, "--categories", "auto", cwd=place)
    assert done.returncode == 0, done.stderr
    tree = json.loads((place / "run" / "hierarchy.json").read_text())
    assert tree["levels"][0]["n_known"] == 0
    found = tree["estimate"]
    assert found["method"] == "silhouette"
    assert found["low"] <= found["n_clusters"] <= found["high"]
    assert found["n_clusters"] == len(tree["names"]) == len(tree["levels"][0]["sizes"])
    assert [found["n_clusters"]] == [n for n, score in tree["curve"] if score == max(s for _, s in tree["curve"])]
    interval = f"90 % interval {found['low']} to {found['high']}, method silhouette"
    assert f"estimated number of categories: {found['n_clusters']} ({interval})\n" in done.stdout
    assert {row["known"] for row in read(place / "run" / "clusters.csv")} == {"0"}


@pytest.mark.parametrize("count", [1, 2, 3])
def test_hardly_any_photos(place, count):
    folder = place / "few"
    folder.mkdir()
    for number in range(count):
        Image.fromarray(np.random.default_rng(number).integers(0, 255, (8, 8), np.uint8)).save(folder / f"{number}.png")
    done = selex("discover", "few", "--backbone", "pixels", "--out", "run", cwd=place)
    assert done.returncode == 0, done.stderr
    assert len(read(place / "run" / "clusters.csv")) == count


def test_copies_of_one_photo_still_get_a_confidence(place):
    image = next((place / "photos" / "unlabelled").iterdir()).read_bytes()
    (place / "same").mkdir()
    for number in range(6):
        (place / "same" / f"{number}.png").write_bytes(image)
    done = selex("discover", "same", "--backbone", "pixels", "--categories", 2, "--out", "run", cwd=place)
    assert done.returncode == 0, done.stderr
    assert all(0 < float(row["confidence"]) <= 1 for row in read(place / "run" / "clusters.csv"))
    done = selex("predict", "run", "same", cwd=place)
    assert done.returncode == 0, done.stderr
    assert {row["fits"] for row in read(place / "predictions.csv")} == {"1"}


def test_photographs_through_a_transformer_from_a_file(place):
    """A real timm ViT with random weights; the path is given relative, and found again from another folder."""
    folder = place / "pictures"
    folder.mkdir()
    for name in ("astronaut", "camera", "coffee", "chelsea", "rocket", "page"):
        Image.fromarray(getattr(skimage.data, name)()).save(folder / f"{name}.jpg")
    write(place / "vit.pth", small_vit().state_dict())
    command = ("discover", "pictures", "--backbone", "file:vit.pth", "--categories", 3, "--out", "run")
    done = selex(*command, cwd=place)
    assert done.returncode == 0, done.stderr
    assert sorted(contents(place / "run")) == FILES
    assert np.load(place / "run" / "embeddings.npy").shape == (6, 128)
    config = package.Run.open(place / "run").config
    assert config.data.size == 256
    assert config.features.backbone == f"file:{place / 'vit.pth'}"
    (place / "below").mkdir()
    done = selex("predict", "../run", "../pictures", cwd=place / "below")
    assert done.returncode == 0, done.stderr
    rows, found = read(place / "run" / "clusters.csv"), read(place / "below" / "predictions.csv")
    assert [row["file"] for row in found] == [row["file"] for row in rows]
    distances = [[float(row["distance"]) for row in table] for table in (rows, found)]
    assert distances[0] == pytest.approx(distances[1], abs=1e-4)
    write(place / "vit.pth", small_vit(seed=1).state_dict())
    refused("has other weights here than when the run was made", "predict", "run", "pictures", cwd=place)


def test_every_photo_labelled(place):
    """Nothing is left to discover, and nothing to take part in several categories."""
    shutil.rmtree(place / "photos" / "unlabelled")
    for refine in ("auto", "none", "proportional", "balanced"):
        done = selex(*BASE, "--categories", 3, "--refine", refine, cwd=place)
        assert done.returncode == 0, done.stderr
        assert done.stderr.startswith(
            "note: every photo is in a sub-folder, which is its category: none is left to sort"
        )
        assert "call that folder “unlabelled”" in done.stderr, "said before any work: perhaps one is the heap to sort"
        for row in read(place / "run" / "clusters.csv"):
            assert row["category"] == row["file"].split("/")[0]


def test_how_the_clustering_ended_is_on_record(place):
    for asked, found in (("auto", "proportional"), ("none", "none"), ("balanced", "balanced")):
        assert selex(*FIVE, "--refine", asked, cwd=place).returncode == 0
        run = package.Run.open(place / "run")
        assert run.config.cluster.refine == asked
        assert [entry["refine"] for entry in run.metrics if entry["step"] == "cluster"][-1] == found
        assert (package.load(place / "run").assigner.offsets is None) == (found == "none")


def test_copies_of_one_photo_fill_as_many_categories_as_asked(place):
    """Nothing is between categories, so nothing takes part in several."""
    image = next((place / "photos" / "unlabelled").iterdir()).read_bytes()
    (place / "same").mkdir()
    for number in range(6):
        (place / "same" / f"{number}.png").write_bytes(image)
    done = selex("discover", "same", "--backbone", "pixels", "--categories", 3, "--out", "run", cwd=place)
    assert done.returncode == 0, done.stderr
    names = ["novel-1", "novel-2", "novel-3"]
    assert json.loads((place / "run" / "hierarchy.json").read_text())["names"] == names
    assert {row["category"] for row in read(place / "run" / "clusters.csv")} == set(names)


def test_many_black_photos(place):
    """Their pixels are all 0: a feature of no length."""
    for path in sorted((place / "photos" / "unlabelled").iterdir())[:20]:
        Image.new("RGB", (8, 8)).save(path)
    shutil.rmtree(place / "photos" / "digit 0")
    done = selex(*FIVE, "--set", "cluster.whiten=0", cwd=place)
    assert done.returncode == 0, done.stderr
    assert (np.linalg.norm(np.load(place / "run" / "embeddings.npy"), axis=1) == 0).sum() == 20
    assert len(read(place / "run" / "clusters.csv")) == 56


def test_unreadable_images_are_listed_and_counted(place):
    (place / "photos" / "unlabelled" / "text.jpg").write_text("hello")
    good = next((place / "photos" / "unlabelled").glob("*.png")).read_bytes()
    (place / "photos" / "digit 0" / "cut.png").write_bytes(good[: len(good) // 2])
    refused("digit 0/cut.png: truncated or damaged", *FIVE, "--strict", cwd=place)
    done = selex(*FIVE, cwd=place)
    assert done.returncode == 0, done.stderr
    listed = {row["file"]: row["reason"] for row in read(place / "run" / "skipped.csv")}
    assert set(listed) == {"digit 0/cut.png", "unlabelled/text.jpg"}
    assert listed["unlabelled/text.jpg"] == "not a JPEG, PNG, WebP, GIF, TIFF or BMP image"
    assert "60 images, 12 of them labelled; 2 more could not be read: see run/skipped.csv" in done.stdout
    assert len(read(place / "run" / "clusters.csv")) == len(np.load(place / "run" / "embeddings.npy")) == 60


def test_a_second_run_in_the_folder_reuses_features(place):
    assert selex(*FIVE, cwd=place).returncode == 0
    before = (place / "run" / "embeddings.npy").stat()
    first = results(place / "run")
    broken = ("selex.features.embed:_features", 1)  # embedding again would kill it
    done = selex(*FIVE, cwd=place, kill=broken)
    assert done.returncode == 0, done.stderr
    assert (place / "run" / "embeddings.npy").stat().st_mtime_ns == before.st_mtime_ns
    assert results(place / "run") == first
    assert selex(*BASE, "--categories", 4, cwd=place, kill=broken).returncode == 0
    assert package.Run.open(place / "run").config.cluster.categories == 4
    next((place / "photos" / "unlabelled").iterdir()).unlink()
    assert selex(*FIVE, cwd=place).returncode == 0
    assert len(np.load(place / "run" / "embeddings.npy")) == len(read(place / "run" / "clusters.csv")) == 59
    assert sorted(contents(place / "run")) == FILES


def test_where_a_run_may_go(place):
    assert selex(*FIVE, cwd=place).returncode == 0
    digit_photos(place / "others", per_digit=6)
    other = ("discover", "others", "--backbone", "pixels", "--categories", 5, "--out")
    refused(f"run: holds a run of other photos ({place / 'photos'})", *other, "run", cwd=place)
    refused("photos: is not empty and not a run", *other, "photos", cwd=place)
    refused("is a file; give a folder", *other, "labels.txt", cwd=make(place / "labels.txt"))
    refused("the folder nowhere does not exist; make it first", *other, "nowhere/run", cwd=place)
    refused("is inside the folder of photos", *other, "others", cwd=place)
    refused("is inside the folder of photos", *other, "others/run", cwd=place)
    refused("is inside the folder of photos", "discover", ".", "--backbone", "pixels", cwd=place / "others")
    (place / "empty").mkdir()
    assert selex(*other, "empty", cwd=place).returncode == 0


def make(path):
    path.write_text("mine")
    return path.parent


def test_bad_input_is_one_line_and_leaves_nothing(place):
    (place / "none").mkdir()
    (place / "none" / "notes.txt").write_text("hello")
    (place / "junk").mkdir()
    for name in ("a.jpg", "b.png"):
        (place / "junk" / name).write_text("no image")
    (place / "absent.csv").write_text("file_name,label\nunlabelled/nowhere.png,a\n")
    (place / "bare.csv").write_text("file_name,kind\n")
    pixels = ("--backbone", "pixels", "--out", "run")
    refused("nowhere: no such file or folder", "discover", "nowhere", *pixels, cwd=place)
    refused("none: no images in this folder", "discover", "none", *pixels, cwd=place)
    refused("none of the 2 images can be read; the first is a.jpg", "discover", "junk", *pixels, cwd=place)
    refused("line 2: no such image: unlabelled/nowhere.png", *FIVE, "--labels", "absent.csv", cwd=place)
    refused("bare.csv: has no column 'label'", *FIVE, "--labels", "bare.csv", cwd=place)
    refused("2 categories, but 3 are labelled: ask for at least 3", *BASE, "--categories", 2, cwd=place)
    refused("61 categories for 60 images: ask for at most 60", *BASE, "--categories", 61, cwd=place)
    refused(
        "cluster.categories must be a whole number, or 'auto', not 'many'", *BASE, "--categories", "many", cwd=place
    )
    unknown = ("discover", "photos", "--categories", 5, "--out", "run", "--backbone")
    refused("no backbone 'pixel'; did you mean 'pixels'?", *unknown, "pixel", cwd=place)
    refused("no weight file at", *unknown, "file:vit.pth", cwd=place)
    refused("pixels takes no weights of its own", *FIVE, "--set", "features.weights=x.pth", cwd=place)
    refused(
        "no method 'gdc'; did you mean 'gcd'? there are: frozen, gcd, simgcd, selex",
        *FIVE,
        "--method",
        "gdc",
        cwd=place,
    )
    refused("--device abacus: ", *FIVE, "--device", "abacus", cwd=place)
    refused("refine must be auto, none, proportional or balanced, not 'big'", *FIVE, "--refine", "big", cwd=place)
    simgcd = (*FIVE, "--backbone", "tiny-vit", "--method", "simgcd")
    refused("cluster.refine balanced: simgcd is a classifier", *simgcd, "--refine", "balanced", cwd=place)


def test_a_count_that_the_unreadable_make_impossible(place):
    for path in list((place / "photos" / "unlabelled").iterdir()):
        path.write_text("no image")
    refused("13 categories for 12 images", *BASE, "--categories", 13, cwd=place)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_no_permission(place):
    (place / "fixed").mkdir(mode=0o500)
    refused("cannot be created (Permission denied)", *FIVE, "--out", "fixed/run", cwd=place)
    refused("cannot be written", *FIVE, "--out", "fixed", cwd=place)


def test_a_disk_that_is_full_from_the_start(place):
    refused("cannot use the image store", *FIVE, cwd=place, file_limit=10_000)
    assert selex(*FIVE, "--out", "other", cwd=place).returncode == 0  # now the images are stored
    refused("cannot write features to", *FIVE, cwd=place, file_limit=10_000)


def test_a_disk_that_is_full_at_the_end_keeps_the_old_results(place):
    assert selex(*FIVE, cwd=place).returncode == 0
    before = results(place / "run")
    done = selex(*BASE, "--categories", 8, "--out", "run", cwd=place, file_limit=4096)
    assert done.returncode == 2
    assert done.stderr.splitlines() == ["error: run: results cannot be written (File too large); the old ones stay"]
    assert results(place / "run") == before
    assert selex("info", "run", cwd=place).returncode == 0


KILLS = [
    ("selex.data.store_files:decode", 20),  # images half read
    ("selex.data.store_files:Index.save", 1),
    ("selex.features.embed:_check_finite", 2),  # features half made
    ("selex.features.cache:FeatureFile.finish", 1),
    ("selex.discovery_steps:fit_clusters", 1),
    ("selex.runs.writer:write_blocks", 1),
    ("selex.runs.predictor:to_bytes", 1),
    ("selex.runs.stage:to_disk", 5),
    ("selex.runs.stage:Stage.settle", 1),
    ("selex.runs.stage:remove_folder", 3),  # results half in place
    ("os:replace", 9),
    ("os:replace", 12),
    ("selex.features.cache:atomic_path", 1),  # features made, and not yet kept for other runs
]


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """Photos, an old run of them and one more, and what an undisturbed new run finds."""
    home = tmp_path_factory.mktemp("home")
    digit_photos(home / "photos")
    extra = home / "photos" / "unlabelled" / "0000 extra.png"
    extra.write_bytes(next((home / "photos").rglob("*.png")).read_bytes())
    old = ("discover", "photos", "--backbone", "pixels", "--categories", 3, "--out", "old", "--store", "store")
    assert selex(*old, cwd=home).returncode == 0
    extra.unlink()
    assert selex(*FIVE, "--out", "undisturbed", "--store", "store", cwd=home).returncode == 0
    return home


@pytest.mark.parametrize(
    ("kill", "before"),
    [*((kill, "old") for kill in KILLS), *((kill, "nothing") for kill in KILLS[:9:2])],
    ids=str,
)
def test_kill_9_then_the_same_command(shared, kill, before):
    """Old results stay whole until new ones are there, and those are what an undisturbed command finds."""
    forget_features()
    old, expected = (results(shared / name) for name in ("old", "undisturbed"))
    out = f"run {before} {KILLS.index(kill)}"
    if before == "old":
        shutil.copytree(shared / "old", shared / out)
    command = (*FIVE, "--out", out, "--store", f"store {out}")
    assert selex(*command, cwd=shared, kill=kill).returncode == -9
    if before == "old":
        package.Run.open(shared / out)
        assert results(shared / out) in (old, expected)
    done = selex(*command, cwd=shared)
    assert done.returncode == 0, done.stderr
    assert results(shared / out) == expected
    assert sorted(contents(shared / out)) == FILES


@pytest.mark.parametrize(
    "where", [("selex.data.store_files:decode", 20), ("selex.features.embed:_check_finite", 2)], ids=str
)
def test_ctrl_c_is_one_line_and_can_be_gone_on_from(shared, where):
    forget_features()
    out = f"stopped {where[1]}"
    command = (*FIVE, "--out", out, "--store", f"store {out}")
    done = selex(*command, cwd=shared, interrupt=where)
    assert done.returncode == 130, done
    kept = "stopped; finished images and features are kept: the same command resumes from there"
    assert done.stderr.splitlines() == [kept]
    info = selex("info", out, cwd=shared)
    assert info.returncode == 0
    assert info.stdout.splitlines()[-1].startswith("not finished: run the same `selex discover` again")
    refused(f"{out}: has no model yet", "predict", out, "photos", cwd=shared)
    assert selex(*command, cwd=shared).returncode == 0
    assert results(shared / out) == results(shared / "undisturbed")


def test_a_run_for_programs(place):
    assert selex(*FIVE, cwd=place).returncode == 0
    done = selex("info", "run", "--json", cwd=place)
    assert done.returncode == 0, done.stderr
    about, run = json.loads(done.stdout), package.Run.open(place / "run")
    frame = run.to_pandas()
    assert (about["complete"], about["images"], about["labelled"], about["skipped"]) == (True, 60, 12, 0)
    assert about["config"]["data"]["photos"] == str(place / "photos")
    assert [entry["name"] for entry in about["categories"]] == run.hierarchy["names"]
    sizes = frame.groupby("category").size().to_dict()
    assert {entry["name"]: entry["images"] for entry in about["categories"]} == sizes
    assert {entry["name"] for entry in about["categories"] if entry["known"]} == set(frame[frame.known == 1].category)
    assert frame.file.tolist() == run.clusters["file"].to_pylist()


def test_two_at_once_in_one_folder(place):
    with write_run(place / "run", package.Config.of(str(place / "photos")), ""):
        done = selex(*FIVE, cwd=place)
    assert done.returncode == 2
    assert done.stderr == "error: run: another selex command is writing to it; wait for it to end\n"


def test_in_python_from_a_list(place, tmp_path):
    """PIL images and labels of one's own; the config says the rest."""
    images = [Image.open(path).copy() for path in sorted((place / "photos").rglob("*.png"))]
    labels = ["first" if row < 4 else None for row in range(len(images))]
    lines = []
    config = package.Config.of("", categories=4, backbone="pixels")
    run = package.discover(
        config, tmp_path / "run", photos=images, labels=labels, store=tmp_path / "store", tell=lines.append
    )
    assert run.complete
    assert run.clusters["file"].to_pylist()[0] == "image-000000"
    assert run.clusters["category"].to_pylist()[:4] == ["first"] * 4
    assert [line.split(":")[0] for line in lines] == ["decode", "embed", "cluster", "adapt", "search", "refine"]
    assert run.embeddings.shape == (60, 768)
    again = package.Run.open(tmp_path / "run")
    assert again.config == run.config
    assert [entry["step"] for entry in again.metrics] == ["decode", "embed", "cluster"]
    found = package.load(tmp_path / "run").predict(images[:3], store=tmp_path / "store")
    assert found["file"] == ["image-000000", "image-000001", "image-000002"]
    assert found["distance"] == pytest.approx(run.clusters["distance"].to_pylist()[:3], abs=1e-5)
    with pytest.raises(package.InputError, match="size 16 is less than the 32 pixels that pixels needs"):
        package.discover(package.Config.of("", backbone="pixels", size=16), tmp_path / "small", photos=images)
    assert not (tmp_path / "small").exists()
