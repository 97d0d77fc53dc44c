"""Photos to set aside, looked for in the background while the page stays quick; kept until there are new results."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from selex.review.core.overview import Overview
from selex.review.core.quality import Measures, measure, near_duplicates
from selex.review.core.session import Review
from selex.review.core.state import CONFIRMED, JUNK
from selex.review.server import schema
from selex.review.server.cards import image_card

Array = np.ndarray[Any, Any]

SHOWN = 60
"""Photos of a kind that the page shows; to set aside are all."""


@dataclass
class _Look:
    """A look through the photos of a round: how far it is, and what came of it."""

    round: int
    paths: Sequence[str]
    began: float = field(default_factory=time.monotonic)
    done: int = 0
    found: tuple[Measures, list[Array]] | None = None
    failed: str | None = None

    @property
    def state(self) -> str:
        """As the page is told."""
        return "idle" if self.failed else "done" if self.found else "running"

    @property
    def seconds_left(self) -> float | None:
        """At the rate so far; None where there is none."""
        if self.state != "running" or not self.done:
            return None
        return (time.monotonic() - self.began) / self.done * (len(self.paths) - self.done)

    def run(self, features: Array, category: Array) -> None:
        """Look; meant for a thread of its own."""
        try:
            measures = self._measures()
            self.found = measures, near_duplicates(features, category, measures.small)
        except Exception as error:  # whatever it is, the page is to say so rather than to wait for ever
            self.failed = f"{type(error).__name__}: {error}"

    def _measures(self) -> Measures:
        rows = []
        with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
            for row in pool.map(measure, self.paths):
                rows.append(row)
                self.done = len(rows)
        return Measures.of(rows)


class Checks:
    """What was found in the photos of a round."""

    def __init__(self, review: Review) -> None:
        self._review, self._lock = review, threading.Lock()
        self._look = _Look(0, [])

    def start(self) -> None:
        """Look through the photos; nothing where that is done already, or being done."""
        with self._review.steady(), self._lock:
            review = self._review
            if self._look.round == review.round and not self._look.failed:
                return
            self._look = _Look(review.round, review.paths)
            given = (review.embeddings, review.results.category)
            threading.Thread(target=self._look.run, args=given, daemon=True).start()

    def answer(self, overview: Overview, standing: schema.Standing) -> schema.Check:
        """How far it is, and what was found that is not set aside yet."""
        look = self._look
        here = look.round == self._review.round
        return schema.Check(
            standing=standing,
            state=look.state if here else "idle",  # type: ignore[arg-type]
            done=look.done if here else 0,
            total=len(self._review.results),
            seconds_left=look.seconds_left if here else None,
            failed=look.failed if here else None,
            findings=self._findings(overview, *look.found) if here and look.found else [],
        )

    def _findings(self, overview: Overview, measures: Measures, groups: list[Array]) -> list[schema.Finding]:
        mark, review = self._review.state.mark, self._review
        pairs = [_best_first(group[mark[group] != JUNK], mark, measures.size) for group in groups]
        spare = [group for group in pairs if (mark[group[1:]] != CONFIRMED).any()]
        aside = [int(row) for group in spare for row in group[1:] if mark[row] != CONFIRMED]

        def cards(rows: Array) -> list[schema.ImageCard]:
            return [image_card(review, overview, row) for row in rows.tolist()]

        found = [schema.Finding(kind="near-duplicate", rows=aside, groups=[cards(group) for group in _first(spare)])]
        for kind, rows in measures.bad.items():
            left = np.flatnonzero(rows & (mark != JUNK) & (mark != CONFIRMED))
            found.append(schema.Finding(kind=kind, rows=left.tolist(), groups=[cards(left[:SHOWN])]))  # type: ignore[arg-type]
        return [finding for finding in found if finding.rows]


def _best_first(rows: Array, mark: Array, size: Array) -> Array:
    """A group with the one to keep first: confirmed, else the largest file.

    A copy that was saved anew is smaller than the original, and so is the blurred one of a series; by sharpness the
    copy would be kept, since what compression adds looks sharp.
    """
    ordered: Array = rows[np.lexsort((-np.nan_to_num(size[rows]), mark[rows] != CONFIRMED))]
    return ordered


def _first(groups: list[Array]) -> list[Array]:
    """As many groups as the page shows."""
    ends = np.cumsum([len(group) for group in groups])
    return groups[: max(1, int((ends <= SHOWN).sum()))]
