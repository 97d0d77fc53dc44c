from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

import layouts_for_tests as layouts
import lite1_reference
from embed_in_pieces import BATCH, ROWS, Noise
from selex.data.crops import TwoScaleImages, fixed_crops
from selex.errors import InputError, Note
from selex.features import embed as embedding
from selex.features.embed import embed
from selex.models import load_backbone
from selex.models.trunk import fold_norms


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return layouts.write(tmp_path_factory.mktemp("weights") / "a.pth", layouts.small_vit().state_dict())


@pytest.fixture
def backbone(weights):
    return load_backbone(f"file:{weights}")


class Stops(Noise):
    """Is interrupted when it comes to a row."""

    def __init__(self, at, error=KeyboardInterrupt):
        super().__init__()
        self.at, self.error = at, error

    def centre_crops(self, rows, crop):
        if rows[0] >= self.at:
            raise self.error
        return super().centre_crops(rows, crop)


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def whole(backbone):
    return embed(backbone, Noise(), device="cpu", batch_size=BATCH)


def test_features_are_those_of_the_backbone_normalised_in_row_order(backbone):
    features = embed(backbone, Noise(10), device="cpu", batch_size=3)
    images = torch.stack([Noise.image(row, 224) for row in range(10)])
    with torch.no_grad():
        expected = backbone(images).numpy()
    np.testing.assert_allclose(features, expected / np.linalg.norm(expected, axis=1, keepdims=True), atol=1e-5)
    assert (features.dtype, features.shape) == (np.float32, (10, 128))


def test_folded_norms_give_the_features_of_the_backbone_and_leave_it_alone(tmp_path):
    path = layouts.write(tmp_path / "lite1.pth", lite1_reference.random_state())
    backbone = load_backbone("efficientnet-lite1", weights=path)
    before = backbone.fingerprint()
    features = embed(backbone, Noise(3), device="cpu")
    with torch.no_grad():
        expected = backbone(torch.stack([Noise.image(row, 240) for row in range(3)])).numpy()
    np.testing.assert_allclose(features, expected / np.linalg.norm(expected, axis=1, keepdims=True), atol=1e-5)
    assert backbone.fingerprint() == before
    assert not any(isinstance(module, torch.nn.BatchNorm2d) for module in fold_norms(backbone).modules())


@pytest.mark.parametrize("batch_size", [None, 1, 7, 100])
def test_any_batch_size_gives_the_same_features(batch_size, backbone):
    features = embed(backbone, Noise(), device="cpu", batch_size=batch_size)
    np.testing.assert_allclose(features, whole(backbone), atol=1e-5)


class Seen(Noise):
    """Noise that can be looked at from elsewhere: another view is the same image, brighter by where it is cut."""

    def crops(self, rows, place, crop):
        brighter = (40 * place.corners.sum(1) + 15 * place.mirrored).round().long()
        return (self.centre_crops(rows, crop).long() + brighter[:, None, None, None]).clamp(max=255).to(torch.uint8)


@pytest.mark.parametrize(("views", "corners"), [(2, 1), (10, 5)])
def test_a_feature_is_the_mean_over_views(views, corners, backbone, tmp_path):
    places = fixed_crops(ROWS, views)
    kinds = {(tuple(place.corners[0].tolist()), bool(place.mirrored[0])) for place in places}
    assert len(kinds) == len(places) == views
    assert len({corner for corner, _ in kinds}) == corners

    class Only(Seen):
        place = places[0]

        def centre_crops(self, rows, crop):
            return Seen().crops(rows, self.place[rows[0] : rows[-1] + 1], crop)

    alone = []
    for place in places:
        Only.place = place
        alone.append(embed(backbone, Only(), device="cpu", batch_size=BATCH))
    mean = np.mean(alone, 0)
    found = embed(backbone, Seen(), tmp_path / "f.npy", device="cpu", batch_size=BATCH, views=views)
    np.testing.assert_allclose(found, mean / np.linalg.norm(mean, axis=1, keepdims=True), atol=1e-5)
    again = embed(backbone, Seen(), tmp_path / "f.npy", device="cpu", batch_size=BATCH)
    assert not np.allclose(again, found)  # one view is something else, and is made anew


class Closer(Seen):
    """Other images than those that are seen."""

    key = "closer"

    @staticmethod
    def image(row, crop):
        return Noise.image(row + 1000, crop)


@pytest.mark.parametrize("views", [1, 2])
def test_a_feature_of_images_seen_twice_is_the_mean_over_both(views, backbone, tmp_path):
    both, out, rows = TwoScaleImages(Seen(), Closer()), tmp_path / "f.npy", np.arange(ROWS)
    alone = []
    for images in both.scales:
        places = fixed_crops(ROWS, views)
        shown = [images.crops(rows, place, 224) for place in places] if views > 1 else [images.centre_crops(rows, 224)]
        with torch.no_grad():
            alone += [normalize(backbone(crops), dim=1) for crops in shown]
    assert len(alone) == 2 * views
    expected = normalize(torch.stack(alone).mean(0), dim=1)
    found = embed(backbone, both, out, device="cpu", batch_size=7, views=views)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    first = np.array(found)
    again = TwoScaleImages(Stops(0, AssertionError), Closer())  # what is done is not made again
    np.testing.assert_array_equal(embed(backbone, again, out, device="cpu", views=views), first)
    whole = np.array(embed(backbone, Seen(), out, device="cpu", views=views))
    assert not np.allclose(whole, first, atol=1e-3)
    assert not np.array_equal(embed(backbone, TwoScaleImages(Seen(), Seen()), out, device="cpu", views=views), first)


def test_views_share_a_batch(backbone, monkeypatch):
    forward, sizes = backbone.forward, []
    monkeypatch.setattr(backbone, "forward", lambda images: sizes.append(len(images)) or forward(images))
    embed(backbone, TwoScaleImages(Seen(4), Closer(4)), device="cpu", views=10)
    assert sizes == [20] * 4  # of 32 that a CPU takes at once: an image's 20 crops, not one after the other


def test_views_that_cannot_be_had(backbone):
    for views in (0, 3, 20):
        with pytest.raises(InputError, match=f"views must be 1, 2 or 10, not {views}"):
            embed(backbone, Seen(), device="cpu", views=views)
    with pytest.raises(InputError, match="2 views need images with `crops`, such as HostImages; Noise has none"):
        embed(backbone, Noise(), device="cpu", views=2)


def test_a_file_holds_the_same_and_is_there_only_when_complete(backbone, tmp_path):
    out = tmp_path / "new folder" / "features.npy"
    features = embed(backbone, Noise(), out, device="cpu", batch_size=BATCH)
    assert isinstance(features, np.memmap)
    np.testing.assert_array_equal(features, whole(backbone))
    np.testing.assert_array_equal(np.load(out), features)
    assert files(out.parent) == ["features.npy", "features.npy.json"]


def test_a_finished_file_is_not_made_again(backbone, tmp_path):
    out = tmp_path / "features.npy"
    first = embed(backbone, Noise(), out, device="cpu", batch_size=BATCH)
    again = Stops(0, AssertionError)
    np.testing.assert_array_equal(embed(backbone, again, out, device="cpu"), first)
    assert again.read == []


@pytest.mark.parametrize("at", [8, 36])
def test_interrupted_and_resumed_is_bit_identical(at, backbone, tmp_path):
    out = tmp_path / "features.npy"
    with pytest.raises(KeyboardInterrupt):
        embed(backbone, Stops(at), out, device="cpu", batch_size=BATCH)
    assert files(tmp_path) == ["features.npy.json", "features.npy.part"]
    done = json.loads((tmp_path / "features.npy.json").read_text())["done"]
    assert 0 < done <= at
    images = Noise()
    features = embed(backbone, images, out, device="cpu")
    assert images.read[0][0] == done
    np.testing.assert_array_equal(features, whole(backbone))
    assert files(tmp_path) == ["features.npy", "features.npy.json"]


def test_killed_outright_and_resumed_is_bit_identical(weights, backbone, tmp_path):
    out = tmp_path / "features.npy"
    program = Path(__file__).with_name("embed_in_pieces.py")
    source = str(Path(embedding.__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, str(program), str(weights), str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        while int(process.stdout.readline()) < 20:
            pass
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert not out.exists()
    images = Noise()
    features = embed(backbone, images, out, device="cpu")
    assert 0 < images.read[0][0] < ROWS
    np.testing.assert_array_equal(features, whole(backbone))


def test_killed_between_the_last_row_and_the_last_rename(backbone, tmp_path):
    out = tmp_path / "features.npy"
    first = np.array(embed(backbone, Noise(), out, device="cpu", batch_size=BATCH))
    out.rename(tmp_path / "features.npy.part")
    np.testing.assert_array_equal(embed(backbone, Stops(0), out, device="cpu"), first)
    assert files(tmp_path) == ["features.npy", "features.npy.json"]


def changed_weights(backbone, images):
    with torch.no_grad():
        backbone.network.norm.bias += 1


def changed_images(backbone, images):
    images.key = "other"


def fewer_images(backbone, images):
    images.rows = 30


@pytest.mark.parametrize("change", [changed_weights, changed_images, fewer_images])
@pytest.mark.parametrize("interrupted", [False, True])
def test_features_of_something_else_are_made_anew(change, interrupted, backbone, tmp_path):
    out = tmp_path / "features.npy"
    if interrupted:
        with pytest.raises(KeyboardInterrupt):
            embed(backbone, Stops(20), out, device="cpu", batch_size=BATCH)
    else:
        embed(backbone, Noise(), out, device="cpu", batch_size=BATCH)
    images = Noise()
    change(backbone, images)
    features = embed(backbone, images, out, device="cpu", batch_size=BATCH)
    assert images.read[0][0] == 0
    np.testing.assert_array_equal(features, embed(backbone, images, device="cpu", batch_size=BATCH))


@pytest.mark.parametrize("broken", ["features.npy.json", "features.npy.part"])
@pytest.mark.parametrize("content", [None, b"", b"{}", b"nonsense"])
def test_a_damaged_file_is_made_anew(broken, content, backbone, tmp_path):
    out = tmp_path / "features.npy"
    with pytest.raises(KeyboardInterrupt):
        embed(backbone, Stops(20), out, device="cpu", batch_size=BATCH)
    (tmp_path / broken).unlink()
    if content is not None:
        (tmp_path / broken).write_bytes(content)
    said = pytest.warns(Note, match="is damaged; features are computed again") if content is not None else nullcontext()
    with said:
        made = embed(backbone, Noise(), out, device="cpu", batch_size=BATCH)
    np.testing.assert_array_equal(made, whole(backbone))


def test_out_of_memory_halves_the_pieces(backbone, monkeypatch):
    expected, forward, sizes = whole(backbone), backbone.forward, []

    def greedy(images):
        sizes.append(len(images))
        if len(images) > 2:
            raise torch.OutOfMemoryError("no memory left")
        return forward(images)

    monkeypatch.setattr(backbone, "forward", greedy)
    np.testing.assert_allclose(embed(backbone, Noise(), device="cpu", batch_size=9), expected, atol=1e-5)
    assert sizes[:3] == [9, 4, 2]
    assert max(sizes[3:]) == 2


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no memory left"), RuntimeError("CUDA error: out of memory")])
def test_no_memory_for_a_single_image(error, backbone, monkeypatch):
    def too_large(_):
        raise error

    monkeypatch.setattr(backbone, "forward", too_large)
    with pytest.raises(InputError, match="cpu has too little memory for even one image"):
        embed(backbone, Noise(), device="cpu")


def test_a_fault_that_no_smaller_piece_would_mend_is_not_hidden(backbone, monkeypatch):
    def broken(_):
        raise RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR")  # there is no device to ask for its memory

    monkeypatch.setattr(backbone, "forward", broken)
    with pytest.raises(RuntimeError, match="CUDNN_STATUS_INTERNAL_ERROR"):
        embed(backbone, Noise(), device="cpu")


def test_mode_and_gradients_are_left_as_they_were(backbone):
    backbone.train()
    embed(backbone, Noise(3), device="cpu")
    assert backbone.training
    assert all(parameter.requires_grad and parameter.grad is None for parameter in backbone.parameters())


@pytest.mark.parametrize("out", [None, "features.npy"])
def test_no_images(out, backbone, tmp_path):
    features = embed(backbone, Noise(0), out and tmp_path / out, device="cpu")
    assert (features.shape, features.dtype) == ((0, 128), np.float32)


def test_progress_goes_to_standard_error(backbone, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    for doing in ({}, {"doing": "looking"}):
        embed(backbone, Noise(5), device="cpu", progress=True, **doing)
        captured = capsys.readouterr()
        assert captured.out == ""
        assert doing.get("doing", "embedding") in captured.err
        assert "images/s" in captured.err
        assert "5/5" in captured.err


def test_damaged_weights_show(backbone):
    with torch.no_grad():
        backbone.network.norm.bias[0] = float("nan")
    with pytest.raises(InputError, match="no finite feature for row 0"):
        embed(backbone, Noise(5), device="cpu")


def test_bad_arguments(backbone, tmp_path):
    with pytest.raises(InputError, match="batch_size is 0"):
        embed(backbone, Noise(), device="cpu", batch_size=0)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write features to"):
        embed(backbone, Noise(), tmp_path / "file" / "features.npy", device="cpu")
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="no GPU"):
            embed(backbone, Noise(), device="cuda")


def test_a_full_disk_is_one_line_and_leaves_no_features(backbone, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(InputError, match="No space left on device"):
        embed(backbone, Noise(), tmp_path / "features.npy", device="cpu")
    assert not (tmp_path / "features.npy").exists()


def test_features_are_written_where_space_cannot_be_claimed(backbone, tmp_path, monkeypatch):
    monkeypatch.delattr(os, "posix_fallocate", raising=False)  # as on macOS
    embed(backbone, Noise(), tmp_path / "features.npy", device="cpu")
    assert np.array_equal(np.load(tmp_path / "features.npy"), whole(backbone))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_agrees_with_cpu(backbone):
    expected = whole(backbone)
    features = embed(backbone, Noise(), device="cuda", batch_size=16)
    assert (features * expected).sum(axis=1).min() > 0.999
