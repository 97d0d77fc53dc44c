"""Small pictures of photos, for pages that show many."""

from __future__ import annotations

import io

from PIL import Image

from selex.data.decode import Unreadable, decode

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
    out = io.BytesIO()
    image.save(out, "JPEG", quality=quality, optimize=True)
    return out.getvalue()
