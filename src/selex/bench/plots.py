"""The paper's figures from our results, with the paper's own numbers where it prints them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import cycle
from textwrap import wrap
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from selex.bench import paper
from selex.bench.groups import Seeds, Setting, average, by_row, by_setting, spread
from selex.bench.paper import SUITES, Suite
from selex.bench.results import Result
from selex.bench.tables import dataset_name, method_name
from selex.types import Scores

COLORS = {"all": "#404040", "known": "#2a6f97", "novel": "#c8553d"}
LINES = ("#2a6f97", "#c8553d", "#3a7d44", "#7b4b94", "#b08900", "#404040")
RIVALS = {"selex": "#404040", "infosieve": "#8d99ae", "promptcal": "#b7a57a"}
"""The methods of the paper's radar."""
_PAPER = f"paper ({paper.BACKBONE})"


def figures(results: Sequence[Result]) -> dict[str, Figure]:
    """By name, every figure that there are results for."""
    drawn: dict[str, Figure] = {}
    main = [result for result in results if result.suite == "main"]
    if main:
        drawn["radar"] = plot_radar(main)
    if any(len(result.curve) > 1 for result in main):
        drawn["epochs"] = plot_epochs(main)
    for about in SUITES.values():
        runs = [result for result in results if result.suite == about.name]
        if about.axis and runs:
            drawn[about.name] = plot_sweep(about, runs)
    return drawn


def plot_radar(results: Sequence[Result]) -> Figure:
    """Accuracy on novel and on known categories over the datasets, ours as lines with dots, the paper's dashed."""
    lines: list[tuple[dict[str, Scores], dict[str, str]]] = []
    for method, color in RIVALS.items():
        label = f"{paper.method_names()[method]}, {_PAPER}"
        lines.append((paper.main_rows()[method, paper.BACKBONE], {"ls": "--", "color": color, "label": label}))
    for color, (setting, cells) in zip(cycle(LINES), by_setting(results).items(), strict=False):
        means = {name: seeds.mean() for name, seeds in cells.items()}
        lines.append((means, {"marker": "o", "color": color, "label": _name(setting)}))
    datasets = [name for name in SUITES["main"].datasets if any(name in scores for scores, _ in lines)]
    figure = Figure(figsize=(12.5, 6.2), layout="constrained")
    for place, part in enumerate(("novel", "known"), start=1):
        axes: Any = figure.add_subplot(1, 2, place, projection="polar")
        angles = np.linspace(0, 2 * math.pi, len(datasets), endpoint=False)
        for scores, style in lines:  # closed; where a dataset is missing it is broken
            percents = [100 * getattr(scores[name], part) if name in scores else math.nan for name in datasets]
            axes.plot([*angles, angles[0]], [*percents, percents[0]], lw=1.8, **style)
        _name_spokes(axes, angles, datasets)
        axes.set_title(part.capitalize(), pad=26)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure


def plot_sweep(about: Suite, results: Sequence[Result]) -> Figure:
    """Accuracy against the value that a suite varies, a panel for each dataset and setting."""
    panels = by_row(results)
    figure, every = _panels(len(panels))
    for axes, ((dataset, setting), rows) in zip(every, panels.items(), strict=True):
        points = [(row.value, rows[row.label]) for row in about.rows if row.label in rows and row.value is not None]
        for part, color in COLORS.items():
            _line(axes, points, part, color)
            _paper_line(axes, about, setting.method, dataset, part, color)
        _finish(axes, about.axis, dataset, setting)
    return figure


def plot_epochs(results: Sequence[Result]) -> Figure:
    """Accuracy after each epoch, mean and spread over seeds, a panel for each dataset and setting."""
    panels = by_setting([result for result in results if len(result.curve) > 1])
    flat = [(name, setting, seeds) for setting, cells in panels.items() for name, seeds in cells.items()]
    figure, every = _panels(len(flat))
    for axes, (dataset, setting, seeds) in zip(every, flat, strict=True):
        for part, color in COLORS.items():
            _curve(axes, seeds, part, color)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        _finish(axes, "epoch", dataset, setting)
    return figure


def _line(axes: Any, points: Sequence[tuple[float, Seeds]], part: str, color: str) -> None:
    values = [value for value, _ in points]
    means = [100 * getattr(seeds.mean(), part) for _, seeds in points]
    bars = [100 * np.nan_to_num(getattr(seeds.sd(), part)) for _, seeds in points]
    axes.errorbar(values, means, bars, marker="o", ms=4, capsize=3, color=color, label=part.capitalize())


def _paper_line(axes: Any, about: Suite, method: str, dataset: str, part: str, color: str) -> None:
    """The paper's numbers, hollow and dashed, on the datasets that it has the suite for."""
    if dataset not in about.datasets:
        return
    found = [(row.value, paper.scores_of(row.paper, method, dataset)) for row in about.rows]
    points = [(value, 100 * getattr(scores, part)) for value, scores in found if scores]
    points = [point for point in points if not math.isnan(point[1])]
    if points:
        values, percents = zip(*points, strict=True)
        label = f"{part.capitalize()}, {_PAPER}"
        axes.plot(values, percents, ls=":", marker="s", ms=6, mfc="none", color=color, label=label)


def _curve(axes: Any, seeds: Seeds, part: str, color: str) -> None:
    by_epoch: dict[float, list[float]] = {}
    for result in seeds.results:
        for point in result.curve:
            by_epoch.setdefault(point["epoch"], []).append(100 * point.get(part, math.nan))
    numbers = sorted(epoch for epoch, values in by_epoch.items() if not math.isnan(average(values)))
    means = np.array([average(by_epoch[epoch]) for epoch in numbers])
    around = np.nan_to_num([spread(by_epoch[epoch]) for epoch in numbers])
    axes.plot(numbers, means, color=color, label=part.capitalize())
    axes.fill_between(numbers, means - around, means + around, color=color, alpha=0.2, lw=0)


def _name_spokes(axes: Any, angles: NDArray[np.float64], datasets: Sequence[str]) -> None:
    """The datasets around the radar, the first at the top, each name outside the circle."""
    axes.set(ylim=(0, 100), theta_offset=math.pi / 2)
    axes.set_xticks(angles, [dataset_name(name) for name in datasets], fontsize=9)
    for label, angle in zip(axes.get_xticklabels(), angles, strict=True):
        right = -math.sin(angle)
        label.set_ha("center" if abs(right) < 0.1 else "left" if right > 0 else "right")


def _panels(n: int) -> tuple[Figure, list[Any]]:
    """Up to three panels beside each other."""
    across = min(n, 3)
    down = math.ceil(n / across)
    figure = Figure(figsize=(5.4 * across, 4.4 * down), layout="constrained")
    return figure, [figure.add_subplot(down, across, place + 1) for place in range(n)]


def _finish(axes: Any, xlabel: str, dataset: str, setting: Setting) -> None:
    title = "\n".join([dataset_name(dataset), *wrap(_name(setting), 44)])  # panels are narrow
    axes.set(xlabel=xlabel, ylabel="accuracy, %", title=title)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)


def _name(setting: Setting) -> str:
    return f"{method_name(setting)}, {setting.backbone}, {setting.epochs} epochs"
