"""One image, in any format and mode that photos come in, to RGB with its shorter side at a given size."""

from __future__ import annotations

import math
import threading
from contextlib import nullcontext
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
Box = tuple[float, float, float, float]

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP", "DIB")
MAX_SIDE = 65_535
MAX_PIXELS = 120_000_000
MAX_ASPECT = 4
ORIENTATION = 0x0112
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# Large images are decoded one at a time, so that memory does not grow with the number of threads.
LARGE = 25_000_000
_large = threading.Lock()


class Unreadable(Exception):
    """An image cannot be read: why, and whether trying again could help (`passing`)."""

    def __init__(self, reason: str, passing: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.passing = passing


def decode(source: str | Image.Image, size: int, box: Box | None = None) -> Pixels:
    """An image as upright RGB (height, width, 3), its shorter side `size`, smaller images enlarged.

    Bicubic and antialiased. Of an image longer than 4:1 the middle 4:1 is kept. With a `box` it is that part of what
    would come without: left, top, right and bottom as shares of width and height. Raises `Unreadable`.
    """
    if box is not None:
        return _cut(source, size, box)
    try:
        if not isinstance(source, str):
            return _decode(source, size, None)
        with Image.open(source, formats=FORMATS) as image:
            _check_sides(image)
            # Only JPEG: the decoder itself halves up to three times, as long as both sides stay large enough.
            drafted = image.draft(None, (size, size))
            return _decode(image, size, drafted[1] if drafted else None)
    except Unreadable:
        raise
    except Exception as error:  # Pillow meets damaged files with nearly every kind of exception.
        raise explain(error) from error


def is_image(path: str) -> bool:
    """Whether a file is an image of a format that we read; only its beginning is looked at."""
    try:
        with Image.open(path, formats=FORMATS):
            return True
    except Exception:  # as above
        return False


def explain(error: Exception) -> Unreadable:
    """What a failure inside Pillow means for a person."""
    if isinstance(error, UnidentifiedImageError):
        return Unreadable("not a JPEG, PNG, WebP, GIF, TIFF or BMP image")
    if isinstance(error, OSError) and error.errno is not None:
        return Unreadable(error.strerror or str(error), passing=True)
    if isinstance(error, MemoryError):
        return Unreadable("not enough memory for this image", passing=True)
    words = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, Image.DecompressionBombError):
        return Unreadable(f"too large: {words}")
    return Unreadable(f"truncated or damaged: {words}"[:200])


def _check_sides(image: Image.Image) -> None:
    if max(image.size) > MAX_SIDE:
        raise Unreadable(f"too large: {image.width} x {image.height} pixels, a side may have {MAX_SIDE}")


def _decode(image: Image.Image, size: int, extent: Box | None) -> Pixels:
    """Load, convert, resize and turn an opened image; `extent` is what a draft says the image fills."""
    pixels = image.width * image.height
    if pixels > MAX_PIXELS:
        raise Unreadable(f"too large: {image.width} x {image.height} pixels, an image may have {MAX_PIXELS}")
    with _large if pixels > LARGE else nullcontext():
        image.load()
        small = _resize(_flatten(image), size, extent or (0, 0, *image.size))
    turn = UPRIGHT.get(_orientation(image))
    return np.asarray((small if turn is None else small.transpose(turn)).convert("RGB"))


def _cut(source: str | Image.Image, size: int, box: Box) -> Pixels:
    """Part of an image, from a decoding that is large enough for all the detail that the part can show."""
    left, top, right, bottom = box
    whole = Image.fromarray(decode(source, math.ceil(size / max(0.01, right - left, bottom - top))))
    width, height = whole.size
    extent = (left * width, top * height, right * width, bottom * height)
    return np.asarray(_resize(whole, size, extent))


def _orientation(image: Image.Image) -> int:
    """Asked after loading: Pillow turns TIFF images itself while it loads them, and then forgets the orientation."""
    try:
        return int(image.getexif().get(ORIENTATION, 1))
    except Exception:  # A damaged EXIF block, which Pillow again meets with anything: the image itself is fine.
        return 1


def _resize(image: Image.Image, size: int, extent: Box) -> Image.Image:
    """The middle of `extent`, at most 4:1, with its shorter side at `size`."""
    left, top, right, bottom = extent
    longest = MAX_ASPECT * min(right - left, bottom - top)
    spare_x, spare_y = max(0, right - left - longest) / 2, max(0, bottom - top - longest) / 2
    box = (left + spare_x, top + spare_y, right - spare_x, bottom - spare_y)
    width, height = box[2] - box[0], box[3] - box[1]
    shorter = min(width, height)
    target = max(size, int(size * width / shorter)), max(size, int(size * height / shorter))  # never a hair less
    # A gap of 3 shrinks much larger images by whole numbers first; the result cannot be told from a plain resize.
    return image.resize(target, Image.Resampling.BICUBIC, box, reducing_gap=3.0)


def _flatten(image: Image.Image) -> Image.Image:
    """Any mode to RGB or L with 8 bits: transparency over white, deeper images scaled."""
    if image.mode.startswith(("I", "F")):
        return Image.fromarray(_eight_bits(np.asarray(image), image.mode))
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
    return image if image.mode in ("RGB", "L") else image.convert("RGB")


def _eight_bits(values: np.ndarray[Any, Any], mode: str) -> Pixels:
    """Scale by what the values can reach: 65535 for 16 bits; floats by the first of 1, 255, 65535 that holds them."""
    finite = np.nan_to_num(values.astype(np.float32), posinf=0, neginf=0)
    top = float(finite.max())
    ranges = (1, 255, 65535) if mode == "F" else (65535,)
    white = next((limit for limit in ranges if top <= limit), top)
    scaled: Pixels = (finite * (255 / white)).clip(0, 255).round().astype(np.uint8)
    return scaled
