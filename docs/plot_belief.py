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


def reliability(files: dict[str, Path], out: Path) -> None:
    """Accuracy over confidence, features side by side, a line for each draw or training."""
    figure = Figure(figsize=(4 * len(files), 4.3), layout="constrained")
    for axes, (title, file) in zip(figure.subplots(1, len(files), sharey=True), files.items(), strict=True):
        axes.plot([0, 1], [0, 1], color="gray", ls=":", label="as it says")
        labelled = set()
        for row in json.loads(file.read_text())["results"]:
            kind = row["rows of"]
            if kind in COLORS and row["case"] == "all classes":
                points = [(point["confidence"], point["accuracy"]) for point in row["diagram"]]
                label = None if kind in labelled else kind
                axes.plot(*zip(*points, strict=True), marker="o", ms=3, color=COLORS[kind], label=label)
                labelled.add(kind)
        axes.set(xlabel="confidence", title=title)
    figure.axes[0].set_ylabel("share of rows that are right")
    figure.axes[0].legend(frameon=False, fontsize=8)
    figure.savefig(out, dpi=110)


def estimates(files: list[Path], out: Path) -> None:
    """Estimates and their intervals, divided by the truth."""
    figure = Figure(layout="constrained")
    axes = figure.add_subplot()
    names = []
    for file in files:
        for row in json.loads(file.read_text())["results"]:
            features = file.stem.removeprefix("estimate_k_")
            names.append(f"{features}: {row['case'].replace('superclass2', 'order').replace('superclass', 'family')}")
            for count, span in zip(row["estimates"], row["90 % intervals"], strict=True):
                low, high = (int(end) / row["categories"] for end in span.split(" to "))
                axes.plot([low, high], [len(names) - 1] * 2, color="#2a6f97", alpha=0.5)
                axes.plot(count / row["categories"], len(names) - 1, "o", ms=4, color="#c8553d")
    figure.set_size_inches(7, 1 + len(names) / 7)
    axes.axvline(1, color="gray", ls=":")
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set(xscale="log", xlabel="estimate and 90 % interval, divided by the truth")
    axes.set_xticks(ticks := [0.3, 0.5, 1, 2, 5, 10], list(map(str, ticks)))
    axes.minorticks_off()
    figure.savefig(out, dpi=110)


if __name__ == "__main__":
    titles = {
        "CUB, DINOv2 ViT-S/14, not trained": "cub-dinov2-vits14",
        "trained with GCD": "cub-gcd",
        "trained with SelEx": "cub-selex",
    }
    files = {title: RESULTS / f"calibration_{name}.json" for title, name in titles.items()}
    reliability(files, DOCS / "images" / "reliability_diagram.png")
    estimates(sorted(RESULTS.glob("estimate_k_*.json")), DOCS / "images" / "estimates.png")
