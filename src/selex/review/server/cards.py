"""What a page shows of one category, of one image, of the tree of levels, of the whole review."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from selex.review.core.decisions import Refused
from selex.review.core.metadata import Metadata
from selex.review.core.overview import Overview, Space
from selex.review.core.session import Review
from selex.review.core.state import CONFIRMED, MARKS, SET_ASIDE
from selex.review.core.suggest import ideas
from selex.review.server import schema
from selex.review.server.schema import Node

Array = np.ndarray[Any, Any]

EXAMPLES = 6


def standing_of(review: Review, overview: Overview, note: str | None) -> schema.Standing:
    """How far the review is."""
    marks = overview.marks
    return schema.Standing(
        version=review.version,
        round=review.round,
        run=review.run.folder.resolve().name,
        images=int(marks.sum() - marks[SET_ASIDE]),
        categories=len(overview.live),
        confirmed=int(marks[CONFIRMED]),
        unsure=int(overview.unsure.sum()),
        set_aside=int(marks[SET_ASIDE]),
        aside=sum(aside[:2] not in review.state.restored for aside in review.aside.values()),
        changed=int(overview.changed.sum()),
        decisions=review.timeline.n_decisions,
        undo=review.timeline.can_undo,
        redo=review.timeline.can_redo,
        news=str(review.changes) if review.changes is not None else None,
        note=note,
    )


def category_card(review: Review, overview: Overview, number: int) -> schema.Category:
    """A category, with its most typical images."""
    state = review.state
    return schema.Category(
        id=number,
        name=state.names[number],
        known=state.known(number),
        named=state.named[number],
        size=int(overview.sizes[number]),
        confidence=round(float(overview.confidence[number]), 4),
        confirmed=int(overview.confirmed[number]),
        unsure=int(overview.unsure[number]),
        changed=int(overview.changed[number]),
        examples=overview.rows(number)[:EXAMPLES].tolist(),
    )


def suggestion_cards(review: Review, overview: Overview, space: Space, count: int) -> list[schema.Suggestion]:
    """What to look at next, the best first."""
    return [
        schema.Suggestion(
            kind=idea.kind,  # type: ignore[arg-type]
            categories=[category_card(review, overview, number) for number in idea.categories],
            images=idea.images,
            parts=idea.parts,
            reason=idea.reason,
            rows=list(idea.rows),
        )
        for idea in ideas(review.state, count, review.timeline.checked, space.looks())
    ]


def image_card(review: Review, overview: Overview, row: int, cosine: float | None = None) -> schema.ImageCard:
    """An image, and how like another one it is if `cosine` says so."""
    state, results = review.state, review.results
    category, next_best = int(state.category[row]), int(overview.next_best[row])
    return schema.ImageCard(
        row=row,
        file=results.files[row],
        category=category,
        category_name=state.names[category],
        runner_up=state.names[next_best] if next_best >= 0 else None,
        confidence=round(float(results.confidence[row]), 4),
        mark=MARKS[state.mark[row]],  # type: ignore[arg-type]
        labelled=bool(results.labelled[row]),
        changed=bool(overview.changed_rows[row]),
        was=_was(review, row) if overview.changed_rows[row] else None,
        similarity=None if cosine is None else round(cosine, 4),
    )


def spots_of(review: Review, overview: Overview, category: Array, places: Array) -> list[schema.Spot]:
    """The categories of some images, each in the middle of their places, the largest first."""
    state, order = review.state, np.argsort(category, kind="stable")
    numbers, starts = np.unique(category[order], return_index=True)
    middles = [
        np.median(part, axis=0).astype(int).tolist() for part in np.split(places[order], starts[1:]) if len(part)
    ]
    spots = [
        schema.Spot(
            id=number, name=state.names[number], known=state.known(number), size=int(overview.sizes[number]), x=x, y=y
        )
        for number, (x, y) in zip(numbers.tolist(), middles, strict=True)
    ]
    return sorted(spots, key=lambda spot: -spot.size)


def _was(review: Review, row: int) -> str | None:
    """Where a changed image was: as the run had it, or the round before."""
    found = int(review.results.category[row])
    if review.state.category[row] != found or review.changes is None:
        return review.results.names[found]
    return review.changes.was(row)


_SHOWN = 40  # nodes of a level that the tree shows; the largest


class Tree:
    """The levels of a run. Level 1 is the categories themselves, the highest one has fewest clusters."""

    def __init__(self, hierarchy: dict[str, Any]) -> None:
        levels = hierarchy["levels"]
        self._n_known = [level["n_known"] for level in levels]
        self._above = [np.arange(len(hierarchy["names"]))]  # of each category of the run: its cluster at each level
        for level in levels[:-1]:
            self._above.append(np.array(level["parents"])[self._above[-1]])

    @property
    def top(self) -> int:
        """The highest level."""
        return len(self._above)

    def below(self, level: int, cluster: int, origin: Array) -> Array:
        """Which categories are below a cluster; `origin` says which category of the run each came from."""
        if not 1 <= level <= self.top:
            return np.zeros(len(origin), dtype=bool)
        return self._above[level - 1][origin] == cluster

    def nodes(
        self, names: list[str], origin: Array, sizes: Array, level: int | None, cluster: int | None
    ) -> list[Node]:
        """The highest level, and below each node that leads to the chosen one the next level.

        `names`, `origin` and `sizes` are of the categories as they stand.
        """
        path = {}
        if level is not None and cluster is not None and 1 <= level <= self.top:
            members = np.flatnonzero(self._above[level - 1] == cluster)
            path = {at: int(self._above[at - 1][members[0]]) for at in range(level, self.top + 1) if len(members)}
        everything = np.ones(len(origin), dtype=bool)
        return self._level(self.top, everything, names, origin, sizes, path) if self.top > 1 else []

    def _level(
        self, level: int, within: Array, names: list[str], origin: Array, sizes: Array, path: dict[int, int]
    ) -> list[Node]:
        clusters = self._above[level - 1][origin]
        nodes = []
        for cluster in np.unique(clusters[within]).tolist():
            inside = within & (clusters == cluster)
            chosen = path.get(level) == cluster
            node = Node(
                level=level,
                cluster=cluster,
                known=cluster < self._n_known[level - 1],
                title=_title(names, np.flatnonzero(inside), sizes),
                categories=int(inside.sum()),
                images=int(sizes[inside].sum()),
                open=chosen,
                children=self._level(level - 1, inside, names, origin, sizes, path) if chosen and level > 2 else [],
            )
            nodes.append(node)
        return sorted(nodes, key=lambda node: -node.images)[:_SHOWN]


def _title(names: list[str], members: Array, sizes: Array) -> str:
    """The names of the largest members."""
    largest = members[np.argsort(-sizes[members], kind="stable")[:2]]
    more = "" if len(members) <= 2 else f" +{len(members) - 2}"
    return ", ".join(names[number] for number in largest) + more


_OFFERED = 200  # folders to choose from; the largest


def facets(metadata: Metadata) -> schema.Facets:
    """What photos can be filtered by."""
    largest = dict(sorted(sorted(metadata.folders.items(), key=lambda item: -item[1])[:_OFFERED]))
    return schema.Facets(
        folders=_choices(largest),
        days=None if metadata.days is None else _first_and_last(metadata.days),
        columns={name: _choices(values) for name, values in metadata.values.items()},
    )


def _choices(counts: dict[str, int]) -> list[schema.Choice]:
    return [schema.Choice(value=value, images=images) for value, images in counts.items()]


def _first_and_last(days: Array) -> list[str]:
    there = days[~np.isnat(days)]
    return [str(there.min()), str(there.max())] if len(there) else []


class Gone(Refused):
    """There is no such category or image."""


def gone_photos(root: Path, paths: Sequence[str]) -> str | None:
    """What to say if photos are not where they were, or are not shown; a sample is looked for."""
    sample = paths[:: max(1, len(paths) // 200)]
    gone = sum(not os.path.exists(path) for path in sample)
    if not gone:
        return None
    if "" in sample:
        return f"The run was not made here: grey squares stand for images that are not below {root}."
    part = "The photos are" if gone == len(sample) else "Some photos are"
    return f"{part} not where they were when the run was made ({root}): grey squares stand for them."


def one_page(items: Array, page: int, size: int) -> tuple[int, int, Array]:
    """The page's number within bounds, how many there are, and what is on it."""
    pages = max(1, -(-len(items) // size))
    page = min(max(page, 1), pages)
    return page, pages, items[(page - 1) * size : page * size]


def natural(name: str) -> list[tuple[int, str]]:
    """Sorts novel-2 before novel-10. Numbers stay text: Python refuses to read very long ones."""
    parts = re.split(r"([0-9]+)", name.casefold())
    return [(len(digits), digits) if (digits := part.lstrip("0")).isdecimal() else (0, part) for part in parts]
