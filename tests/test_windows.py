"""Stores larger than memory: the order of an epoch, window by window, and what of a store is in memory meanwhile."""

from pathlib import Path

import numpy as np
import pytest

from selex.config import TrainConfig
from selex.data.crops import HostImages
from selex.data.store import ImageStore
from selex.data.table import read_table
from selex.errors import InputError
from selex.training.batches import sample_epoch
from selex.training.windows import PIECE, Windows
from training_for_tests import digit_data, loop, small


class Many:
    """Images that are only counted."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n


def epoch(seed, window, n=5000):
    rng, windows = np.random.default_rng(seed), Windows(Many(n), window)
    drawn = sample_epoch(np.full(n, -1), rng)
    return drawn, windows.ordered(drawn, rng), windows


def test_an_epoch_sees_what_was_drawn_once_and_in_the_same_order_for_the_same_seed():
    drawn, order, windows = epoch(0, 1024)
    assert np.array_equal(np.sort(order), np.sort(drawn))
    assert np.array_equal(order, epoch(0, 1024)[1])
    assert not np.array_equal(order, epoch(1, 1024)[1])
    assert np.array_equal(*epoch(0, None)[:2])  # without windows nothing moves
    for window in range(5):  # in each window the order of drawing
        assert np.array_equal(order[windows.of[order] == window], drawn[windows.of[drawn] == window])


def test_windows_follow_each_other_and_hold_pieces_from_anywhere():
    _, order, windows = epoch(0, 1024)
    assert (np.diff(windows.of[order]) >= 0).all()
    assert np.bincount(windows.of).max() <= 1024
    assert all(len(np.unique(windows.of[start : start + PIECE])) == 1 for start in range(0, 5000, PIECE))
    first = np.unique(np.flatnonzero(windows.of == 0) // PIECE)
    assert not np.array_equal(first, np.arange(4))
    assert not np.array_equal(windows.of, epoch(1, 1024)[2].of)  # other pieces come together in another epoch


class Asked:
    def __init__(self):
        self.resident = set()

    def advise(self, rows, needed):
        self.resident = self.resident | set(rows.tolist()) if needed else self.resident - set(rows.tolist())


@pytest.mark.parametrize(("window", "batch"), [(256, 100), (512, 128), (1024, 1500)])
def test_what_a_batch_needs_was_asked_for_and_what_is_past_is_let_go(window, batch):
    _, order, windows = epoch(3, window)
    store = Asked()
    windows.stores = [store]
    for start in range(0, len(order), batch):
        rows = order[start : start + batch]
        windows.read_ahead(rows)
        assert set(rows.tolist()) <= store.resident
        assert len(store.resident) <= batch + 3 * window


def mapped(path):
    """Bytes of a mapped file that this process holds."""
    held, counting = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            counting = line.endswith(str(path))
        elif counting and line.startswith("Rss:"):
            held += 1024 * int(line.split()[1])
    return held


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="what is mapped is counted as Linux does")
def test_memory_is_bounded_by_windows(tmp_path):
    from PIL import Image

    (tmp_path / "photos").mkdir()
    for row in range(1024):
        Image.new("RGB", (64, 64), (row % 256, row // 256, 0)).save(tmp_path / "photos" / f"{row:04}.png")
    store = ImageStore.build(read_table(tmp_path / "photos"), tmp_path / "store", size=64)
    data, images = next((tmp_path / "store").glob("images.u8")), HostImages(store)
    every, held = np.arange(len(store)), []
    images.centre_crops(every, 64)
    size = 3 * 64 * 64 * len(store)
    assert mapped(data) >= size  # all of it has been read
    windows = Windows(images, 256)
    order = windows.ordered(every, np.random.default_rng(0))
    assert mapped(data) < size / 4
    for start in range(0, 1024, 64):
        windows.read_ahead(order[start : start + 64])
        crops = images.centre_crops(order[start : start + 64], 64)
        assert crops[:, 0, 0, 0].tolist() == (order[start : start + 64] % 256).tolist()
        held.append(mapped(data))
    assert max(held) <= 0.6 * size  # two windows of four, and what the system reads around


def test_training_takes_its_batches_window_by_window(tmp_path, monkeypatch):
    monkeypatch.setattr("selex.training.windows.PIECE", 8)
    data = digit_data(tmp_path)
    batches = loop(small("gcd", shuffle_window=256), data).batches
    batches.windows.size = 16  # of 60 images
    rows = [batch.rows for batch in batches.epoch(1)]
    seen = batches.windows.of[np.concatenate(rows)]
    assert (np.diff(seen) >= 0).all()
    assert len(np.unique(seen)) >= 3
    assert all(np.array_equal(one, batch.rows) for one, batch in zip(rows, batches.epoch(1), strict=True))


def test_a_window_smaller_than_a_piece_is_refused():
    with pytest.raises(InputError, match=r"train.shuffle_window must be at least 256"):
        TrainConfig(shuffle_window=100)
