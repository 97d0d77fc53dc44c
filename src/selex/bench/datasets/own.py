"""Datasets of one's own: a CSV file that says which image is of which class, and which classes are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from selex.bench.datasets.splits import Benchmark, draw_labelled
from selex.data.labels import encode
from selex.data.table import ImageTable
from selex.errors import InputError
from selex.io import column, read_csv


def own_dataset(path: Path, label_ratio: float = 0.5) -> Benchmark:
    """A dataset of one's own: `file` and `class` of every image, `known` 1 where the class counts as known."""
    lines = read_csv(path)
    header = lines[0][1]
    places = [column(path, header, [name]) for name in ("file", "class", "known")]
    files, names, flags = ([line[place] for _, line in lines[1:]] for place in places)
    known = np.array([flag == "1" for flag in flags], dtype=bool)  # of no lines, too
    classes = sorted(set(names))
    mixed = sorted({name for name, flag in zip(names, known, strict=True) if flag} & set(_where(names, ~known)))
    if mixed:
        raise InputError(f"{path}: class {mixed[0]} is known in some lines and not in others; a class is one of both")
    if not known.any():
        raise InputError(f"{path}: no line has known 1: say which classes are known")
    number = {name: index for index, name in enumerate(classes)}
    truth = np.array([number[name] for name in names])
    labelled = draw_labelled(known, label_ratio)
    shown = [name if held else "" for name, held in zip(names, labelled, strict=True)]
    table = ImageTable(files, *encode(shown), str(path.absolute().parent), {})
    return Benchmark(table, truth, known, classes, len(set(_where(names, known))))


def _where(names: list[str], mask: Any) -> list[str]:
    return [name for name, held in zip(names, mask, strict=True) if held]
