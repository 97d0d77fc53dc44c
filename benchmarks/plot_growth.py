"""Plot results/cluster_gpu_growth.json: time against N and against K, with linear scaling for comparison."""

from __future__ import annotations

import json
from pathlib import Path

from matplotlib.figure import Figure

from common import RESULTS


def main() -> None:
    rows = json.loads((RESULTS / "cluster_gpu_growth.json").read_text())["results"]
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axes = figure.subplots(1, 2)
    for axis, (what, held) in zip(axes, (("n", "k"), ("k", "n")), strict=True):
        fixed = max({row[held] for row in rows}, key=[row[held] for row in rows].count)
        points = sorted({(row[what], row["median_s"]) for row in rows if row[held] == fixed})
        sizes, times = zip(*points, strict=True)
        axis.loglog(sizes, times, marker="o", color="#2a6f97", label="measured")
        axis.loglog(sizes, [times[-1] * size / sizes[-1] for size in sizes], ls=":", color="#888888", label="linear")
        axis.set(xlabel={"n": "rows N", "k": "clusters K"}[what], ylabel="seconds", title=f"{held.upper()} = {fixed:,}")
        axis.legend(frameon=False)
    target = Path(__file__).parent.parent / "docs" / "images" / "cluster_gpu_growth.png"
    figure.savefig(target, dpi=110)
    print(f"wrote {target.name}")


if __name__ == "__main__":
    main()
