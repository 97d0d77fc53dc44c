"""One image at a time: formats, modes, orientation, sizes, and files that cannot be read."""

import contextlib
import io
import warnings
import zlib
from types import SimpleNamespace

import numpy as np
import pytest
import skimage.data
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps
from torchvision.transforms import InterpolationMode
from torchvision.transforms.functional import resize

from image_memory import decoded, large_jpeg, large_png, large_tiff, large_webp, scans_jpeg
from selex.data.decode import Unreadable, _has_scan_of_some, decode

ASTRONAUT = Image.fromarray(skimage.data.astronaut()).resize((150, 100))
CHELSEA = Image.fromarray(skimage.data.chelsea())


def saved(tmp_path, image, name, **options):
    path = tmp_path / name
    image.save(path, **options)
    return str(path)


def off(a, b) -> float:
    return float(np.abs(np.asarray(a, dtype=float) - np.asarray(b, dtype=float)).mean())


def reason(path, size=32) -> str:
    with pytest.raises(Unreadable) as caught:
        decode(str(path), size)
    assert "\n" not in caught.value.reason
    return caught.value.reason


@pytest.mark.parametrize("size", [256, 300, 64])
def test_same_as_torchvision_resize(tmp_path, size):
    path = saved(tmp_path, CHELSEA, "a.png")
    assert np.array_equal(decode(path, size), np.asarray(resize(CHELSEA, size, InterpolationMode.BICUBIC)))


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.webp", "a.gif", "a.tiff", "a.bmp", "a.jfif"])
def test_every_format(tmp_path, name):
    path = saved(tmp_path, ASTRONAUT, name)
    pixels = decode(path, 100)
    assert pixels.shape == (100, 150, 3)
    assert pixels.dtype == np.uint8
    assert off(pixels, ASTRONAUT) < 6


def in_mode(mode: str) -> tuple[Image.Image, Image.Image]:
    """An image in some mode, and what it shows."""
    grey = np.asarray(ASTRONAUT.convert("L"))
    made = {
        "1": lambda: Image.fromarray(grey).convert("1"),
        "P": lambda: ASTRONAUT.quantize(),
        "I;16": lambda: Image.fromarray(grey.astype(np.uint16) * 257),
        "I": lambda: Image.fromarray(grey.astype(np.int32) * 257),
        "F": lambda: Image.fromarray(grey.astype(np.float32) / 255),
    }
    image = made.get(mode, lambda: ASTRONAUT.convert(mode))()
    shown = {"1": image, "P": image} | dict.fromkeys(["L", "LA", "I;16", "I", "F"], Image.fromarray(grey))
    return image, shown.get(mode, ASTRONAUT).convert("RGB")


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGBA", "CMYK", "YCbCr", "I;16", "I", "F"])
def test_every_mode_becomes_what_it_looks_like(tmp_path, mode):
    image, shown = in_mode(mode)
    assert image.mode == mode
    packed = {"compression": "tiff_lzw"} if mode == "YCbCr" else {}  # Pillow 12 cannot read its own, uncompressed
    for pixels in (decode(saved(tmp_path, image, "a.tiff", **packed), 100), decode(image, 100)):
        assert off(pixels, shown) < 1.5


def test_cmyk_jpeg(tmp_path):
    assert off(decode(saved(tmp_path, ASTRONAUT.convert("CMYK"), "a.jpg", quality=95), 100), ASTRONAUT) < 6


def test_sixteen_bits_in_png_and_beyond(tmp_path):
    ramp = np.linspace(0, 65535, 64, dtype=np.uint16)[None].repeat(32, 0)
    pixels = decode(saved(tmp_path, Image.fromarray(ramp), "a.png"), 32)
    assert (pixels[0, 0, 0], pixels[0, -1, 0]) == (0, 255)
    assert off(pixels[0, :, 0], np.linspace(0, 255, 64)) < 1
    wild = np.array([[np.nan, -5], [np.inf, 1e6]], dtype=np.float32)
    assert decode(Image.fromarray(wild), 2)[..., 0].tolist() == [[0, 0], [0, 255]]


@pytest.mark.parametrize(("mode", "name"), [("RGBA", "a.png"), ("RGBA", "a.webp"), ("LA", "a.png"), ("RGBA", "a.gif")])
def test_transparency_shows_white(tmp_path, mode, name):
    image = Image.new("RGBA", (20, 20), (90, 0, 0, 0))
    image.paste((0, 0, 0, 255), (0, 0, 10, 20))
    pixels = decode(saved(tmp_path, image.convert(mode), name, lossless=True), 20)
    assert pixels[:, :9].max() < 5
    assert pixels[:, 11:].min() > 250


def test_only_the_first_frame(tmp_path):
    frames = [Image.new("RGB", (20, 20), colour) for colour in ("red", "blue")]
    for name in ("a.gif", "a.webp", "a.png", "a.tiff"):
        path = saved(tmp_path, frames[0], name, save_all=True, append_images=frames[1:])
        assert off(decode(path, 20)[0, 0], (255, 0, 0)) < 3


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.webp", "a.tiff"])
def test_exif_rotation(tmp_path, name, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = saved(tmp_path, ASTRONAUT, name, exif=exif)
    with Image.open(path) as image:
        upright = ImageOps.exif_transpose(image).convert("RGB")
    assert upright.size == ((150, 100) if orientation < 5 else (100, 150))
    assert off(decode(path, 100), upright) < 0.5


def test_rotation_of_a_large_jpeg_and_of_an_open_image(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    path = saved(tmp_path, CHELSEA.resize((1200, 800)), "a.jpg", exif=exif, quality=95)
    upright = CHELSEA.transpose(Image.Transpose.ROTATE_270).resize((64, 96), Image.Resampling.BICUBIC)
    assert off(decode(path, 64), upright) < 3
    with Image.open(path) as image:
        assert off(decode(image, 64), upright) < 3


def part(image, box):
    """What a box of shares shows of an image, as it is."""
    width, height = image.size
    return image.crop((box[0] * width, box[1] * height, box[2] * width, box[3] * height))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_box_is_a_part_of_the_upright_image(tmp_path, orientation):
    exif, box = Image.Exif(), (0.2, 0.4, 0.6, 0.9)
    exif[0x0112] = orientation
    path = saved(tmp_path, ASTRONAUT, "a.png", exif=exif)
    with Image.open(path) as image:
        shown = part(ImageOps.exif_transpose(image).convert("RGB"), box)
    assert shown.size == ((60, 50) if orientation < 5 else (40, 75))
    pixels = decode(path, min(shown.size), box)
    assert pixels.shape == (shown.height, shown.width, 3)
    assert off(pixels, shown) < 0.5 * off(pixels, np.asarray(shown)[:, ::-1])
    assert off(pixels, shown) < 8


@pytest.mark.parametrize("name", ["a.png", "a.jpg"])
def test_a_part_has_the_detail_of_the_file(tmp_path, name):
    path, box = saved(tmp_path, CHELSEA, name, quality=95), (0.3, 0.2, 0.6, 0.65)  # 135 x 135 pixels of 451 x 300
    shown = part(CHELSEA, box).resize((64, 64), Image.Resampling.BICUBIC)
    enlarged = part(Image.fromarray(decode(path, 64)), box).resize((64, 64), Image.Resampling.BICUBIC)
    pixels = decode(path, 64, box)
    assert pixels.shape == (64, 64, 3)
    assert 3 * off(pixels, shown) < off(enlarged, shown)


@pytest.mark.parametrize("size", [(451, 300), (60, 200), (1000, 50)])
def test_the_whole_image_as_a_box(tmp_path, size):
    path = saved(tmp_path, CHELSEA.resize(size), "a.jpg")
    assert off(decode(path, 48, (0.0, 0.0, 1.0, 1.0)), decode(path, 48)) < 0.1


def test_a_part_is_never_a_pixel_too_small():
    for box in np.random.default_rng(0).uniform([0, 0, 0.6, 0.6], [0.4, 0.4, 1, 1], (100, 4)):
        assert min(decode(ASTRONAUT, 24, tuple(box.tolist())).shape[:2]) == 24


def test_a_box_of_a_long_image_is_one_of_its_middle(tmp_path):
    """Of 1000 x 50 pixels the 200 in the middle are kept; a quarter of them from the left is from 400 to 450."""
    ramp = Image.fromarray((np.arange(1000) // 4).astype(np.uint8)[None].repeat(50, 0))
    for turned in (False, True):
        path = saved(tmp_path, ramp.transpose(Image.Transpose.ROTATE_270) if turned else ramp, "a.png")
        pixels = decode(path, 50, (0.0, 0.0, 1.0, 0.25) if turned else (0.0, 0.0, 0.25, 1.0))[..., 0]
        assert pixels.shape == (50, 50)
        along = pixels[:, 25] if turned else pixels[25]
        assert off(along, np.arange(400, 450) // 4) < 1


def test_a_part_of_a_file_that_cannot_be_read(tmp_path):
    (tmp_path / "a.jpg").write_text("no image")
    with pytest.raises(Unreadable, match="not a JPEG"):
        decode(str(tmp_path / "a.jpg"), 32, (0.0, 0.0, 0.5, 0.5))


def test_damaged_exif_is_no_reason_to_skip(tmp_path):
    path = saved(tmp_path, ASTRONAUT, "a.jpg", exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff\x01\x12")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert decode(path, 50).shape == (50, 75, 3)


def test_draft_of_a_large_jpeg_looks_the_same(tmp_path):
    large = CHELSEA.resize((2003, 1333), Image.Resampling.LANCZOS)
    path = saved(tmp_path, large, "a.jpg", quality=95)
    with Image.open(path) as image:
        plain = image.convert("RGB").resize((384, 256), Image.Resampling.BICUBIC)
    pixels = decode(path, 256)
    assert pixels.shape == (256, 384, 3)
    assert off(pixels, plain) < 0.6


@given(st.integers(1, 400), st.integers(1, 400), st.integers(1, 64))
def test_shapes(width, height, size):
    pixels = decode(Image.new("L", (width, height)), size)
    shorter, longer = sorted(pixels.shape[:2])
    aspect = min(4.0, max(width, height) / min(width, height))
    assert shorter == size
    assert longer == int(aspect * size) or abs(longer - aspect * size) < 1
    assert (pixels.shape[1] >= pixels.shape[0]) == (width >= height) or shorter == longer


@pytest.mark.parametrize("turn", [False, True])
def test_the_middle_of_a_very_long_image_is_kept(tmp_path, turn):
    image = Image.new("RGB", (1000, 10), "black")
    image.paste((255, 255, 255), (478, 0, 522, 10))
    pixels = decode(saved(tmp_path, image.transpose(Image.Transpose.ROTATE_90) if turn else image, "a.png"), 20)
    assert pixels.shape == ((80, 20, 3) if turn else (20, 80, 3))
    assert pixels.min() == 255


def test_large_images_still_decode(tmp_path):
    assert decode(saved(tmp_path, Image.new("L", (6000, 5000)), "a.png"), 16).shape == (16, 19, 3)


def bomb(side: int) -> bytes:
    """A PNG of side x side grey pixels in a few kilobytes: the header says it, the data need not follow."""
    image = io.BytesIO()
    Image.new("L", (1, 1)).save(image, "PNG")
    header = b"IHDR" + side.to_bytes(4, "big") * 2 + b"\x08\0\0\0\0"
    return image.getvalue()[:12] + header + zlib.crc32(header).to_bytes(4, "big") + image.getvalue()[33:]


def test_files_that_cannot_be_read(tmp_path):
    jpeg, path = io.BytesIO(), tmp_path / "a.jpg"
    CHELSEA.save(jpeg, "JPEG")
    files = {
        jpeg.getvalue()[: jpeg.tell() // 2]: "truncated or damaged: image file is truncated",
        jpeg.getvalue()[:100]: "",
        b"just some text\n": "not a JPEG, PNG, WebP, GIF, TIFF or BMP image",
        b"": "not a JPEG, PNG, WebP, GIF, TIFF or BMP image",
        b"<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>": "not a JPEG, PNG, WebP, GIF, TIFF or BMP",
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n": "not a JPEG, PNG, WebP, GIF, TIFF or BMP image",
        bomb(20_000): "too large: Image size (400000000 pixels) exceeds limit",
    }
    for content, message in files.items():
        path.write_bytes(content)
        assert reason(path).startswith(message)


def test_images_beyond_our_own_limits(tmp_path):
    assert reason(saved(tmp_path, Image.new("L", (100_000, 2)), "wide.png")).startswith("too large: 100000 x 2 pixels")
    (tmp_path / "big.png").write_bytes(bomb(12_000))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        assert reason(tmp_path / "big.png").startswith("too large: 12000 x 12000 pixels")


@given(st.binary(max_size=64), st.integers(0, 2000), st.sampled_from(["JPEG", "PNG", "GIF", "TIFF", "WEBP", "BMP"]))
def test_damage_anywhere_is_a_picture_or_a_reason(damage, at, form):
    file = io.BytesIO()
    ASTRONAUT.resize((30, 20)).save(file, form)
    content = bytearray(file.getvalue())
    content[at : at + len(damage)] = damage
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            image = Image.open(io.BytesIO(bytes(content)))
        except Exception:
            return
        with contextlib.suppress(Unreadable):
            assert min(decode(image, 8).shape[:2]) == 8


def test_vanished_file_may_come_back(tmp_path):
    with pytest.raises(Unreadable) as caught:
        decode(str(tmp_path / "gone.jpg"), 32)
    assert caught.value.passing
    assert caught.value.reason == "No such file or directory"


LARGE = {
    "rgba.png": (lambda path: large_png(path, 10_000, 6, 8, 4), 255.0),
    "grey-alpha.png": (lambda path: large_png(path, 10_000, 4, 8, 2), 255.0),
    "sixteen.png": (lambda path: large_png(path, 10_000, 0, 16, 1), 0.0),
    "palette.png": (lambda path: large_png(path, 10_000, 3, 8, 1), 255.0),
    "float.tiff": (lambda path: large_tiff(path, 10_000), 0.0),
    "a.webp": (lambda path: large_webp(path, 6_300), 0.0),
    "progressive.jpg": (lambda path: large_jpeg(path, 13_300, "4:2:0"), 0.0),
    "a scan each.jpg": (lambda path: scans_jpeg(path, 11_400, [(1,), (2,), (3,)]), 128.0),
}


@pytest.mark.parametrize("name", LARGE)
def test_one_image_takes_less_than_a_gigabyte(tmp_path, name):
    make, shown = LARGE[name]
    make(tmp_path / name)
    mean, peak = decoded(tmp_path / name)
    assert mean == shown
    assert peak < 1000


def test_a_progressive_jpeg_that_would_take_more_is_not_read(tmp_path):
    large_jpeg(tmp_path / "a.jpg", 13_300, "4:4:4")
    why, _ = decoded(tmp_path / "a.jpg")
    assert "too large: 13300 x 13300 pixels in a progressive JPEG; save it as a baseline one" in why


@pytest.mark.parametrize("scans", [[(1,), (2,), (3,)], [(1, 2), (3,)]], ids=str)
def test_a_jpeg_of_several_scans_that_would_take_more_is_not_read(tmp_path, scans):
    scans_jpeg(tmp_path / "a.jpg", 13_300, scans)
    why, _ = decoded(tmp_path / "a.jpg")
    assert "too large: 13300 x 13300 pixels in a JPEG with a scan for each colour; save it as a baseline one" in why
    scans_jpeg(tmp_path / "b.jpg", 13_300, [(1, 2, 3)])  # all in one: a strip at a time
    assert decoded(tmp_path / "b.jpg")[0] == 128.0


@pytest.mark.parametrize("scans", [[(1, 2, 3)], [(1,), (2,), (3,)]], ids=str)
def test_scans_are_found_behind_anything(tmp_path, scans):
    """Behind comments that look like scans, fill bytes and nonsense; what is decoded stays the same."""
    scans_jpeg(tmp_path / "a.jpg", 32, scans)
    plain = (tmp_path / "a.jpg").read_bytes()
    comment = b"\xff\xfe\x00\x0c\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00"
    (tmp_path / "b.jpg").write_bytes(plain[:2] + comment + b"\xff\xff\xff" + plain[3:])
    for name in ("a.jpg", "b.jpg"):
        with Image.open(tmp_path / name) as image:
            assert _has_scan_of_some(image) is (len(scans) > 1)
        assert (decode(str(tmp_path / name), 32) == 128).all()
    cut_short = SimpleNamespace(layer=[0, 0, 0], fp=io.BytesIO(plain[:20]))
    assert _has_scan_of_some(cut_short) is False


def test_a_webp_that_would_take_more_is_not_read(tmp_path):
    large_webp(tmp_path / "a.webp", 10_000)
    why, _ = decoded(tmp_path / "a.webp")
    assert "too large: 10000 x 10000 pixels; an image may have at most 40000000" in why


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGBA", "CMYK", "I;16", "I", "F"])
def test_in_bands_it_is_the_same_image(tmp_path, monkeypatch, mode):
    image, _ = in_mode(mode)
    image = image.resize((1501, 1003), Image.Resampling.NEAREST)
    for size in (64, 200, 999):
        whole = decode(image, size)
        with monkeypatch.context() as change:
            change.setattr("selex.data.decode.LARGE", 0)
            change.setattr("selex.data.decode.BAND", 10_000)
            assert off(decode(image, size), whole) < 0.02


def test_in_bands_a_long_image_keeps_its_middle(monkeypatch):
    image = CHELSEA.resize((4000, 300))
    whole = decode(image, 20)
    monkeypatch.setattr("selex.data.decode.LARGE", 0)
    assert decode(image, 20).shape == whole.shape
    assert off(decode(image, 20), whole) < 1
