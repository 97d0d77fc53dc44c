"""Photos to set aside, looked for in the background while the page stays quick; kept until there are new results."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
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


class Checks:
    """What was found in the photos of a round."""

    def __init__(self, review: Review) -> None:
        self._review, self._lock = review, threading.Lock()
        self._round, self._done, self._total, self._began = 0, 0, 0, 0.0
        self._found: tuple[Measures, list[Array]] | None = None
        self._failed: str | None = None

    def start(self) -> None:
        """Look through the photos; nothing where that is done already, or being done."""
        with self._review.steady(), self._lock:
            review = self._review
            if self._round == review.round and not self._failed:
                return
            paths = review.run.image_paths(review.results.files)
            self._round, self._done, self._total, self._began = review.round, 0, len(paths), time.monotonic()
            self._found = self._failed = None
            given = (review.round, paths, review.embeddings, review.results.category)
            threading.Thread(target=self._look, args=given, daemon=True).start()

    def _look(self, number: int, paths: list[str], features: Array, category: Array) -> None:
        try:
            measures = self._measured(number, paths)
            found = measures, near_duplicates(features, category, measures.small)
            if self._round == number:
                self._found = found
        except Exception as error:  # whatever it is, the page is to say so rather than to wait for ever
            self._failed = f"{type(error).__name__}: {error}"

    def _measured(self, number: int, paths: list[str]) -> Measures:
        found = []
        with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
            for row in pool.map(measure, paths):
                found.append(row)
                if self._round == number:
                    self._done = len(found)
        return Measures.of(found)

    def answer(self, overview: Overview, standing: schema.Standing) -> schema.Check:
        """How far it is, and what was found that is not set aside yet."""
        here = self._round == self._review.round
        state = "idle" if not here or self._failed else "done" if self._found else "running"
        spent = time.monotonic() - self._began
        left = spent / self._done * (self._total - self._done) if state == "running" and self._done else None
        return schema.Check(
            standing=standing,
            state=state,  # type: ignore[arg-type]
            done=self._done if here else 0,
            total=len(self._review.results),
            seconds_left=left,
            failed=self._failed if here else None,
            findings=self._findings(overview) if here and self._found else [],
        )

    def _findings(self, overview: Overview) -> list[schema.Finding]:
        assert self._found
        measures, groups = self._found
        mark, review = self._review.state.mark, self._review
        pairs = [_best_first(group[mark[group] != JUNK], mark, measures.sharpness) for group in groups]
        spare = [group for group in pairs if (mark[group[1:]] != CONFIRMED).any()]
        aside = [int(row) for group in spare for row in group[1:] if mark[row] != CONFIRMED]

        def cards(rows: Array) -> list[schema.ImageCard]:
            return [image_card(review, overview, row) for row in rows.tolist()]

        found = [schema.Finding(kind="near-duplicate", rows=aside, groups=[cards(group) for group in _first(spare)])]
        for kind, rows in measures.bad.items():
            left = np.flatnonzero(rows & (mark != JUNK) & (mark != CONFIRMED))
            found.append(schema.Finding(kind=kind, rows=left.tolist(), groups=[cards(left[:SHOWN])]))  # type: ignore[arg-type]
        return [finding for finding in found if finding.rows]


def _best_first(rows: Array, mark: Array, sharpness: Array) -> Array:
    """A group with the one to keep first: confirmed, else the sharpest."""
    ordered: Array = rows[np.lexsort((-np.nan_to_num(sharpness[rows]), mark[rows] != CONFIRMED))]
    return ordered


def _first(groups: list[Array]) -> list[Array]:
    """As many groups as the page shows."""
    ends = np.cumsum([len(group) for group in groups])
    return groups[: max(1, int((ends <= SHOWN).sum()))]
