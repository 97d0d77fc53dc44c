"""Results of the same run with other seeds, brought together: mean and standard deviation."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import mean, stdev
from typing import Literal, NamedTuple, TypeVar

from selex.bench.paper import Row, find_suite
from selex.bench.results import Result
from selex.config import GROUPS, PAPER, flatten, settings_of
from selex.errors import InputError
from selex.types import Scores

Part = Literal["transductive", "inductive"]
Version = Literal["v2", "v1"]
Key = TypeVar("Key")
_APART = {"data.photos", "data.labels", "features.weights", "seed"}  # may differ among seeds, or are not kept
_SETTINGS = [path for group in ("", *GROUPS) for path, _ in settings_of(group) if path not in _APART]
_SETTINGS += ["label_ratio", "long_tail", "table"]
_USUAL = flatten(asdict(PAPER))
"""What a result that was made before there was such a setting was made with."""


class Setting(NamedTuple):
    """What the runs of one row of the main table, or of one ablation, have in common."""

    method: str
    variant: str
    backbone: str
    epochs: int
    estimated: bool = False


@dataclass(frozen=True)
class Seeds:
    """Results that differ in their seed alone."""

    results: tuple[Result, ...]

    def __len__(self) -> int:
        return len(self.results)

    def scores(self, part: Part = "transductive", version: Version = "v2") -> list[Scores]:
        """The scores of those runs that have them."""
        found = [getattr(result, part) for result in self.results]
        return [scores[version] for scores in found if scores and version in scores]

    def mean(self, part: Part = "transductive", version: Version = "v2") -> Scores:
        """Mean over seeds; nan where there is nothing to average."""
        return _over_seeds(average, self.scores(part, version))

    def sd(self, part: Part = "transductive", version: Version = "v2") -> Scores:
        """Standard deviation over seeds, of a sample (n - 1); nan for fewer than two."""
        return _over_seeds(spread, self.scores(part, version))


def _over_seeds(statistic: Callable[[Iterable[float]], float], scores: Sequence[Scores]) -> Scores:
    """A statistic such as `average`, of all, of known and of novel accuracies."""
    return Scores(*(statistic(getattr(one, part) for one in scores) for part in Scores._fields))


def average(values: Iterable[float]) -> float:
    """Mean of the values that are numbers; nan if none is."""
    numbers = [value for value in values if not math.isnan(value)]
    return mean(numbers) if numbers else math.nan


def spread(values: Iterable[float]) -> float:
    """Their standard deviation, of a sample; nan for fewer than two."""
    numbers = [value for value in values if not math.isnan(value)]
    return stdev(numbers) if len(numbers) > 1 else math.nan


def setting_of(result: Result) -> Setting:
    """What a result has in common with others; in the main suite an estimated number of categories is a row apart."""
    estimated = result.suite == "main" and result.estimated is not None
    return Setting(result.method, result.variant, result.backbone, result.epochs, estimated)


def by_setting(results: Sequence[Result]) -> dict[Setting, dict[str, Seeds]]:
    """Results of the main suite by setting and dataset."""
    return _grouped(results, setting_of, lambda result: result.dataset)


def by_row(results: Sequence[Result]) -> dict[tuple[str, Setting], dict[str, Seeds]]:
    """Results of an ablation by dataset and setting, then by row."""
    return _grouped(results, _dataset_and_setting, lambda result: result.row)


def of_main(results: Sequence[Result], name: str) -> list[Result]:
    """Results of the main suite that are rows of another one too, which has results of the same dataset and setting."""
    if name in ("main", "holdout", "time"):
        return []
    there = defaultdict[tuple[str, Setting], set[str]](set)
    for result in results:
        if result.suite == name:
            there[_dataset_and_setting(result)].add(result.row)
    runs = [run for run in results if run.suite == "main" and _dataset_and_setting(run) in there]
    return [
        replace(run, row=row.label)
        for row in find_suite(name).rows
        for run in runs
        if row.label not in there[_dataset_and_setting(run)] and _is_row(run, row)
    ]


def _dataset_and_setting(result: Result) -> tuple[str, Setting]:
    return result.dataset, setting_of(result)


def _grouped(
    results: Sequence[Result], outer: Callable[[Result], Key], inner: Callable[[Result], str]
) -> dict[Key, dict[str, Seeds]]:
    grouped: dict[Key, dict[str, list[Result]]] = {}
    for result in results:
        grouped.setdefault(outer(result), {}).setdefault(inner(result), []).append(result)
    return {key: {name: _seeds(runs) for name, runs in rows.items()} for key, rows in grouped.items()}


def _is_row(run: Result, row: Row) -> bool:
    """Whether a run of the main suite is what a row of another one asks for."""
    config = _USUAL | {"label_ratio": 0.5, "long_tail": None} | flatten(dict(run.config))
    named = {path.rpartition(".")[2]: value for path, value in config.items()}
    asked = {**row.settings, "label_ratio": row.label_ratio, "long_tail": row.long_tail}
    usual = (row.method or run.method) == run.method and row.fold is None and not row.shuffled
    counted = (row.categories == "auto") == (run.estimated is not None)
    return usual and counted and all(named.get(key) == value for key, value in asked.items())


def _seeds(results: list[Result]) -> Seeds:
    """The runs of one row in the order of seeds; a seed may not come twice, nor settings differ."""
    results = sorted(results, key=lambda result: result.seed)
    for one, other in pairwise(results):
        names = f"{Path(one.file).name} and {Path(other.file).name}"
        if one.seed == other.seed:
            raise InputError(f"seed {one.seed} of the same run appears twice: {names}; keep one of them")
        differing = _differing(one, other)
        if differing:
            raise InputError(f"{names} differ in {differing}: give one of them another --variant, or keep them apart")
    return Seeds(tuple(results))


def _differing(one: Result, other: Result) -> str:
    settings, others = (_USUAL | flatten(dict(result.config)) for result in (one, other))
    names = [name for name in _SETTINGS if settings.get(name) != others.get(name)]
    return f"{names[0]} ({settings.get(names[0])}, {others.get(names[0])})" if names else ""
