"""What each page shows, as data: the page and its JSON twin are made of the same."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from selex.data.parquet import text_blocks
from selex.review.core.labels import Photo, asides_of
from selex.review.core.metadata import Where
from selex.review.core.overview import NEIGHBOURS
from selex.review.core.session import Review
from selex.review.server import actions, schema
from selex.review.server.cards import category_card, facets, one_page, suggestion_cards
from selex.review.server.checks import Checks
from selex.review.server.lists import Lists, history_of, parts_page
from selex.review.server.maps import Plane, map_of
from selex.review.server.similar import Eye, image_page, similar_to

ASIDES_A_PAGE = 120


class AsideView:
    """The photos of a review that are set aside; use it while the review is steady."""

    def __init__(self, review: Review) -> None:
        self._review = review
        self._round, self._files = 0, dict[tuple[int, int], str]()

    def page(self, standing: schema.Standing, page: int) -> schema.SetAside:
        """A page of them, the latest first."""
        review, back = self._review, self._review.state.restored
        here = asides_of(review.round, review.timeline)
        earlier = [(aside, photo.file) for photo, aside in review.aside.items()]
        both = [*((aside, review.results.files[aside.row]) for aside in here), *earlier]
        both.sort(key=lambda one: (-one[0].time, one[1]))
        page, pages, part = one_page(np.arange(len(both)), page, ASIDES_A_PAGE)
        asides = [
            schema.AsidePhoto(
                round=aside.round,
                row=aside.row,
                file=file,
                category_name=aside.category,
                time=aside.time,
                reason=aside.reason,
                restored=aside[:2] in back,
            )
            for aside, file in (both[place] for place in part.tolist())
        ]
        return schema.SetAside(
            standing=standing,
            total=len(both),
            page=page,
            pages=pages,
            rows=[aside.row for aside in here],
            photos=[aside[:2] for aside in review.aside.values() if aside[:2] not in back],
            asides=asides,
        )

    def path(self, number: int, row: int) -> str | None:
        """Where a photo is; "" if another one has its name by now, None if no such photo is set aside."""
        if self._review.round != self._round:
            self._files, self._round = _files(self._review), self._review.round
        file = self._files.get((number, row))
        return self._review.paths.place([file])[0] if file else file


def _files(review: Review) -> dict[tuple[int, int], str]:
    """The file of every photo that earlier rounds set aside, "" where a photo of this round has that name."""
    names, taken = pa.array([photo.file for photo in review.aside], pa.string()), dict[str, bytes]()
    content, done = review.results.content, 0
    for block in text_blocks(review.results.files):
        for row in np.flatnonzero(pc.is_in(block, names).to_numpy(zero_copy_only=False)).tolist():
            taken[block[row].as_py()] = content[done + row] if content is not None else b""
        done += len(block)

    def free(photo: Photo) -> bool:
        return taken.get(photo.file, photo.content) in (photo.content, b"")

    return {aside[:2]: photo.file if free(photo) else "" for photo, aside in review.aside.items()}


CATEGORIES_A_PAGE = 48
SUGGESTIONS = 6
ANYWHERE = Where()


class Views:
    """Answers about a review. Each answer is of one version of the state, and says which."""

    def __init__(self, review: Review, table: str | None = None) -> None:
        self.review, self._lists, self._checks = review, Lists(review, table), Checks(review)
        self._plane, self.eye, self._aside = Plane(), Eye(review.run.folder), AsideView(review)

    def standing(self) -> schema.Standing:
        """How far the review is."""
        with self._lists.now() as overview:
            return self._lists.standing(overview)

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
        with self._lists.now() as overview:
            lists = self._lists
            found = lists.in_order(lists.categories(overview, chosen, q, level, cluster), sort, overview)
            page, pages, part = one_page(found, page, CATEGORIES_A_PAGE)
            return schema.CategoryList(
                standing=self._lists.standing(overview),
                total=len(found),
                page=page,
                pages=pages,
                sort=sort,
                filter=chosen,
                q=q,
                level=level,
                cluster=cluster,
                tree=lists.nodes(overview, level, cluster),
                categories=[category_card(self.review, overview, number) for number in part.tolist()],
                files=len(lists.search(q)) if q else 0,
            )

    def alike(self, name: str) -> schema.Alike:
        """Categories whose name is all but the same."""
        with self._lists.now():
            state, words = self.review.state, " ".join(name.split())
            found = state.alike(words)
            return schema.Alike(names=[state.names[number] for number in found], ids=found)

    def category(
        self, number: int, sort: schema.ImageSort = "doubtful", chosen: schema.ImageFilter = "all", page: int = 1
    ) -> schema.CategoryPage:
        """A category and a page of its images."""
        with self._lists.now() as overview:
            self._lists.check_category(number, overview)
            images = self._lists.images(overview.rows(number), sort, chosen, "", page, overview)
            near = self._lists.space.neighbours(number, overview, self.review, NEIGHBOURS)
            return schema.CategoryPage(
                **dict(images),
                category=category_card(self.review, overview, number),
                suggested=[
                    schema.SuggestedName(name=one.name, source=one.source, score=round(one.score, 4))  # type: ignore[arg-type]
                    for one in self._lists.suggested(number, overview, near)
                ],
                neighbours=[
                    schema.Near(**dict(category_card(self.review, overview, other)), similarity=round(cosine, 4))
                    for other, cosine in near
                ],
            )

    def images(
        self,
        chosen: schema.ImageFilter = "all",
        q: str = "",
        sort: schema.ImageSort = "doubtful",
        page: int = 1,
        where: Where = ANYWHERE,
    ) -> schema.FilteredImages:
        """A page of all images, or of those asked for whose file name has the words searched for."""
        self._read_days(where)
        with self._lists.now() as overview:
            found = self._lists.images(self._lists.search(q, where), sort, chosen, q, page, overview)
            return schema.FilteredImages(**dict(found), facets=facets(self._lists.metadata), **asdict(where))

    def rows(
        self, chosen: schema.ImageFilter = "all", q: str = "", category: int | None = None, where: Where = ANYWHERE
    ) -> schema.Rows:
        """All images of a list, or of a category's list."""
        self._read_days(where)
        with self._lists.now() as overview:
            if category is not None:
                self._lists.check_category(category, overview)
            found = self._lists.search(q, where) if category is None else overview.rows(category)
            found = self._lists.filtered(found, chosen, overview)
            return schema.Rows(standing=self._lists.standing(overview), rows=found.tolist())

    def _read_days(self, where: Where) -> None:
        """Read days and cameras where they are asked for, before the state is held: others go on meanwhile."""
        if where.by_exif:
            with self._lists.now():
                metadata = self._lists.metadata
            metadata.read_days()

    def image(self, row: int) -> schema.ImagePage:
        """An image and what looks like it."""
        return image_page(self._lists, row)

    def similar(self, file: bytes) -> schema.Similar:
        """What looks like an image that is not of the run, and where it would be sorted."""
        return similar_to(file, self.eye, self._lists)

    def suggestions(self) -> schema.Suggestions:
        """What to look at next."""
        with self._lists.now() as overview:
            found = suggestion_cards(self.review, overview, self._lists.space, SUGGESTIONS)
            return schema.Suggestions(standing=self._lists.standing(overview), suggestions=found)

    def check(self, start: bool = False) -> schema.Check:
        """Photos to set aside; looked for where `start` says so."""
        if start:
            self._checks.start()
        with self._lists.now() as overview:
            return self._checks.answer(overview, self._lists.standing(overview))

    def aside(self, page: int = 1) -> schema.SetAside:
        """Photos that are set aside, in this round and in earlier ones."""
        with self._lists.now() as overview:
            return self._aside.page(self._lists.standing(overview), page)

    def aside_path(self, number: int, row: int) -> str | None:
        """Where a photo is that was set aside in an earlier round; None if there is none."""
        with self._lists.now():
            return self._aside.path(number, row)

    def map(self) -> schema.Map:
        """Where images lie, and what they can be coloured by."""
        return map_of(self._plane, self._lists)

    def parts(self, number: int, count: int) -> schema.Parts:
        """The parts that a category falls into."""
        return parts_page(self._lists, number, count)

    def history(self, page: int = 1, number: int | None = None) -> actions.History:
        """What was decided in a round, this one if none is given, the latest first."""
        return history_of(self._lists, page, number)
