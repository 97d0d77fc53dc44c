"""What looks like an image, of the run or not; the network is loaded when the first one comes that is not."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from selex.data.decode import check_sent
from selex.review.core.decisions import Refused
from selex.review.core.session import Review
from selex.review.core.state import SET_ASIDE
from selex.review.server import schema
from selex.review.server.cards import category_card, image_card
from selex.review.server.lists import Lists

if TYPE_CHECKING:
    from selex.runs.sorter import Sorter

Array = np.ndarray[Any, Any]

SIMILAR = 24
"""Images that an answer holds."""


@dataclass(frozen=True, eq=False)
class Seen:
    """What the run's model says of an image, by the names that categories had in the run."""

    feature: Array  # to compare with those of the run's images
    nearest: str  # the most likely category
    runner_up: str  # the next one; "" where there is but one
    confidence: float  # how likely the nearest is
    fits: bool  # whether it is as near to it as that category's images usually are


class Eye:
    """Looks at images with the network of a run, one at a time: this is for a person, and memory is for the page."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._lock = folder, threading.Lock()
        self._round = 0
        self._sorter: Sorter | None = None
        self._closed = False

    def look(self, number: int, file: bytes) -> Seen:
        """What the model of round `number` says; raises `Unreadable`, or InputError where its weights are not there."""
        check_sent(file)  # before a network is loaded for it
        with self._lock:
            if self._closed:
                raise Refused("the server is shutting down")
            row, feature = self._ready(number).look([file])[0]
        return Seen(feature, row["nearest"], row["runner_up"], row["confidence"], bool(row["fits"]))

    def _ready(self, number: int) -> Sorter:
        """The network, in memory; another one after the run was clustered again."""
        import torch

        from selex.runs.predictor import load
        from selex.runs.sorter import Sorter

        if self._sorter is None or self._round != number:
            self._drop()
            self._sorter = Sorter(load(self._folder), "cuda" if torch.cuda.is_available() else "cpu")
            self._round = number
        return self._sorter

    def close(self) -> None:
        """Let go of the network, once it has looked at what it is looking at; nothing is looked at any more."""
        with self._lock:
            self._closed = True
            self._drop()

    def _drop(self) -> None:
        sorter, self._sorter = self._sorter, None
        if sorter is not None:
            sorter.close()


def image_page(lists: Lists, row: int) -> schema.ImagePage:
    """An image of the run and what looks like it."""
    review = lists.review
    with lists.now() as overview:
        lists.check_row(row)
        category = int(review.state.category[row])
        rows = overview.rows(category)
        place = np.flatnonzero(rows == row)
        return schema.ImagePage(
            standing=lists.standing(overview),
            image=image_card(review, overview, row),
            category=category_card(review, overview, category),
            similar=[image_card(review, overview, other, cosine) for other, cosine in lists.space.near(row, SIMILAR)],
            before=int(rows[place[0] - 1]) if len(place) and place[0] else None,
            after=int(rows[place[0] + 1]) if len(place) and place[0] + 1 < len(rows) else None,
        )


def similar_to(file: bytes, eye: Eye, lists: Lists) -> schema.Similar:
    """What looks like an image that is not of the run, and where it would be sorted."""
    review = lists.review
    with lists.now():
        number = review.round
    seen = eye.look(number, file)  # outside: the first time loads the network
    with lists.now() as overview:
        if review.round != number:
            raise Refused("the run was clustered again: send the image again")
        category, after = _heir(review, seen.nearest), _heir(review, seen.runner_up)
        return schema.Similar(
            standing=lists.standing(overview),
            category=None if category is None else category_card(review, overview, category),
            fits=seen.fits,
            confidence=round(seen.confidence, 4),
            runner_up=None if after in (None, category) else review.state.names[after],
            similar=[
                image_card(review, overview, row, cosine) for row, cosine in lists.space.like(seen.feature, SIMILAR)
            ],
        )


def _heir(review: Review, name: str) -> int | None:
    """Where most images of a category of the run are now, by its name there; None if nowhere."""
    results, state = review.results, review.state
    if name not in results.names:
        return None
    went = state.category[(results.category == results.names.index(name)) & (state.mark != SET_ASIDE)]
    return int(np.bincount(went).argmax()) if len(went) else None
