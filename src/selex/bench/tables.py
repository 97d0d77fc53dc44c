"""Results as tables, the paper's numbers beside ours, in Markdown or LaTeX."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import NamedTuple

from selex.bench import paper
from selex.bench.datasets.catalog import published_facts
from selex.bench.groups import Part, Seeds, Setting, Version, average, by_row, by_setting, of_main, setting_of, spread
from selex.bench.paper import SUITES, Row, Suite, find_suite
from selex.bench.results import Result, provenance
from selex.errors import InputError
from selex.types import Scores


class Column(NamedTuple):
    """Name of a column, and the heading that it shares with its neighbours, if any."""

    name: str
    group: str = ""


@dataclass(frozen=True)
class Table:
    """Cells as text, under a title; notes say how they came about."""

    title: str
    columns: list[Column]
    rows: list[list[str]]
    notes: list[str]


def to_markdown(table: Table) -> str:
    """Title, table and notes; a column's group stands before its name."""
    lines = [[f"{column.group} {column.name}".strip() for column in table.columns], ["---"] * len(table.columns)]
    cells = [[cell.replace("|", "\\|") for cell in line] for line in [*lines, *table.rows]]
    body = "\n".join("| " + " | ".join(line) + " |" for line in cells)
    return "\n\n".join([f"**{table.title}**", body, *table.notes])


def to_latex(table: Table) -> str:
    """A `table` that needs the packages booktabs and graphicx; wide ones shrink to the width of a line."""
    body = [
        r"\begin{tabular}{l" + "c" * (len(table.columns) - 1) + "}",
        r"\toprule",
        *_group_lines(table.columns),
        _line([column.name for column in table.columns]),
        r"\midrule",
        *map(_line, table.rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    if len(table.columns) > 8:
        body = [r"\resizebox{\linewidth}{!}{%", *body[:-1], body[-1] + "}"]
    caption = escape(" ".join([f"{table.title}.", *table.notes]))
    return "\n".join([r"\begin{table}", r"\centering", rf"\caption{{{caption}}}", *body, r"\end{table}"])


def escape(text: str) -> str:
    """Text as LaTeX writes it."""
    return "".join(_LATEX.get(character, character) for character in text)


_LATEX = {character: f"\\{character}" for character in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "–": "--",
    "µ": r"$\mu$",
}


def _line(cells: list[str]) -> str:
    return " & ".join(map(escape, cells)) + r" \\"


def _group_lines(columns: list[Column]) -> list[str]:
    """The line of shared headings and the rules below them; nothing where no column shares one."""
    groups = [(name, len(list(inner))) for name, inner in groupby(column.group for column in columns)]
    if not any(name for name, _ in groups):
        return []
    cells, rules, start = list[str](), list[str](), 1
    for name, width in groups:
        cells.append(rf"\multicolumn{{{width}}}{{c}}{{{escape(name)}}}" if name else " &" * (width - 1))
        rules += [rf"\cmidrule(lr){{{start}-{start + width - 1}}}"] if name else []
        start += width
    return [" & ".join(cells) + r" \\", " ".join(rules)]


OWN = {"frozen": "Frozen features", "kmeans": "Frozen features, k-means without labels"}
"""Methods that the paper does not name."""

_IN_MAIN = "In the paper: on unlabelled training images, from tab:cub, tab:pet, tab:cifar10 and tab:herb."


@dataclass(frozen=True)
class Show:
    """Which accuracies a table holds, and whether the paper's other methods join it."""

    part: Part = "transductive"  # scores the unlabelled training images, "inductive" the test images
    version: Version = "v2"  # see `split_accuracy`
    all_methods: bool = False  # the main table lists the methods that the paper compares, too


def make_tables(results: Sequence[Result], name: str = "main", show: Show | None = None) -> list[Table]:
    """The tables of a suite; a suite without results is an `InputError`."""
    about, show = find_suite(name), show or Show()
    chosen = [result for result in results if result.suite == name]
    if not chosen:
        there = ", ".join(sorted({result.suite for result in results})) or "none"
        raise InputError(f"no results of suite {name!r}; there are results of: {there}")
    chosen += of_main(results, name)
    if show.part == "inductive" and not any(result.inductive for result in chosen):
        raise InputError(f"no result of suite {name!r} holds accuracies on test images")
    if name == "main":
        return [_main(chosen, show)]
    of_datasets = ([run for run in chosen if run.dataset == dataset] for dataset in _datasets(chosen))
    if name == "holdout":
        return [_holdout(runs, show) for runs in of_datasets]
    if name == "time":
        return [_time(runs) for runs in of_datasets]
    return [_ablation(about, *key, rows, show) for key, rows in by_row(chosen).items()]


def method_name(setting: Setting) -> str:
    """The method as people write it, with its variant unless that is the paper's."""
    name = {**paper.method_names(), **OWN}.get(setting.method, setting.method)
    words = [setting.variant] * (setting.variant not in ("", "paper")) + ["estimated K"] * setting.estimated
    return f"{name} ({', '.join(words)})" if words else name


def dataset_name(name: str) -> str:
    """The dataset's own name."""
    try:
        return published_facts(name).title
    except InputError:  # a dataset of one's own
        return name


def percent(value: float, sd: float = math.nan) -> str:
    """Percent with one decimal, ± the standard deviation if there is one; a dash for nan."""
    return _number(100 * value, 100 * sd, digits=1)


def _main(results: list[Result], show: Show) -> Table:
    """A row for each of our settings, and below it the paper's for the same method."""
    datasets, grouped = _datasets(results), by_setting(results)
    columns = [Column(name) for name in ("method", "backbone", "epochs", "seeds")]
    columns += [column for name in datasets for column in _triple(dataset_name(name))]
    ours = [(key.method, _main_row(key, cells, datasets, show)) for key, cells in sorted(grouped.items())]
    in_paper = {key: scores for key, scores in paper.main_rows().items() if not scores.keys().isdisjoint(datasets)}
    theirs = [(key[0], _paper_row(*key, scores, datasets)) for key, scores in in_paper.items()]
    methods = list(dict.fromkeys(method for method, _ in ours))
    rows = [row for method in methods for owner, row in (*ours, *theirs) if owner == method]
    if show.all_methods:
        rows += [row for owner, row in theirs if owner not in methods]
    return Table(SUITES["main"].title, columns, rows, _notes(results, show, _IN_MAIN if theirs else ""))


def _main_row(setting: Setting, cells: dict[str, Seeds], datasets: Iterable[str], show: Show) -> list[str]:
    many = _span(len(seeds) for seeds in cells.values())
    found = [_ours(cells[name], show) if name in cells else _theirs(None) for name in datasets]
    return [method_name(setting), setting.backbone, str(setting.epochs), many, *chain(*found)]


def _paper_row(method: str, backbone: str, scores: dict[str, Scores], datasets: Iterable[str]) -> list[str]:
    name = f"{paper.method_names()[method]}, in the paper"
    return [name, backbone, "-", "-", *chain(*(_theirs(scores.get(dataset)) for dataset in datasets))]


def _ablation(about: Suite, dataset: str, setting: Setting, rows: dict[str, Seeds], show: Show) -> Table:
    """The rows of a suite in its own order; rows that it does not know come last."""
    known = [row for row in about.rows if row.label in rows]
    known += [Row(label) for label in rows if label not in {row.label for row in about.rows}]
    in_paper = dataset in about.datasets  # on others than its own it says nothing about a suite
    theirs = {row.label: paper.scores_of(row.paper, setting.method, dataset) if in_paper else None for row in known}
    with_paper, counted = any(theirs.values()), about.name == "estimated-k"
    columns = [Column("row"), Column("seeds"), *([Column("categories")] if counted else []), *_triple("ours")]
    columns += ([Column("categories", "paper")] if counted else []) + (_triple("paper") if with_paper else [])
    lines = list[list[str]]()
    for row in known:
        seeds = rows[row.label]
        line = [row.label, str(len(seeds)), *([_count(seeds)] if counted else []), *_ours(seeds, show)]
        line += [_paper_count(row, setting.method, dataset)] if counted else []
        lines.append(line + (_theirs(theirs[row.label]) if with_paper else []))
    where = f"{dataset_name(dataset)}, {method_name(setting)}, {setting.backbone}, {setting.epochs} epochs"
    runs = [run for seeds in rows.values() for run in seeds.results]
    source = _source(row for row in known if theirs[row.label]) if with_paper else ""
    return Table(f"{about.title}: {where}", columns, lines, _notes(runs, show, source))


def _count(seeds: Seeds) -> str:
    """The numbers of categories, with the widest interval where they were estimated."""
    text = _span(run.n_categories for run in seeds.results)
    found = [run.estimated for run in seeds.results if run.estimated]
    return f"{text} ({min(one['low'] for one in found)}–{max(one['high'] for one in found)})" if found else text


def _span(counts: Iterable[int]) -> str:
    ends = sorted(set(counts))
    return f"{ends[0]}–{ends[-1]}" if len(ends) > 1 else str(ends[0])


def _paper_count(row: Row, method: str, dataset: str) -> str:
    found = paper.find_row(row.paper, method)
    if row.categories == "true":
        return str(published_facts(dataset).classes) if found and dataset in found.scores else "-"
    return str(found.more.get("counts", {}).get(dataset, "-")) if found else "-"


def _holdout(results: list[Result], show: Show) -> Table:
    """Settings by the accuracy on held-out labels, best first: the first is the one to choose."""
    grouped: dict[Setting, list[Result]] = {}
    for result in results:
        grouped.setdefault(setting_of(result), []).append(result)
    means = {key: Seeds(tuple(runs)).mean(version=show.version) for key, runs in grouped.items()}
    best_first = sorted(means, key=lambda key: -means[key].all)
    rows = [[method_name(key), *_theirs(means[key]), str(len(grouped[key]))] for key in best_first]
    columns = [Column(name) for name in ("Method", "All", "Known", "Novel", "Runs")]
    title = f"{find_suite('holdout').title}, {dataset_name(results[0].dataset)}"
    return Table(title, columns, rows, ["Scored on images whose labels were held out; no other true label was used."])


def _time(results: list[Result]) -> Table:
    """What an epoch costs, and what is trained."""
    names = ("epoch s", "GFLOPs", "parameters M")
    columns = [Column(name) for name in ("method", "backbone", "device", "seeds")]
    columns += [*(Column(name, "ours") for name in names), Column("memory GB", "ours")]
    columns += [Column(name, "paper") for name in names]
    found = by_row(results).items()
    rows = [_time_row(setting, label, seeds) for (_, setting), cells in found for label, seeds in cells.items()]
    title = f"{SUITES['time'].title}: {dataset_name(results[0].dataset)}"
    return Table(title, columns, rows, [*_about(results), f"Paper: {paper.BACKBONE}, device not named."])


def _time_row(setting: Setting, label: str, seeds: Seeds) -> list[str]:
    runs = seeds.results
    name = method_name(setting) + ("" if label in ("", setting.method) else f", {label}")
    epoch = [seconds for run in runs if (seconds := run.seconds.get("epoch")) is not None]
    numbers = [
        _number(average(epoch), spread(epoch)),
        _number(average(run.flops * 1e-9 for run in runs if run.flops is not None)),
        _number(average(run.parameters * 1e-6 for run in runs if run.parameters is not None)),
        _number(average(run.memory_gb for run in runs if run.memory_gb is not None)),
    ]
    theirs = paper.find_row(f"time/{setting.method}", setting.method)
    more = [theirs.more[key] if theirs else math.nan for key in ("epoch_seconds", "gflops", "parameters_m")]
    devices = ", ".join(sorted({run.device for run in runs}))
    return [name, setting.backbone, devices, str(len(runs)), *numbers, *map(_number, more)]


def _number(value: float, sd: float = math.nan, digits: int = 2) -> str:
    if math.isnan(value):
        return "-"
    return f"{value:.{digits}f}" + ("" if math.isnan(sd) else f" ± {sd:.{digits}f}")


def _ours(seeds: Seeds, show: Show) -> list[str]:
    return list(map(percent, seeds.mean(show.part, show.version), seeds.sd(show.part, show.version)))


def _theirs(scores: Scores | None) -> list[str]:
    return [percent(score) for score in scores] if scores else ["-"] * 3


def _triple(group: str) -> list[Column]:
    return [Column(word, group) for word in ("All", "Known", "Novel")]


def _datasets(results: Iterable[Result]) -> list[str]:
    """The datasets of the results in the paper's order, others after them."""
    found = {result.dataset for result in results}
    known = [name for name in SUITES["main"].datasets if name in found]
    return known + sorted(found - set(known))


def _about(results: Sequence[Result]) -> list[str]:
    """Which versions and devices made the results."""
    versions = ", ".join(sorted({provenance(run) for run in results}))
    return [f"selex {versions} on {', '.join(sorted({run.device for run in results}))}."]


def _source(rows: Iterable[Row]) -> str:
    """Which tables of the paper the numbers beside ours are from."""
    sections = {(row.paper or "").partition("/")[0] for row in rows}
    labels = {row.section: row.label for row in paper.paper_rows()}
    names = sorted(labels[section] for section in sections if section in labels)
    names += [f"the main tables ({', '.join(labels[name] for name in paper.MAIN)})"] * ("main" in sections)
    return f"Paper: {paper.BACKBONE}, unlabelled training images, from {' and '.join(names)}."


def _notes(results: Sequence[Result], show: Show, source: str) -> list[str]:
    scored = "unlabelled training images" if show.part == "transductive" else "test images"
    ours = f"Accuracy ({show.version}) in percent on {scored}, mean ± standard deviation over seeds."
    return [ours, *([source] if source else []), *_about(results)]
