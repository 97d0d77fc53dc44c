"""What jobs on a Ray cluster keep on disk is bounded; what is in use, and what is not ours, stays."""

import errno
import io
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from selex import io as selex_io
from selex.data.table import ImageTable
from selex.errors import InputError
from selex.features import ray_cache
from selex.features.ray_cache import photos_in_use, shards_in_use, trim
from selex.features.ray_cluster import RayEngine
from selex.features.ray_embed import Embedded, embed_on_ray, way_name
from selex.features.sources import find_units, key_of
from selex.folders import MARK
from selex.models import load_backbone
from selex.training.ray_train import photos_here
from test_sources import IMAGES, write_tar

WAY, OTHER = "a" * 32, "b" * 32


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SELEX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def limit(monkeypatch, size):
    monkeypatch.setenv("SELEX_CACHE_LIMIT", str(size / 1e9))


def unit(folder):
    """A unit of two photos."""
    folder.mkdir(parents=True)
    for number in range(2):
        Image.fromarray(np.full((8, 8, 3), number, np.uint8)).save(folder / f"{number}.png")
    (found,) = find_units([str(folder)], None)[1]
    return found


def keep_shard(way, of, age):
    """A shard of 1,000 bytes and more that was used so many seconds ago."""
    content = io.BytesIO()
    np.savez(content, features=np.zeros((2, 125), np.float32))
    with shards_in_use(way, [of]) as shards:
        shards.keep(of, 0, True, content.getvalue())
        (path,) = shards.paths(of)
    aged(path, age)
    return path


def keep_photos(name, age):
    """A copy of three photos of 1,000 bytes each, used so many seconds ago."""
    with photos_in_use(name) as place:
        folder = place.folder
        for row in range(3):
            (folder / f"{row:09}").write_bytes(bytes(1000))
            os.utime(folder / f"{row:09}", (0, 0))
    aged(folder / MARK, age)
    return folder


def aged(path, age):
    now = path.stat().st_mtime
    os.utime(path, (now - age, now - age))


def test_what_was_used_longest_ago_goes_first(cache, tmp_path, monkeypatch):
    first, second, third = (
        keep_shard(way, unit(tmp_path / f"u{age}"), age) for way, age in ((WAY, 900), (OTHER, 700), (WAY, 300))
    )
    old, new = keep_photos(OTHER, 800), keep_photos(WAY, 200)
    trim()  # far below what they may take
    assert first.exists()
    assert len(os.listdir(old)) == 4
    size = second.stat().st_size
    limit(monkeypatch, 2 * size + 3000)
    trim()
    assert not first.exists()
    assert second.exists()
    assert third.exists()
    assert os.listdir(old) == [MARK]
    assert len(os.listdir(new)) == 4
    limit(monkeypatch, 3000)
    trim()
    assert not second.exists()
    assert not third.exists()
    assert len(os.listdir(new)) == 4


def test_using_something_makes_it_new(cache, tmp_path, monkeypatch):
    units = [unit(tmp_path / name) for name in "ab"]
    one, other = (keep_shard(WAY, of, age) for of, age in zip(units, (9, 5), strict=True))
    with shards_in_use(WAY, units[:1]) as shards:
        assert shards.complete(units[0])
        assert shards.have(units[1]) == []
    limit(monkeypatch, one.stat().st_size)
    trim()
    assert one.exists()
    assert not other.exists()


def test_what_a_running_job_uses_stays_and_nothing_else(cache, tmp_path, monkeypatch):
    units = [unit(tmp_path / name) for name in "ab"]
    one, other = (keep_shard(WAY, of, age) for of, age in zip(units, (9, 5), strict=True))
    photos = keep_photos(OTHER, 8)
    limit(monkeypatch, 0)
    with shards_in_use(WAY, units[:1]), photos_in_use(OTHER):
        trim()
        assert one.exists()
        assert not other.exists()
        assert len([n for n in os.listdir(photos) if n.isdigit()]) == 3
    trim()
    assert not one.exists()
    assert os.listdir(photos) == [MARK]


def test_another_process_uses_it_until_it_is_killed(cache, tmp_path, monkeypatch):
    photos = keep_photos(WAY, 8)
    program = f"""
        from selex.features.ray_cache import photos_in_use
        with photos_in_use("{WAY}"):
            print("in use", flush=True)
            input()
    """
    other = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout.readline() == "in use\n"
    limit(monkeypatch, 0)
    trim()
    assert (photos / "000000000").exists()
    other.kill()
    other.communicate()
    trim()
    assert os.listdir(photos) == [MARK]


def test_nothing_of_anybody_else_is_removed(cache, tmp_path, monkeypatch):
    keep_photos(WAY, 8)
    mine = tmp_path / "mine"
    mine.mkdir()
    files = [mine / "000000000", cache / "photos" / WAY / "notes.txt", cache / "photos" / "holiday" / "000000001"]
    files += [cache / "weights" / "000000002", cache / "photos" / "000000003", mine / f"{'c' * 32}-000000.npz"]
    for file in files:
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(bytes(1000))
    (mine / MARK).write_text("selex photos\n")
    (cache / "photos" / OTHER).symlink_to(mine)
    (cache / "shards").symlink_to(mine)
    (cache / "photos" / WAY / "000000009").symlink_to(mine / "000000000")
    limit(monkeypatch, 0)
    trim()
    assert all(file.exists() for file in files)
    assert sorted(os.listdir(cache / "photos" / WAY)) == [MARK, "000000009", "notes.txt"]


@pytest.mark.parametrize("given", ["much", "-1", "nan"])
def test_a_limit_that_is_no_number_is_refused_before_any_work(cache, monkeypatch, given):
    monkeypatch.setenv("SELEX_CACHE_LIMIT", given)
    with pytest.raises(InputError, match=f"SELEX_CACHE_LIMIT must be a number of GB, at least 0, not '{given}'"):
        photos_in_use(WAY).__enter__()
    assert not cache.exists()


def test_names_of_shards_are_known(tmp_path):
    """Those that are written are those that are removed."""
    assert ray_cache._SHARD.fullmatch(f"{key_of(unit(tmp_path / 'u'))}-000000-last.npz")


def test_jobs_remove_what_others_left_when_they_are_done(cache, tmp_path, monkeypatch):
    """Without a cluster, since all features are there already."""
    photos, backbone = unit(tmp_path / "u"), load_backbone("pixels")
    names, features = [f"{row}.png" for row in range(2)], np.ones((2, backbone.dim), np.float32)
    content = io.BytesIO()
    np.savez(content, features=features, names=names, labels=["", ""], reasons=["", ""])
    with shards_in_use(way_name(backbone, 16, 1, "cpu"), [photos]) as shards:
        shards.keep(photos, 0, True, content.getvalue())
    other, copies = keep_shard(OTHER, unit(tmp_path / "other"), 9), keep_photos(OTHER, 9)
    limit(monkeypatch, 0)
    how = {"size": 16, "views": 1, "device": "cpu"}
    found = embed_on_ray(RayEngine(), backbone, [str(tmp_path / "u")], None, tmp_path / "f.npy", **how)
    assert (len(found), found.made) == (2, 0)
    assert not other.exists()
    assert os.listdir(copies) == [MARK]
    assert shards.paths(photos)[0].exists()


def test_copies_of_photos_stay_while_they_are_read(cache, tmp_path, monkeypatch):
    write_tar(tmp_path / "a.tar")
    units = find_units([str(tmp_path / "a.tar")])[1]
    table = ImageTable([f"a.tar/{name}" for name in IMAGES], np.full(len(IMAGES), -1), [], str(tmp_path))
    old = keep_photos(OTHER, 9)
    limit(monkeypatch, 0)
    with photos_here(Embedded(table, [], 16, 0, units, WAY)) as here:
        trim()
        assert [Path(here.source(row)).read_bytes() for row in range(len(here))] == list(IMAGES.values())
    assert os.listdir(old) == [MARK]
    trim()
    assert os.listdir(cache / "photos" / WAY) == [MARK]


@pytest.fixture
def read_only(monkeypatch):
    """Makes a cache, in a folder that anybody may look into, one that can only be read, by root too."""
    place = Path(tempfile.mkdtemp())
    place.chmod(0o755)
    monkeypatch.setenv("SELEX_CACHE", str(place / "cache"))
    user = os.geteuid()

    def protect():
        for path in (place / "cache", *(place / "cache").rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        if user == 0:
            os.seteuid(65534)

    yield place, protect
    os.seteuid(user)
    for path in (place / "cache", *(place / "cache").rglob("*")):
        path.chmod(0o755)
    shutil.rmtree(place)


def test_a_cache_that_can_only_be_read_is_read(read_only, monkeypatch):
    place, protect = read_only
    photos, missing, backbone = unit(place / "u"), unit(place / "missing"), load_backbone("pixels")
    names, features = [f"{row}.png" for row in range(2)], np.ones((2, backbone.dim), np.float32)
    content = io.BytesIO()
    np.savez(content, features=features, names=names, labels=["", ""], reasons=["", ""])
    way = way_name(backbone, 16, 1, "cpu")
    with shards_in_use(way, [photos]) as shards:
        shards.keep(photos, 0, True, content.getvalue())
    copies = keep_photos(OTHER, 9)
    (place / "out").mkdir(mode=0o777)
    (place / "out").chmod(0o777)
    protect()
    how = {"size": 16, "views": 1, "device": "cpu"}
    found = embed_on_ray(RayEngine(), backbone, [str(place / "u")], None, place / "out" / "f.npy", **how)
    assert (len(found), found.made) == (2, 0)
    with photos_in_use(OTHER) as used:
        assert used.folder == copies
    with pytest.raises(InputError, match=r"the cache is read-only, .*; set SELEX_CACHE to a folder that can be"):
        embed_on_ray(RayEngine(), backbone, [str(place / "missing")], None, place / "out" / "g.npy", **how)
    assert os.listdir(place / "cache" / "shards") == [way]
    with (
        pytest.raises(InputError, match=r"shards/b+: cannot be created \(Permission denied\)"),
        shards_in_use(OTHER, [missing]),
    ):
        pass


def test_a_shard_is_kept_without_listing_those_that_are_there(cache, tmp_path, monkeypatch):
    photos, listed, listdir = unit(tmp_path / "u"), [], os.listdir
    with shards_in_use(WAY, [photos]) as shards:
        monkeypatch.setattr(os, "listdir", lambda path: listed.append(Path(path)) or listdir(path))
        content = io.BytesIO()
        np.savez(content, features=np.zeros((2, 3), np.float32))
        shards.keep(photos, 0, True, content.getvalue())
        assert shards.folder not in listed
        monkeypatch.undo()
        assert [path.parent for path in shards.paths(photos) if path.exists()] == [shards.folder]


def test_what_a_job_has_used_before_it_makes_more_stays(cache, tmp_path, monkeypatch):
    units = [unit(tmp_path / name) for name in "ab"]
    old = keep_shard(WAY, units[0], 9)
    limit(monkeypatch, 0)
    with shards_in_use(WAY, units) as shards:
        time.sleep(0.05)
        shards.keep(units[1], 0, True, old.read_bytes())
        trim()
        assert old.exists()


def test_the_mark_of_a_killed_job_ends_where_there_are_no_locks(cache, tmp_path, monkeypatch):
    photos = keep_photos(WAY, 40 * 24 * 3600)

    def none(handle, wait):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(selex_io, "_lock", none)
    left = photos / ".selex-0123456789abcdef.tmp"
    left.mkdir()
    aged(left, 41 * 24 * 3600)
    limit(monkeypatch, 0)
    os.utime(photos / MARK, (time.time() - 9, time.time() - 9))  # used since
    trim()
    assert not (photos / "000000000").exists()
    keep_photos(OTHER, 9)
    young = cache / "photos" / OTHER / ".selex-0123456789abcdee.tmp"
    young.mkdir()
    aged(young, 20)
    trim()
    assert (cache / "photos" / OTHER / "000000000").exists()


def test_a_mark_of_another_user_keeps_its_own_folder_alone(cache, tmp_path, monkeypatch):
    theirs, ours = keep_photos(WAY, 8), keep_photos(OTHER, 8)
    mark = theirs / ".selex-0123456789abcdef.tmp"
    mark.mkdir()
    aged(mark, 9)
    locked = ray_cache.locked

    def closed(folder, *rest):
        if folder == mark:
            raise PermissionError(errno.EACCES, "Permission denied", str(folder))
        return locked(folder, *rest)

    monkeypatch.setattr(ray_cache, "locked", closed)
    monkeypatch.setattr(ray_cache, "remove_leftovers", lambda folder: None)
    limit(monkeypatch, 0)
    trim()
    assert (theirs / "000000000").exists()
    assert os.listdir(ours) == [MARK]
    aged(mark, ray_cache.LONGEST + 9)
    trim()
    assert not (theirs / "000000000").exists()
