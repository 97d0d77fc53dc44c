"""Pictures: the search for the number of categories, and example images of each category."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from selex.errors import InputError
from selex.io import atomic_path
from selex.types import KEstimate

_MARK = "drawn by selex"
_FORMATS = {".png": "Software", ".svg": "Creator", ".pdf": "Creator"}  # and where each of them says who made it
_BLUE, _ORANGE = "#2a6f97", "#c8553d"


def plot_estimate(estimate: KEstimate, path: Path) -> None:
    """The score of every count that was tried, the estimate and its interval."""
    counts, scores = zip(*estimate.curve, strict=True)
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.axvspan(estimate.low, estimate.high, color=_ORANGE, alpha=0.15, lw=0, label="90 % interval")
    axes.plot(counts, scores, marker="o", ms=4, color=_BLUE)
    axes.axvline(estimate.n_clusters, color=_ORANGE, label=f"estimate: {estimate.n_clusters}")
    axes.set(xlabel="number of categories", ylabel=estimate.method, title="How many categories are there?")
    if counts[-1] > 10 * counts[0]:
        axes.set_xscale("log")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    save_figure(figure, path)


def plot_examples(
    images: NDArray[Any], labels: Any, distances: Any, names: Sequence[str], known: int, path: Path
) -> None:
    """A row of images for each category, the most typical first; known categories blue, novel ones orange."""
    labels, distances = np.asarray(labels), np.asarray(distances)
    shown = 12
    figure = Figure(figsize=(shown * 0.7 + 1.6, len(names) * 0.75 + 0.3), layout="constrained")
    axes = figure.subplots(len(names), shown, squeeze=False)
    for cluster, row in enumerate(axes):
        members = np.flatnonzero(labels == cluster)
        members = members[np.argsort(distances[members])][:shown]
        for axis in row:
            axis.axis("off")
        for axis, member in zip(row, members, strict=False):
            axis.imshow(images[member], cmap="gray" if images.ndim == 3 else None)
        text = f"{names[cluster]}\n{np.sum(labels == cluster)} images"
        color = _BLUE if cluster < known else _ORANGE
        row[0].text(-0.25, 0.5, text, transform=row[0].transAxes, ha="right", va="center", fontsize=9, color=color)
    save_figure(figure, path)


def is_plot(path: Path) -> bool:
    """Whether a file is a picture that we drew, not somebody's photograph or own figure."""
    return _MARK.encode() in path.read_bytes()


def save_figure(figure: Figure, path: Path) -> None:
    """Write the picture, in the format that the file's ending names."""
    check_ending(path)
    with atomic_path(path) as partial:
        figure.savefig(partial, dpi=150, metadata={_FORMATS[path.suffix.lower()]: _MARK})


def check_ending(path: Path) -> None:
    """Refuse a picture format that cannot be written, before there is anything to draw."""
    if path.suffix.lower() not in _FORMATS:
        raise InputError(f"{path}: pictures cannot be written with this file extension; use .png, .svg or .pdf")
