"""One category, one image, the whole review: what a page shows of each."""

from __future__ import annotations

from selex.review.core.overview import Overview
from selex.review.core.session import Review
from selex.review.core.state import CONFIRMED, JUNK, MARKS, UNSURE
from selex.review.server import schema

EXAMPLES = 6


def standing_of(review: Review, overview: Overview, note: str | None) -> schema.Standing:
    """How far the review is."""
    marks = overview.marks
    return schema.Standing(
        version=review.version,
        round=review.round,
        run=review.run.folder.resolve().name,
        images=int(marks.sum() - marks[JUNK]),
        categories=len(overview.live),
        confirmed=int(marks[CONFIRMED]),
        unsure=int(marks[UNSURE]),
        junk=int(marks[JUNK]),
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
        doubtful=int(overview.doubtful[number]),
        changed=int(overview.changed[number]),
        examples=overview.rows(number)[:EXAMPLES].tolist(),
    )


def image_card(review: Review, overview: Overview, row: int, cosine: float | None = None) -> schema.ImageCard:
    """An image, and how like another one it is if `cosine` says so."""
    state, results = review.state, review.results
    category, next_best = int(state.category[row]), int(results.runner_up[row])
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


def _was(review: Review, row: int) -> str | None:
    """Where a changed image was: as the run had it, or the round before."""
    found = int(review.results.category[row])
    if review.state.category[row] != found or review.changes is None:
        return review.results.names[found]
    return review.changes.was(row)
