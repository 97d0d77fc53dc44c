"""Attention crops: where a network looks, boxes around that, images cut to them, and training on both."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image, ImageDraw
from torch import nn
from torch.nn.functional import avg_pool2d, normalize

from selex.config import Config
from selex.data.crops import CropParams, HostImages, TwoScaleImages
from selex.data.store import ImageStore
from selex.data.store_files import MARK
from selex.data.table import read_table
from selex.errors import InputError
from selex.features import attention_crop
from selex.features.attention_crop import (
    LEAST,
    MARGIN,
    OUTSIDE,
    ResizedImages,
    boxes_around,
    crop_to_attention,
    saliency,
)
from selex.models import load_backbone
from selex.models.network import Backbone
from selex.models.weights import WeightFile
from selex.training.batches import generator_of
from selex.training.fit import Seen, training_identity
from test_trunk import backbone, images
from training_for_tests import CROP, digit_data, fit, loop, seen_twice, small, without_times

SHAPES = {"square": (60, 60), "wide": (40, 120), "tall": (120, 40), "long": (30, 120)}  # height, width
PLACES = [(7, 7), (0, 0), (0, 13), (13, 0), (13, 13), (2, 9)]  # row and column of a blob of 3 x 3 in 16 x 16


def blob(top, left, g=16):
    made = np.zeros((1, g, g))
    made[0, top : top + 3, left : left + 3] = 1
    return made


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_a_box_is_a_square_around_what_is_looked_at(shape, place):
    height, width = SHAPES[shape]
    (left, top, right, bottom), (row, column) = boxes_around(blob(*place), np.array([[height, width]]))[0], place
    assert 0 <= left <= column / 16 + 1e-9
    assert 0 <= top <= row / 16 + 1e-9
    assert (column + 3) / 16 - 1e-9 <= right <= 1
    assert (row + 3) / 16 - 1e-9 <= bottom <= 1
    side = (right - left) * width
    assert side == pytest.approx((bottom - top) * height)
    thing = 3 / 16 * max(height, width)  # its longer side, in pixels
    assert side == pytest.approx(max((1 - 2 * OUTSIDE) * (1 + MARGIN) * thing, LEAST * min(height, width)))


def slow_box(weights, height, width):
    """The same for one map in plain steps: places before which a share of all lies, by interpolation."""
    edges, ends = np.linspace(0, 1, len(weights) + 1), []
    for along, size in ((weights.sum(0), width), (weights.sum(1), height)):
        reached = np.append(0, np.cumsum(along)) / along.sum()
        ends.append([size * np.interp(share, reached, edges) for share in (OUTSIDE, 1 - OUTSIDE)])
    side = max(*((high - low) * (1 + MARGIN) for low, high in ends), LEAST * min(height, width))
    box = []
    for (low, high), size in zip(ends, (width, height), strict=True):
        extent = min(side, size)
        start = min(max((low + high) / 2 - extent / 2, 0), size - extent)
        box.append((start / size, (start + extent) / size))
    (left, right), (top, bottom) = box
    return [left, top, right, bottom]


def test_boxes_of_random_maps():
    rng = np.random.default_rng(0)
    maps = rng.random((200, 7, 7)) ** rng.integers(1, 40, (200, 1, 1))  # from everywhere to one place
    shapes = rng.integers(20, 80, (200, 2))
    found = boxes_around(maps.astype(np.float32), shapes)
    slow = [slow_box(weights, *shape) for weights, shape in zip(maps, shapes.tolist(), strict=True)]
    np.testing.assert_allclose(found, slow, atol=1e-5)
    assert found.min() >= 0
    assert found.max() <= 1
    assert 0.1 < (found[:, 2] - found[:, 0] < 0.9).mean() < 0.9  # both kinds


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("value", [0, 1])
def test_a_map_that_points_nowhere_gives_the_whole_image(shape, value):
    found = boxes_around(np.full((1, 16, 16), value), np.array([shape]))
    np.testing.assert_allclose(found, [[0, 0, 1, 1]], atol=0.03)


# where a network looks


def known(name):
    """One of the small networks as if its weights had come from a file."""
    made = backbone(name)
    made.weights = WeightFile(Path("a.pth"), "0", "here")
    return made


PLAIN = ["plain", "registers", "layer scale", "query and key norms", "gated", "no biases", "norm before", "any size"]


@pytest.mark.parametrize("name", PLAIN)
def test_a_transformers_gaze_is_the_attention_of_its_class_token(name):
    """Against the weights inside timm's own attention."""
    made, seen = known(name), []
    x, attention = images(28, 5), made.network.blocks[-1].attn
    eye = saliency(made)
    attention.fused_attn = False
    attention.attn_drop.register_forward_hook(lambda module, given, out: seen.append(given[0]))
    with torch.no_grad():
        made(x)
        prefix = 5 if name == "registers" else 1
        expected = seen[0].mean(1)[:, 0, prefix:]
        found = eye(x)
    assert (eye.dim, found.shape) == (16, (5, 16))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    assert expected.std() > 1e-4
    assert eye.fingerprint() != made.fingerprint()


@pytest.mark.parametrize(("name", "last"), [("efficientnet", "bn2"), ("resnet", "layer4")])
def test_a_convolutional_networks_gaze_is_where_its_maps_respond(name, last):
    made, seen = known(name), []
    made.crop = 96
    getattr(made.network, last).register_forward_hook(lambda module, given, out: seen.append(out))
    x = images(96, 4)
    with torch.no_grad():
        made(x)
    expected = np.zeros((4, 3, 3))
    for image, maps in zip(expected, seen[0].double().numpy(), strict=True):
        strength = np.array([[np.linalg.norm(maps[:, row, column]) for column in range(3)] for row in range(3)])
        image[:] = np.maximum(strength - strength.mean(), 0) ** 2
    eye = saliency(made)
    with torch.no_grad():
        found = eye(x).view(4, 3, 3)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4 * expected.max())
    assert (expected.max((1, 2)) > 0).all()


def test_backbones_that_do_not_show_where_they_look():
    others = [known(name) for name in ("mean of tokens", "attention pooling", "parallel blocks", "distilled", "swin")]
    several = timm.create_model("coat_tiny", num_classes=0)  # several outputs of several sizes
    others.append(Backbone("coat", several, dim=152, crop=224, mean=(0.0,) * 3, std=(1.0,) * 3, weights=None))
    for made in (*(load_backbone(name) for name in ("pixels", "tiny-vit")), *others):
        with pytest.raises(
            InputError, match=f"backbone {made.name} does not show what it attends to; leave --attention-crop out"
        ):
            saliency(made)


# images cut to that


@pytest.fixture
def store(tmp_path):
    """Black photos of several shapes with one white square of 30 pixels each."""
    folder, corners = tmp_path / "photos", [(20, 30), (200, 100), (250, 10), (10, 250), (150, 150)]
    folder.mkdir()
    for number, ((x, y), size) in enumerate(zip(corners, [(300, 200)] * 3 + [(200, 300), (320, 320)], strict=True)):
        photo = Image.new("RGB", size)
        ImageDraw.Draw(photo).rectangle((x, y, x + 29, y + 29), fill="white")
        photo.save(folder / f"{number}.png")
    return ImageStore.build(read_table(folder), tmp_path / "store", size=32)


class Bright(nn.Module):
    """AugmentConfig at what is bright, and counts what it is shown."""

    def __init__(self):
        super().__init__()
        self.shown = 0

    def forward(self, scaled):
        self.shown += len(scaled)
        return avg_pool2d(scaled.mean(1, keepdim=True), 4).flatten(1)


@pytest.fixture
def eye(monkeypatch):
    """What every backbone's saliency is."""
    made = Backbone("bright", Bright(), dim=49, crop=28, mean=(0,) * 3, std=(255,) * 3, weights=None)
    monkeypatch.setattr(attention_crop, "saliency", lambda backbone: made)
    return made


def test_whole_images_in_a_square(store):
    shown = ResizedImages(store)
    rows = np.array([3, 0, 3])
    found = shown.centre_crops(rows, 28)
    assert (found.shape, found.dtype, len(shown)) == ((3, 3, 28, 28), torch.uint8, 5)
    assert shown.key != store.key
    for crop, row in zip(found, rows, strict=True):
        expected = Image.fromarray(store[row]).resize((28, 28), Image.Resampling.BICUBIC)
        assert np.array_equal(crop.permute(1, 2, 0), np.asarray(expected))
    assert found[0, 0, 20:].max() > 100  # at the end of a tall image: a centre crop does not have it
    assert store.centre_crops([3], 28).max() < 10


def test_images_are_cut_to_what_is_looked_at(store, eye, tmp_path):
    close = crop_to_attention(None, store, tmp_path / "store", device="cpu")
    assert close.table.files == store.table.files
    assert close.size == 32
    for row, shorter in enumerate([200, 200, 200, 200, 320]):
        image = close[row].mean(2) / 255
        left, top, right, bottom = close.boxes[row]
        scale = 32 / shorter / max(right - left, bottom - top)  # how large a pixel of the file is now
        assert image.shape[0] == pytest.approx(image.shape[1], abs=1)
        assert image.sum() == pytest.approx((30 * scale) ** 2, rel=0.1)  # all of the thing, and larger than before
        assert scale > 2 * 32 / shorter


def test_where_it_looks_is_asked_once(store, eye, tmp_path, monkeypatch):
    monkeypatch.setenv("SELEX_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "store"
    few = ImageStore.build(store.table.take([2, 0]), folder, size=32)
    crop_to_attention(None, few, folder, device="cpu")
    assert eye.network.shown == 2
    first = crop_to_attention(None, store, folder, device="cpu")
    assert eye.network.shown == 5  # the three that are new
    again = crop_to_attention(None, store, folder, device="cpu")
    assert eye.network.shown == 5
    assert (again.key, again.boxes.tolist()) == (first.key, first.boxes.tolist())
    eye.name = "another"
    crop_to_attention(None, store, folder, device="cpu")
    assert eye.network.shown == 10


def test_a_folder_that_is_not_a_store_is_refused(store, eye, tmp_path, monkeypatch):
    monkeypatch.setenv("SELEX_CACHE", str(tmp_path / "cache"))
    crop_to_attention(None, store, tmp_path / "store", device="cpu")
    (tmp_path / "store" / MARK).unlink(missing_ok=True)
    (tmp_path / "store" / MARK).mkdir()
    with pytest.raises(InputError, match="is not empty and not a selex image store"):
        crop_to_attention(None, store, tmp_path / "store", device="cpu")


# training on both


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return digit_data(tmp_path_factory.mktemp("digits"))


def test_features_in_training_are_the_mean_over_both_framings(data):
    both = seen_twice(data)
    alone = [loop(small("gcd"), replace(data, images=images)).features(0) for images in both.images.scales]
    found = loop(small("gcd"), both).features(0)
    torch.testing.assert_close(found, normalize(sum(alone), dim=1), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(alone[0], alone[1], atol=1e-2)


@pytest.mark.parametrize("bank", [0, 2])
def test_random_views_are_of_both_framings(data, bank):
    """An attention crop in which nothing is seen: half the views show it."""
    black = HostImages(ImageStore.build(*black_photos(data), size=32))
    parts = loop(small("gcd", view_bank=bank), replace(data, images=TwoScaleImages(data.images, black)))
    blank = parts.method.trunk(torch.zeros(1, 3, CROP, CROP, dtype=torch.uint8))
    parts.prepare(0)
    states = torch.cat([part.states for part in parts.batches.epoch(0)])
    dark = [torch.allclose(state, blank[0], atol=1e-4) for state in states]
    assert len(dark) == 96
    assert 0.3 < np.mean(dark) < 0.7
    first, second = (np.array([torch.allclose(s, blank[0], atol=1e-4) for s in half]) for half in states[:32].chunk(2))
    assert (first != second).any()  # two views of an image need not be of one framing


def black_photos(data):
    root = Path(data.images.store.table.root).parent
    (root / "black").mkdir(exist_ok=True)
    for number in range(60):
        Image.new("L", (8, 8)).save(root / "black" / f"{number:02d}.png")
    return read_table(root / "black"), root / "black-store"


@pytest.mark.parametrize("more", [{}, {"published": True}], ids=str)
def test_what_is_seen_closer_changes_training(data, more):
    runs = [seen_twice(data), seen_twice(data), seen_twice(data, (0.0, 0.0, 0.5, 0.5)), data]
    one, same, other, whole = (without_times(fit(small("selex", epochs=1, **more), each)) for each in runs)
    assert one == same
    assert len({entry[0]["loss"] for entry in (one, other, whole)}) == 3


def test_augmented_features_are_of_the_framings_drawn(data):
    both, method = seen_twice(data), small("selex", published=True)
    parts = loop(method, both)
    assert method.augmented
    place = CropParams.draw(60, parts.batches.augment, generator_of(0, 5, 3))
    states = method.trunk(both.images.crops(torch.arange(60), place, CROP))
    torch.testing.assert_close(parts.features(3), parts.steps.embed(states)["features"], rtol=1e-4, atol=1e-5)


def test_a_training_with_attention_crops_is_another(data):
    config = Config.of("photos", categories=5, backbone="tiny-vit")
    changed = config.change(attention_crop=True)
    seen = Seen(np.asarray(data.labels), np.zeros(len(data.labels), dtype=bool))
    plain, close = (training_identity(each, small("gcd"), data.images.store.key, seen) for each in (config, changed))
    assert {key for key in plain if plain[key] != close[key]} == {"attention_crop"}
