"""Small pictures of photos, for pages that show many."""

from __future__ import annotations

import io

from PIL import Image

from selex.data.decode import FORMATS, Unreadable, decode, explain

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


def picture(path: str, shorter: int = 768, quality: int = 85) -> bytes:
    """A whole image, upright, as a JPEG whose shorter side has at most `shorter` pixels; else as `thumbnail`."""
    try:
        return _jpeg(Image.fromarray(decode(path, min(_shorter(path), shorter))), quality)
    except Unreadable:
        return _jpeg(Image.new("RGB", (shorter // 2, shorter // 2), PLACEHOLDER), quality)


def _shorter(path: str) -> int:
    """The shorter side of an image as it is on disk."""
    try:
        with Image.open(path, formats=FORMATS) as image:
            return int(min(image.size))
    except Exception as error:  # as in `decode`: damaged files raise nearly anything
        raise explain(error) from error


def _jpeg(image: Image.Image, quality: int) -> bytes:
    out = io.BytesIO()
    image.save(out, "JPEG", quality=quality, optimize=True)
    return out.getvalue()
