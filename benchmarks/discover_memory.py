"""Peak memory of `discover` on many small images with the `pixels` backbone, which leaves our own share."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from common import save
from selex import Config, discover


def write_images(folder: Path, n: int) -> None:
    """Digits with noise, a tenth of them in folders that name them."""
    digits, rng = load_digits(), np.random.default_rng(0)
    for row in range(n):
        image = digits.images[row % len(digits.images)] * 15 + rng.uniform(0, 15, (8, 8))
        part = str(digits.target[row % len(digits.images)]) if row % 10 == 0 else "unlabelled"
        (folder / part).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.astype(np.uint8)).save(folder / part / f"{row:07d}.png", compress_level=1)


def peak(folder: str) -> None:
    """Run in a process of its own: prints the most memory it had, in GB, and the seconds it took."""
    start = time.perf_counter()
    config = Config.of(f"{folder}/photos", categories=100, backbone="pixels", restarts=1)
    discover(config, f"{folder}/run", store=f"{folder}/store")
    high = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
    print(round(high / 2**20, 2), round(time.perf_counter() - start, 1))


def main(n: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_images(Path(folder) / "photos", n)
        code = f"from discover_memory import peak; peak({folder!r})"
        here = Path(__file__).parent
        done = subprocess.run([sys.executable, "-c", code], cwd=here, capture_output=True, text=True, check=True)
    gib, seconds = done.stdout.split()
    save(
        "discover_memory",
        [{"what": "discover, pixels, 100 categories", "images": n, "peak_gib": float(gib), "s": float(seconds)}],
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=100_000)
    main(parser.parse_args().images)
