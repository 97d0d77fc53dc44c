"""A table of text as Markdown or LaTeX."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple


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
