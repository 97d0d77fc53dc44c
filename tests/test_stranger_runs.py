"""Run folders from a stranger: they lead nowhere, whatever they name and wherever their links point."""

import json
import os
import shutil
import sqlite3
import struct
from contextlib import suppress

import numpy as np
import pytest
from PIL import Image

from commands import contents, digit_photos, reseal
from review_runs import made_up_run, small_run
from selex import Config, InputError, Run, discover
from selex.checksums import stamped_line
from selex.errors import Note
from selex.report.html import write_report
from selex.review import recluster
from selex.review.core.decisions import Decision
from selex.review.core.ledger import FILE, Ledger
from selex.review.core.session import Review
from selex.review.server.cards import gone_photos
from selex.review.server.job import write_export
from selex.review.server.pages import Pictures
from selex.runs.export import export


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A finished run of digits."""
    home = tmp_path_factory.mktemp("made")
    digit_photos(home / "photos", per_digit=4)
    config = Config.of(str(home / "photos"), categories=5, backbone="pixels", restarts=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SELEX_CACHE", str(home / "cache"))
        discover(config, home / "run", store=home / "store")
    return home


@pytest.fixture
def run(made, tmp_path, monkeypatch):
    monkeypatch.setenv("SELEX_CACHE", str(tmp_path / "cache"))
    return shutil.copytree(made / "run", tmp_path / "run")


@pytest.fixture
def victim(tmp_path):
    """Somebody's folder, with names that are ours too."""
    folder = tmp_path / "victim"
    names = (
        "clusters.csv",
        "complete",
        "config.json",
        "model/model.json",
        "embeddings.npy.part",
        "checkpoint-00001.pt",
    )
    for name in (*names, "diary.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("\n".join(names))
    return folder


def again(made, run):
    return discover(Run.open(run).config, run, store=made / "store")


@pytest.mark.parametrize("name", [".next", ".work", "model", "exports", "tensorboard"])
def test_a_link_in_place_of_a_folder_is_not_followed(made, run, victim, name):
    before = contents(victim)
    if (run / name).exists():
        shutil.rmtree(run / name)
    os.symlink(victim, run / name)
    Run.open(run)
    if name in (".next", ".work", "model"):
        with pytest.raises(InputError, match=f"{name}: selex needs a folder there"):
            again(made, run)
    if name == "exports":
        review = Review(run)
        with pytest.raises(InputError, match="exports: selex needs a folder there"):
            write_export(review, "csv")
        review.ledger.close()
    assert contents(victim) == before
    assert (run / name).is_symlink()


@pytest.mark.parametrize(
    "name",
    [
        "metrics.jsonl",
        "clusters.csv",
        "clusters.parquet",
        "embeddings.npy",
        "skipped.csv",
        ".work/embeddings.npy.part",
        ".work/embeddings.npy.json",
        ".work/embeddings.npy",
        ".next/clusters.parquet",
        ".next/hierarchy.json",
        "review-labels.csv",
        "report.html",
    ],
)
def test_a_link_in_place_of_a_file_is_not_written_through(made, run, tmp_path, name):
    victim = tmp_path / "mine.txt"
    victim.write_text("mine\n")
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).unlink(missing_ok=True)
    os.symlink(victim, run / name)
    for job in (again, lambda made, run: write_report(Run.open(run), run / "report.html"), _decide_and_cluster):
        with suppress(InputError):
            job(made, run)
    assert victim.read_text() == "mine\n"
    assert victim.stat().st_nlink == 1


def _decide_and_cluster(made, run):
    review = Review(run)
    try:
        review.decide(Decision("name", category=4, name="four"), review.version)
    finally:
        review.ledger.close()
    recluster.recluster(run, store=made / "store")


def test_only_files_of_results_leave_a_stage(run, tmp_path):
    stage = run / ".next"
    stage.mkdir()
    (stage / "diary.txt").write_text("mine")
    (stage / "complete").write_text("diary.txt\n../outside.txt\nskipped.csv")
    (stage / "skipped.csv").write_text("file,reason\n")
    (tmp_path / "outside.txt").write_text("mine")
    Run.open(run)
    assert (stage / "diary.txt").read_text() == "mine"
    assert sorted(path.name for path in stage.iterdir()) == ["diary.txt"]
    assert not (run / "diary.txt").exists()
    assert (tmp_path / "outside.txt").read_text() == "mine"


def test_what_a_user_keeps_in_a_run_stays(made, run):
    notes = ("notes.txt", "model/notes.txt", ".work/notes.txt", ".next/notes.txt", ".workspace", ".config.json.bak")
    for name in notes:
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text("mine")
    again(made, run)
    assert [(run / name).read_text() for name in notes] == ["mine"] * len(notes)


NO_PLACES = {"number": 7, "nothing": "\0", "no text": "\ud800", "long": "x" * 5000}


@pytest.mark.parametrize("kind", ["full", "empty", "new", *NO_PLACES])
def test_a_recorded_store_is_used_only_if_it_is_one(made, run, tmp_path, kind):
    place = tmp_path / "place"
    if kind in ("full", "empty"):
        place.mkdir()
    if kind == "full":
        (place / "images.u8").write_text("mine")
    with (run / "metrics.jsonl").open("a") as file:
        file.write(stamped_line({"step": "decode", "store": NO_PLACES.get(kind, str(place))}))
    assert Run.open(run).store is None
    with (run / "metrics.jsonl").open("a") as file:
        file.write(stamped_line({"step": "decode", "store": str(made / "store")}))
    assert Run.open(run).store == made / "store"


@pytest.fixture
def private(tmp_path):
    """Images outside any folder of photos, a table that names them, and a folder with the table alone."""
    folder = tmp_path / "private"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(8):
        Image.fromarray(rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(folder / f"{number}.png")
    table = tmp_path / "tables" / "list.csv"
    table.parent.mkdir()
    names = [str(folder / f"{number}.png") if number % 2 else f"../private/{number}.png" for number in range(8)]
    table.write_text("file_name,label\n" + "".join(f"{name},\n" for name in names))
    return table


def of_table(table, out):
    config = Config.of(str(table), categories=2, backbone="pixels", restarts=1)
    return discover(config, out, store=out.with_name("store"))


def test_the_users_own_table_names_images_anywhere(private, tmp_path, monkeypatch):
    monkeypatch.setenv("SELEX_CACHE", str(tmp_path / "cache"))
    run = Run.open(of_table(private, tmp_path / "run").folder)
    assert export(run, "folders", tmp_path / "sorted").images == 8
    page = write_report(run, tmp_path / "report.html").read_text()
    assert "could not be read" not in page
    assert gone_photos(run.root, run.image_paths(run.clusters["file"].to_pylist())) is None
    shutil.move(tmp_path / "run", tmp_path / "moved")
    assert export(Run.open(tmp_path / "moved"), "folders", tmp_path / "sorted again").images == 8


def test_a_list_of_python_names_images_anywhere(private, tmp_path, monkeypatch):
    monkeypatch.setenv("SELEX_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(private.parent)
    files = sorted(map(str, (tmp_path / "private").iterdir()))
    config = Config.of("", categories=2, backbone="pixels", restarts=1)
    run = discover(config, tmp_path / "run", photos=files, store=tmp_path / "store")
    assert export(run, "fiftyone", tmp_path / "sorted").images == 8


def test_a_strangers_run_names_nothing_outside_its_root(private, tmp_path, monkeypatch):
    monkeypatch.setenv("SELEX_CACHE", str(tmp_path / "the stranger's"))
    of_table(private, tmp_path / "run")
    monkeypatch.setenv("SELEX_CACHE", str(tmp_path / "mine"))
    run = Run.open(tmp_path / "run")
    for to in ("folders", "fiftyone", "label-studio"):
        with pytest.raises(InputError, match=r"names .*private/0\.png, which is not below .*, and was not made here"):
            export(run, to, tmp_path / "sorted")
        assert not (tmp_path / "sorted").exists()
    with pytest.warns(Note, match="8 of 8 images .* are not below the run's folder of photos"):
        page = write_report(run, tmp_path / "report.html")
    assert "it was not made here" in page.read_text().replace("&#39;", "'")
    assert "grey squares stand for images that are not below" in gone_photos(
        run.root, run.image_paths(run.clusters["file"].to_pylist())
    )
    review = Review(run.folder)
    assert Pictures(review)._path(0, None) == ""
    review.ledger.close()
    assert not (tmp_path / "mine").exists()


def test_links_below_the_root_lead_a_strangers_run_nowhere(private, tmp_path, monkeypatch):
    photos = tmp_path / "photos"
    photos.mkdir()
    os.symlink(tmp_path / "private" / "0.png", photos / "0.png")
    shutil.copy(tmp_path / "private" / "1.png", photos / "1.png")
    for name, paths in (("the stranger's", ["", str(photos / "1.png")]), ("mine", None)):
        monkeypatch.setenv("SELEX_CACHE", str(tmp_path / name))
        run = made_up_run(tmp_path / f"run {name}", photos, ["0.png", "1.png"], [0, 1], 1, ["a", "b"])
        monkeypatch.setenv("SELEX_CACHE", str(tmp_path / "mine"))
        assert run.image_paths(["0.png", "1.png"]) == (paths or [str(photos / "0.png"), str(photos / "1.png")])


@pytest.mark.parametrize("cache", ["the stranger's", "mine"])
def test_nothing_but_images_is_exported(tmp_path, monkeypatch, cache):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "id_rsa").write_text("secret")
    Image.new("L", (8, 8)).save(tmp_path / "home" / "a.png")
    monkeypatch.setenv("SELEX_CACHE", str(tmp_path / cache))
    made_up_run(tmp_path / "run", tmp_path / "home", ["a.png", "id_rsa"], [0, 1], 1, ["a", "b"])
    monkeypatch.setenv("SELEX_CACHE", str(tmp_path / "mine"))
    with pytest.raises(InputError, match="home/id_rsa: is not an image"):
        export(Run.open(tmp_path / "run"), "folders", tmp_path / "sorted", copy=True)
    assert not (tmp_path / "sorted").exists()


def test_the_key_is_the_users_alone_and_a_table_that_was_changed_is_not_sealed(private, tmp_path, monkeypatch):
    monkeypatch.setenv("SELEX_CACHE", str(tmp_path / "cache"))
    run = of_table(private, tmp_path / "run")
    key = tmp_path / "cache" / "seal.key"
    assert key.stat().st_mode & 0o777 == 0o600
    files = run.clusters["file"].to_pylist()
    assert "" not in run.image_paths(files)
    record = json.loads((run.folder / "config.json").read_text())
    reseal(run.folder, root="/")
    assert set(run.image_paths(files)) == {""}
    reseal(run.folder, root=record["root"], seal=record["seal"][:-1] + "g")
    assert set(run.image_paths(files)) == {""}
    (run.folder / "config.json").write_text(json.dumps(record))
    key.write_bytes(b"short")
    assert set(run.image_paths(files)) == {""}


@pytest.mark.parametrize("name", [FILE, f"{FILE}-journal", f"{FILE}-wal", f"{FILE}-shm"])
def test_a_ledger_that_is_a_link_is_refused(tmp_path, name):
    folder = small_run(tmp_path).folder
    (tmp_path / "mine").touch()
    os.symlink(tmp_path / "mine", folder / name)
    with pytest.raises(InputError, match=f"{name}: is not a file of `selex review`, but a link"):
        Review(folder)
    assert (tmp_path / "mine").read_bytes() == b""


def test_a_journal_cannot_have_another_file_deleted(tmp_path):
    """SQLite deletes what a left journal names as the journal of several databases."""
    folder, mine = small_run(tmp_path).folder, tmp_path / "mine.txt"
    mine.write_text("mine\n")
    Review(folder).ledger.close()
    ledger, journal = folder / FILE, folder / f"{FILE}-journal"
    journal.write_bytes(_journal_naming(ledger.read_bytes(), os.fsencode(mine)))
    held = journal.read_bytes()
    with pytest.raises(InputError, match="journal: names another file"):
        Ledger(folder)
    assert mine.exists()
    assert journal.read_bytes() == held
    with sqlite3.connect(ledger) as other:  # what it would have come to; later versions of SQLite have mended it
        other.execute("SELECT count(*) FROM events").fetchone()
    other.close()
    assert not mine.exists() or sqlite3.sqlite_version_info > (3, 41)


def _journal_naming(database, name):
    magic, nonce = bytes.fromhex("d9d505f920a163d7"), 7
    size = struct.unpack(">H", database[16:18])[0]
    page = database[:size]
    checksum = (nonce + sum(page[size - 200 : 0 : -200])) & 0xFFFFFFFF
    header = magic + struct.pack(">5I", 1, nonce, len(database) // size, 512, size)
    record = struct.pack(">I", 1) + page + struct.pack(">I", checksum)
    named = struct.pack(">I", 0x40000000 // size + 1) + name + struct.pack(">II", len(name), sum(name)) + magic
    return header.ljust(512, b"\0") + record + named
