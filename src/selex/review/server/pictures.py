"""Pictures of the run's images, by row: no path of a request ever reaches the disk."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence

from fastapi import FastAPI
from starlette.responses import Response

from selex.data.decode import picture, thumbnail
from selex.review.core.session import Review
from selex.review.server.guard import Threads

SIDE, SHORTER = 144, 768
THREADS = 16
KEPT = 8192
"""Thumbnails in memory: at some 3 kB each about 25 MB."""


class Pictures:
    """Small ones, kept once made, and large ones."""

    def __init__(self, review: Review) -> None:
        self._review = review
        self._known: tuple[int, Sequence[str]] = (0, [])  # round and paths, changed as one
        self._small: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._lock = threading.Lock()

    def add_to(self, app: FastAPI) -> None:
        """Their two routes, in threads of their own: photos on a slow disk keep no page waiting."""
        threads = Threads(THREADS)

        @app.get("/thumb/{row}", include_in_schema=False)
        async def small(row: int, r: int | None = None) -> Response:
            return await threads(self._answer, row, r, self._thumbnail)

        @app.get("/picture/{row}", include_in_schema=False)
        async def large(row: int, r: int | None = None) -> Response:
            return await threads(self._answer, row, r, lambda path: picture(path, SHORTER))

    def _answer(self, row: int, of_round: int | None, make: Callable[[str], bytes]) -> Response:
        path = self._path(row, of_round)
        if path is None:
            return Response("no such image\n", 404, media_type="text/plain")
        seconds = 86400 if os.path.exists(path) else 60  # what is gone may come back
        keep = {"cache-control": f"private, max-age={seconds}"}
        return Response(make(path), media_type="image/jpeg", headers=keep)

    def _path(self, row: int, of_round: int | None) -> str | None:
        """Where an image is; None if there is none, or if it is asked for by a page of another round."""
        if self._review.round != self._known[0]:
            with self._review.steady():
                self._known = self._review.round, self._review.paths
        number, paths = self._known
        there = 0 <= row < len(paths) and of_round in (None, number)
        return paths[row] if there else None

    def _thumbnail(self, path: str) -> bytes:
        try:
            key = path, os.stat(path).st_mtime_ns
        except OSError:
            key = path, 0
        with self._lock:
            if key in self._small:
                self._small.move_to_end(key)
                return self._small[key]
        made = thumbnail(path, SIDE)
        with self._lock:
            self._small[key] = made
            if len(self._small) > KEPT:
                self._small.popitem(last=False)
        return made
