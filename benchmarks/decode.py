"""Decoding and storing 5,000 JPEGs of 500 × 375 pixels, against Pillow's decode and resize alone, on two cores.

Pillow's worker processes are already running when the clock starts; our time is that of the whole `ImageStore.build`:
checking every file, writing, and flushing to disk.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import PIL
import skimage.data
from PIL import Image, features

from common import save
from selex.data.store import ImageStore
from selex.data.table import read_table


def make_photos(folder: Path, n: int) -> None:
    """Different cuts of the bundled photos, so that each file is another image."""
    photos = [Image.fromarray(getattr(skimage.data, name)()) for name in ("astronaut", "chelsea", "coffee", "rocket")]
    rng = np.random.default_rng(0)
    for i in range(n):
        photo = photos[i % len(photos)]
        x, y = (int(rng.integers(side // 3)) for side in photo.size)
        box = (x, y, x + photo.width * 2 // 3, y + photo.height * 2 // 3)
        photo.resize((500, 375), Image.Resampling.BICUBIC, box).save(folder / f"{i:05d}.jpg", quality=90)


def pillow_alone(path: str) -> None:
    """What anybody would write: open, decode to RGB, shorter side to 256."""
    with Image.open(path) as image:
        image.convert("RGB").resize((341, 256), Image.Resampling.BICUBIC)


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def race(folder: Path, store: Path, workers: int) -> tuple[list[float], list[float]]:
    """Seconds of Pillow and of us, turn by turn on the same tenth of the images, so that a busy machine slows both."""
    table = read_table(folder)
    pillow, ours = [], []
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(pillow_alone, [str(table.source(row)) for row in range(8 * workers)]))
        for rows in np.array_split(np.arange(len(table)), 10):
            part = table.take(rows)
            paths = [str(part.source(row)) for row in range(len(part))]
            pillow.append(seconds(lambda: list(pool.map(pillow_alone, paths, chunksize=10))))  # noqa: B023
            ours.append(seconds(lambda: ImageStore.build(part, store, workers=workers)))  # noqa: B023
    return pillow, ours


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        photos, store = Path(temporary, "photos"), Path(temporary, "store")
        photos.mkdir()
        make_photos(photos, options.images)
        pillow, ours = race(photos, store, options.workers)
        again = seconds(lambda: ImageStore.build(read_table(photos), store))
    result: dict[str, object] = {
        "what": "decode and store JPEGs of 500 × 375",
        "images": options.images,
        "workers": options.workers,
        "pillow_images_per_s": round(options.images / sum(pillow), 1),
        "store_images_per_s": round(options.images / sum(ours), 1),
        "ratio": round(sum(pillow) / sum(ours), 3),
        "ratio_by_turn": [round(a / b, 2) for a, b in zip(pillow, ours, strict=True)],
        "second_open_s": round(again, 3),
        "pillow": PIL.__version__,
        "libjpeg_turbo": features.version("libjpeg_turbo"),
    }
    save("decode", [result])


if __name__ == "__main__":
    main()
