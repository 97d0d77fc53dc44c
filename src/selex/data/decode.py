"""One image, in any format and mode that photos come in, to RGB with its shorter side at a given size; thumbnails."""

from __future__ import annotations

import io
import math
import os
import threading
from contextlib import nullcontext
from typing import Any, cast

import numpy as np
from PIL import Image, UnidentifiedImageError

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
Box = tuple[float, float, float, float]

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP", "DIB")
MAX_SIDE = 65_535
MAX_PIXELS = 120_000_000
MAX_BY_FORMAT = {"WEBP": 40_000_000}
"""Its decoder needs five times the memory of others."""
MAX_SENT = 64_000_000
"""Pixels of an image that comes over a network, whatever its format."""
MAX_IN_SCANS = 800_000_000
"""Bytes that a JPEG of several scans may take while it is decoded."""
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
BAND = 2_000_000
"""Pixels of a large image that are converted at a time."""
GAP = 3.0
"""Much larger images shrink by whole numbers first, to so many times their size; a plain resize looks the same."""
_large = threading.Lock()


class Unreadable(Exception):
    """An image cannot be read: why, and whether trying again could help (`passing`)."""

    def __init__(self, reason: str, passing: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.passing = passing


def decode(source: str | bytes | Image.Image, size: int, box: Box | None = None) -> Pixels:
    """An image as upright RGB (height, width, 3), its shorter side `size`, smaller images enlarged.

    `source` is the name of a file, what is in one, or an image in memory.
    Bicubic and antialiased. Of an image longer than 4:1 the middle 4:1 is kept. With a `box` it is that part of what
    would come without: left, top, right and bottom as shares of width and height. Raises `Unreadable`.
    """
    if box is not None:
        return _cut(source, size, box)
    try:
        if isinstance(source, Image.Image):
            return _decode(source, size, None)
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=FORMATS) as image:
            if max(image.size) > MAX_SIDE:
                raise Unreadable(
                    f"too large: {image.width} x {image.height} pixels; a side may have at most {MAX_SIDE}"
                )
            # Only JPEG: the decoder itself halves up to three times, as long as both sides stay large enough.
            whole = image.size
            drafted = image.draft(None, (size, size))
            _check_scans(image, *whole)
            return _decode(image, size, drafted[1] if drafted else None)
    except Unreadable:
        raise
    except Exception as error:  # Pillow meets damaged files with nearly every kind of exception.
        raise as_unreadable(error) from error


def check_sent(file: bytes) -> None:
    """Refuse what somebody sent and is no image, or one of too many pixels: by its header, before it is decoded."""
    width, height = _size(file)
    if width * height > MAX_SENT:
        raise Unreadable(f"too large: {width} x {height} pixels; at most {MAX_SENT} are accepted")


def is_image(path: str) -> bool:
    """Whether a file is an image of a format that we read; only its beginning is looked at."""
    try:
        with Image.open(path, formats=FORMATS):
            return True
    except Exception:  # as above
        return False


def as_unreadable(error: Exception) -> Unreadable:
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


def _check_scans(image: Image.Image, width: int, height: int) -> None:
    """Refuse a JPEG of several scans that takes too much: all samples, two bytes each, wait for the last scan."""
    kind = "progressive JPEG" if image.info.get("progressive") else "JPEG with a scan for each colour"
    if image.info.get("progressive") or _has_scan_of_some(image):
        shares = [across * down for _, across, down, _ in cast(Any, image).layer]
        samples = width * height * sum(shares) / max(shares)
        if 2 * samples + 4 * image.width * image.height > MAX_IN_SCANS:
            raise Unreadable(f"too large: {width} x {height} pixels in a {kind}; save it as a baseline one")


def _has_scan_of_some(image: Any) -> bool:
    """Whether the first scan of a JPEG has some of its components only: then others follow."""
    layers, file = getattr(image, "layer", []), image.fp
    if len(layers) < 2:
        return False
    position = file.tell()
    try:
        return 0 < _first_scan(file) < len(layers)
    finally:
        file.seek(position)


def _first_scan(file: Any) -> int:
    """Number of components in the first scan of a JPEG file; 0 where there is none."""
    file.seek(2)
    while byte := file.read(1):
        if byte != b"\xff":
            continue
        while byte == b"\xff":
            byte = file.read(1)
        if byte == b"\xda":
            return int.from_bytes(file.read(3)[2:], "big")
        if byte > b"\x01" and not b"\xd0" <= byte <= b"\xd9":  # others have no length
            file.seek(max(0, int.from_bytes(file.read(2), "big") - 2), os.SEEK_CUR)
    return 0


def _decode(image: Image.Image, size: int, extent: Box | None) -> Pixels:
    """Load, convert, resize and turn an opened image; `extent` is what a draft says the image fills."""
    pixels, most = image.width * image.height, MAX_BY_FORMAT.get(image.format or "", MAX_PIXELS)
    if pixels > most:
        raise Unreadable(f"too large: {image.width} x {image.height} pixels; an image may have at most {most}")
    extent = extent or (0, 0, *image.size)
    with _large if pixels > LARGE else nullcontext():
        image.load()
        small = _in_bands(image, size, extent) if pixels > LARGE else _resize(_flatten(image), size, extent)
    turn = UPRIGHT.get(_orientation(image))
    return np.asarray((small if turn is None else small.transpose(turn)).convert("RGB"))


def _cut(source: str | bytes | Image.Image, size: int, box: Box) -> Pixels:
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


def _in_bands(image: Image.Image, size: int, extent: Box) -> Image.Image:
    """As `_resize` of the flattened image, of which there is never more than a band before it has shrunk."""
    box, target = _fit(size, extent)
    across = max(1, int((box[2] - box[0]) / target[0] / GAP))
    down = max(1, int((box[3] - box[1]) / target[1] / GAP))
    white, rows = _white(image), down * max(1, BAND // (image.width * down))
    shape, small = (-(-image.width // across), -(-image.height // down)), None
    for top in range(0, image.height, rows):
        band = _flatten(image.crop((0, top, image.width, min(top + rows, image.height))), white).reduce((across, down))
        small = small or Image.new(band.mode, shape)
        small.paste(band, (0, top // down))
    assert small is not None
    return small.resize(
        target, Image.Resampling.BICUBIC, (box[0] / across, box[1] / down, box[2] / across, box[3] / down)
    )


def _resize(image: Image.Image, size: int, extent: Box) -> Image.Image:
    """The middle of `extent`, at most 4:1, with its shorter side at `size`."""
    box, target = _fit(size, extent)
    return image.resize(target, Image.Resampling.BICUBIC, box, reducing_gap=GAP)


def _fit(size: int, extent: Box) -> tuple[Box, tuple[int, int]]:
    """What of `extent` is kept, and how large it becomes."""
    left, top, right, bottom = extent
    longest = MAX_ASPECT * min(right - left, bottom - top)
    spare_x, spare_y = max(0, right - left - longest) / 2, max(0, bottom - top - longest) / 2
    box = (left + spare_x, top + spare_y, right - spare_x, bottom - spare_y)
    width, height = box[2] - box[0], box[3] - box[1]
    shorter = min(width, height)
    return box, (max(size, int(size * width / shorter)), max(size, int(size * height / shorter)))  # never a hair less


def _flatten(image: Image.Image, white: float | None = None) -> Image.Image:
    """Any mode to RGB or L with 8 bits: transparency over white, deeper images scaled by what is `white`."""
    if _is_deep(image):
        white = _white(image) if white is None else white
        return Image.fromarray((_finite(image) * (255 / white)).clip(0, 255).round().astype(np.uint8))
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
    return image if image.mode in ("RGB", "L") else image.convert("RGB")


def _is_deep(image: Image.Image) -> bool:
    return image.mode.startswith(("I", "F"))


def _white(image: Image.Image) -> float:
    """What values can reach: 65535 for 16 bits; for floats the first of 1, 255, 65535 that holds them."""
    if not _is_deep(image):
        return 255
    rows = max(1, BAND // image.width)
    bands = (image.crop((0, top, image.width, min(top + rows, image.height))) for top in range(0, image.height, rows))
    top = max(float(_finite(band).max()) for band in bands)
    return next((limit for limit in ((1, 255, 65535) if image.mode == "F" else (65535,)) if top <= limit), top)


def _finite(image: Image.Image) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.nan_to_num(np.asarray(image).astype(np.float32), posinf=0, neginf=0)


PLACEHOLDER = (221, 221, 221)


def thumbnail(path: str, side: int = 96, quality: int = 70) -> bytes:
    """The middle square of an image, upright, as a JPEG of `side` pixels; a plain grey one if it cannot be read.

    The picture is encoded anew, so that nothing of the file but what can be seen goes into a page: no GPS position.
    """
    try:
        pixels = decode(path, side)
        top, left = (pixels.shape[0] - side) // 2, (pixels.shape[1] - side) // 2
        image = Image.fromarray(pixels[top : top + side, left : left + side])
    except Unreadable:
        image = Image.new("RGB", (side, side), PLACEHOLDER)
    return _jpeg(image, quality)


def picture(path: str, shorter: int = 768) -> bytes:
    """A whole image, upright, as a JPEG whose shorter side has at most `shorter` pixels; else as `thumbnail`."""
    try:
        return _jpeg(Image.fromarray(decode(path, min(*_size(path), shorter))), quality=85)
    except Unreadable:
        return _jpeg(Image.new("RGB", (shorter // 2, shorter // 2), PLACEHOLDER), quality=85)


def _size(source: str | bytes) -> tuple[int, int]:
    """Width and height of an image as its header says."""
    try:
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=FORMATS) as image:
            width, height = image.size
            return int(width), int(height)
    except Exception as error:  # as in `decode`: damaged files raise nearly anything
        raise as_unreadable(error) from error


def _jpeg(image: Image.Image, quality: int) -> bytes:
    out = io.BytesIO()
    image.save(out, "JPEG", quality=quality, optimize=True)
    return out.getvalue()
