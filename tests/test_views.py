import numpy as np
import pytest
import torch
from PIL import Image

from selex.data import views
from selex.data.store import ImageStore
from selex.data.table import from_list


@pytest.fixture
def store(tmp_path):
    rng = np.random.default_rng(0)
    shapes = [(40, 40), (40, 61), (77, 40), (53, 44), (40, 90)]
    images = [Image.fromarray(rng.integers(0, 256, (*shape, 3), dtype=np.uint8)) for shape in shapes]
    return ImageStore.build(from_list(images), tmp_path / "store", size=32)


@pytest.mark.parametrize("block", [1 << 30, 4000])
def test_crops_on_a_device_are_the_stores_crops(store, block, monkeypatch):
    monkeypatch.setattr(views, "_BLOCK", block)
    images = views.DeviceImages(store, "cpu")
    assert len(images) == len(store)
    for rows in (np.arange(5), [3, 0, 3], [4]):
        assert torch.equal(images.centre_crops(rows, 24), store.centre_crops(rows, 24))


def test_cut_from_any_corner(store):
    images = views.DeviceImages(store, "cpu")
    top, left = torch.tensor([0, 3]), torch.tensor([5, 1])
    crops = views.cut(images.pixels, images.offsets[[1, 2]], images.shapes[[1, 2], 1], top, left, 16)
    assert crops[0].permute(1, 2, 0).numpy().tolist() == store[1][0:16, 5:21].tolist()
    assert crops[1].permute(1, 2, 0).numpy().tolist() == store[2][3:19, 1:17].tolist()


def test_a_cpu_needs_no_copy(store):
    assert not views.DeviceImages.fit(store, torch.device("cpu"))
