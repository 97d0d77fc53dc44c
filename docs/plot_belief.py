"""Draw the pictures of belief.md from benchmarks/results: python docs/plot_belief.py"""

from __future__ import annotations

import json
from pathlib import Path

from matplotlib.figure import Figure

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "benchmarks" / "results"
COLORS = {
    "known clusters, by name": "#2a6f97",
    "novel clusters": "#c8553d",
    "known clusters, by name, not lowered": "#a9cbe0",
}


def reliability(file: Path, out: Path) -> None:
    """Accuracy over confidence, a line for each seed."""
    figure = Figure(figsize=(5, 4.5), layout="constrained")
    axes = figure.add_subplot()
    axes.plot([0, 1], [0, 1], color="gray", ls=":", label="as it says")
    for row in json.loads(file.read_text())["results"]:
        if row["rows of"] in COLORS and row["case"] == "all classes":
            points = [(point["confidence"], point["accuracy"]) for point in row["diagram"]]
            label = row["rows of"] if row["seed"] == 0 else None
            axes.plot(*zip(*points, strict=True), marker="o", ms=3, color=COLORS[row["rows of"]], label=label)
    axes.set(xlabel="confidence", ylabel="share of rows that are right", title="CUB, frozen DINOv2 ViT-S/14")
    axes.legend(frameon=False)
    figure.savefig(out, dpi=110)


def estimates(files: list[Path], out: Path) -> None:
    """Estimates and their intervals, divided by the truth."""
    figure = Figure(figsize=(7, 5), layout="constrained")
    axes = figure.add_subplot()
    names = []
    for file in files:
        for row in json.loads(file.read_text())["results"]:
            names.append(f"{file.stem.removeprefix('estimate_k_')}: {row['case']}")
            for count, span in zip(row["estimates"], row["90 % intervals"], strict=True):
                low, high = (int(end) / row["categories"] for end in span.split(" to "))
                axes.plot([low, high], [len(names) - 1] * 2, color="#2a6f97", alpha=0.5)
                axes.plot(count / row["categories"], len(names) - 1, "o", ms=4, color="#c8553d")
    axes.axvline(1, color="gray", ls=":")
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set(xscale="log", xlabel="estimate and 90 % interval, divided by the number of categories")
    figure.savefig(out, dpi=110)


if __name__ == "__main__":
    reliability(RESULTS / "calibration_cub-dinov2-vits14.json", DOCS / "images" / "reliability_diagram.png")
    estimates(sorted(RESULTS.glob("estimate_k_*.json")), DOCS / "images" / "estimates.png")
