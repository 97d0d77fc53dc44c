"""Exports of real runs: the exact files, what is in them, and that they can be read back."""

import csv
import errno
import json
import os
from collections import Counter
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from xml.etree import ElementTree

import numpy as np
import pyarrow.parquet as parquet
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from commands import selex
from review_runs import small_run
from selex.cli.results import next_steps
from selex.config import Config
from selex.data.labels import LONGEST, Names, safe_name
from selex.data.table import read_table
from selex.discovery import discover
from selex.errors import InputError
from selex.runs import export_formats as module
from selex.runs.export import export
from selex.runs.export_formats import FORMATS
from selex.runs.run import Run
from selex.runs.writer import write_run

LONG = "名" * 90  # 270 bytes: more than a file system takes
AWKWARD = ["a/b", "..", "CON", "con", "<img src=x>", "Wren", "wren", "_", ". .", "unlabelled", "日本 ü", LONG]
NAMES_OF_AWKWARD = {
    "a/b": "a_b",
    "..": "_-3",
    "CON": "_CON",
    "con": "_con-2",
    "<img src=x>": "_img src=x_",
    "Wren": "Wren",
    "wren": "wren-2",
    "_": "_",
    ". .": "_-2",
    "unlabelled": "_unlabelled",
    "日本 ü": "日本 ü",
    LONG: "名" * 66,
}


def save_digits(folder, files):
    """One digit image for each path, below the folder."""
    digits = load_digits().images
    for number, file in enumerate(files):
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((255 - digits[number] * 15.9375).astype(np.uint8)).save(path)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Digits 0 and 1 partly in their folders, the rest unlabelled; the same base name in several places."""
    root = tmp_path_factory.mktemp("export")
    target = load_digits().target
    files = [f"{target[i]} ü" if target[i] < 2 and i % 20 < 10 else f"unlabelled/{i % 3}" for i in range(60)]
    save_digits(
        root / "photos", [f"{part}/IMG {i % 7} é.png" if i < 14 else f"{part}/{i}.png" for i, part in enumerate(files)]
    )
    os.symlink("unlabelled/0/18.png", root / "photos" / "loose link.png")
    return root


@pytest.fixture(scope="module")
def run(photos):
    config = Config.of(str(photos / "photos"), categories=5, backbone="pixels", restarts=1)
    return discover(config, photos / "run", store=photos / "store")


@pytest.fixture(scope="module")
def awkward(tmp_path_factory):
    """A run whose known categories have names that no folder can have."""
    root = tmp_path_factory.mktemp("awkward")
    files = [f"{i:02}.png" for i in range(48)]
    save_digits(root / "photos", files)
    with (root / "labels.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("file_name", "label"), *zip(files, AWKWARD * 3, strict=False)])
    config = Config.of(
        str(root / "photos"),
        labels=str(root / "labels.csv"),
        categories=len(AWKWARD) + 2,
        backbone="pixels",
        restarts=1,
    )
    return discover(config, root / "run", store=root / "store")


def state(folder):
    """All that must not change about the files of a folder: none more or fewer, the same inodes, times and bytes."""
    files = {path: path.lstat() for path in sorted(folder.rglob("*"))}
    return {
        path: (s.st_ino, s.st_size, s.st_mtime_ns, s.st_mode, path.read_bytes() if path.is_file() else b"")
        for path, s in files.items()
    }


def listing(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def read(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("copy", [False, True])
def test_folders(run, tmp_path, copy):
    table, before = run.clusters.to_pydict(), state(run.root)
    done = export(run, "folders", tmp_path / "sorted", copy)
    out, n = tmp_path / "sorted", len(table["file"])
    assert (done.images, done.linked, done.copied) == ((n, 0, n) if copy else (n, n, 0))
    assert done.categories == len(set(table["category"])) == 5

    rows = read(out / "originals.csv")
    assert list(rows[0]) == ["file_name", "label", "confidence", "original"]
    assert listing(out) == sorted(["originals.csv", *(row["file_name"] for row in rows)])
    assert [row["original"] for row in rows] == table["file"]
    assert [row["label"] for row in rows] == table["category"]
    assert [float(row["confidence"]) for row in rows] == pytest.approx(table["confidence"], rel=1e-5)
    for row in rows:
        original, exported = run.root / row["original"], out / row["file_name"]
        assert exported.parent == out / row["label"]
        assert not exported.is_symlink()
        assert exported.read_bytes() == original.read_bytes()
        assert exported.samefile(original) is not copy
        assert exported.stat().st_nlink == (1 if copy else original.stat().st_nlink)
    names = Counter(os.path.basename(row["original"]) for row in rows)
    assert names["IMG 0 é.png"] == 2
    assert {path.name for path in tmp_path.iterdir()} == {"sorted"}
    assert state(run.root) == before


def test_folders_are_read_back_as_the_same_categories(run, tmp_path):
    export(run, "folders", tmp_path / "sorted")
    again = read_table(tmp_path / "sorted")
    original = {row["file_name"]: row["original"] for row in read(tmp_path / "sorted" / "originals.csv")}
    found = {original[file]: label for file, label in zip(again.files, again.label_names, strict=True)}
    table = run.clusters.to_pydict()
    assert found == dict(zip(table["file"], table["category"], strict=True))


def test_the_same_name_twice_in_a_category(tmp_path):
    save_digits(tmp_path / "photos", ["a/x.png", "b/x.png", "c/X.PNG", "d/x-2.png"])
    (tmp_path / "none.csv").write_text("file_name,label\n")
    config = Config.of(str(tmp_path / "photos"), labels=str(tmp_path / "none.csv"), categories=1, backbone="pixels")
    run = discover(config, tmp_path / "run", store=tmp_path / "store")
    export(run, "folders", tmp_path / "out")
    assert {row["original"]: row["file_name"] for row in read(tmp_path / "out" / "originals.csv")} == {
        "a/x.png": "novel-1/x.png",
        "b/x.png": "novel-1/x-2.png",
        "c/X.PNG": "novel-1/X-3.PNG",
        "d/x-2.png": "novel-1/x-2-2.png",
    }
    export(run, "fiftyone", tmp_path / "fiftyone")
    assert listing(tmp_path / "fiftyone" / "data") == ["X-3.PNG", "x-2-2.png", "x-2.png", "x.png"]


def test_awkward_categories_get_folders_of_their_own(awkward, tmp_path):
    table = awkward.clusters.to_pydict()
    export(awkward, "folders", tmp_path / "out")
    rows = read(tmp_path / "out" / "originals.csv")
    folder_of = {row["label"]: row["file_name"].split("/")[0] for row in rows}
    assert folder_of == NAMES_OF_AWKWARD | {"novel-1": "novel-1", "novel-2": "novel-2"}
    assert listing(tmp_path / "out") == sorted(["originals.csv", *(row["file_name"] for row in rows)])
    # the folders keep images apart as the categories do, and the table has the names as they were
    again = read_table(tmp_path / "out")
    assert Counter(again.label_names) == {folder_of[name]: size for name, size in Counter(table["category"]).items()}
    named = read_table(tmp_path / "out", tmp_path / "out" / "originals.csv")
    assert Counter(named.label_names) == Counter(table["category"])


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("wren", "wren"),
        ("Zaunkönig 鷦鷯 🐦", "Zaunkönig 鷦鷯 🐦"),
        ("a/b\\c", "a_b_c"),
        ("../../etc/passwd", "__.._etc_passwd"),
        (".hidden", "_hidden"),
        ("end. ", "end"),
        ("", "_"),
        ("   ", "_"),
        ("...", "_"),
        ("a\nb\0", "a_b_"),
        ("nul.tar.gz", "_nul.tar.gz"),
        ("COM1", "_COM1"),
        ("common", "common"),
        ("Unlabeled", "_Unlabeled"),
        ('a"b|c?*:', "a_b_c___"),
    ],
)
def test_safe_names(name, safe):
    assert safe_name(name) == safe
    assert safe_name(safe) == safe


def test_names_in_a_folder_stay_apart():
    names = Names()
    given = ["a", "A", "a-2", "Å", "Å", "ß", "SS", LONG, LONG + "x"]
    taken = [names.take(name, ".jpg") for name in given]
    assert taken[:5] == ["a.jpg", "A-2.jpg", "a-2-2.jpg", "Å.jpg", "Å-2.jpg"]
    assert len({name.casefold() for name in taken}) == len(taken)
    assert all(len(name.encode()) <= LONGEST for name in taken)


@pytest.mark.parametrize("to", ["csv", "parquet"])
def test_tables(run, tmp_path, to):
    out, table = tmp_path / f"table.{to}", run.clusters.to_pydict()
    for _ in range(2):  # an earlier export may be replaced
        done = export(run, to, out)
    assert (done.images, done.linked, done.copied) == (len(table["file"]), 0, 0)
    assert [path.name for path in tmp_path.iterdir()] == [out.name]
    found = read(out) if to == "csv" else parquet.read_table(out).to_pylist()
    expected = read(run.folder / "clusters.csv") if to == "csv" else run.clusters.to_pylist()
    paths = [row.pop("path") for row in found]
    assert found == expected
    assert paths == [str(run.root / file) for file in table["file"]]
    assert all(os.path.isabs(path) and os.path.isfile(path) for path in paths)


def test_a_table_in_shards(run, tmp_path, monkeypatch):
    monkeypatch.setattr("selex.runs.export_formats.SHARD", 20)
    table = run.clusters.to_pylist()
    small = run.clusters.to_batches(max_chunksize=8)
    blocks = (batch.to_pydict() for batch in small)
    done = export(run, "parquet-shards", tmp_path / "shards", table=blocks)
    shards = sorted((tmp_path / "shards").iterdir())
    assert [path.name for path in shards] == [f"{number:05}.parquet" for number in range(len(shards))]
    assert done.images == len(table)
    sizes = [parquet.read_metadata(path).num_rows for path in shards]
    assert sizes[:-1] == [24] * (len(sizes) - 1)
    assert len(sizes) > 1
    found = parquet.read_table(tmp_path / "shards").to_pylist()
    assert [row.pop("path") for row in found] == [str(run.root / row["file"]) for row in table]
    assert found == table
    with pytest.raises(InputError, match="shards: "):
        export(run, "parquet-shards", tmp_path / "shards")


def test_label_studio(run, tmp_path):
    export(run, "label-studio", tmp_path / "tasks")
    assert listing(tmp_path / "tasks") == ["config.xml", "tasks.json"]
    tasks, table = json.loads((tmp_path / "tasks" / "tasks.json").read_text()), run.clusters.to_pylist()
    view = ElementTree.parse(tmp_path / "tasks" / "config.xml").getroot()
    image, choices = view
    assert (image.tag, image.attrib) == ("Image", {"name": "image", "value": "$image"})
    assert (choices.tag, choices.attrib) == ("Choices", {"name": "category", "toName": "image", "choice": "single"})
    assert [choice.attrib for choice in choices] == [{"value": name} for name in run.hierarchy["names"]]
    assert len(tasks) == len(table)
    for number, (task, row) in enumerate(zip(tasks, table, strict=True)):
        url = urlsplit(task["data"].pop("image"))
        assert url.path == "/data/local-files/"
        assert url.query.isascii()
        assert run.root.parent / parse_qs(url.query)["d"][0] == run.root / row["file"]
        annotations = task.pop("annotations", None)
        assert annotations == ([{"result": task["predictions"][0]["result"]}] if row["labelled"] else None)
        assert task == {
            "data": {name: row[name] for name in ("file", "known", "labelled", "runner_up", "distance")},
            "predictions": [
                {
                    "model_version": "selex",
                    "score": row["confidence"],
                    "result": [
                        {
                            "id": f"row-{number}",
                            "from_name": "category",
                            "to_name": "image",
                            "type": "choices",
                            "value": {"choices": [row["category"]]},
                        }
                    ],
                }
            ],
        }
        assert 0 <= row["confidence"] <= 1


def test_label_studio_gets_what_was_confirmed_as_annotations(run, tmp_path):
    table = run.clusters.to_pydict()
    review = ["confirmed", "unsure", "undecided"] * len(table["file"])
    export(run, "label-studio", tmp_path / "tasks", table=[{**table, "review": review[: len(table["file"])]}])
    tasks = json.loads((tmp_path / "tasks" / "tasks.json").read_text())
    annotated = [task["annotations"][0]["result"] for task in tasks if "annotations" in task]
    assert annotated == [task["predictions"][0]["result"] for task in tasks[::3]]


def test_label_studio_with_images_beside_the_table(tmp_path):
    """A table may name images that are not below its own folder: the folder to serve is one that holds all."""
    names = ["a/1.png", "a/2.png", "b/3.png", "b/4.png", "b/5.png"]
    labels = ["a\tb\x01", "a\tb\x01", "<b> & 'c'", "<b> & 'c'", ""]
    save_digits(tmp_path, [f"images/{name}" for name in names])
    (tmp_path / "tables").mkdir()
    lines = [f"../images/{name},{label}" for name, label in zip(names, labels, strict=True)]
    (tmp_path / "tables" / "t.csv").write_text("\n".join(["file_name,label", *lines]))
    config = Config.of(str(tmp_path / "tables" / "t.csv"), categories=2, backbone="pixels")
    run = discover(config, tmp_path / "run", store=tmp_path / "store")
    done = export(run, "label-studio", tmp_path / "tasks")
    assert f"DOCUMENT_ROOT={tmp_path.parent}, " in done.advice
    tasks = json.loads((tmp_path / "tasks" / "tasks.json").read_text())
    places = [parse_qs(urlsplit(task["data"]["image"]).query)["d"][0] for task in tasks]
    assert places == [f"{tmp_path.name}/images/{name}" for name in names]
    choices = [c.get("value") for c in ElementTree.parse(tmp_path / "tasks" / "config.xml").iter("Choice")]
    assert choices == ["<b> & 'c'", "a\tb\ufffd"]
    assert {task["predictions"][0]["result"][0]["value"]["choices"][0] for task in tasks} == set(choices)


def test_awkward_categories_elsewhere(awkward, tmp_path):
    """Formats that have names as text keep them as they are."""
    table = awkward.clusters.to_pydict()
    export(awkward, "csv", tmp_path / "t.csv")
    assert [row["category"] for row in read(tmp_path / "t.csv")] == table["category"]
    export(awkward, "label-studio", tmp_path / "tasks")
    choices = [c.get("value") for c in ElementTree.parse(tmp_path / "tasks" / "config.xml").iter("Choice")]
    assert choices == [*sorted(AWKWARD), "novel-1", "novel-2"]
    export(awkward, "fiftyone", tmp_path / "fiftyone")
    assert json.loads((tmp_path / "fiftyone" / "labels.json").read_text())["classes"] == choices


@pytest.mark.parametrize("copy", [False, True])
def test_fiftyone(run, tmp_path, copy):
    table, before = run.clusters.to_pylist(), state(run.root)
    done = export(run, "fiftyone", tmp_path / "out", copy)
    assert (done.linked, done.copied) == ((0, len(table)) if copy else (len(table), 0))
    found = json.loads((tmp_path / "out" / "labels.json").read_text())
    assert list(found) == ["classes", "labels"]
    assert found["classes"] == run.hierarchy["names"]
    images = sorted((tmp_path / "out" / "data").iterdir())
    beside = ["embeddings.npy", "labels.json"]
    assert listing(tmp_path / "out") == sorted([*beside, *(f"data/{path.name}" for path in images)])
    # keys are names without their ending, and lead to one image each
    assert {path.stem: path.suffix for path in images} == dict.fromkeys(found["labels"], ".png")
    assert len(images) == len(table)
    for row, (key, label) in zip(table, found["labels"].items(), strict=True):
        flags = label.pop("attributes")
        assert label == {"label": found["classes"].index(row["category"]), "confidence": row["confidence"]}
        assert [flags[name] for name in ("known", "labelled")] == [bool(row[name]) for name in ("known", "labelled")]
        assert flags["doubtful"] is (row["confidence"] < 0.5)
        names = ("runner_up", "distance", "file")
        assert {name: flags[name] for name in names} == {name: row[name] for name in names}
        image, original = tmp_path / "out" / "data" / f"{key}.png", run.root / row["file"]
        assert image.read_bytes() == original.read_bytes()
        assert image.samefile(original) is not copy
    assert state(run.root) == before


def test_fiftyone_gets_features_in_the_order_of_its_labels(run, tmp_path):
    export(run, "fiftyone", tmp_path / "all")
    features = np.load(tmp_path / "all" / "embeddings.npy")
    assert features.dtype == np.float32
    assert np.array_equal(features, run.embeddings)
    kept = [0, 3, 4, 11]  # as after a review, which leaves out what is set aside
    table = {**run.clusters.take(kept).to_pydict(), "review": ["confirmed", "undecided", "unsure", "undecided"]}
    export(run, "fiftyone", tmp_path / "some", table=[table])
    found = json.loads((tmp_path / "some" / "labels.json").read_text())["labels"]
    assert [label["attributes"]["file"] for label in found.values()] == table["file"]
    assert [label["attributes"]["review"] for label in found.values()] == table["review"]
    assert np.array_equal(np.load(tmp_path / "some" / "embeddings.npy"), run.embeddings[kept])


def test_copies_where_links_cannot_be(run, tmp_path, monkeypatch):
    def other_disk(*_):
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(module.os, "link", other_disk)
    done = export(run, "folders", tmp_path / "out")
    assert (done.linked, done.copied) == (0, done.images)
    row = read(tmp_path / "out" / "originals.csv")[0]
    exported, original = tmp_path / "out" / row["file_name"], run.root / row["original"]
    assert exported.read_bytes() == original.read_bytes()
    assert exported.stat().st_mtime == original.stat().st_mtime
    assert exported.stat().st_nlink == 1


def test_names_that_are_no_text(tmp_path):
    save_digits(tmp_path / "photos", ["a.png", "b.png", "c.png"])
    os.rename(tmp_path / "photos" / "b.png", os.fsencode(tmp_path / "photos") + b"/caf\xe9.png")
    config = Config.of(str(tmp_path / "photos"), categories=1, backbone="pixels")
    run = discover(config, tmp_path / "run", store=tmp_path / "store")
    export(run, "folders", tmp_path / "out")
    assert listing(tmp_path / "out" / "novel-1") == ["a.png", "c.png", "caf_xe9.png"]
    export(run, "parquet", tmp_path / "t.parquet")
    assert parquet.read_table(tmp_path / "t.parquet")["path"].to_pylist()[2] == f"{tmp_path}/photos/caf\\xe9.png"


@pytest.mark.parametrize("stopped_by", [KeyboardInterrupt, OSError(errno.ENOSPC, "No space left on device")])
@pytest.mark.parametrize("to", ["folders", "fiftyone"])
def test_stopped_half_way_nothing_is_left(run, tmp_path, monkeypatch, to, stopped_by):
    copied, copy2 = [], module.shutil.copy2

    def stop(source, target):
        copied.append(copy2(source, target))
        if len(copied) == 20:
            raise stopped_by

    monkeypatch.setattr(module.shutil, "copy2", stop)
    before = state(run.root)
    with pytest.raises((KeyboardInterrupt, InputError)) as failure:
        export(run, to, tmp_path / "out", copy=True)
    if failure.type is InputError:
        assert str(failure.value).endswith(".png: cannot be copied (No space left on device)")
    assert list(tmp_path.iterdir()) == []
    assert state(run.root) == before


def test_progress_counts_every_image(run, tmp_path):
    seen = []
    done = export(run, "folders", tmp_path / "out", progress=lambda *counts: seen.append(counts))
    assert seen == [(number, done.images) for number in range(1, done.images + 1)]


@pytest.mark.parametrize("to", FORMATS)
def test_an_empty_folder_may_be_filled(run, tmp_path, to):
    (tmp_path / "out").mkdir()
    if FORMATS[to].folder:
        export(run, to, tmp_path / "out")
        assert (tmp_path / "out").stat().st_mode & 0o777 == 0o777 & ~umask()
    else:
        with pytest.raises(InputError, match="is a folder; give a file"):
            export(run, to, tmp_path / "out")


def umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def refuse(run, to, out, message, **more):
    """An `InputError` of one line, and nothing written beside the target."""
    before = sorted(out.parent.iterdir()) if out.parent.is_dir() else None
    with pytest.raises(InputError, match=message) as failure:
        export(run, to, out, **more)
    assert "\n" not in str(failure.value)
    assert (sorted(out.parent.iterdir()) if out.parent.is_dir() else None) == before


@pytest.mark.parametrize("to", FORMATS)
def test_places_that_are_refused(run, tmp_path, to):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").touch()
    (tmp_path / "file").write_text("mine")
    os.symlink("nowhere", tmp_path / "dangling")
    refuse(run, to, tmp_path / "full", "is not empty" if FORMATS[to].folder else "is a folder; give a file")
    refuse(run, to, tmp_path / "file", "is a file" if FORMATS[to].folder else "is not what this command writes")
    refuse(run, to, tmp_path / "missing" / "out", "missing does not exist; make it first")
    refuse(run, to, run.root / "sorted", "is inside the folder of photos")
    refuse(run, to, run.root, "is inside the folder of photos")
    os.symlink(run.root, tmp_path / "link to photos")
    refuse(run, to, tmp_path / "link to photos" / "sorted", "is inside the folder of photos")
    if FORMATS[to].folder:
        refuse(run, to, tmp_path / "dangling", "is a file; give a new folder")
    else:
        refuse(run, to, run.folder / f"clusters.{to}", "is an input of this command")
    if Path("/proc/sys").exists():
        refuse(run, to, Path("/proc/sys/sorted"), r"/proc/sys/sorted: cannot be written \(")
    assert (tmp_path / "full" / "mine.txt").exists()


def test_no_folder_that_was_added_is_written_into(tmp_path):
    for folder in ("photos", "more", "and more"):
        save_digits(tmp_path / folder, [f"{folder} {i}.png" for i in range(4)])
    config = Config.of(str(tmp_path / "photos"), categories=2, backbone="pixels", restarts=1)
    config = config.change(added="\n".join(str(tmp_path / folder) for folder in ("more", "and more")))
    run = discover(config, tmp_path / "run", store=tmp_path / "store")
    assert len(run.clusters) == 12
    for folder in ("photos", "more", "and more"):
        for to, place in (("csv", "t.csv"), ("folders", "sorted")):
            refuse(run, to, tmp_path / folder / place, f"is inside the folder of photos.* outside {tmp_path / folder}")
        with pytest.raises(InputError, match=f"is inside the folder of photos.* a --store outside {tmp_path / folder}"):
            discover(config, tmp_path / "other", store=tmp_path / folder / "store")
        assert not (tmp_path / folder / "store").exists()
    assert export(run, "csv", tmp_path / "t.csv").images == 12


def test_other_refusals(run, photos, tmp_path):
    formats = "folders, csv, parquet, parquet-shards, label-studio, fiftyone"
    refuse(run, "xml", tmp_path / "out", f"--to xml: give one of {formats}")
    for to in ("csv", "parquet", "label-studio"):
        refuse(run, to, tmp_path / "out", f"--copy: --to {to} writes no images", copy=True)
    config = Config.of(str(photos / "photos"), backbone="pixels")
    with write_run(tmp_path / "begun", config, str(photos / "photos")) as begun:
        refuse(begun, "csv", tmp_path / "out", "has no results yet")


def test_images_that_have_gone(tmp_path):
    save_digits(tmp_path / "photos", [f"{i}.png" for i in range(6)])
    config = Config.of(str(tmp_path / "photos"), categories=2, backbone="pixels")
    run = discover(config, tmp_path / "run", store=tmp_path / "store")
    (tmp_path / "photos" / "4.png").unlink()
    for to in ("folders", "label-studio", "fiftyone"):
        refuse(run, to, tmp_path / "out", r"4.png no longer exists; put the photos back")
    (tmp_path / "photos" / "2.png").unlink()
    refuse(run, "folders", tmp_path / "out", r"photos/2.png no longer exists \(and 1 more\)")
    assert export(run, "csv", tmp_path / "t.csv").images == 6  # a table needs no image


@pytest.mark.parametrize("to", ["label-studio", "fiftyone"])
def test_a_full_disk_leaves_nothing(run, tmp_path, to):
    """A limit on file size makes writing fail half-way, as a full disk does."""
    done = selex("export", run.folder, "--to", to, "--out", "out", cwd=tmp_path, file_limit=1024)
    assert (done.returncode, done.stderr) == (2, "error: out: cannot be written (File too large)\n")
    assert list(tmp_path.iterdir()) == []


def test_command(run, tmp_path):
    done = selex("export", run.folder, "--to", "folders", "--out", "sorted", cwd=tmp_path)
    n = len(run.clusters)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        f"{n} images in 5 categories: {n} hard links",
        "wrote sorted",
        "next: look through the folders, one for each category; originals.csv says where each image came from",
    ]
    again = selex("export", run.folder, "--to", "folders", "--out", "sorted", cwd=tmp_path)
    assert (again.returncode, again.stdout) == (2, "")
    assert again.stderr == "error: sorted: is not empty; choose another --out or remove it\n"


@pytest.mark.parametrize("images", [True, False], ids=["files", "no files"])
def test_the_export_that_discover_names_next_works(tmp_path, images, monkeypatch):
    """Images of a URL or an archive are no files here: they cannot be put into folders."""
    run = small_run(tmp_path, images=images)
    monkeypatch.setattr(Run, "clusters", None)  # the whole table is not looked at
    (command,) = [step for step in next_steps(run, Path("run")) if " --to " in step]
    done = selex(*command.split()[1:], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / ("sorted" if images else "sorted.csv")).exists()
