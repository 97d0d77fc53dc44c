"""Time and memory of the review server with many images and categories, on a synthetic run without image files.

Times are for complete requests over loopback, one after another: the server's, plus the little that the client takes.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from common import embeddings, save
from selex.config import Config
from selex.runs.writer import write_run


def make_run(folder: Path, n: int, k: int, d: int, seed: int = 0) -> None:
    """A finished run: half of the categories known, a tenth of their rows labelled, features around directions."""
    features, truth = embeddings(n, d, k, "cpu")
    rng, category, n_known = np.random.default_rng(seed), truth.numpy(), k // 2
    names = [f"category {i}" if i < n_known else f"novel-{i - n_known + 1}" for i in range(k)]
    levels, sizes, labels = [], k, np.arange(k)
    at_levels = []
    while True:
        parents = np.arange(sizes) // 2
        at_levels.append(labels[category])
        counts = np.bincount(at_levels[-1], minlength=sizes)
        levels.append({"n_known": max(1, sizes // 2), "sizes": counts.tolist(), "parents": parents.tolist()})
        if sizes <= 2:
            break
        labels, sizes = labels // 2, -(-sizes // 2)
    levels[-1]["parents"] = None
    columns = {
        "file": [f"folder {i % 97:02d}/image {i:06d}.jpg" for i in range(n)],
        "cluster": category.tolist(),
        "category": [names[c] for c in category],
        "known": (category < n_known).astype(int).tolist(),
        "labelled": ((category < n_known) & (rng.random(n) < 0.1)).astype(int).tolist(),
        "confidence": rng.beta(4, 2, n).tolist(),
        "runner_up": [names[c] for c in (category + rng.integers(1, 5, n)) % k],
        "distance": rng.random(n).tolist(),
        **{f"level_{i}": values.tolist() for i, values in enumerate(at_levels, 1)},
    }
    config = Config.of(str(folder / "photos"), categories=k)
    with write_run(folder / "run", config, str(folder / "photos")) as run:
        np.save(run.features, features.numpy())
        run.features.with_name(run.features.name + ".json").write_text("{}")
        tree = {"names": names, "levels": levels, "estimate": None, "curve": None, "last_number": 0}
        run.publish(config, str(folder / "photos"), [columns], tree, [], lambda model: None)


class Client:
    """Asks the server, and notes how long it took."""

    def __init__(self, port: int) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port)

    def __call__(self, path: str, body: dict[str, Any] | None = None) -> tuple[float, bytes]:
        """Seconds and content of an answer."""
        begin = time.perf_counter()
        data = None if body is None else json.dumps(body)
        self.connection.request("GET" if data is None else "POST", path, data, {"Content-Type": "application/json"})
        answer = self.connection.getresponse()
        content = answer.read()
        seconds = time.perf_counter() - begin
        assert answer.status == 200, (path, answer.status, content[:200])
        return seconds, content

    def standing(self) -> dict[str, Any]:
        """How far the review is."""
        standing: dict[str, Any] = json.loads(self("/api/standing")[1])
        return standing

    def decide(self, **decision: Any) -> float:
        """Seconds that a decision takes."""
        return self("/api/decisions", {"version": self.standing()["version"], **decision})[0]


def steps(client: Client, n: int, k: int) -> Iterator[tuple[str, Callable[[], float]]]:
    """What is timed, each to be repeated."""
    rng, numbers = np.random.default_rng(1), count()

    def rows(size: int) -> list[int]:
        return [int(row) for row in rng.choice(n, size, replace=False)]

    def undo() -> float:
        client.decide(kind="confirm", rows=rows(20))
        return client("/api/undo", {"version": client.standing()["version"]})[0]

    yield "first page", lambda: client("/")[0]
    yield "first page after a decision", lambda: (client.decide(kind="set_aside", rows=rows(1)), client("/")[0])[1]
    yield "category page", lambda: client(f"/category/{rng.integers(k)}")[0]
    yield "image page with similar images", lambda: client(f"/image/{rng.integers(n)}")[0]
    yield "search names and files", lambda: client(f"/?q=image+{rng.integers(1000):03d}")[0]
    yield "list of images, any page", lambda: client(f"/images?page={rng.integers(1, n // 120)}")[0]
    yield "list of images, of a folder", lambda: client(f"/images?folder=folder+{rng.integers(97):02d}")[0]
    yield "list of images, by file name", lambda: client(f"/images?q=image+{rng.integers(1000):03d}")[0]
    yield "all images of a folder, to select them", lambda: client(f"/api/rows?folder=folder+{rng.integers(97):02d}")[0]
    yield "map", lambda: client("/api/map")[0]
    yield "suggestions", lambda: client("/next")[0]
    yield "offer of a split", lambda: client(f"/api/categories/{rng.integers(k)}/parts?parts=2")[0]
    yield "decision: move 20 images", lambda: client.decide(kind="move", rows=rows(20), category=int(rng.integers(k)))
    yield (
        "decision: name",
        lambda: client.decide(kind="name", category=int(rng.integers(k)), name=f"name {next(numbers)}"),
    )
    yield "decision: confirm a category", lambda: client.decide(kind="confirm", category=int(rng.integers(k)))
    yield "decision: undo", undo
    pairs = iter(rng.permutation(k).reshape(-1, 2).tolist())
    yield "decision: merge two", lambda: client.decide(kind="merge", categories=next(pairs))


def new_round(client: Client, folder: Path, n: int, k: int, d: int) -> float:
    """Seconds of the first page of a new round, where all images were confirmed before, and every 300th set aside."""
    for category in range(k):
        with suppress(AssertionError):  # merged into another
            client.decide(kind="confirm", category=category)
    client.decide(kind="set_aside", rows=list(range(0, n, 300)))
    make_run(folder, n, k, d, seed=1)
    client.connection.close()  # the server has, of one that asked nothing for so long
    return client("/")[0]


def memory(process: subprocess.Popen[str], key: str) -> float:
    text = Path(f"/proc/{process.pid}/status").read_text()
    return round(int(re.search(rf"{key}:\s+(\d+)", text)[1]) / 1024)  # type: ignore[index]


def main(n: int, k: int, d: int, repeats: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        make_run(Path(folder), n, k, d)
        begin = time.perf_counter()
        command = [sys.executable, "-m", "selex", "review", f"{folder}/run", "--no-browser", "--port", "0"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert server.stdout
        _, line = server.stdout.readline(), server.stdout.readline()  # that it reads the run, and where the page is
        port = int(re.search(r":(\d+)/", line)[1])  # type: ignore[index]
        results: list[dict[str, object]] = []
        try:
            client = Client(port)
            client("/")
            start = {
                "what": "start of the server to its first page",
                "median_ms": round((time.perf_counter() - begin) * 1e3),
            }
            results.append(start)
            took, content = client("/api/map")
            results.append({"what": "map, worked out the first time", "median_ms": round(took * 1e3)})
            results.append({"what": "size of the map", "mib": round(len(content) / 2**20, 1)})
            for what, step in steps(client, n, k):
                step()
                times = 1000 * np.array([step() for _ in range(repeats)])
                median, high = np.percentile(times, [50, 95])
                results.append(
                    {"what": what, "median_ms": round(median, 1), "p95_ms": round(high, 1), "repeats": repeats}
                )
            took = new_round(client, Path(folder), n, k, d)
            results.append({"what": "first page of a new round", "median_ms": round(took * 1e3)})
            for what, key in (("memory of its own", "RssAnon"), ("memory with mapped features and files", "VmRSS")):
                results.append({"what": what, "mib": memory(server, key)})
        finally:
            server.terminate()
            server.wait()
    save("review_server", [{"images": n, "categories": k, "dims": d, **result} for result in results])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--categories", type=int, default=1000)
    parser.add_argument("--dims", type=int, default=384)
    parser.add_argument("--repeats", type=int, default=100)
    options = parser.parse_args()
    main(options.images, options.categories, options.dims, options.repeats)
