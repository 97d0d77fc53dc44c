"""What a large run costs, by N, K, D and GPUs: time, GPU hours, money and network traffic, from measurements.

Fitted to `results/scale_gpu.json` and `results/embed_gpu.json`, measured on one GPU; figures for several GPUs are
calculated, not measured.

- assignment: α n K D per pass, with n = N / GPUs rows per process; sums for the centres: β n D
- seeding: σ n K D in total
- matching: ρ seconds per iteration for the rounds of deferred acceptance. They depend on how crowded clusters are
  rather than on N, so the largest measured value is used; each round gathers K cluster counts from every process
- network: one all-reduce of K (D + 1) numbers of 8 bytes per iteration, sent and received by every process
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from common import RESULTS, save

ROUNDS = 100  # of an iteration, assumed: the count is not stored
EMBEDDED = "embed ViT-B/16, bf16"


def fitted(entries: list[dict[str, Any]]) -> dict[str, float]:
    """Least squares through the origin for what grows with the data; the worst seen for the rounds of matching."""

    def slope(name: str, sizes: list[float]) -> float:
        times = np.array([entry[name] for entry in entries])
        return float(np.dot(times, sizes) / np.dot(sizes, sizes))

    assigned = [float(entry["assigned_rows"] * entry["k"] * entry["d"]) for entry in entries]
    matching = [
        entry["balanced_s"] / entry["balanced_iterations"] - entry["assign_s"] - entry["sums_s"] for entry in entries
    ]
    return {
        "alpha": slope("assign_s", assigned),
        "beta": slope("sums_s", [float(entry["assigned_rows"] * entry["d"]) for entry in entries]),
        "sigma": slope("seed_s", [float(entry["n"] * entry["k"] * entry["d"]) for entry in entries]),
        "rho": max(matching),
    }


def predicted(fit: dict[str, float], n: int, k: int, d: int, gpus: int, options: argparse.Namespace) -> dict[str, Any]:
    """Seconds and bytes of a clustering with no row labelled, so many iterations in each of the two stages."""
    rows, iterations = n / gpus, options.iterations
    once = fit["alpha"] * rows * k * d + fit["beta"] * rows * d
    reduced = 2 * 8 * k * (d + 1) * (gpus - 1) / gpus
    gathered = 8 * k * (gpus - 1) * ROUNDS
    sent = (2 * iterations + 1) * reduced + iterations * gathered
    network = sent / (options.network_gbs * 1e9)
    seed = fit["sigma"] * rows * k * d
    matching = iterations * fit["rho"]
    total = seed + (2 * iterations + 1) * once + matching + network
    hours = gpus * (total + n / options.images_per_s / gpus) / 3600
    return {
        "what": "predicted",
        "n": n,
        "k": k,
        "d": d,
        "gpus": gpus,
        "embed_s": round(n / options.images_per_s / gpus, 1),
        "seed_s": round(seed, 2),
        "assign_s": round((2 * iterations + 1) * once, 2),
        "matching_s": round(matching, 2),
        "network_s": round(network, 2),
        "cluster_s": round(total, 1),
        "gpu_hours": round(hours, 2),
        "dollars": round(options.dollars * hours, 2),
        "sent_gb": round(sent / 1e9, 2),
        "rows_gb_a_gpu": round(2 * rows * d / 1e9, 2),
        "draw_order_gb_a_process": round(16 * n / 1e9, 2),
    }


def checked(fit: dict[str, float], entry: dict[str, Any]) -> dict[str, Any]:
    """What the model says of a run that was measured, beside what was measured."""
    k, d, passes = entry["k"], entry["d"], entry["iterations"] + 1
    once = entry["assigned_rows"] * d * (fit["alpha"] * k + fit["beta"])
    said = fit["sigma"] * entry["n"] * k * d + passes * once + entry["balanced_iterations"] * fit["rho"]
    return {
        "what": "checked",
        "n": entry["n"],
        "k": k,
        "d": d,
        "measured_s": entry["cluster_s"],
        "said_s": round(said, 1),
    }


def read(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())["results"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=10, help="iterations of each of the two stages")
    parser.add_argument("--network-gbs", type=float, default=25.0, help="GB/s that a process can send; assumed")
    parser.add_argument("--dollars", type=float, default=4.0, help="price of a GPU hour; assumed")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    options.images_per_s = next(row["images_per_s"] for row in read("embed_gpu") if row["what"] == EMBEDDED)
    measured = read("scale_gpu")
    fit = fitted(measured)
    sizes = [(10**7, 10_000, 1), (10**7, 10_000, 8), (10**8, 10_000, 8), (10**8, 10_000, 64), (10**8, 100_000, 64)]
    rows: list[dict[str, Any]] = [{"what": "fitted", **{name: float(f"{value:.3g}") for name, value in fit.items()}}]
    rows += [checked(fit, entry) for entry in measured]
    rows += [predicted(fit, n, k, 384, gpus, options) for n, k, gpus in sizes]
    save("scale_cost", rows, options.out)
