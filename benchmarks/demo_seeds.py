"""The demonstration with three seeds, which vary the labelled rows, the head, the order of images and the clusters."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from common import save
from selex.cli import demo

SEEDS = (0, 1, 2)


def main(out: Path | None) -> None:
    scores: dict[str, list[tuple[float, ...]]] = {}
    begun = time.process_time()
    for seed in SEEDS:
        with tempfile.TemporaryDirectory() as folder:
            for name, found in demo.run_demo(Path(folder), seed, progress=True).items():
                scores.setdefault(name, []).append(tuple(found))
    results: list[dict[str, object]] = []
    for name, values in scores.items():
        rows = 100 * np.array(values)
        row: dict[str, object] = {"what": name, "seeds": len(SEEDS)}
        for part, mean, spread in zip(("all", "known", "novel"), rows.mean(0), rows.std(0, ddof=1), strict=True):
            row[part] = f"{mean:.1f} ± {spread:.1f}"
        results.append(row)
    seconds = (time.process_time() - begun) / len(SEEDS)
    results.append({"what": "processor seconds a demonstration, of all cores", "value": round(seconds)})
    save("demo_seeds", results, out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    main(parser.parse_args().out)
