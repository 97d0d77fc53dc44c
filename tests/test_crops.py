from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from selex.data import crops
from selex.data.store import ImageStore
from selex.data.table import from_list


@pytest.fixture
def store(tmp_path):
    rng = np.random.default_rng(0)
    shapes = [(40, 40), (40, 61), (77, 40), (53, 44), (40, 90)]
    images = [Image.fromarray(rng.integers(0, 256, (*shape, 3), dtype=np.uint8)) for shape in shapes]
    return ImageStore.build(from_list(images), tmp_path / "store", size=32)


@pytest.fixture
def other(tmp_path):
    """As many images, all different."""
    rng = np.random.default_rng(1)
    images = [Image.fromarray(rng.integers(0, 256, (40, 40 + i, 3), dtype=np.uint8)) for i in range(5)]
    return ImageStore.build(from_list(images), tmp_path / "store", size=32)


@pytest.mark.parametrize("block", [1 << 30, 4000])
def test_crops_on_a_device_are_the_stores_crops(store, block, monkeypatch):
    monkeypatch.setattr(crops, "_BLOCK", block)
    images = crops.DeviceImages(store, "cpu")
    assert len(images) == len(store)
    for rows in (np.arange(5), [3, 0, 3], [4]):
        assert torch.equal(images.centre_crops(rows, 24), store.centre_crops(rows, 24))


def test_cut_from_any_corner(store):
    images = crops.DeviceImages(store, "cpu")
    top, left = torch.tensor([0, 3]), torch.tensor([5, 1])
    found = crops.crop_pixels(images.pixels, images.offsets[[1, 2]], images.shapes[[1, 2], 1], top, left, 16)
    assert found[0].permute(1, 2, 0).numpy().tolist() == store[1][0:16, 5:21].tolist()
    assert found[1].permute(1, 2, 0).numpy().tolist() == store[2][3:19, 1:17].tolist()


def test_a_cpu_needs_no_copy(store):
    assert not crops.DeviceImages.fit([store], torch.device("cpu"))


def drawn(n, flip=True, seed=0):
    return crops.CropParams.draw(n, crops.AugmentConfig(flip), torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("crop", [32, 24, 1])
def test_random_crops_are_the_same_on_host_and_device(store, crop):
    rows = torch.tensor([0, 1, 2, 3, 4, 4, 1, 2])
    place = drawn(len(rows))
    assert 0 < place.mirrored.sum() < len(rows)
    on_host = crops.HostImages(store).crops(rows, place, crop)
    on_device = crops.DeviceImages(store, "cpu").crops(rows, place, crop)
    assert on_host.shape == (8, 3, crop, crop)
    assert torch.equal(on_host, on_device)


def test_a_view_is_what_its_place_says(store):
    place = crops.CropParams(
        torch.tensor([[0.0, 0.0], [0.5, 0.25], [0.9999, 0.9999]]), torch.tensor([False, True, False])
    )
    rows = torch.tensor([4, 1, 2])
    found = crops.HostImages(store).crops(rows, place, 20).permute(0, 2, 3, 1).numpy()
    for number, (row, (top, left)) in enumerate(zip(rows.tolist(), place.corners.tolist(), strict=True)):
        image = store[row]
        top, left = int(top * (image.shape[0] - 19)), int(left * (image.shape[1] - 19))
        expected = image[top : top + 20, left : left + 20]
        if place.mirrored[number]:
            expected = np.fliplr(expected)
        assert found[number].tolist() == expected.tolist()


def test_corners_are_always_inside(store):
    """The largest number below 1, and images that leave no room at all."""
    shapes = torch.tensor([[32, 32], [32, 4000], [1_000_003, 33]])
    largest = torch.full((3, 2), 1 - 2**-24)
    for corners in (torch.zeros(3, 2), largest, torch.rand(3, 2, generator=torch.Generator().manual_seed(0))):
        corner = crops.CropParams(corners, torch.zeros(3, dtype=torch.bool)).corner(shapes, 32)
        assert (corner >= 0).all()
        assert (corner + 32 <= shapes).all()


def test_every_corner_is_as_likely_as_any(store):
    corner = drawn(20_000).corner(torch.tensor([[36, 40]]).expand(20_000, 2), 32)
    for axis, count in ((0, 5), (1, 9)):
        seen = torch.bincount(corner[:, axis], minlength=count)
        assert len(seen) == count
        assert (seen / 20_000 - 1 / count).abs().max() < 0.01


def test_half_the_views_are_mirrored_or_none():
    assert drawn(10_000).mirrored.float().mean().item() == pytest.approx(0.5, abs=0.02)
    assert not drawn(10_000, flip=False).mirrored.any()
    assert torch.equal(drawn(50).corners, drawn(50, flip=False).corners)


def test_a_part_of_the_places():
    place = drawn(10)
    assert torch.equal(place[2:5].corners, place.corners[2:5])
    assert torch.equal(place[2:5].mirrored, place.mirrored[2:5])


def test_a_mirrored_view_mirrored_is_the_view(store):
    rows, corners = torch.arange(5), drawn(5).corners
    images = crops.DeviceImages(store, "cpu")
    plain, mirrored = (
        images.crops(rows, crops.CropParams(corners, torch.full((5,), is_so)), 24) for is_so in (False, True)
    )
    assert torch.equal(mirrored.flip(3), plain)
    assert not torch.equal(mirrored, plain)


def test_warped_views_turn_and_stretch_about_the_middle():
    images = torch.zeros(3, 3, 9, 9)
    images[:, :, 2, 4] = 1.0  # a dot above the middle
    maps = torch.stack([torch.eye(2, 3), torch.tensor([[0.0, 1.0, 0.0], [-1.0, 0.0, 0.0]]), 2 * torch.eye(2, 3)])
    same, turned, shrunk = crops.affine(images, maps)
    assert torch.allclose(same, images[0], atol=1e-5)
    assert turned[0].argmax() in (4 * 9 + 2, 4 * 9 + 6)  # a quarter turn: beside the middle
    assert shrunk[0].argmax() == 3 * 9 + 4  # half as far from it


def test_tones_by_hand():
    image = torch.tensor([[[40.0, 80.0]], [[100.0, 20.0]], [[10.0, 110.0]]])  # three colours of 1 × 2 pixels
    color = torch.tensor([[1.0, 1.0, 1.0], [2.0, 1.0, 1.0], [1.0, 0.5, 1.0], [1.0, 1.0, 0.0], [9.0, 1.0, 1.0]])
    same, bright, dull, grey, white = crops.color_jitter(image.expand(5, 3, 1, 2), color)
    assert torch.allclose(same, image)
    assert torch.allclose(bright, 2 * image)
    assert torch.allclose(dull, (image + image.mean()) / 2)
    assert torch.allclose(grey, image.mean(0).expand(3, 1, 2))
    assert white.max() == 255


def test_zoomed_views_show_a_part_of_the_view_and_nothing_else():
    ramp = torch.arange(32.0).expand(200, 3, 32, 32)  # a pixel says where it is
    augment = crops.AugmentConfig(random_crop=0.5)
    place = crops.CropParams.draw(200, augment, torch.Generator().manual_seed(0))
    shown = place.alter(ramp)
    width = shown[..., -1] - shown[..., 0]
    assert shown.min() >= 0
    assert shown.max() <= 31
    assert 0.5 * 31 - 1 < width.min() < 0.55 * 31
    assert 0.95 * 31 < width.max() <= 31
    assert (shown.mean((1, 2, 3)) - 15.5).std() > 1  # from anywhere, not from the middle alone


def test_how_much_looks_change():
    augment = crops.AugmentConfig(color_jitter=0.3)
    place = crops.CropParams.draw(400, augment, torch.Generator().manual_seed(0))
    assert place.color.shape == (400, 3)
    assert 0.7 <= place.color.min() < 0.71
    assert 1.29 < place.color.max() <= 1.3
    image = torch.full((400, 3, 12, 12), 100, dtype=torch.uint8)
    assert place.alter(image).shape == image.shape
    assert not torch.equal(place.alter(image), image)
    plain = crops.CropParams.draw(400, crops.AugmentConfig(), torch.Generator().manual_seed(0))
    assert plain.alter(image) is image


def test_places_with_maps_are_cut_and_joined_in_order():
    place = crops.CropParams.draw(
        6, crops.AugmentConfig(affine=0.2, color_jitter=0.3), torch.Generator().manual_seed(0)
    )
    assert place.maps.shape == (6, 2, 3)
    assert (place.maps - torch.eye(2, 3)).abs().max() <= 0.2
    again = crops.CropParams.join(place[:2], place[2:])
    for part in ("corners", "mirrored", "maps", "color"):
        assert torch.equal(getattr(again, part), getattr(place, part))
    plain = crops.CropParams.draw(6, crops.AugmentConfig(), torch.Generator().manual_seed(0))
    assert plain.maps is None
    assert torch.equal(plain.corners, place.corners)  # the rest is the same with and without


KINDS = {"host": crops.HostImages, "device": lambda store: crops.DeviceImages(store, "cpu")}


def closely(n, seed=0):
    return crops.CropParams.draw(n, crops.AugmentConfig(attention=True), torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("close", [None, False, True], ids=["some close", "none", "all"])
def test_each_view_is_of_the_framing_that_its_place_says(store, other, kind, close):
    both = crops.TwoScaleImages(KINDS[kind](store), KINDS[kind](other))
    rows = torch.tensor([0, 1, 2, 3, 4, 4, 1, 2])
    place = closely(len(rows))
    assert 0 < place.close.sum() < len(rows)
    if close is not None:
        place = replace(place, close=torch.full((8,), close))
    for given in (rows, rows.numpy()):
        made = both.crops(given, place, 24)
        assert made.shape == (8, 3, 24, 24)
        for i, is_close in enumerate(place.close.tolist()):
            one = slice(i, i + 1)
            assert torch.equal(made[one], both.scales[is_close].crops(rows[one], place[one], 24))


def test_twice_is_the_same_on_host_and_device(store, other):
    host, device = (crops.TwoScaleImages(kind(store), kind(other)) for kind in KINDS.values())
    rows = torch.tensor([4, 4, 0, 3, 1, 2])
    assert torch.equal(host.crops(rows, closely(6), 20), device.crops(rows, closely(6), 20))
    assert host.key == device.key
    assert host.key not in (store.key, other.key, crops.TwoScaleImages(*reversed(host.scales)).key)


def test_images_are_whole_where_no_place_says_otherwise(store, other):
    whole, close = (crops.HostImages(each) for each in (store, other))
    both, rows = crops.TwoScaleImages(whole, close), torch.arange(5)
    assert len(both) == 5
    assert torch.equal(both.crops(rows, drawn(5), 24), whole.crops(rows, drawn(5), 24))
    assert torch.equal(both.centre_crops(rows, 24), whole.centre_crops(rows, 24))
    assert crops.scales(both) == (whole, close)
    assert crops.scales(whole) == (whole,)


def test_half_the_places_are_close_and_else_as_they_were():
    augment = crops.AugmentConfig(affine=0.2, color_jitter=0.3)
    plain, place = (
        crops.CropParams.draw(10_000, each, torch.Generator().manual_seed(0))
        for each in (augment, replace(augment, attention=True))
    )
    assert plain.close is None
    assert place.close.float().mean().item() == pytest.approx(0.5, abs=0.02)
    assert (place.close == place.mirrored).float().mean().item() == pytest.approx(0.5, abs=0.02)  # for itself
    for part in ("corners", "mirrored", "maps", "color"):
        assert torch.equal(getattr(place, part), getattr(plain, part))


def test_close_places_are_cut_and_joined_in_order():
    place = closely(9)
    assert torch.equal(crops.CropParams.join(place[:4], place[4:]).close, place.close)
    order = torch.tensor([8, 0, 3])
    assert torch.equal(place[order].close, place.close[order])
    assert torch.equal(place[order].corners, place.corners[order])


def test_both_framings_are_in_one_memory(store, other, monkeypatch):
    """A GPU with room for one of them alone."""
    size = {each: 3 * int(each.shapes.prod(1).sum()) for each in (store, other)}
    gpu, free = torch.device("cuda"), 2 * max(size.values()) + 2
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, free))
    assert crops.DeviceImages.fit([store], gpu)
    assert crops.DeviceImages.fit([other], gpu)
    both = crops.to_device(store, gpu, other)
    assert [type(images) for images in both.scales] == [crops.HostImages] * 2
    assert [images.key for images in both.scales] == [store.key, other.key]
    free = 2 * sum(size.values()) + 2
    assert crops.DeviceImages.fit([store, other], gpu)
    assert type(crops.to_device(store, torch.device("cpu"))) is crops.HostImages
