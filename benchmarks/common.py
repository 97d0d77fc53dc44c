"""Shared by several benchmarks: synthetic embeddings, labels, timing that waits for the GPU, saving results."""

from __future__ import annotations

import argparse
import json
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import selex
from selex.io import column, read_csv
from selex.runs.versions import code_digest, commit_of

RESULTS = Path(__file__).parent / "results"


def embeddings(
    n: int, d: int, k: int, device: str, seed: int = 0, noise: float = 1.5
) -> tuple[torch.Tensor, torch.Tensor]:
    """L2-normalised rows, `n × d`, around k random directions, and the direction of each. Made in blocks."""
    generator = torch.Generator(device).manual_seed(seed)
    centers = torch.nn.functional.normalize(torch.randn(k, d, device=device, generator=generator), dim=1)
    truth = torch.arange(n, device=device) % k
    rows = torch.empty(n, d, device=device)
    for start in range(0, n, 1 << 16):
        block = rows[start : start + (1 << 16)].normal_(generator=generator).mul_(noise / d**0.5)
        block += centers[truth[start : start + (1 << 16)]]
        block /= block.norm(dim=1, keepdim=True)
    return rows, truth


def half_labelled(truth: torch.Tensor, n_known: int) -> torch.Tensor:
    """Labels of the benchmark: every second row of the first n_known categories, -1 elsewhere."""
    turn = torch.arange(len(truth), device=truth.device) // (int(truth.max()) + 1)
    return torch.where((truth < n_known) & (turn % 2 == 0), truth, -1)


def seconds(work: Callable[[], object], repeats: int, warmups: int = 1) -> list[float]:
    """Wall time of each repeat, waiting for the GPU where there is one."""
    times = []
    for index in range(warmups + repeats):
        wait()
        start = time.perf_counter()
        work()
        wait()
        if index >= warmups:
            times.append(time.perf_counter() - start)
    return times


def spread(times: list[float]) -> dict[str, float]:
    """Median, fastest and slowest, rounded to tenths of a millisecond."""
    return {
        "median_s": round(statistics.median(times), 4),
        "min_s": round(min(times), 4),
        "max_s": round(max(times), 4),
        "repeats": len(times),
    }


def made_by() -> dict[str, object]:
    """What makes a figure now: the GPU if it was used, else the CPU; versions; the commit if the code is committed."""
    commit, as_committed = commit_of()
    on_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return {
        "device": torch.cuda.get_device_name() if on_gpu else f"{platform.machine()} CPU",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "selex": selex.__version__,
        "code": code_digest(),
        "commit": commit if as_committed else None,
    }


def save(
    name: str,
    results: list[dict[str, object]],
    folder: Path | None = None,
    quiet: bool = False,
    lines: Lines | None = None,
) -> None:
    """Write the results with the command and what made them, or made their lines; print them unless `quiet`."""
    words = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:]]  # folders aside
    record = {
        "command": shlex.join(["python", "benchmarks/" + Path(sys.argv[0]).name, *words]),
        **(lines.made_by() if lines else made_by()),
        "results": results,
    }
    folder = folder or RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
    if not quiet:
        print(json.dumps(record, indent=1))


class Lines:
    """Measurements as they are made: a file keeps a line of each, so that a later call goes on from there.

    Every line says what made it. Lines of several machines may be put together, those of different code may not.
    """

    def __init__(self, file: Path | None) -> None:
        self.file = file
        there = file.read_text().splitlines() if file and file.exists() else []
        self.lines: list[dict[str, Any]] = [json.loads(line) for line in there]
        if silent := sum("made by" not in line for line in self.lines):
            sys.exit(
                f"error: {file}: {silent} of {len(self.lines)} lines do not say what made them: measure them again"
            )
        self._of_one_code()

    def once(self, key: dict[str, Any], measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What was measured under this key; measured now if it is not there."""
        for line in self.lines:
            if key.items() <= line.items():
                return line
        self._of_one_code(code_digest())
        line = {**key, **measure()}
        line["made by"] = made_by()  # a GPU is named where the measurement used it
        print(line, flush=True)
        self.lines.append(line)
        if self.file:
            with self.file.open("a") as file:
                file.write(json.dumps(line) + "\n")
        return line

    def made_by(self) -> dict[str, object]:
        """What made the lines, joined where machines differ; the commit of this checkout if it has their very code."""
        here = made_by()
        each = [line["made by"] for line in self.lines] or [here]
        each = [
            {**one, "commit": here["commit"]} if not one["commit"] and one["code"] == here["code"] else one
            for one in each
        ]
        values = {name: list(dict.fromkeys(one[name] for one in each)) for name in here}
        return {name: some[0] if len(some) == 1 else " and ".join(map(str, some)) for name, some in values.items()}

    def _of_one_code(self, *now: str) -> None:
        """Refuse lines of different code, and to add to those of other code than there is now."""
        codes = sorted({line["made by"]["code"] for line in self.lines}.union(now))
        if len(codes) > 1:
            sys.exit(
                f"error: {self.file}: lines of different code ({', '.join(codes)}): measure them again in a new file"
            )


def columns_of(path: Path, by: list[str]) -> dict[str, np.ndarray]:
    """The class of every image, and what else it is grouped by."""
    lines = read_csv(path)
    places = {name: column(path, lines[0][1], [name]) for name in ("class", *by)}
    return {name: np.array([line[place] for _, line in lines[1:]]) for name, place in places.items()}


def labels_for(truth: np.ndarray, n_known: int, labelled: float, seed: int) -> np.ndarray:
    """Labels on this share of the images of known classes, on at least one of each; from 1 on: on so many of each."""
    rng = np.random.default_rng(seed)
    if labelled >= 1:
        labels = np.full(len(truth), -1)
        for number in range(n_known):
            labels[rng.permutation(np.flatnonzero(truth == number))[: int(labelled)]] = number
        return labels
    labels = np.where((truth < n_known) & (rng.random(len(truth)) < labelled), truth, -1)
    labels[[np.flatnonzero(truth == number)[0] for number in range(n_known)]] = range(n_known)
    return labels


def photo_arguments(about: str | None) -> argparse.ArgumentParser:
    """What every benchmark on a folder of photos is asked."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("root", type=Path)
    parser.add_argument("--backbone", default="efficientnet-lite1")
    parser.add_argument("--crop", type=int)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    return parser


def wait() -> None:
    """Until the GPU is done, where there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
