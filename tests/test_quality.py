"""Photos to set aside: blurred, dark and empty ones, near-duplicates."""

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from selex.review.core.state import CONFIRMED, UNDECIDED
from selex.review.server.checks import SAME, Measures, _best_first, measure, near_duplicates


def photo(seed, side=200):
    """Something with large shapes and fine detail, as photos have."""
    rng = np.random.default_rng(seed)
    large = Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8)).resize(
        (side, side), Image.Resampling.BICUBIC
    )
    fine = rng.normal(0, 12, (side, side, 3))
    return Image.fromarray((np.asarray(large) * 0.8 + 20 + fine).clip(0, 255).astype(np.uint8))


def measured(folder, images):
    paths = []
    for number, image in enumerate(images):
        paths.append(str(folder / f"{number}.png"))
        image.save(paths[-1])
    return Measures.of([measure(path) for path in paths])


def test_blurred_dark_and_empty_photos_are_found_and_no_others(tmp_path):
    images = [photo(seed) for seed in range(12)]
    images[3] = images[3].filter(ImageFilter.GaussianBlur(4))
    images[5] = ImageEnhance.Brightness(images[5]).enhance(0.1)
    images[8] = Image.new("RGB", (200, 200), (180, 190, 170))
    bad = measured(tmp_path, images).bad
    assert {kind: np.flatnonzero(rows).tolist() for kind, rows in bad.items()} == {
        "blurred": [3],
        "dark": [5],
        "empty": [8],
    }


def test_where_all_are_soft_none_is_blurred(tmp_path):
    images = [photo(seed).filter(ImageFilter.GaussianBlur(4)) for seed in range(6)]
    assert not measured(tmp_path, images).bad["blurred"].any()


def test_sharpness_is_the_variance_of_the_laplacian(tmp_path):
    path = tmp_path / "photo.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (160, 160), dtype=np.uint8)).save(path)
    grey = np.asarray(Image.open(path)).astype(float)
    around = [
        4 * grey[y, x] - grey[y - 1, x] - grey[y + 1, x] - grey[y, x - 1] - grey[y, x + 1]
        for y in range(1, 159)
        for x in range(1, 159)
    ]
    sharpness, brightness, contrast = measure(str(path))[:3]
    assert sharpness == pytest.approx(np.var(around), rel=1e-4)
    assert (brightness, contrast) == (pytest.approx(grey.mean(), rel=1e-4), pytest.approx(grey.std(), rel=1e-4))


def test_a_photo_that_cannot_be_read_is_nothing_of_it(tmp_path):
    (tmp_path / "bad.png").write_bytes(b"no image")
    found = Measures.of([measure(str(tmp_path / "bad.png")), measure("")])
    assert not any(rows.any() for rows in found.bad.values())
    assert near_duplicates(np.ones((2, 4)), np.zeros(2, dtype=int), found.small) == []


def test_near_duplicates_are_alike_to_the_eye_and_by_features(tmp_path):
    images = [photo(seed) for seed in range(8)]
    cropped = images[0].crop((4, 4, 198, 198)).resize((300, 300))
    images += [cropped, ImageEnhance.Brightness(images[0]).enhance(1.2), images[4], images[5]]
    small = measured(tmp_path, images).small
    category = np.array([0] * 4 + [1] * 4 + [0, 0, 1, 0])
    features = np.random.default_rng(0).normal(0, 1, (12, 16))
    features[[8, 9, 10]] = features[[0, 0, 4]] + 0.01
    found = near_duplicates(features, category, small)
    assert [group.tolist() for group in found] == [[0, 8, 9], [4, 10]], "11 is the photo 5, but in another category"


def test_the_original_is_kept_rather_than_a_copy_that_was_saved_anew(tmp_path):
    names = ("copy.jpg", "original.jpg", "blurred.jpg", "marked.jpg")
    for name, quality in zip(names, (60, 95, 95, 30), strict=True):
        image = photo(1).filter(ImageFilter.GaussianBlur(3)) if name == "blurred.jpg" else photo(1)
        image.save(tmp_path / name, quality=quality)
    size = Measures.of([measure(str(tmp_path / name)) for name in names]).size
    mark, bad = np.array([UNDECIDED, UNDECIDED, UNDECIDED, CONFIRMED]), np.zeros(4, dtype=bool)
    assert _best_first(np.arange(3), mark, bad, size)[0] == 1
    assert _best_first(np.arange(4), mark, bad, size).tolist()[:2] == [3, 1], "somebody has looked at that one"
    assert _best_first(np.arange(3), mark, np.array([False, True, True, True]), size)[0] == 0, "the others are bad"


def test_groups_are_those_of_all_pairs_one_by_one():
    rng = np.random.default_rng(1)
    kinds = rng.integers(0, 6, 30)
    small = rng.integers(0, 256, (6, 256))[kinds] + rng.integers(0, 60, (30, 256))
    features = np.eye(6)[kinds] + rng.normal(0, 0.01, (30, 6))
    category = np.zeros(30, dtype=int)
    linked = np.corrcoef(small) >= SAME
    for group in near_duplicates(features, category, small):
        assert len(set(kinds[group].tolist())) == 1
        reached = {int(group[0])}
        for _ in group:
            reached |= {int(other) for row in reached for other in np.flatnonzero(linked[row])}
        assert reached >= set(group.tolist())


@pytest.mark.parametrize("degrees", [0, 90, 45, 135, 20])
def test_motion_along_a_line_is_found(tmp_path, degrees):
    images = [photo(seed) for seed in range(8)]
    pixels = np.asarray(images[2], dtype=np.float32)
    way = (np.sin(np.radians(degrees)), np.cos(np.radians(degrees)))
    copies = [np.roll(pixels, [round(step * part) for part in way], (0, 1)) for step in range(12)]
    images[2] = Image.fromarray(np.mean(copies, axis=0).astype(np.uint8))
    assert np.flatnonzero(measured(tmp_path, images).bad["blurred"]).tolist() == [2]


def test_a_mirrored_copy_is_a_near_duplicate_and_one_upside_down_is_not(tmp_path):
    images = [photo(seed) for seed in range(4)]
    images += [ImageOps.mirror(images[1]), ImageOps.flip(images[2])]
    features = np.random.default_rng(0).normal(0, 1, (6, 16))
    features[4:] = features[1:3] + 0.01
    found = near_duplicates(features, np.zeros(6, dtype=int), measured(tmp_path, images).small)
    assert [group.tolist() for group in found] == [[1, 4]]
