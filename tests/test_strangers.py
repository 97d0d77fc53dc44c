"""Nothing of a user's is deleted, overwritten, moved or followed: commands among other people's files."""

import os
import shutil

import numpy as np
import pytest

from commands import digit_photos, selex
from selex.data.index import KIND
from selex.data.store import ImageStore
from selex.data.table import read_table
from selex.errors import InputError
from selex.folders import MARK, is_vacant, own_folder, take_folder
from selex.io import whole, whole_folder

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


DISCOVER = ("discover", "photos", "--backbone", "pixels", "--categories", 5, "--restarts", 1)


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("is not empty and not a selex demonstration", ("demo", "--out", "other")),
        ("is not empty and not a run", (*DISCOVER, "--out", "other")),
        ("is not empty and not a selex image store", (*DISCOVER, "--out", "run", "--store", "other")),
        ("lies among the photos", (*DISCOVER, "--out", "run", "--store", "photos")),
        ("lies among the photos", (*DISCOVER, "--out", "run", "--store", "photos/decoded")),
        ("lies among the photos", (*DISCOVER, "--out", "photos/run")),
    ],
)
def test_a_folder_full_of_strangers_is_refused_and_stays(other, message, arguments):
    before, around = state(other.parent), set(other.parent.iterdir())
    refused(message, *arguments, cwd=other.parent)
    assert state(other.parent) == before
    assert set(other.parent.iterdir()) == around


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
        (folder / MARK).unlink()  # of a version that had no marks
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
    with whole_folder(tmp_path / "b") as stage, whole(tmp_path / "a") as first, whole(tmp_path / "c"):
        assert first.exists()
        assert stage.exists()
        first.write_text("whole")
    kept = {*mine, tmp_path / ".selex-0123456789abcded.tmp", tmp_path / "a", tmp_path / "b", tmp_path / "c"}
    assert set(tmp_path.iterdir()) == kept
    assert (tmp_path / "a").read_text() == "whole"


def test_a_link_in_place_of_a_folder_of_ours_is_refused(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    os.symlink("elsewhere", tmp_path / "link")
    with pytest.raises(InputError, match="link: selex keeps a folder there"):
        own_folder(tmp_path / "link")
    own_folder(tmp_path / "elsewhere")
