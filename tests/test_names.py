"""Names keep what they name: bytes that are no text, twins that look alike, categories with odd names."""

import csv
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image
from starlette.testclient import TestClient

from commands import selex
from review_runs import small_run
from selex import Config, discover
from selex.data.features import Features, read_labels
from selex.data.labels import cell_of_label, label_of_cell, spell, unspell
from selex.data.table import from_list, read_table
from selex.io import read_csv, write_csv
from selex.review.core.decisions import Decision
from selex.review.core.session import Review
from selex.review.recluster import recluster
from selex.review.server.app import create_app
from selex.review.server.guard import Door
from selex.runs.export import export

LATIN = os.fsdecode(b"caf\xe9")
ODD = st.lists(st.sampled_from([b"\\", b"x", b"5", b"c", b"e9", b"\xe9", b"\xc3\xa9", b"\xff", b"a", b"X"]), max_size=8)


@given(ODD.map(b"".join), ODD.map(b"".join))
@example(b"caf\xe9", b"caf\\xe9")
@example(b"caf\\xe9", b"caf\\x5cxe9")
def test_every_file_name_has_one_spelling_and_no_two_share_it(one, other):
    for name in (one, other):
        assert os.fsencode(unspell(spell(os.fsdecode(name)))) == name
        spell(os.fsdecode(name)).encode()
    assert (spell(os.fsdecode(one)) == spell(os.fsdecode(other))) == (one == other)


LABELS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1)


@given(LABELS | st.sampled_from(["-1", "cat ", " cat", "'-1", "''cat ", "=1+1", "'Ohia", " ", "\t"]))
def test_every_label_survives_a_csv_cell(name):
    with tempfile.TemporaryDirectory() as folder:
        write_csv(Path(folder) / "labels.csv", ["label"], [[cell_of_label(name)]])
        assert label_of_cell(read_csv(Path(folder) / "labels.csv")[1][1][0]) == name


def test_cells_that_people_write_mean_what_they_did():
    cells = ["cat", " cat ", "-1", "", "'Ohia", "'cat", "1"]
    assert [label_of_cell(cell) for cell in cells] == ["cat", "cat", "", "", "'Ohia", "'cat", "1"]


TWINS = {
    "e\u0301/one.png": "e\u0301",
    "\u00e9/one.png": "\u00e9",
    "cat/two.png": "cat",
    "cat /two.png": "cat ",
    "-1/three.png": "-1",
    f"{LATIN}/four.png": "caf\\xe9",
    "caf\\xe9/four.png": "caf\\x5cxe9",
    "=1+1/five.png": "=1+1",
    "u\u0308.png": "",
    "\u00fc.png": "",
    f"{LATIN}.png": "",
    "caf\\xe9.png": "",
}


def fill(folder):
    """The twins as images of different grey, which tells them apart wherever they go."""
    for number, name in enumerate(TWINS):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (16, 16), number * 20).save(path)
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return fill(tmp_path_factory.mktemp("twins") / "photos")


def greys(paths):
    return [round(np.asarray(Image.open(path)).mean() / 20) for path in paths]


def of_files(table):
    return {unspell(file): label for file, label in zip(table.files, table.label_names, strict=True)}


def test_twins_in_a_folder_are_themselves(photos):
    table = read_table(photos)
    assert of_files(table) == TWINS
    assert greys(table.source(row) for row in range(len(table))) == [list(TWINS).index(unspell(f)) for f in table.files]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_twins_keep_their_labels_through_a_table(photos, tmp_path, kind):
    path, table = tmp_path / f"labels.{kind}", read_table(photos)
    columns = {"file_name": table.files, "label": table.label_names}
    if kind == "csv":
        columns["label"] = list(map(cell_of_label, columns["label"]))
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([columns, *zip(*columns.values(), strict=True)])
    else:
        parquet.write_table(pa.table(columns), path)
    assert of_files(read_table(photos, path)) == TWINS
    named = read_table(str(path), root=str(photos))
    assert of_files(named) == TWINS
    assert greys(map(named.source, range(len(named)))) == greys(map(table.source, range(len(table))))


def test_a_name_in_a_table_may_stand_as_it_is_on_disk(tmp_path):
    (tmp_path / "a\\xe9.png").touch()
    (tmp_path / "labels.csv").write_text("file_name,label\na\\xe9.png,cat\n")
    assert of_files(read_table(tmp_path, tmp_path / "labels.csv")) == {"a\\xe9.png": "cat"}
    assert of_files(read_table(str(tmp_path / "labels.csv"))) == {"a\\xe9.png": "cat"}


def test_labels_of_features_are_read_as_those_of_images(tmp_path):
    (tmp_path / "labels.csv").write_text("row,label\n0,'-1\n1,-1\n2,'cat \n3, cat \n")
    features = Features(np.zeros((4, 2)), ["0", "1", "2", "3"], "row")
    assert read_labels(tmp_path / "labels.csv", features) == ["-1", "", "cat ", "cat"]


@pytest.mark.filterwarnings("ignore::selex.errors.Note")  # categories of one image
def test_twins_keep_their_labels_through_export_review_and_another_clustering(photos, tmp_path):
    run = discover(Config.of(str(photos), categories=9, backbone="pixels"), tmp_path / "run", store=tmp_path / "store")
    given_labels = {file: label for file, label in TWINS.items() if label}

    def labelled(run):
        rows = run.clusters.to_pylist()
        return {unspell(row["file"]): row["category"] for row in rows if row["labelled"]}

    assert labelled(run) == given_labels
    export(run, "folders", tmp_path / "sorted", copy=True)
    assert sorted(greys(tmp_path.glob("sorted/*/*.png"))) == list(range(len(TWINS)))  # each once
    again_labelled = of_files(read_table(tmp_path / "sorted", tmp_path / "sorted" / "originals.csv"))
    assert sorted(again_labelled.values()) == sorted(run.clusters["category"].to_pylist())
    review = Review(run.folder)
    review.decide(Decision("confirm", rows=(0,)), review.version)
    review.ledger.close()
    recluster(run.folder)
    assert labelled(run).items() >= given_labels.items()
    discover(run.config, run.folder, store=tmp_path / "store")  # from the file of labels, as `selex train` does
    assert labelled(run).items() >= given_labels.items()


def test_a_list_of_images_may_hold_twins(photos):
    table = from_list([photos / name for name in TWINS])
    assert greys(map(table.source, range(len(table)))) == list(range(len(TWINS)))


def test_folders_whose_names_are_no_text(tmp_path, monkeypatch):
    monkeypatch.setenv("SELEX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONIOENCODING", "utf-8:strict")
    shutil.copytree(fill(tmp_path / "filled"), tmp_path / LATIN)
    out = tmp_path / f"out-{LATIN}"

    def done(*arguments):
        found = selex(*arguments, cwd=tmp_path)
        assert found.returncode == 0, found
        return found.stdout

    done("discover", tmp_path / LATIN, "--backbone", "pixels", "--categories", "9", "--out", out)
    assert "caf" in done("info", out)
    done("predict", out, tmp_path / LATIN, "--out", tmp_path / f"{LATIN}.csv", "--store", tmp_path / f"store-{LATIN}")
    done("report", out)
    for kind in ("csv", "parquet", "folders", "label-studio", "fiftyone"):
        done("export", out, "--to", kind, "--out", tmp_path / f"{kind}-{LATIN}")
    (tmp_path / f"csv-{LATIN}").read_text(encoding="utf-8")
    (out / "report.html").read_text(encoding="utf-8")
    labels = tmp_path / f"{LATIN}-labels.csv"
    labels.write_text("file_name,label\ncat/two.png,lynx\n")
    done(
        "discover",
        tmp_path / LATIN,
        "--backbone",
        "pixels",
        "--labels",
        labels,
        "--out",
        f"{out}-2",
        "--categories",
        "3",
    )


def test_the_review_page_of_a_run_in_such_a_folder(tmp_path):
    run = small_run(tmp_path / LATIN, images=True)
    review = Review(run.folder)
    client = TestClient(create_app(review, Door(8760)), base_url="http://127.0.0.1:8760")
    for page in ("/", "/category/0", "/image/3", "/api/standing", "/thumb/3"):
        assert client.get(page).status_code == 200, page
    written = client.post("/api/export", json={"to": "csv"})
    assert written.status_code == 200, written.text
    assert Path(unspell(written.json()["path"])).is_file()
    review.ledger.close()
