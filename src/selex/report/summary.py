"""A run as the data of its report: everything that the page says, nothing about how it looks."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from selex import __version__
from selex.config import Config
from selex.data.clusters import DOUBTFUL
from selex.report.categories import (
    CategoryCard,
    LabelError,
    Node,
    build_tree,
    find_categories,
    find_label_errors,
    novel_by_confidence,
)
from selex.report.curves import Chart, estimate_chart, training_charts
from selex.report.facts import Facts, read_facts
from selex.report.map import Map, draw_map
from selex.report.truth import Truth, compare_with_truth
from selex.runs.run import Run

STEPS = 3
"""Steps that `summarise` takes: it reads the run, judges the categories, and draws the map."""

MOST_CARDS = 1000
"""Categories that get a card, of each kind; a page of more is of no use to anybody."""


@dataclass(frozen=True)
class Summary:
    """What the page shows."""

    facts: Facts
    categories: dict[int, CategoryCard]  # those that have an image, by number
    new: list[CategoryCard]  # the new ones, the surest first
    known: list[CategoryCard]  # the known ones, by name
    errors: list[LabelError]  # labels that look wrong, the clearest first
    doubtful: int  # how many images are as likely to be something else
    tree: Node | None  # the levels, None where there is one only
    map: Map | None  # None for one category
    training: list[Chart]  # charts of the training, if there was one
    estimate: Chart | None  # the chart of the search for the number of categories, if there was one
    truth: Truth | None  # the comparison with the truth, if it was given
    about: dict[str, str]  # what the run was asked to do, and with what


def summarise(run: Run, truth: Path | None = None, step: Callable[[int], None] = lambda done: None) -> Summary:
    """Everything that a report says about a finished run, with the truth where a file gives it."""
    step(0)
    facts = read_facts(run)
    step(1)
    compared = compare_with_truth(run, facts, truth) if truth else None
    errors = find_label_errors(facts)
    categories = find_categories(facts, errors)
    step(2)
    drawn = draw_map(facts)
    step(STEPS)
    return Summary(
        facts=facts,
        categories={category.number: category for category in categories},
        new=novel_by_confidence(categories),
        known=[category for category in categories if category.known],
        errors=errors,
        doubtful=int((facts.confidence < DOUBTFUL).sum()),
        tree=build_tree(facts, categories),
        map=drawn,
        training=training_charts(facts.metrics),
        estimate=estimate_chart(facts.tree),
        truth=compared,
        about=_about(run.config, facts),
    )


def _about(config: Config, facts: Facts) -> dict[str, str]:
    """Settings for a reader of the page; folders only by name, for the page may be sent around."""
    levels = ", ".join(str(len(level["sizes"])) for level in facts.tree["levels"])
    cluster, features = config.cluster, config.features
    asked = "estimated" if cluster.categories is None else str(cluster.categories)
    steps = [entry for entry in facts.metrics if entry.get("step") == "cluster"]
    finished = {"Finished": moment} if steps and (moment := _moment(steps[-1].get("time"))) else {}
    return {
        "Photos": _name(config.data.photos) or "a list of images",
        "Categories": f"{asked}; levels of {levels}",
        "Backbone": _name(features.backbone or "")
        + (f", mean of {features.views} views" if features.views > 1 else "")
        + (", whole photos and attention crops" if features.attention_crop else ""),
        "Method": config.train.method + _kept(facts),
        "Clustering": f"{'balanced' if cluster.balanced else 'not balanced'}, best of {cluster.restarts}"
        + (f", features whitened by {cluster.whiten:g}" if cluster.whiten else "")
        + _refinement(facts),
        "Seed": str(config.seed),
        **finished,
        "Written by": f"selex {__version__}",
    }


def _moment(time: Any) -> str:
    """A time of the log, which anybody may have written, for a reader; nothing where it is none."""
    try:
        return datetime.fromtimestamp(time, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    except (TypeError, ValueError, OverflowError, OSError):
        return ""


def _kept(facts: Facts) -> str:
    """Which features labels chose that training had not seen, where there were such labels."""
    found = [entry for entry in facts.metrics if entry.get("step") in ("kept", "cluster")]
    if not found or found[-1]["step"] != "kept":
        return ""
    try:
        before, after, mean = (f"{found[-1][name]:.1%}" for name in ("untrained", "trained", "averaged"))
    except (KeyError, TypeError, ValueError):  # anybody may have written the log
        return ""
    shares = f"{before} correct before training, {after} after, {mean} with the average of both"
    return f"; held-out labels: {shares}; {found[-1].get('kept')} network kept"


def _refinement(facts: Facts) -> str:
    """How the last clustering was refined, where it was."""
    steps = ("cluster", "kept")
    found = [entry["refine"] for entry in facts.metrics if entry.get("step") in steps and "refine" in entry]
    return f", soft refinement ({found[-1]})" if found and found[-1] != "none" else ""


def _name(setting: str) -> str:
    """A setting without the folder, where it is a path."""
    return os.path.basename(setting) if os.path.isabs(setting.removeprefix("file:")) else setting
