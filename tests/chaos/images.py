"""Images that are damaged, strange, or no images: each is used or named among the skipped, none stops a run."""

from __future__ import annotations

import csv
import io
import os
import random
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from chaos import lab as worlds
from chaos.cases import Plan, Tries, case
from chaos.lab import PIXELS, Lab

GB = 1 << 30
KINDS = ("PNG", "JPEG", "WEBP", "GIF", "TIFF", "BMP")


def good(rng: random.Random, kind: str) -> bytes:
    """A small picture of noise."""
    pixels = np.frombuffer(rng.randbytes(24 * 20 * 3), np.uint8).reshape(20, 24, 3)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def broken(rng: random.Random, data: bytes) -> bytes:
    """One of the ways in which a file goes bad."""
    changed, way = bytearray(data), rng.randrange(6)
    place = rng.randrange(len(data))
    if way == 0:
        return data[:place]
    if way == 1:
        for _ in range(rng.randint(1, 20)):
            changed[rng.randrange(len(data))] = rng.randrange(256)
    elif way == 2:  # in the header, where it hurts
        changed[rng.randrange(min(64, len(data)))] ^= 1 << rng.randrange(8)
    elif way == 3:
        del changed[place : place + rng.randint(1, 100)]
    elif way == 4:
        changed[place:place] = rng.randbytes(rng.randint(1, 1000))
    else:
        changed[place:] = bytes(len(data) - place)
    return bytes(changed)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, bits: int = 8, colour: int = 2, more: bytes = b"", data: bytes = b"") -> bytes:
    """A PNG whose header says what it likes."""
    head = _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + more + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")


def strange() -> Iterator[tuple[str, bytes]]:
    """Files that somebody made on purpose, or that have nothing to do with images."""
    for width, height in ((0, 0), (1, 0), (2**31 - 1, 2**31 - 1), (2**32 - 1, 1), (65_535, 65_535), (1, 65_535)):
        yield f"side-{width}x{height}.png", png(width, height)
    for bits in (0, 3, 8, 16, 255):
        for colour in (0, 1, 2, 3, 4, 6, 7):
            yield f"depth-{bits}-{colour}.png", png(4, 4, bits, colour, data=zlib.compress(bytes(400)))
    bomb = zlib.compress(bytes(50_000_000))
    yield "bomb-pixels.png", png(9_000, 9_000, data=bomb)
    yield "bomb-text.png", png(4, 4, more=_chunk(b"zTXt", b"a\0\0" + bomb))
    yield "bomb-profile.png", png(4, 4, more=_chunk(b"iCCP", b"a\0\0" + bomb))
    yield "text.png", b"not an image"
    yield "empty.jpg", b""
    yield "script.gif", b"GIF89a/*\n*/=alert(1)"
    yield "svg.png", b"<svg xmlns='http://www.w3.org/2000/svg'/>"
    yield "postscript.jpg", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/etc/passwd) (r) file\n"
    for mode in ("1", "L", "LA", "P", "RGBA", "I;16", "I", "F", "CMYK", "YCbCr", "LAB"):
        kind = "TIFF" if mode in ("F", "CMYK", "YCbCr", "LAB", "I") else "PNG"
        file = io.BytesIO()
        Image.new(mode, (12, 9), 1 if mode != "F" else float("nan")).save(file, kind)
        yield f"mode-{mode.replace(';', '')}.{kind.lower()}", file.getvalue()
    for name in (
        "a b.png",
        "new\nline.png",
        "=cmd.png",
        "-rf.png",
        "%2e%2e.png",
        "'; DROP.png",
        "日本.png",
        "x" * 240 + ".png",
    ):
        yield name, good(random.Random(1), "PNG")


def fill(folder: Path, count: int, seed: int) -> set[str]:
    """At least `count` files that go by an image's name; their names."""
    rng, made = random.Random(seed), dict(strange())
    while len(made) < count:
        kind = rng.choice(KINDS)
        made[f"{len(made):04d}.{kind.lower()}"] = broken(rng, good(rng, kind))
    folder.mkdir()
    for name, data in made.items():
        (folder / name).write_bytes(data)
    (folder / "loop.png").symlink_to("loop.png")
    (folder / "dangling.png").symlink_to("nowhere")
    (folder / "zero.png").symlink_to("/dev/zero")
    names = set(os.listdir(folder))
    os.mkfifo(folder / "pipe.png")  # is no file, and not to be waited for
    return names


@case("images", "malformed and strange ones")
def malformed(lab: Lab, plan: Plan) -> Tries:
    lab.restore(worlds.photos)
    names = fill(lab.home / "photos" / "unlabelled" / "odd", plan.count(600, few=150), plan.seed)
    done = lab.selex("discover", "photos", *PIXELS, "--out", "run")
    assert done.code == 0, done
    used, skipped = (_files(lab.home / "run" / name) for name in ("clusters.csv", "skipped.csv"))
    for name in sorted(names):
        found = [name in {file.rpartition("/odd/")[2] for file in files} for files in (used, skipped)]
        yield "" if sum(found) == 1 else f"{name!r}: {'both' if any(found) else 'neither'} used and skipped"
    yield f"{done.peak / GB:.1f} GB of memory" if done.peak > 2 * GB else ""


def _files(path: Path) -> set[str]:
    with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        return {line["file"] for line in csv.DictReader(file)}


HUGE = {
    "RGBA.png": lambda: Image.new("RGBA", (10_000, 10_000), (9, 9, 9, 99)),
    "16bit.png": lambda: Image.fromarray(np.full((10_000, 10_000), 999, np.uint16)),
    "grey.webp": lambda: Image.new("L", (10_000, 10_000), 99),
    "float.tiff": lambda: Image.new("F", (10_000, 10_000), 0.5),
    "palette.gif": lambda: Image.new("P", (10_000, 10_000), 3),
    "plain.jpg": lambda: Image.new("RGB", (10_000, 10_000), (9, 99, 9)),
}


@case("images", "100 megapixels, memory of one")
def huge(lab: Lab, plan: Plan) -> Tries:
    """Less than 1 GB more than for small ones."""
    lab.restore(worlds.run)
    small = lab.must("predict", "run", "new", "--device", "cpu").peak
    for name in plan.some(list(HUGE), few=1):
        lab.restore(worlds.run)
        (lab.home / "one").mkdir()
        HUGE[name]().save(lab.home / "one" / name)
        done = lab.selex("predict", "run", f"one/{name}", "--out", "one.csv", "--device", "cpu")
        more = (done.peak - small) / GB
        lost = done.trouble or (f"takes {more:.2f} GB" if more > 1 else "")
        yield lost and f"{name}: {lost}"
