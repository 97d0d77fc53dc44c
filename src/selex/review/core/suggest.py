"""What to look at next: the decisions that would settle most images."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from selex.review.core.overview import DOUBTFUL, Overview
from selex.review.core.session import Review
from selex.review.core.state import UNDECIDED


@dataclass(frozen=True)
class Idea:
    """Something to decide: `kind` is `name`, `confirm`, `merge` or `split`; `images` is how many it would settle."""

    kind: str
    categories: tuple[int, ...]
    images: int
    reason: str


def ideas(review: Review, overview: Overview, count: int) -> list[Idea]:
    """The `count` decisions that promise to settle most images, at most one for each category."""
    found = sorted(
        [*_whole(review, overview), *_pairs(review, overview)], key=lambda idea: (-idea.images, idea.categories)
    )
    seen, chosen = set[int](), list[Idea]()
    for idea in found:
        if not seen & set(idea.categories) and idea.images:
            chosen.append(idea)
            seen |= set(idea.categories)
        if len(chosen) == count:
            break
    return chosen


def _whole(review: Review, overview: Overview) -> list[Idea]:
    """A category as a whole: right, and then to be named or confirmed; or a mixture, and then to be split.

    Of `undecided` images with a mean confidence c, `free · c` are expected to be right, and `free · (1 - c)` wrong.
    """
    state, found = review.state, []
    free = overview.sizes - overview.confirmed - overview.unsure
    right = np.rint(free * overview.confidence).astype(int)
    for category in overview.live[free[overview.live] > 0].tolist():
        sure, left = overview.confidence[category], int(free[category])
        if sure < DOUBTFUL and left > 3:
            found.append(Idea("split", (category,), left - int(right[category]), f"mixed: {sure:.0%} sure"))
        elif state.known(category) or state.named[category]:
            found.append(Idea("confirm", (category,), int(right[category]), f"{left:,} undecided, {sure:.0%} sure"))
        else:
            found.append(Idea("name", (category,), int(right[category]), f"no name yet, {sure:.0%} sure"))
    return found


def _pairs(review: Review, overview: Overview) -> list[Idea]:
    """Two categories that may be one: doubtful images of each have the other for their next best."""
    state, results = review.state, review.results
    open_rows = (state.mark == UNDECIDED) & (results.confidence < DOUBTFUL) & (results.runner_up >= 0)
    rows = np.flatnonzero(open_rows & (results.runner_up != state.category))
    pairs = np.sort(np.stack([state.category[rows], results.runner_up[rows]], axis=1), axis=1)
    unique, counts = np.unique(pairs, axis=0, return_counts=True)
    found = []
    for (a, b), between in zip(unique.tolist(), counts.tolist(), strict=True):
        smaller = min(overview.sizes[a], overview.sizes[b])
        if smaller and between * 4 >= smaller and not (state.known(a) and state.known(b)):
            found.append(Idea("merge", (a, b), between, f"{between:,} images could be either"))
    return found
