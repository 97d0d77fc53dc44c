"""Photos that are set aside, in this round and in earlier ones: where they are, and how a page shows them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from selex.data.parquet import text_blocks
from selex.review.core.labels import Photo, asides_of
from selex.review.core.session import Review
from selex.review.server import schema
from selex.review.server.cards import one_page

ASIDES_A_PAGE = 120


class SetAside:
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
