"""What each page shows, as data: the page and its JSON twin are made of the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from selex.review.core.overview import DOUBTFUL, Overview, Space, ideas, parts_of
from selex.review.core.session import Review
from selex.review.core.state import CONFIRMED, JUNK, UNDECIDED, UNSURE
from selex.review.server import schema
from selex.review.server.cards import Gone, Tree, category_card, gone_photos, image_card, natural, one_page, standing_of

Array = np.ndarray[Any, Any]

CATEGORIES_A_PAGE, IMAGES_A_PAGE, EVENTS_A_PAGE = 48, 120, 100
NEIGHBOURS, SIMILAR, SUGGESTIONS = 8, 24, 6


class Views:
    """Answers about a review. Each answer is of one version of the state, and says which."""

    def __init__(self, review: Review) -> None:
        self.review = review
        self._round = 0
        self._overview: Overview | None = None
        with self._now():
            pass

    def standing(self) -> schema.Standing:
        """How far the review is."""
        with self._now() as overview:
            return standing_of(self.review, overview, self.note)

    def categories(
        self,
        sort: schema.Sort = "size",
        chosen: schema.CategoryFilter = "all",
        q: str = "",
        level: int | None = None,
        cluster: int | None = None,
        page: int = 1,
    ) -> schema.CategoryList:
        """A page of categories."""
        with self._now() as overview:
            live = overview.live
            found = live[self._keep(chosen, overview)[live]]
            if level is not None and cluster is not None:
                found = found[self._tree.below(level, cluster, self._origin()[found])]
            if q:
                found = np.array([c for c in found.tolist() if q.casefold() in self._names[c].casefold()], dtype=int)
            found = self._sorted(found, sort, overview)
            page, pages, part = one_page(found, page, CATEGORIES_A_PAGE)
            return schema.CategoryList(
                standing=standing_of(self.review, overview, self.note),
                total=len(found),
                page=page,
                pages=pages,
                sort=sort,
                filter=chosen,
                q=q,
                level=level,
                cluster=cluster,
                tree=self._nodes(overview, level, cluster),
                categories=[category_card(self.review, overview, number) for number in part.tolist()],
                files=len(self._search(q)) if q else 0,
            )

    def category(
        self, number: int, sort: schema.ImageSort = "doubtful", chosen: schema.ImageFilter = "all", page: int = 1
    ) -> schema.CategoryPage:
        """A category and a page of its images."""
        with self._now() as overview:
            self._check_category(number, overview)
            images = self._images(overview.rows(number), sort, chosen, "", page, overview)
            near = self._space.neighbours(number, overview, self.review, NEIGHBOURS)
            return schema.CategoryPage(
                **dict(images),
                category=category_card(self.review, overview, number),
                neighbours=[
                    schema.Near(**dict(category_card(self.review, overview, other)), similarity=round(cosine, 4))
                    for other, cosine in near
                ],
            )

    def images(
        self, chosen: schema.ImageFilter = "all", q: str = "", sort: schema.ImageSort = "doubtful", page: int = 1
    ) -> schema.ImageList:
        """A page of all images, or of those whose file name has the words searched for."""
        with self._now() as overview:
            return self._images(self._searched(q), sort, chosen, q, page, overview)

    def rows(self, chosen: schema.ImageFilter = "all", q: str = "", category: int | None = None) -> schema.Rows:
        """All images of a list, or of a category's list."""
        with self._now() as overview:
            if category is not None:
                self._check_category(category, overview)
            found = self._searched(q) if category is None else overview.rows(category)
            found = self._filtered(found, chosen, overview)
            return schema.Rows(standing=standing_of(self.review, overview, self.note), rows=found.tolist())

    def image(self, row: int) -> schema.ImagePage:
        """An image and what looks like it."""
        with self._now() as overview:
            self._check_row(row)
            category = int(self.review.state.category[row])
            rows = overview.rows(category)
            place = np.flatnonzero(rows == row)
            before = int(rows[place[0] - 1]) if len(place) and place[0] else None
            after = int(rows[place[0] + 1]) if len(place) and place[0] + 1 < len(rows) else None
            return schema.ImagePage(
                standing=standing_of(self.review, overview, self.note),
                image=image_card(self.review, overview, row),
                category=category_card(self.review, overview, category),
                similar=[
                    image_card(self.review, overview, other, cosine) for other, cosine in self._space.near(row, SIMILAR)
                ],
                before=before,
                after=after,
            )

    def suggestions(self) -> schema.Suggestions:
        """What to look at next."""
        with self._now() as overview:
            found = [
                schema.Suggestion(
                    kind=idea.kind,  # type: ignore[arg-type]
                    categories=[category_card(self.review, overview, number) for number in idea.categories],
                    images=idea.images,
                    reason=idea.reason,
                )
                for idea in ideas(self.review, overview, SUGGESTIONS)
            ]
            return schema.Suggestions(standing=standing_of(self.review, overview, self.note), suggestions=found)

    def parts(self, number: int, count: int) -> schema.Parts:
        """The parts that a category falls into."""
        with self._now() as overview:
            self._check_category(number, overview)
            standing, category = (
                standing_of(self.review, overview, self.note),
                category_card(self.review, overview, number),
            )
            rows, features = overview.rows(number), self.review.embeddings
        # outside: this may take a while, and others want to go on; the version says what it was worked out on
        sure = self.review.results.confidence
        parts = [part[np.argsort(-sure[part], kind="stable")].tolist() for part in parts_of(features, rows, count)]
        return schema.Parts(
            standing=standing, category=category, parts=[schema.Part(size=len(part), rows=part) for part in parts]
        )

    def history(self, page: int = 1, number: int | None = None) -> schema.History:
        """What was decided in a round, this one if none is given, the latest first."""
        with self._now() as overview:
            rounds = self.review.ledger.rounds()
            number = self.review.round if number is None else number
            if number not in rounds:
                raise Gone(f"there is no round {number}")
            now = number == self.review.round
            played = (self.review.timeline if now else self.review.ledger.replay(number)).played
            page, pages, part = one_page(np.arange(len(played))[::-1], page, EVENTS_A_PAGE)
            events = [
                schema.Happened(
                    number=place + 1,
                    kind=played[place].event.kind,
                    summary=played[place].summary,
                    time=played[place].event.time,
                )
                for place in part.tolist()
            ]
            standing = standing_of(self.review, overview, self.note)
        return schema.History(
            standing=standing, total=len(played), page=page, pages=pages, round=number, rounds=rounds, events=events
        )

    @contextmanager
    def _now(self) -> Iterator[Overview]:
        """The state as it is, looked at from above, unchanging while this lasts."""
        with self.review.steady():
            if self.review.round != self._round:
                self._new_round()
            if self._overview is None or self._overview.version != self.review.version:
                self._overview = Overview.of(self.review, self._by_confidence)
            yield self._overview

    def _new_round(self) -> None:
        review = self.review
        self._round, self._overview = review.round, None
        self._by_confidence = np.argsort(-review.results.confidence, kind="stable")
        self._lower = [file.casefold() for file in review.results.files]
        self._space, self._tree = Space(review), Tree(review.run.hierarchy)
        self.note = gone_photos(review.run, review.results.files)

    @property
    def _names(self) -> list[str]:
        return self.review.state.names

    def _origin(self) -> Array:
        return np.array(self.review.state.origin)

    def _nodes(self, overview: Overview, level: int | None, cluster: int | None) -> list[schema.Node]:
        live = overview.live
        names = [self._names[number] for number in live]
        return self._tree.nodes(names, self._origin()[live], overview.sizes[live], level, cluster)

    def _keep(self, chosen: schema.CategoryFilter, overview: Overview) -> Array:
        """Which categories a filter lets through."""
        state, numbers = self.review.state, np.arange(len(overview.sizes))
        known = numbers < self.review.results.n_known
        unsure = (overview.unsure > 0) | (overview.confidence < DOUBTFUL)
        changed = (overview.changed > 0) | np.array(state.named)
        kept: Array = {"known": known, "novel": ~known, "unsure": unsure, "changed": changed}.get(chosen, numbers >= 0)
        return kept

    def _sorted(self, found: Array, sort: schema.Sort, overview: Overview) -> Array:
        if sort == "name":
            return np.array(sorted(found.tolist(), key=lambda number: natural(self._names[number])), dtype=int)
        key = -overview.sizes if sort == "size" else overview.confidence
        ordered: Array = found[np.argsort(key[found], kind="stable")]
        return ordered

    def _images(
        self, rows: Array, sort: schema.ImageSort, chosen: schema.ImageFilter, q: str, page: int, overview: Overview
    ) -> schema.ImageList:
        rows = self._filtered(rows, chosen, overview)
        sure = self.review.results.confidence[rows]
        if sort == "name":
            rows = np.sort(rows)  # tables are in the order of names
        else:
            rows = rows[np.argsort(sure if sort == "doubtful" else -sure, kind="stable")]
        page, pages, part = one_page(rows, page, IMAGES_A_PAGE)
        return schema.ImageList(
            standing=standing_of(self.review, overview, self.note),
            total=len(rows),
            page=page,
            pages=pages,
            sort=sort,
            filter=chosen,
            q=q,
            images=[image_card(self.review, overview, row) for row in part.tolist()],
        )

    def _filtered(self, rows: Array, chosen: schema.ImageFilter, overview: Overview) -> Array:
        """The rows that a filter lets through."""
        mark, sure = self.review.state.mark[rows], self.review.results.confidence[rows]
        ways = {
            "undecided": mark == UNDECIDED,
            "confirmed": mark == CONFIRMED,
            "unsure": (mark == UNSURE) | ((mark == UNDECIDED) & (sure < DOUBTFUL)),
            "changed": overview.changed_rows[rows] & (mark != JUNK),
            "junk": mark == JUNK,
        }
        kept: Array = rows[ways.get(chosen, mark != JUNK)]
        return kept

    def _searched(self, q: str) -> Array:
        """All rows, or those whose file name has the words searched for."""
        return self._search(q) if q else np.arange(len(self.review.results))

    def _search(self, q: str) -> Array:
        words = q.casefold()
        return np.array([row for row, file in enumerate(self._lower) if words in file], dtype=int)

    def _check_category(self, number: int, overview: Overview) -> None:
        if not 0 <= number < len(overview.sizes) or not overview.sizes[number]:
            raise Gone(f"category {number} is not there (any more)")

    def _check_row(self, row: int) -> None:
        if not 0 <= row < len(self.review.results):
            raise Gone(f"there is no image {row}")
