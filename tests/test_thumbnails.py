"""Small pictures for pages."""

import io

import numpy as np
from PIL import Image

from selex.data.decode import PLACEHOLDER, picture, thumbnail


def opened(data):
    return Image.open(io.BytesIO(data))


def test_it_is_the_middle_square_upright_and_without_exif(tmp_path):
    pixels = np.zeros((60, 120, 3), dtype=np.uint8)
    pixels[:, 40:80] = (250, 20, 20)
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "secret"
    Image.fromarray(pixels).save(tmp_path / "a.jpg", exif=exif, quality=95)
    small = opened(thumbnail(str(tmp_path / "a.jpg"), 48))
    assert small.size == (48, 48)
    assert not small.getexif()
    assert b"secret" not in thumbnail(str(tmp_path / "a.jpg"), 48)
    assert np.abs(np.asarray(small)[24, 24].astype(int) - (250, 20, 20)).max() < 30
    # the file is turned by a quarter: what is red is a band from left to right
    assert np.asarray(small)[24, 4, 0] > 200
    assert np.asarray(small)[2, 24, 0] < 60


def test_what_cannot_be_read_is_grey(tmp_path):
    (tmp_path / "a.jpg").write_text("no image")
    for path in ("a.jpg", "none.jpg"):
        small = np.asarray(opened(thumbnail(str(tmp_path / path), 32)))
        assert small.shape == (32, 32, 3)
        assert np.abs(small.astype(int) - PLACEHOLDER).max() <= 2


def test_a_picture_is_whole_upright_and_never_enlarged(tmp_path):
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "secret"
    Image.new("RGB", (120, 60), (20, 20, 250)).save(tmp_path / "a.jpg", exif=exif)
    assert opened(picture(str(tmp_path / "a.jpg"), 768)).size == (60, 120)
    assert opened(picture(str(tmp_path / "a.jpg"), 30)).size == (30, 60)
    assert b"secret" not in picture(str(tmp_path / "a.jpg"), 768)
    (tmp_path / "b.jpg").write_text("no image")
    for path in ("b.jpg", "none.jpg"):
        assert np.abs(np.asarray(opened(picture(str(tmp_path / path), 64))).astype(int) - PLACEHOLDER).max() <= 2
