"""How well **Check** finds photos to set aside: precision and recall on real photos, some of them degraded here.

A few hundred photos of a folder are used as they are, and copies of some are degraded: blurred (Gaussian, with a radius
relative to the shorter side, or motion along a line), darkened (light divided by a factor and rounded to 8 bits), or
emptied (fog, a lens cap, white). Near-duplicates are the same photo cropped by a few per cent, resaved at quality 40,
brightened by a fifth or mirrored; a burst is the photo shifted by 3 % and cropped. Recall is the share of each kind
that is found. False positives are original photos that are flagged, and groups of originals that are no duplicates.
Features for near-duplicates come from a backbone, as in a run, and categories from the table. Precision refers to a
collection of these degraded photos and the originals. `--sweep` tries other thresholds.
"""

from __future__ import annotations

import argparse
import csv
import io
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from common import save
from selex.review.server import checks
from selex.review.server.checks import Measures, measure, near_duplicates

Photo = Image.Image
Damage = Callable[[Photo], Photo]


def blurred(share: float) -> Damage:
    return lambda photo: photo.filter(ImageFilter.GaussianBlur(share * min(photo.size)))


def moved(share: float, degrees: float = 0) -> Damage:
    """Motion along a line: the mean of copies that are shifted."""

    def damage(photo: Photo) -> Photo:
        pixels = np.asarray(photo, dtype=np.float32)
        steps = np.arange(max(2, round(share * min(photo.size))))
        down, right = (np.rint(steps * way(np.radians(degrees))).astype(int) for way in (np.sin, np.cos))
        copies = np.stack([np.roll(pixels, shift, (0, 1)) for shift in zip(down, right, strict=True)])
        return Image.fromarray(copies.mean(axis=0).astype(np.uint8))

    return damage


def darkened(by: float) -> Damage:
    return lambda photo: Image.fromarray((np.asarray(photo) / by).astype(np.uint8))


def fogged(left: float) -> Damage:
    """Contrast is all but gone, around a light grey."""
    return lambda photo: Image.fromarray((200 + left * (np.asarray(photo, dtype=np.float32) - 128)).astype(np.uint8))


def plain(value: int) -> Damage:
    """A lens cap, or a white frame: one value, and the noise of a camera."""

    def damage(photo: Photo) -> Photo:
        noise = np.random.default_rng(0).normal(value, 2, np.asarray(photo).shape)
        return Image.fromarray(noise.clip(0, 255).astype(np.uint8))

    return damage


DAMAGE: dict[str, dict[str, Damage]] = {
    "blurred": {
        "Gaussian, 0.5 %": blurred(0.005),
        "Gaussian, 1 %": blurred(0.01),
        "Gaussian, 2 %": blurred(0.02),
        "Gaussian, 4 %": blurred(0.04),
        "motion, 2 %": moved(0.02),
        "motion, 5 %": moved(0.05),
        "motion, 5 %, at 30°": moved(0.05, 30),
        "motion, 5 %, at 45°": moved(0.05, 45),
        "motion, 5 %, at 70°": moved(0.05, 70),
    },
    "dark": {f"light / {by}": darkened(by) for by in (2, 4, 8, 16)},
    "empty": {"fog, 20 % contrast": fogged(0.2), "fog, 5 % contrast": fogged(0.05), "white": plain(250)},
}


def cut(share: float) -> Damage:
    def damage(photo: Photo) -> Photo:
        x, y = (round(share / 2 * side) for side in photo.size)
        return photo.crop((x, y, photo.width - x, photo.height - y))

    return damage


def shifted(photo: Photo) -> Photo:
    return photo.crop((round(0.03 * photo.width), 0, photo.width, round(0.97 * photo.height)))


def saved_anew(photo: Photo) -> Photo:
    file = io.BytesIO()
    photo.resize((photo.width // 2, photo.height // 2)).save(file, "JPEG", quality=40)
    return Image.open(file)


TWINS: dict[str, Damage] = {
    "half the size, quality 40": saved_anew,
    "brighter by a fifth": lambda photo: ImageEnhance.Brightness(photo).enhance(1.2),
    "cut by 5 %": cut(0.05),
    "cut by 10 %": cut(0.1),
    "burst, moved by 3 %": shifted,
    "mirrored": ImageOps.mirror,
}


class Set:
    """Photos on disk, as they came and damaged."""

    def __init__(self, folder: Path, source: Path, count: int, damaged: int, seed: int = 0) -> None:
        with (source / "labels.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        rng = np.random.default_rng(seed)
        chosen = [rows[number] for number in rng.permutation(len(rows))[:count]]
        self.folder, self.category = folder, [row["class"] for row in chosen]
        self.clean = [str(source / row["file"]) for row in chosen]
        self.some = rng.permutation(count)[:damaged].tolist()

    def made(self, name: str, damage: Damage) -> list[str]:
        """Some of the photos with a damage, as files; those that are made before are there."""
        paths = []
        for row in self.some:
            path = self.folder / f"{name.replace('/', 'by')} {row}.jpg"
            if not path.exists():
                with Image.open(self.clean[row]) as photo:
                    damage(photo.convert("RGB")).convert("RGB").save(path, quality=92)
            paths.append(str(path))
        return paths


def measured(paths: list[str]) -> np.ndarray:
    return np.stack([measure(path) for path in paths])


def bad_photos(clean: np.ndarray, rows: dict[str, dict[str, np.ndarray]]) -> list[dict[str, object]]:
    """Recall of each damage, where the damaged photos are among those that came; precision with all of a kind."""
    found: list[dict[str, object]] = []
    false = {kind: int(bad.sum()) for kind, bad in Measures.of(list(clean)).bad.items()}
    for kind, damages in rows.items():
        for name, damaged in damages.items():
            right = int(Measures.of([*clean, *damaged]).bad[kind][len(clean) :].sum())
            found.append(line(kind, name, right, len(damaged), false[kind], len(clean)))
    return found


def line(kind: str, name: str, right: int, of: int, false: int, clean: int) -> dict[str, object]:
    return {
        "kind": kind,
        "damage": name,
        "photos": of,
        "found": right,
        "recall": round(right / of, 3),
        "false": f"{false} of {clean}",
        "precision": round(right / max(1, right + false), 3),
    }


def twins(photos: Set, clean: np.ndarray, features: Callable[[list[str]], np.ndarray]) -> list[dict[str, object]]:
    """Recall of twins, each kind among the photos as they came; false are groups of photos that are none."""
    own = features(photos.clean)
    category = np.unique(photos.category, return_inverse=True)[1]
    false = sum(len(group) - 1 for group in near_duplicates(own, category, Measures.of(list(clean)).small))
    found = []
    for name, change in TWINS.items():
        paths = photos.made(name, change)
        small = Measures.of([*clean, *measured(paths)]).small
        both = np.concatenate([category, category[photos.some]])
        groups = near_duplicates(np.concatenate([own, features(paths)]), both, small)
        pairs = set(zip(photos.some, range(len(clean), len(both)), strict=True))
        right = sum(any({one, other} <= set(group.tolist()) for group in groups) for one, other in pairs)
        found.append(line("near-duplicate", name, right, len(pairs), false, len(clean)))
    return found


def embedder(backbone: str) -> Callable[[list[str]], np.ndarray]:
    """Features as a run has them; small grey versions where no backbone is given."""
    if not backbone:
        return lambda paths: Measures.of(list(measured(paths))).small.astype(np.float32) - 128
    from selex.data.decode import decode
    from selex.data.store import ImageStore
    from selex.features.embed import embed
    from selex.models.backbones import load_backbone

    network = load_backbone(backbone, "cpu")
    return lambda paths: np.asarray(
        embed(network, ImageStore.in_memory([decode(path, 256) for path in paths], 256), device="cpu")
    )


SWEEP = {"BLURRED": (0.05, 0.1, 0.15, 0.2, 0.3), "DARK": (15, 25, 35, 45), "EMPTY": (5, 8, 12, 16)}
SAMES = (0.85, 0.9, 0.93, 0.95, 0.97)


def sweep(constant: str, values: tuple[float, ...], work: Callable[[], list[dict[str, object]]]) -> None:
    """The same with other thresholds, printed only."""
    kept = getattr(checks, constant)
    for value in values:
        setattr(checks, constant, value)
        for row in work():
            print(constant, value, row, flush=True)
    setattr(checks, constant, kept)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path, help="a folder with labels.csv: file, class")
    parser.add_argument("--count", type=int, default=600, help="original photos")
    parser.add_argument("--damaged", type=int, default=60, help="photos per kind of degradation")
    parser.add_argument(
        "--backbone", default="efficientnet-lite1", help="for near-duplicates; '' compares grey values only"
    )
    parser.add_argument("--sweep", action="store_true", help="try other thresholds; saves nothing")
    parser.add_argument("--name", default="pets", help="name of the results")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        photos = Set(Path(folder), options.photos, options.count, options.damaged)
        clean = measured(photos.clean)
        rows = {
            kind: {name: measured(photos.made(name, damage)) for name, damage in damages.items()}
            for kind, damages in DAMAGE.items()
        }
        known: dict[str, np.ndarray] = {}

        def features(paths: list[str]) -> np.ndarray:
            key = "|".join(paths)
            if key not in known:
                known[key] = embed(paths)
            return known[key]

        embed = embedder(options.backbone)
        if options.sweep:
            for constant, values in SWEEP.items():
                sweep(constant, values, lambda: bad_photos(clean, rows))
            sweep("SAME", SAMES, lambda: twins(photos, clean, features))
            return
        save(f"quality_{options.name}", [*bad_photos(clean, rows), *twins(photos, clean, features)])


if __name__ == "__main__":
    main()
