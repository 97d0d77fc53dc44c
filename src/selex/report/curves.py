"""Charts of a training and of the search for the number of categories: lines for the page, pictures as files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selex.errors import InputError
from selex.io import atomic_path
from selex.runs.run import last_training
from selex.types import KEstimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 340, 210
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 12, 12, 30
_STEP = "epoch"
_HUGE = 1e100  # what is larger is no measurement
_GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Loss and its parts", ("loss", "use", "sse")),
    ("Pseudo-labels", ("agreement", "changed")),
    ("Cluster sizes", ("smallest", "median", "largest")),
    ("Accuracy, where the truth is known", ("all", "known", "novel")),
    ("Learning rate", ("lr",)),
    ("Seconds per epoch, and for pseudo-labels", ("seconds", "prepared")),
)
BLUE, ORANGE = "#2a6f97", "#c8553d"
_MARK = "drawn by selex"
_FORMATS = {".png": "Software", ".svg": "Creator", ".pdf": "Creator"}  # and where each of them says who made it
_NOT_CURVES = {"step", _STEP, "time", "count", "cores", "again"}

Points = list[tuple[float, float]]


@dataclass(frozen=True)
class Line:
    """One curve: its name, the points of an SVG polyline, and its last value."""

    name: str
    points: str
    last: float


@dataclass(frozen=True)
class Chart:
    """Curves with axes: ticks are `(position, text)`."""

    title: str
    unit: str
    lines: list[Line]
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    mark: float | None = None


def training_charts(metrics: Iterable[dict[str, Any]]) -> list[Chart]:
    """A chart for each group of values that were logged by epoch; none where nothing was trained."""
    counted = (entry for entry in metrics if isinstance(entry, dict) and _is_number(entry.get(_STEP)))
    curves = _curves(last_training(counted))
    grouped = {key for _, keys in _GROUPS for key in keys}
    more = [(key, (key,)) for key in curves if key not in grouped]
    groups = [(title, {key: curves[key] for key in keys if key in curves}) for title, keys in (*_GROUPS, *more)]
    return [line_chart(title, lines, _STEP) for title, lines in groups if lines]


def estimate_chart(tree: dict[str, Any]) -> Chart | None:
    """The score of every number of categories that was tried; None where the number was given."""
    if not tree.get("curve"):
        return None
    points = [(float(count), float(score)) for count, score in tree["curve"]]
    found = tree["estimate"]
    return line_chart("How many categories?", {found["method"]: points}, "categories", mark=found["n_clusters"])


def line_chart(title: str, curves: dict[str, Points], unit: str, mark: float | None = None) -> Chart:
    """Curves in a common frame; `mark` is a place on the x-axis to point out."""
    xs, ys = ([point[axis] for points in curves.values() for point in points] for axis in (0, 1))
    x_ticks, y_ticks = _ticks(min(xs), max(xs), 5, whole=True), _ticks(min(ys), max(ys), 4)
    across = _Scale(min(xs), max(xs), _LEFT, WIDTH - _RIGHT)
    up = _Scale(min([*ys, *y_ticks]), max([*ys, *y_ticks]), HEIGHT - _BOTTOM, _TOP)
    lines = [
        Line(name, " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in points), points[-1][1])
        for name, points in curves.items()
    ]
    return Chart(
        title,
        unit,
        lines,
        [(round(across(tick), 1), f"{tick:g}") for tick in x_ticks if min(xs) <= tick <= max(xs)],
        [(round(up(tick), 1), f"{tick:g}") for tick in y_ticks],
        None if mark is None else round(across(mark), 1),
    )


@dataclass(frozen=True)
class _Scale:
    """From values to places in the picture."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        part = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return self.start + part * (self.end - self.start)


def _curves(entries: list[dict[str, Any]]) -> dict[str, Points]:
    """Points of every value that was logged, in the order of the first entry that has it."""
    found: dict[str, Points] = {}
    for entry in entries:
        for key, value in entry.items():
            if key not in _NOT_CURVES and _is_number(value):
                found.setdefault(key, []).append((float(entry[_STEP]), float(value)))
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < _HUGE


def _ticks(low: float, high: float, count: int, whole: bool = False) -> Sequence[float]:
    """Round numbers around an interval, about `count` of them."""
    span = high - low or abs(high) or 1.0
    raw = max(span / count, 1 / _HUGE)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw)
    step = max(1.0, step) if whole else step
    first, last = math.floor(low / step), math.ceil(high / step)
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


def plot_estimate(estimate: KEstimate, path: Path) -> None:
    """The score of every count that was tried, the estimate and its interval."""
    from matplotlib.figure import Figure  # takes a while to import

    counts, scores = zip(*estimate.curve, strict=True)
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.axvspan(estimate.low, estimate.high, color=ORANGE, alpha=0.15, lw=0, label="90 % interval")
    axes.plot(counts, scores, marker="o", ms=4, color=BLUE)
    axes.axvline(estimate.n_clusters, color=ORANGE, label=f"estimate: {estimate.n_clusters}")
    axes.set(xlabel="number of categories", ylabel=estimate.method, title="How many categories are there?")
    if counts[-1] > 10 * counts[0]:
        axes.set_xscale("log")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    save_figure(figure, path)


def save_figure(figure: Figure, path: Path) -> None:
    """Write the picture, in the format that the file's ending names."""
    check_ending(path)
    with atomic_path(path) as partial:
        figure.savefig(partial, dpi=150, metadata={_FORMATS[path.suffix.lower()]: _MARK})


def is_plot(path: Path) -> bool:
    """Whether a file is a picture that we drew, not somebody's photograph or own figure."""
    return _MARK.encode() in path.read_bytes()


def check_ending(path: Path) -> None:
    """Refuse a picture format that cannot be written, before there is anything to draw."""
    if path.suffix.lower() not in _FORMATS:
        raise InputError(f"{path}: pictures cannot be written with this file extension; use .png, .svg or .pdf")
