"""Which categories and images a list of the page shows: filtered, searched, in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from selex.data.parquet import with_words
from selex.review.core.metadata import Metadata, Where
from selex.review.core.names import Suggested, count_words, from_files, read_suggested
from selex.review.core.overview import Overview, Space, parts_of
from selex.review.core.session import Review
from selex.review.core.state import CONFIRMED, SET_ASIDE, UNDECIDED
from selex.review.server import actions, schema
from selex.review.server.cards import Gone, Tree, category_card, gone_photos, image_card, natural, one_page, standing_of

Array = np.ndarray[Any, Any]

IMAGES_A_PAGE, EVENTS_A_PAGE = 120, 100


class Lists:
    """The state as it is now, and which categories and images a list shows of it."""

    def __init__(self, review: Review, table: str | None = None) -> None:
        self.review, self._table = review, table
        self._round = 0
        self._overview: Overview | None = None
        with self.now():
            pass

    def standing(self, overview: Overview) -> schema.Standing:
        """How far the review is."""
        return standing_of(self.review, overview, self.note)

    @contextmanager
    def now(self) -> Iterator[Overview]:
        """The state as it is, looked at from above, unchanging while this lasts."""
        with self.review.steady():
            if self.review.round != self._round:
                self._new_round()
            if self._overview is None or self._overview.version != self.review.version:
                self._overview = Overview.of(self.review, self._by_confidence)
            yield self._overview

    def _new_round(self) -> None:
        review = self.review
        self._overview = None
        self._by_confidence = np.argsort(-review.results.confidence, kind="stable").astype(np.int32)
        self.space, self._tree = Space(review), Tree(review.run.hierarchy)
        self._suggested = read_suggested(review.run.folder, review.results)
        self._words: Counter[str] | None = None
        self.metadata = Metadata(review.run, review.paths, self._table)
        self.note = gone_photos(review.run.root, review.paths)
        self._round = review.round  # last: if the table cannot be read, no answer mixes two rounds

    @property
    def _names(self) -> list[str]:
        return self.review.state.names

    def _origin(self) -> Array:
        return np.array(self.review.state.origin)

    def nodes(self, overview: Overview, level: int | None, cluster: int | None) -> list[schema.Node]:
        """The tree of levels, or what is below a cluster of it."""
        live = overview.live
        names = [self._names[number] for number in live]
        return self._tree.nodes(names, self._origin()[live], overview.sizes[live], level, cluster)

    def categories(
        self, overview: Overview, chosen: schema.CategoryFilter, q: str, level: int | None, cluster: int | None
    ) -> Array:
        """Categories that a filter lets through, whose name has the words searched for, below a cluster of the tree."""
        found = overview.live[self._kept(chosen, overview)[overview.live]]
        if level is not None and cluster is not None:
            found = found[self._tree.below(level, cluster, self._origin()[found])]
        words = q.casefold()
        return np.array([number for number in found.tolist() if words in self._names[number].casefold()], dtype=int)

    def _kept(self, chosen: schema.CategoryFilter, overview: Overview) -> Array:
        """Which categories a filter lets through."""
        state, numbers = self.review.state, np.arange(len(overview.sizes))
        known = numbers < self.review.results.n_known
        changed, unsure = (overview.changed > 0) | np.array(state.named), overview.unsure > 0
        return {"known": known, "novel": ~known, "unsure": unsure, "changed": changed}.get(chosen, numbers >= 0)

    def in_order(self, found: Array, sort: schema.Sort, overview: Overview) -> Array:
        """Categories as a list has them."""
        if sort == "name":
            return np.array(sorted(found.tolist(), key=lambda number: natural(self._names[number])), dtype=int)
        key = -overview.sizes if sort == "size" else overview.confidence
        return found[np.argsort(key[found], kind="stable")]

    def rows_in_order(self, rows: Array, sort: schema.ImageSort) -> Array:
        """Rows as a list has them."""
        if sort == "name":
            return np.sort(rows)  # tables are in the order of names
        sure = self.review.results.confidence[rows]
        return rows[np.argsort(sure if sort == "doubtful" else -sure, kind="stable")]

    def filtered(self, rows: Array, chosen: schema.ImageFilter, overview: Overview) -> Array:
        """The rows that a filter lets through."""
        mark = self.review.state.mark[rows]
        ways = {
            "undecided": mark == UNDECIDED,
            "confirmed": mark == CONFIRMED,
            "unsure": overview.unsure_rows[rows],
            "changed": overview.changed_rows[rows] & (mark != SET_ASIDE),
            "set_aside": mark == SET_ASIDE,
        }
        return rows[ways.get(chosen, mark != SET_ASIDE)]

    def images(
        self, rows: Array, sort: schema.ImageSort, chosen: schema.ImageFilter, q: str, page: int, overview: Overview
    ) -> schema.ImageList:
        """A page of rows, those that a filter lets through."""
        rows = self.rows_in_order(self.filtered(rows, chosen, overview), sort)
        page, pages, part = one_page(rows, page, IMAGES_A_PAGE)
        return schema.ImageList(
            standing=self.standing(overview),
            total=len(rows),
            page=page,
            pages=pages,
            sort=sort,
            filter=chosen,
            q=q,
            images=[image_card(self.review, overview, row) for row in part.tolist()],
        )

    def search(self, q: str, where: Where | None = None) -> Array:
        """Rows whose file name has the words searched for, of the photos asked for; all, where there are none."""
        files = self.review.results.files
        rows = np.flatnonzero(with_words(files, q)) if q else np.arange(len(files), dtype=np.int32)
        return self.metadata.keep(rows, where) if where else rows

    def suggested(self, number: int, overview: Overview, near: list[tuple[int, float]]) -> list[Suggested]:
        """What a category that nobody has named could be called; `near` are those most like it."""
        state, results = self.review.state, self.review.results
        if state.known(number) or state.named[number]:
            return []
        listed = self._suggested.get(results.names[number], []) if number < len(results.names) else []
        if self._words is None:  # not before it is asked for: there may be many files
            self._words = count_words(results.files)
        written = from_files(results.files, overview.rows(number), self._words)
        like = [(other, cosine) for other, cosine in near if state.known(other) or state.named[other]][:1]
        alike = [
            Suggested(f"like {state.names[other]}", "most similar known category", max(0.0, cosine))
            for other, cosine in like
        ]
        return [*listed, *written[:2], *alike]

    def check_category(self, number: int, overview: Overview) -> None:
        """Refuse a category that is not there."""
        if not 0 <= number < len(overview.sizes) or not overview.sizes[number]:
            raise Gone(f"category {number} does not exist (any more)")

    def check_row(self, row: int) -> None:
        """Refuse an image that is not there."""
        if not 0 <= row < len(self.review.results):
            raise Gone(f"there is no image {row}")


def history_of(lists: Lists, page: int, number: int | None) -> actions.History:
    """What was decided in a round, this one if none is given, the latest first."""
    review = lists.review
    with lists.now() as overview:
        rounds = review.ledger.rounds()
        number = review.round if number is None else number
        if number not in rounds:
            raise Gone(f"there is no round {number}")
        played = (review.timeline if number == review.round else review.ledger.replay(number)).played
        page, pages, part = one_page(np.arange(len(played))[::-1], page, EVENTS_A_PAGE)
        events = [
            actions.Happened(
                number=place + 1,
                kind=played[place].event.kind,
                summary=played[place].summary,
                time=played[place].event.time,
            )
            for place in part.tolist()
        ]
        standing = lists.standing(overview)
    return actions.History(
        standing=standing, total=len(played), page=page, pages=pages, round=number, rounds=rounds, events=events
    )


def parts_page(lists: Lists, number: int, count: int) -> schema.Parts:
    """The parts that a category falls into."""
    review = lists.review
    with lists.now() as overview:
        lists.check_category(number, overview)
        standing, category = lists.standing(overview), category_card(review, overview, number)
        rows, features, given = overview.rows(number), review.embeddings, review.given
    # outside: this may take a while, and others must not wait; the version says what it was worked out on
    sure = review.results.confidence
    found = parts_of(features, rows, count, rows[given[rows]])
    parts = [part[np.argsort(-sure[part], kind="stable")].tolist() for part in found]
    return schema.Parts(
        standing=standing, category=category, parts=[schema.Part(size=len(part), rows=part) for part in parts]
    )
