"""Peak memory and time of commands on a run of many images: writing, info, export, report, review.

The run is synthetic, as in `report_size.py`, with 16 dimensions. Its image files do not exist, so pages show grey
squares. Each command runs in its own process; memory is its peak, including mapped files.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.compute as pc
import torch
from pyarrow import parquet

from common import embeddings, half_labelled, save
from report_size import make_levels
from review_server import Client
from selex import Config, Hierarchy
from selex.checksums import file_digest, seal, stamped
from selex.cluster.holdout.select import Selection
from selex.cluster.pipeline import FittedClusters, calibrated
from selex.cluster.whiten import FeatureMaps
from selex.data.parquet import read_blocks
from selex.discovery_steps import publish
from selex.runs.writer import write_run

DIMS = 16


class Table(SimpleNamespace):
    """What `publish` needs to know of images."""

    def __len__(self) -> int:
        return len(self.files)


def make_run(folder: Path, n: int, k: int) -> dict[str, object]:
    """A finished run of n images in k categories; what writing it takes, beside what was there before."""
    features, truth = embeddings(n, DIMS, k, "cpu")
    labels = half_labelled(truth, k // 2).numpy()
    config = Config.of(str(folder / "photos"), categories=k, backbone="pixels")
    files = [f"camera {row % 100:02d}/{row:08d}.jpg" for row in range(n)]
    names = [f"category {number:04d}" for number in range(k // 2)]
    table = Table(files=files, labels=labels, labelled=labels >= 0, categories=names, root=str(folder / "photos"))
    images = SimpleNamespace(table=table, size=256, skipped=[])
    backbone = SimpleNamespace(fingerprint=lambda: "made up", crop=224, name="pixels")
    levels = make_levels(features, truth, k).levels
    found = FittedClusters(Hierarchy(levels).on_host(), FeatureMaps(), Selection(False, "none"))
    found = calibrated(found, features.numpy(), labels)
    with write_run(folder / "run", config, table.root) as run:
        np.save(run.features, features.numpy())
        run.features.with_name("embeddings.npy.json").write_text("{}")
        start, before = time.perf_counter(), peak("self")
        publish(run, config, images, found, backbone)  # type: ignore[arg-type]
        return {"s": round(time.perf_counter() - start, 1), "peak_mib": peak("self"), "before_mib": before}


def repeat(run: Path, times: int) -> None:
    """The images of a run so many times over, each time in another folder; its `clusters.csv` stays as it was."""
    config, tree = run / "config.json", run / "hierarchy.json"
    reader, features = parquet.ParquetFile(run / "clusters.parquet"), np.load(run / "embeddings.npy")
    more = np.lib.format.open_memmap(run / "new.npy", "w+", features.dtype, (times * len(features), DIMS))
    with parquet.ParquetWriter(run / "new.parquet", reader.schema_arrow, write_page_checksum=True) as writer:
        for turn in range(times):
            more[turn * len(features) : (turn + 1) * len(features)] = features
            for group in range(reader.num_row_groups):
                table = reader.read_row_group(group)
                files = pc.binary_join_element_wise(f"site {turn}", table["file"], "/")
                writer.write_table(table.set_column(0, "file", files))
    more.flush()
    (run / "new.npy").replace(run / "embeddings.npy")
    (run / "new.parquet").replace(run / "clusters.parquet")
    levels = json.loads(tree.read_text())
    for level in levels["levels"]:
        level["sizes"] = [times * size for size in level["sizes"]]
    tree.write_text(json.dumps(levels))
    record = {key: value for key, value in json.loads(config.read_text()).items() if key != "sha256"}
    blocks = (block["file"].to_pylist() for block in read_blocks(run / "clusters.parquet", ["file"]))
    digests = {name: file_digest(run / name) for name in record["files"]}
    config.write_text(stamped({**record, "files": digests, "seal": seal(record["root"], blocks)}))


def peak(pid: int | str) -> int:
    """The most memory that a process ever had, in MiB."""
    return int(re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) // 1024  # type: ignore[index]


def measure(command: list[str], ask: Callable[[subprocess.Popen[str]], float] | None = None) -> dict[str, object]:
    """Seconds and peak of a process; of a server until it has answered."""
    start = time.perf_counter()
    if ask is None:
        said = subprocess.run([sys.executable, "-c", _SMALL, *command], stdout=subprocess.PIPE, text=True, check=True)
        return {"s": round(time.perf_counter() - start, 1), "peak_mib": int(said.stdout.split()[-1]) // 1024}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    opened = ask(process) - start
    found: dict[str, object] = {"s": round(time.perf_counter() - start, 1), "first_page_s": round(opened, 1)}
    found["peak_mib"] = peak(process.pid)
    process.terminate()
    process.wait()
    return found


# a child's peak is never below what its parent had when it started it: so a small one starts it
_SMALL = """
import os, resource, sys
pid = os.spawnv(os.P_NOWAIT, sys.argv[1], sys.argv[1:])
assert os.waitpid(pid, 0)[1] == 0
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


# what a new round starts and ends with: labels from decisions, and what it changed; here every twentieth image
_LABELS = """
import sys
from selex.review.core.labels import labels_of
from selex.runs.run import Run
labels_of(Run.open(sys.argv[1]))
"""
_COMPARE = """
import sys
from selex.review.core.outcome import compare
from selex.review.core.state import State
from selex.runs.results import Results
from selex.runs.run import Run
run = Run.open(sys.argv[1])
before = State(Results.read(run))
before.category[::20] = (before.category[::20] + 1) % len(before.names)
assert compare(before, Results.read(run)).images == len(before.category[::20])
"""


def made(folder: str, n: int, k: int, times: int) -> dict[str, object]:
    """The run, made by a process of its own."""
    sizes = ["--images", str(n), "--categories", str(k), "--times", str(times)]
    command = [sys.executable, __file__, "--make", folder, *sizes]
    found: dict[str, object] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return found


def pages(process: subprocess.Popen[str]) -> float:
    """The first page, a category, an image, a search and what is next; when the first one was there."""
    assert process.stdout
    _, line = process.stdout.readline(), process.stdout.readline()  # that it reads the run, and where the page is
    client = Client(int(re.search(r":(\d+)/", line)[1]))  # type: ignore[index]
    client("/")
    first = time.perf_counter()
    for path in ("/category/1", "/image/5", "/?q=0001234", "/next"):
        client(path)
    client.connection.close()
    return first


def main(n: int, k: int, times: int, commands: list[str], keep: Path | None = None) -> list[dict[str, object]]:
    """What each command takes on a run of n images, so many times over; what is published is n."""
    entries: list[dict[str, object]] = []
    if keep:
        keep.mkdir(parents=True, exist_ok=True)
    with nullcontext(str(keep)) if keep else tempfile.TemporaryDirectory() as name:
        run = f"{name}/run"
        program = [sys.executable, "-m", "selex"]
        known = {
            "info": [*program, "info", run],
            "export csv": [*program, "export", run, "--to", "csv", "--out", f"{name}/table.csv"],
            "export parquet": [*program, "export", run, "--to", "parquet", "--out", f"{name}/table.parquet"],
            "report": [*program, "report", run],
            "review": [*program, "review", run, "--no-browser", "--port", "0"],
            "labels": [sys.executable, "-c", _LABELS, run],
            "compare": [sys.executable, "-c", _COMPARE, run],
        }
        for what in (*(() if Path(run).exists() else ("publish",)), *commands):
            if what == "publish":
                found, images = made(name, n, k, times), n
            else:
                found, images = measure(known[what], pages if what == "review" else None), times * n
            entries.append({"what": what, "images": images, "categories": k, **found})
            print(entries[-1], flush=True)
    return entries


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, nargs="+", default=[200_000, 1_000_000])
    parser.add_argument("--categories", type=int, default=1000)
    parser.add_argument("--times", type=int, default=1, help="repeat the images of the run this many times")
    parser.add_argument("--keep", type=Path, help="folder of the run, for a single size; created if missing, and kept")
    parser.add_argument("--commands", nargs="*", default=["info", "export csv", "export parquet", "report", "review"])
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.make:
        figures = make_run(options.make, options.images[0], options.categories)
        if options.times > 1:
            repeat(options.make / "run", options.times)
        print(json.dumps(figures))
    else:
        how = options.categories, options.times, options.commands, options.keep
        found = [entry for n in options.images for entry in main(n, *how)]
        save("run_memory", found, options.out, quiet=True)
