"""Nothing of a user's is deleted, overwritten, moved or followed: commands among other people's files."""

import csv
import errno
import io
import os
import shutil
import warnings
from http.client import HTTPException

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from commands import digit_photos, selex
from results_for_tests import three_seeds
from selex import Config, discover
from selex.cli.demo import _write_images
from selex.data.clusters import is_clusters_table, read_clusters, write_columns
from selex.data.features import load_features, read_truth
from selex.data.store import ImageStore
from selex.data.store_files import KIND
from selex.data.table import read_table
from selex.errors import InputError, Note
from selex.folders import MARK, is_marked, is_vacant, own_folder, take_folder
from selex.io import atomic_folder, atomic_path, read_csv, write_csv
from selex.models.download import Unavailable, save_stream
from selex.report.curves import is_plot, save_figure
from selex.report.facts import read_facts
from selex.runs.export import export
from selex.training.checkpoint import checkpoint_paths, newest_checkpoint

TEMPORARY = ".selex-0123456789abcdef.tmp"
NAMES = (
    ".workspace/notes.txt",
    ".work/diary.txt",
    ".next/complete",
    ".next/clusters.csv",
    ".nextcloud-sync",
    ".config.json.bak",
    ".selex-notes",
    ".selex/readme.txt",
    "photos/holiday.jpg",
    "new/holiday.jpg",
    "run/thesis.tex",
    "store-pixels/index.npz",
    "index.npz",
    "index.npz.new",
    "images.u8",
    "lock",
    "metrics.jsonl",
    "truth.csv",
    "embeddings.npy",
    "embeddings.npy.part",
    "clusters.csv",
    "model/model.json",
    "exports/mine.csv",
    "review.sqlite",
)


def strangers(folder):
    """A folder of things that are not ours, though some are called as ours are."""
    for name in NAMES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"mine: {name}")
    (folder / "empty").mkdir()
    os.symlink("..", folder / "up")
    os.symlink("nowhere", folder / "dangling")
    return folder


def state(folder):
    """All that must stay about everything in a folder: what it is, its times, its bytes, where it leads."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        held = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        found[path] = (status.st_ino, status.st_mode, status.st_mtime_ns if path.is_file() else 0, held)
    return found


@pytest.fixture
def other(tmp_path, monkeypatch):
    """Beside `photos`, a folder `other` full of strangers."""
    monkeypatch.setenv("SELEX_CACHE", str(tmp_path / "cache"))
    digit_photos(tmp_path / "photos", per_digit=4)
    return strangers(tmp_path / "other")


def refused(message, *arguments, cwd):
    done = selex(*arguments, cwd=cwd)
    assert done.returncode == 2, done
    assert [line for line in done.stderr.splitlines() if not line.startswith("note:")][1:] == [], done.stderr
    assert message in done.stderr, done.stderr


DISCOVER = ("discover", "photos", "--backbone", "pixels", "--categories", 5)


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("is not empty and not a selex demonstration", ("demo", "--out", "other")),
        ("is not empty and not a run", (*DISCOVER, "--out", "other")),
        ("is not empty and not a selex image store", (*DISCOVER, "--out", "run", "--store", "other")),
        ("is inside the folder of photos", (*DISCOVER, "--out", "run", "--store", "photos")),
        ("is inside the folder of photos", (*DISCOVER, "--out", "run", "--store", "photos/decoded")),
        ("is inside the folder of photos", (*DISCOVER, "--out", "photos/run")),
    ],
)
def test_a_folder_full_of_strangers_is_refused_and_stays(other, message, arguments):
    before, around = state(other.parent), set(other.parent.iterdir())
    refused(message, *arguments, cwd=other.parent)
    assert state(other.parent) == before
    assert set(other.parent.iterdir()) == around


def test_nothing_is_written_among_the_photos(other):
    home = other.parent
    assert selex(*DISCOVER, "--out", "run", cwd=home).returncode == 0
    (home / "data.csv").write_text("file,class,known\nunlabelled/0003.png,3,0\n")
    bench = ("bench", "run", "--dataset", "data.csv", "--root", "photos", "--method", "frozen", "--backbone", "pixels")
    before = state(home)
    for line in (
        ("report", "run", "--out", "photos/report.html"),
        ("predict", "run", "photos", "--out", "photos/unlabelled/found.csv"),
        ("predict", "run", "photos/digit 0", "--out", "photos/found.csv"),  # of the run
        ("predict", "run", "photos/digit 0", "--store", "photos/decoded"),
        (*bench, "--out", "photos/results"),
        (*bench, "--runs", "photos/runs"),
        (*bench, "--store", "photos/decoded"),
    ):
        refused("is inside the folder of photos, which is only read", *line, cwd=home)
        assert state(home) == before
    refused("choose an --out outside .", "predict", "../run", ".", cwd=home / "photos")
    assert state(home) == before
    shutil.copytree(home / "run", home / "photos" / "run")  # where somebody has put it
    assert selex("report", "photos/run", cwd=home).returncode == 0


@pytest.mark.parametrize("name", [".workspace", ".nextcloud-sync", ".config.json.bak", ".work", ".next", ".selex-x"])
def test_a_refused_discover_deletes_nothing_by_the_beginning_of_its_name(other, name):
    mine = other.parent / "o" / name / "mine"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    refused("is not empty and not a run", *DISCOVER, "--out", "o", "--backbone", "file:nowhere", cwd=other.parent)
    assert mine.read_text() == "mine"


def test_a_refused_discover_leaves_an_empty_folder_as_it_was(other):
    out = other.parent / "o"
    out.mkdir(mode=0o750)
    before = out.stat()
    refused("no weight file", *DISCOVER, "--out", "o", "--backbone", "file:nowhere", cwd=other.parent)
    assert (out.stat().st_ino, out.stat().st_mode) == (before.st_ino, before.st_mode)
    assert not any(out.iterdir())


def test_a_demonstration_keeps_what_was_put_into_its_folder(tmp_path):
    out = tmp_path / "demo"
    take_folder(out, "demonstration")
    (out / "photos" / "holiday").mkdir(parents=True)
    shutil.copy(next((digit_photos(tmp_path / "p") and (tmp_path / "p")).rglob("*.png")), out / "photos/holiday/x.png")
    (out / "new").mkdir()
    (out / "new" / "notes.txt").write_text("mine")
    refused("photos/holiday/x.png: was not made by the demonstration", "demo", "--out", "demo", cwd=tmp_path)
    assert (out / "photos/holiday/x.png").exists()
    assert (out / "new" / "notes.txt").read_text() == "mine"


def test_a_store_is_new_empty_or_ours(tmp_path):
    digit_photos(tmp_path / "photos", per_digit=2)
    table = read_table(tmp_path / "photos")
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "new", tmp_path / "empty"):
        assert len(ImageStore.build(table, folder, size=8)) == 10
        (folder / "notes.txt").write_text("mine")
        assert len(ImageStore.build(table, folder, size=9)) == 10
        assert (folder / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("name", ["index.npz", "images.u8", "lock", MARK, "notes.txt"])
def test_a_folder_with_one_file_of_a_user_is_no_store(tmp_path, name):
    digit_photos(tmp_path / "photos", per_digit=2)
    mine = tmp_path / "mine" / name
    mine.parent.mkdir()
    np.savez(mine.with_suffix(".x"), stored=np.zeros(3)) if name == "index.npz" else None
    mine.write_bytes(b"mine")
    before = state(mine.parent)
    with pytest.raises(InputError, match="is not empty and not a selex image store"):
        ImageStore.build(read_table(tmp_path / "photos"), mine.parent, size=8)
    assert state(mine.parent) == before


def test_links_in_a_store_are_not_written_through(tmp_path):
    digit_photos(tmp_path / "photos", per_digit=2)
    table, victim = read_table(tmp_path / "photos"), tmp_path / "victim"
    for name in ("index.npz", "images.u8"):
        victim.write_bytes(b"mine")
        folder = tmp_path / f"store of {name}"
        take_folder(folder, KIND)
        os.symlink(victim, folder / name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Note)  # an index that is none is made anew, and said so
            assert len(ImageStore.build(table, folder, size=8)) == 10
        assert victim.read_bytes() == b"mine"


def test_a_mark_that_is_a_link_counts_for_nothing(tmp_path):
    take_folder(tmp_path / "ours", KIND)
    (tmp_path / "mine").mkdir()
    os.symlink(tmp_path / "ours" / MARK, tmp_path / "mine" / MARK)
    with pytest.raises(InputError, match="not a selex image store"):
        take_folder(tmp_path / "mine", KIND)
    with pytest.raises(InputError, match="not a selex demonstration"):
        take_folder(tmp_path / "ours", "demonstration")


@pytest.mark.parametrize("links", [True, False])
def test_a_mark_that_another_process_has_just_made_stays(tmp_path, monkeypatch, links):
    """It holds a lock on that file, and on another of the same name both would write to the store at once."""
    made = []

    def late(path, kind):
        if not made:  # between the look at the folder and the mark
            made.append(None)
            take_folder(path, kind)
            made.append((path / MARK).stat().st_ino)
            return False
        return is_marked(path, kind)

    monkeypatch.setattr("selex.folders.is_marked", late)
    if not links:
        monkeypatch.setattr(os, "link", no_links)
    take_folder(tmp_path / "store", KIND)
    assert (tmp_path / "store" / MARK).stat().st_ino == made[1]
    assert os.listdir(tmp_path / "store") == [MARK]


def no_links(source, target):
    raise PermissionError(errno.EPERM, "Operation not permitted")


def test_a_folder_that_another_process_has_just_taken_for_something_else_is_refused(tmp_path, monkeypatch):
    first = iter([True])

    def late(path, kind):
        if next(first, False):
            take_folder(path, "demonstration")
            return False
        return is_marked(path, kind)

    monkeypatch.setattr("selex.folders.is_marked", late)
    with pytest.raises(InputError, match="not a selex image store"):
        take_folder(tmp_path / "store", KIND)
    assert is_marked(tmp_path / "store", "demonstration")


def test_what_a_killed_command_left_goes_and_what_a_working_one_has_stays(tmp_path):
    (tmp_path / TEMPORARY).write_text("half")
    (tmp_path / f"{TEMPORARY}.csv").write_text("half")
    (tmp_path / ".selex-0123456789abcdee.tmp").mkdir()
    (tmp_path / ".selex-0123456789abcdee.tmp" / "a").write_text("half")
    assert is_vacant(tmp_path)
    mine = [tmp_path / name for name in (".selex-0123456789abcdef.tmp2", ".selex-01234567.tmp", f"x{TEMPORARY}")]
    for path in mine:
        path.write_text("mine")
    os.symlink(mine[0], tmp_path / ".selex-0123456789abcded.tmp")
    assert not is_vacant(tmp_path)
    with atomic_folder(tmp_path / "b") as stage, atomic_path(tmp_path / "a") as first, atomic_path(tmp_path / "c"):
        assert first.exists()
        assert stage.exists()
        first.write_text("whole")
    kept = {*mine, tmp_path / ".selex-0123456789abcded.tmp", tmp_path / "a", tmp_path / "b", tmp_path / "c"}
    assert set(tmp_path.iterdir()) == kept
    assert (tmp_path / "a").read_text() == "whole"


def test_a_link_in_place_of_a_folder_of_ours_is_refused(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    os.symlink("elsewhere", tmp_path / "link")
    with pytest.raises(InputError, match="link: selex needs a folder there"):
        own_folder(tmp_path / "link")
    own_folder(tmp_path / "elsewhere")


FORMULAS = [
    "=cmd|' /C calc'!A0",
    "+1",
    "-2",
    "@x",
    "\t=1",
    "\r=1",
    "=1",
    "'=1",
    "''-3",
    "'quoted",
    " spaced ",
    "plain",
    "-1",
]


def test_no_cell_of_a_table_is_a_formula_and_our_readers_undo_that(tmp_path):
    n = len(FORMULAS)
    columns = {"file": FORMULAS, "cluster": [*range(n)], "category": FORMULAS, "known": [1] * n, "labelled": [0] * n}
    write_columns(tmp_path / "clusters.csv", {**columns, "distance": [-0.5] * n})
    with (tmp_path / "clusters.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert not any(row[name].startswith(tuple("=+-@\t\r")) for row in rows for name in ("file", "category"))
    assert {row["distance"] for row in rows} == {"-0.5"}
    table = read_clusters(tmp_path / "clusters.csv")
    assert table.ids == FORMULAS
    assert table.known_categories == set(FORMULAS)
    (tmp_path / "truth.csv").write_bytes((tmp_path / "clusters.csv").read_bytes().replace(b"category", b"label"))
    assert read_truth(tmp_path / "truth.csv", table) == FORMULAS


def test_photos_with_names_like_formulas_through_discover_export_and_back(tmp_path, monkeypatch):
    monkeypatch.setenv("SELEX_CACHE", str(tmp_path / "cache"))
    digit_photos(tmp_path / "p", per_digit=4)
    for number, path in enumerate(sorted((tmp_path / "p").rglob("*.png"))):
        target = tmp_path / "photos" / ("=1+1" if number < 6 else "unlabelled") / f"{'=+-@'[number % 4]}{number}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)
    (tmp_path / "photos" / "-broken.png").write_bytes(b"no image")
    config = Config.of(str(tmp_path / "photos"), categories=3, backbone="pixels", restarts=1)
    run = discover(config, tmp_path / "run", store=tmp_path / "store")
    for path in (tmp_path / "run").glob("*.csv"):
        with path.open(newline="") as file:
            assert not any(cell.startswith(tuple("=+-@")) for row in csv.reader(file) for cell in row), path
    assert read_facts(run).skipped == [["-broken.png", "not a JPEG, PNG, WebP, GIF, TIFF or BMP image"]]
    export(run, "folders", tmp_path / "sorted")
    table = run.clusters.to_pydict()
    write_csv(tmp_path / "labels.csv", ["file_name", "label"], read_as_labels(tmp_path / "run" / "clusters.csv"))
    labelled = read_table(tmp_path / "photos", tmp_path / "labels.csv")
    found = dict(zip(table["file"], table["category"], strict=True))
    assert dict(zip(labelled.files, labelled.label_names, strict=True)) == {**found, "-broken.png": ""}
    exported = read_table(tmp_path / "sorted" / "originals.csv")
    assert sorted(set(exported.label_names)) == sorted(set(table["category"]))


def read_as_labels(path):
    """The first columns of a clusters table as they stand, as a person would copy them."""
    with path.open(newline="") as file:
        return [(row["file"], row["category"]) for row in csv.DictReader(file)]


@pytest.mark.parametrize("kind", ["device", "pipe"])
@pytest.mark.parametrize("read", [read_csv, load_features, lambda path: read_table(str(path))])
def test_a_device_or_a_pipe_is_refused_before_it_is_read(tmp_path, kind, read):
    path = tmp_path / "table.csv"
    os.symlink("/dev/zero", path) if kind == "device" else os.mkfifo(path)
    with pytest.raises(InputError, match=r"is a device or a pipe, not a file|no such file"):
        read(path)


class Hostile:
    def __reduce__(self):
        return print, ("hello",)


def test_a_hostile_checkpoint_is_not_loaded_and_nobody_is_told_to_do_so_unsafely(tmp_path, capsys):
    torch.save({"format": Hostile()}, tmp_path / "checkpoint-00001.pt")
    with pytest.raises(InputError, match="it holds more than tensors, or is damaged") as caught:
        newest_checkpoint(checkpoint_paths(tmp_path))
    assert "weights_only" not in str(caught.value)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("option", ["--out", "--runs", "--store"])
def test_a_benchmark_refuses_a_folder_of_strangers(other, option):
    data = other.parent / "data"
    data.mkdir()
    shutil.copytree(other.parent / "photos", data / "photos")
    files = sorted(str(path.relative_to(data)) for path in (data / "photos").rglob("*.png"))
    rows = "".join(f"{file},{number % 2},{number % 2}\n" for number, file in enumerate(files))
    (data / "set.csv").write_text(f"file,class,known\n{rows}")
    before, around = state(other), set(other.parent.iterdir())
    command = ("bench", "run", "--dataset", "data/set.csv", "--method", "frozen", "--backbone", "pixels", "--seeds", 1)
    refused("other: is not empty and not a selex", *command, option, "other", cwd=other.parent)
    assert state(other) == before
    assert set(other.parent.iterdir()) <= {*around, other.parent / "cache"}


def test_figures_and_tables_of_a_user_are_not_written_over(tmp_path):
    figure = Figure()
    figure.subplots().plot([1, 2])
    for ending in (".png", ".svg", ".pdf"):
        mine, ours = tmp_path / f"mine{ending}", tmp_path / f"ours{ending}"
        figure.savefig(mine)
        save_figure(figure, ours)
        assert is_plot(ours)
        assert not is_plot(mine)
    (tmp_path / "clusters.csv").write_text("file,cluster,notes\na.png,1,mine\n")
    assert not is_clusters_table(tmp_path / "clusters.csv")


def test_a_folder_of_a_users_figures_gets_no_more(other):
    for each in three_seeds():
        each.save(other.parent / "results")
    before = state(other)
    command = ("bench", "plot", "results", "--out")
    refused("other: is not empty and not a selex folder of figures", *command, "other", cwd=other.parent)
    assert state(other) == before
    for _ in range(2):
        assert selex(*command, "figures", cwd=other.parent).returncode == 0


@pytest.mark.parametrize("broken", [OSError("reset"), HTTPException("closed"), None])
def test_a_download_that_breaks_off_leaves_nothing_and_keeps_what_was_there(tmp_path, broken):
    class Stream(io.BytesIO):
        def read(self, size=-1):
            if broken and self.tell():
                raise broken
            return super().read(size)

    target = tmp_path / "weights.pt"
    target.write_text("old")
    (tmp_path / TEMPORARY).write_text("left by a killed one")
    with pytest.raises(Unavailable):
        save_stream(Stream(b"half"), target, None, length=8)
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["weights.pt"]


def test_the_images_of_a_demonstration_are_written_again_and_not_through_links(tmp_path):
    victim = tmp_path / "victim.png"
    victim.write_text("mine")
    take_folder(tmp_path / "demo", "demonstration")
    truth = _write_images(tmp_path / "demo", 0)
    before = {path: path.read_bytes() for path in (tmp_path / "demo").rglob("*") if path.is_file()}
    first = tmp_path / "demo" / "photos" / next(iter(truth))
    first.unlink()
    os.symlink(victim, first)
    others = [path for path in before if path.suffix == ".png" and path != first]
    times = [path.stat().st_mtime_ns for path in others]
    assert _write_images(tmp_path / "demo", 0) == truth
    assert {path: path.read_bytes() for path in before} == before
    assert [path.stat().st_mtime_ns for path in others] == times  # as they were: interrupted training resumes
    assert victim.read_text() == "mine"
    shutil.rmtree(tmp_path / "demo" / "new")
    (tmp_path / "elsewhere").mkdir()
    os.symlink(tmp_path / "elsewhere", tmp_path / "demo" / "new")
    with pytest.raises(InputError, match="new: selex needs a folder there"):
        _write_images(tmp_path / "demo", 0)
    assert not any((tmp_path / "elsewhere").iterdir())
