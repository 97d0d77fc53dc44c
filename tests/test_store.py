"""The store on real small image trees: digits, photos, and everything that can go wrong on the way to disk."""

import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import skimage.data
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torchvision.transforms.functional import center_crop

import selex.data.store_files
from selex.data.decode import decode
from selex.data.store import ImageStore
from selex.data.store_files import DATA, INDEX, find_keys, load_index
from selex.data.table import read_table
from selex.errors import InputError, Note
from selex.folders import MARK


@pytest.fixture
def digits(tmp_path):
    """A folder with 40 digits of 8 x 8 pixels in sub-folders by digit."""
    images, labels = load_digits(return_X_y=True)
    for row, (image, label) in enumerate(zip(images[:40], labels[:40], strict=True)):
        folder = tmp_path / "digits" / str(label)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray((image.reshape(8, 8) * 15.9).astype(np.uint8)).save(folder / f"{row:03d}.png")
    return tmp_path / "digits"


@pytest.fixture
def photos(tmp_path):
    """Four photos in four formats."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for name in ("astronaut.jpg", "chelsea.png", "coffee.webp", "rocket.tiff"):
        Image.fromarray(getattr(skimage.data, name.split(".")[0])()).save(folder / name)
    return folder


def build(source, folder, **options) -> ImageStore:
    return ImageStore.build(read_table(source), folder, **{"size": 32} | options)


def same(store: ImageStore) -> bool:
    """Every image of a store is what decoding it now gives."""
    return all(np.array_equal(store[i], decode(store.table.source(i), store.size)) for i in range(len(store)))


@pytest.fixture
def decoded(monkeypatch):
    """The sources decoded so far."""
    seen = []

    def watched(source, size, box):
        seen.append(source)
        return decode(source, size, box)

    monkeypatch.setattr(selex.data.store_files, "decode", watched)
    return seen


def test_photos_at_the_usual_size(photos, tmp_path):
    store = build(photos, tmp_path / "store", size=256)
    assert store.table.files == ["astronaut.jpg", "chelsea.png", "coffee.webp", "rocket.tiff"]
    assert store.shapes.tolist() == [[256, 256], [256, 384], [256, 384], [256, 383]]
    assert store.rows.tolist() == [0, 1, 2, 3]
    assert store.skipped == []
    assert len(store) == 4
    assert same(store)
    assert not store[0].flags.writeable
    assert sorted(os.listdir(tmp_path / "store")) == [MARK, DATA, INDEX]
    assert os.path.getsize(tmp_path / "store" / DATA) == 3 * store.shapes.prod(axis=1).sum()


def test_second_time_nothing_is_decoded(digits, tmp_path, decoded):
    first = build(digits, tmp_path / "store")
    assert len(decoded) == len(set(decoded)) == 40
    second = build(digits, tmp_path / "store", workers=1)
    assert len(decoded) == 40
    assert same(second)
    assert first.table.label_names == second.table.label_names


def test_changed_and_new_images_are_redone(digits, tmp_path, decoded):
    build(digits, tmp_path / "store")
    changed, touched = digits / "0" / "000.png", digits / "1" / "001.png"
    Image.new("L", (9, 9), 77).save(changed)
    os.utime(touched, ns=(1, 1))
    Image.new("L", (8, 8), 3).save(digits / "new.png")
    (digits / "2" / "002.png").unlink()
    decoded.clear()
    store = build(digits, tmp_path / "store")
    assert sorted(decoded) == sorted(map(str, [changed, digits / "new.png"]))  # the other is what it was
    assert len(store) == 40
    assert same(store)


def test_renamed_moved_and_copied_images_are_not_decoded_again(digits, tmp_path, decoded):
    build(digits, tmp_path / "store")
    size = os.path.getsize(tmp_path / "store" / DATA)
    (digits / "0" / "000.png").rename(digits / "0" / "zzz.png")
    (digits / "1").rename(digits / "one")
    shutil.copytree(digits / "2", digits / "copies")
    shutil.copytree(digits, tmp_path / "elsewhere")
    decoded.clear()
    for folder in (digits, tmp_path / "elsewhere"):
        assert same(build(folder, tmp_path / "store"))
    assert decoded == []
    assert os.path.getsize(tmp_path / "store" / DATA) == size  # nor stored again
    other = build(digits, tmp_path / "store", size=9, workers=1)  # one of each content
    assert len(set(map(str, decoded))) == len(decoded) < len(other)
    assert same(other)


def test_a_renamed_image_that_is_damaged_in_the_store_is_decoded_again(digits, tmp_path, decoded):
    build(digits, tmp_path / "store")
    with (tmp_path / "store" / DATA).open("r+b") as data:
        data.write(b"\xff\x00\xff")
    (digits / "0").rename(digits / "nought")
    store = build(digits, tmp_path / "store")
    with pytest.warns(Note, match="is damaged"):
        assert same(store)


def test_sizes_and_folders_share_a_store(digits, photos, tmp_path, decoded):
    stores = [build(source, tmp_path / "store", size=size) for source in (digits, photos) for size in (8, 16)]
    assert len(decoded) == 88
    stores += [build(source, tmp_path / "store", size=size) for source in (digits, photos) for size in (8, 16)]
    assert len(decoded) == 88
    assert all(same(store) for store in stores)
    assert [store.shapes.min() for store in stores] == [8, 16] * 4


def parts(n):
    """Some box for each image, all different."""
    corner = np.linspace(0, 0.4, n)
    return np.stack([corner, 0.4 - corner, corner + 0.5, np.linspace(0.8, 1, n)], axis=1)


def test_parts_of_images_share_the_store_of_the_whole(photos, tmp_path, decoded):
    table, folder, boxes = read_table(photos), tmp_path / "store", parts(4)
    whole = ImageStore.build(table, folder, size=32)
    close = ImageStore.build(table, folder, size=32, boxes=boxes)
    assert len(decoded) == 8
    assert same(whole)
    assert whole.boxes is None
    assert whole.key != close.key
    for again in (close, ImageStore.build(table, folder, size=32, boxes=boxes)):
        assert again.table.files == table.files
        assert np.array_equal(again.boxes, boxes)
        for row, box in enumerate(boxes.tolist()):
            assert np.array_equal(again[row], decode(table.source(row), 32, tuple(box)))
    assert again.key == close.key
    assert len(decoded) == 8  # nothing a second time
    other = boxes.copy()
    other[2, 0] += 0.01
    assert ImageStore.build(table, folder, size=32, boxes=other).key != close.key
    assert decoded[8:] == [table.source(2)]
    assert same(ImageStore.build(table, folder, size=32))


def test_parts_stay_with_their_images_where_one_is_skipped(photos, tmp_path):
    (photos / "broken.jpg").write_text("no image")  # the second by name
    boxes = parts(5)
    close = build(photos, tmp_path / "store", boxes=boxes)
    assert [name for name, _ in close.skipped] == ["broken.jpg"]
    assert np.array_equal(close.boxes, boxes[[0, 2, 3, 4]])
    expected = decode(close.table.source(1), 32, tuple(boxes[2].tolist()))
    assert np.array_equal(close[1], expected)


def test_images_in_memory(tmp_path, decoded):
    image = Image.fromarray(skimage.data.coffee())
    other = image.copy()
    other.putpixel((0, 0), (1, 2, 3))
    table = read_table([image, other, image.convert("L"), image])
    for _ in range(2):
        store = ImageStore.build(table, tmp_path / "store", size=32)
        assert len(store) == 4
        assert len(decoded) == 3
        assert same(store)


def test_centre_crops(photos, tmp_path):
    store = build(photos, tmp_path / "store", size=64)
    crops = store.centre_crops([3, 0, 1, 2], crop=57)
    assert (crops.shape, crops.dtype) == ((4, 3, 57, 57), torch.uint8)
    for crop, i in zip(crops, [3, 0, 1, 2], strict=True):
        assert np.array_equal(crop.permute(1, 2, 0), center_crop(Image.fromarray(store[i]), [57, 57]))
    assert store.centre_crops(np.zeros(0, int), crop=64).shape == (0, 3, 64, 64)
    with pytest.raises(ValueError, match="a crop of 65 does not fit"):
        store.centre_crops([0], crop=65)


def bad_files(folder):
    """One file for each way of being unreadable, and the reason that is given."""
    jpeg = (folder / "astronaut.jpg").read_bytes()
    (folder / "half.jpg").write_bytes(jpeg[: len(jpeg) // 2])
    (folder / "text.jpg").write_text("not a photo")
    (folder / "drawing.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    (folder / "zero.png").touch()
    (folder / "gone.png").symlink_to(folder / "nowhere.png")
    (folder / "folder.png").symlink_to("/dev/null")
    Image.new("1", (20_000, 10_000)).save(folder / "bomb.png")
    Image.new("1", (100_000, 10)).save(folder / "wide.png")
    return {
        "bomb.png": "too large: Image size (200000000 pixels)",
        "drawing.svg": "not a JPEG, PNG, WebP, GIF, TIFF or BMP image",
        "folder.png": "not a file",
        "gone.png": "No such file or directory",
        "half.jpg": "truncated or damaged: image file is truncated",
        "text.jpg": "not a JPEG, PNG, WebP, GIF, TIFF or BMP image",
        "wide.png": "too large: 100000 x 10 pixels",
        "zero.png": "empty file",
    }


def test_unreadable_images_are_skipped_with_a_reason(photos, tmp_path, decoded):
    reasons = bad_files(photos)
    for _ in range(2):
        store = build(photos, tmp_path / "store")
        assert [file for file, _ in store.skipped] == list(reasons)
        assert all(reason.startswith(reasons[file]) for file, reason in store.skipped)
        assert store.table.files == ["astronaut.jpg", "chelsea.png", "coffee.webp", "rocket.tiff"]
        assert [read_table(photos).files[row] for row in store.rows] == store.table.files
        assert same(store)
    assert len(decoded) == 9  # The second time, nobody tries again what cannot be read.


def test_strict_stops_at_an_unreadable_image(photos, tmp_path):
    (photos / "text.jpg").write_text("not a photo")
    for _ in range(2):
        with pytest.raises(InputError, match=r"^text\.jpg: not a JPEG"):
            build(photos, tmp_path / "store", strict=True)
    build(photos, tmp_path / "store")
    with pytest.raises(InputError, match=r"^text\.jpg: not a JPEG"):
        build(photos, tmp_path / "store", strict=True)
    (photos / "text.jpg").write_text("")
    with pytest.raises(InputError, match=r"^text\.jpg: empty file"):
        build(photos, tmp_path / "store", strict=True)


def test_nothing_readable_at_all(tmp_path):
    (tmp_path / "photos").mkdir()
    for name in ("a.jpg", "b.jpg", "c.png"):
        (tmp_path / "photos" / name).write_text("hello" if name != "c.png" else "")
    for _ in range(2):
        with pytest.raises(InputError, match=r"none of the 3 images can be read; the first is a\.jpg: not a JPEG"):
            build(tmp_path / "photos", tmp_path / "store")


def test_an_image_that_could_not_be_opened_is_tried_again(photos, tmp_path, monkeypatch):
    def refused(source, size, box):
        if "coffee" in source:
            raise selex.data.store_files.Unreadable("Permission denied", passing=True)
        return decode(source, size, box)

    monkeypatch.setattr(selex.data.store_files, "decode", refused)
    assert build(photos, tmp_path / "store").skipped == [("coffee.webp", "Permission denied")]
    monkeypatch.undo()
    assert build(photos, tmp_path / "store").skipped == []


def test_mistakes(digits, tmp_path):
    with pytest.raises(InputError, match="at least 1, not 0"):
        build(digits, tmp_path / "store", size=0)
    with pytest.raises(InputError, match="no images to store"):
        ImageStore.build(read_table(digits).take([]), tmp_path / "store")
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="file: is a file; give a folder"):
        build(digits, tmp_path / "file")
    with pytest.raises(InputError, match="/proc/selex: cannot be created"):
        build(digits, "/proc/selex")


def test_full_disk_keeps_the_last_good_state(digits, photos, tmp_path):
    store = build(digits, tmp_path / "store")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, limit[1]))  # The digits take 123 kB, a photo 200 kB.
    try:
        with pytest.raises(InputError, match=r"^cannot use the image store .* \(File too large\)$"):
            build(photos, tmp_path / "store", size=256)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, ignored)
    assert len(load_index(tmp_path / "store").stored) >= 40
    assert same(store)
    assert same(build(photos, tmp_path / "store", size=256))


def test_index_that_cannot_be_written_keeps_the_old_one(digits, photos, tmp_path, monkeypatch):
    build(digits, tmp_path / "store")
    before = (tmp_path / "store" / INDEX).read_bytes()

    def full(handle, **arrays):
        handle.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(InputError, match="No space left on device"):
        build(photos, tmp_path / "store")
    assert (tmp_path / "store" / INDEX).read_bytes() == before
    assert not (tmp_path / "store" / f"{INDEX}.new").exists()
    monkeypatch.undo()
    assert same(build(photos, tmp_path / "store"))


@pytest.mark.parametrize("damage", ["cut index", "no data", "cut data", "other version", "text"])
def test_a_damaged_store_is_built_anew(digits, tmp_path, damage, decoded):
    held = build(digits, tmp_path / "store")
    index, data = tmp_path / "store" / INDEX, tmp_path / "store" / DATA
    if damage == "cut index":
        index.write_bytes(index.read_bytes()[:-100])
    elif damage == "no data":
        data.unlink()
    elif damage == "cut data":
        os.truncate(data, data.stat().st_size - 1)
    elif damage == "other version":
        with open(index, "wb") as handle:
            np.savez(handle, version=np.array(99))
    else:
        index.write_text("hello")
    decoded.clear()
    with pytest.warns(Note, match="is damaged, or of another version; images are decoded again"):
        assert same(build(digits, tmp_path / "store"))
    assert len(decoded) == 40
    if damage != "cut data":
        assert same(held)


def test_two_writers(digits, photos, tmp_path, monkeypatch):
    hold, held = threading.Event(), threading.Event()

    def slow(source, size, box):
        held.set()
        hold.wait(60)
        return decode(source, size, box)

    build(photos, tmp_path / "store")
    monkeypatch.setattr(selex.data.store_files, "decode", slow)
    writer = threading.Thread(target=build, args=(digits, tmp_path / "store"))
    writer.start()
    held.wait(60)
    assert same(build(photos, tmp_path / "store"))  # Reading what is there needs no lock.
    threading.Timer(0.5, hold.set).start()
    with pytest.warns(Note, match="waiting for another selex command"):
        assert same(build(digits, tmp_path / "store"))
    writer.join(60)


def test_what_another_writer_added_meanwhile_is_used(digits, tmp_path, decoded, monkeypatch):
    lock = selex.data.store.lock_store

    def late(folder):
        monkeypatch.setattr(selex.data.store, "lock_store", lock)
        build(digits, tmp_path / "store")
        return lock(folder)

    monkeypatch.setattr(selex.data.store, "lock_store", late)
    assert same(build(digits, tmp_path / "store"))
    assert len(decoded) == 40


SLOW_BUILD = """
import itertools, signal, sys, threading, time
import selex.data.store_files as store_files
import selex.progress
from selex.data.store import ImageStore
from selex.data.table import read_table

store_files.SAVE_EVERY = 0.3
selex.progress.SECONDS_A_LINE = 0
decode = store_files.decode
begun, asked = itertools.count(), threading.Event()

def slow(source, size, box):
    if next(begun) >= 13:
        asked.wait(60)  # however late the signal comes, it finds the build at work
    time.sleep(0.1)
    return decode(source, size, box)

def on_signal(*arguments):
    asked.set()
    signal.default_int_handler(*arguments)

signal.signal(signal.SIGINT, on_signal)

store_files.decode = slow
try:
    ImageStore.build(read_table(sys.argv[1]), sys.argv[2], size=32, workers=2, progress=True)
except KeyboardInterrupt:
    sys.exit(130)
"""


def interrupted(digits, folder, how: signal.Signals, until) -> tuple[int, str]:
    """Start a build in a process of its own and send it a signal once `until()` holds."""
    process = subprocess.Popen([sys.executable, "-c", SLOW_BUILD, digits, folder], stderr=subprocess.PIPE, text=True)
    give_up = time.monotonic() + 60
    while not until() and time.monotonic() < give_up:
        time.sleep(0.01)
    process.send_signal(how)
    _, errors = process.communicate(timeout=60)
    return process.returncode, errors


def test_kill_leaves_a_good_store(digits, tmp_path, decoded):
    folder = tmp_path / "store"
    for until in (
        lambda: (folder / DATA).exists() and os.path.getsize(folder / DATA) > 0,
        lambda: len(load_index(folder).stored) >= 4,
        lambda: len(load_index(folder).stored) >= 12,
    ):
        code, _ = interrupted(digits, folder, signal.SIGKILL, until)
        assert code == -signal.SIGKILL
    done = len(load_index(folder).stored)
    assert 12 <= done < 40
    assert same(build(digits, folder))
    assert len(decoded) == 40 - done


def test_ctrl_c_keeps_what_is_done(digits, tmp_path, decoded):
    folder = tmp_path / "store"
    code, errors = interrupted(
        digits,
        folder,
        signal.SIGINT,
        lambda: (folder / DATA).exists() and os.path.getsize(folder / DATA) > 3 * 32**2 * 6,
    )
    assert code == 130
    assert "decoding, image" in errors
    assert "Traceback" not in errors
    done = len(load_index(folder).stored)
    assert 6 <= done < 40
    assert os.path.getsize(folder / DATA) == done * 3 * 32**2
    assert same(build(digits, folder))
    assert len(decoded) == 40 - done


def test_progress_only_when_asked(digits, tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    build(digits, tmp_path / "store")
    assert capfd.readouterr() == ("", "")
    build(digits, tmp_path / "other", progress=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert "40/40" in err
    assert "images/s" in err


def test_result_does_not_depend_on_the_number_of_threads(digits, tmp_path):
    one, many = (build(digits, tmp_path / str(workers), workers=workers) for workers in (1, 7))
    assert all(np.array_equal(one[i], many[i]) for i in range(40))


def test_find_against_a_plain_search():
    rng = np.random.default_rng(0)
    keys = np.array([rng.bytes(2) for _ in range(50)], dtype="S16")
    keys = rng.permutation(np.unique(keys))
    wanted = np.concatenate([rng.permutation(keys)[:20], np.array([b"", b"\xff\xff\xff", b"a"], dtype="S16")])
    assert find_keys(keys, wanted).tolist() == [
        [*keys.tolist(), key].index(key) if key in keys else -1 for key in wanted
    ]
    assert find_keys(keys[:0], wanted).tolist() == [-1] * 23
