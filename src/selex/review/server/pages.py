"""The pages: the same data as their JSON twins, through templates that escape whatever comes from files or people.

And the pictures that they load.
"""

from __future__ import annotations

import datetime
import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import Depends, FastAPI, Query, Request
from jinja2 import Environment, PackageLoader, StrictUndefined
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, JSONResponse, Response

from selex.data.decode import picture, thumbnail
from selex.errors import counted
from selex.review.core.decisions import LONGEST_NAME
from selex.review.core.metadata import Where
from selex.review.core.session import Review
from selex.review.server import schema
from selex.review.server.cards import Gone
from selex.review.server.guard import LARGEST_IMAGE, Threads
from selex.review.server.views import Views

Page = Annotated[int, Query(ge=1, le=10**9)]
Words = Annotated[str, Query(max_length=200)]
Day = Annotated[str, Query(max_length=10, pattern=r"^(\d{4}-\d{2}-\d{2})?$")]
Text = Annotated[str, Query(max_length=1000)]


Columns = Annotated[list[Annotated[str, Field(max_length=2000)]], Query(max_length=1000)]


def _where(folder: Text = "", since: Day = "", until: Day = "", column: Columns = []) -> Where:  # noqa: B006
    return Where(folder, since, until, tuple(filter(None, column)))


Asked = Annotated[Where, Depends(_where)]
_SCRIPTS = ("page", "select", "map", "decide", "dialogs", "check", "similar", "keys", "review")
STATIC = {
    "review.css": "text/css",
    **{f"{name}.js": "text/javascript" for name in _SCRIPTS},
    "icon.svg": "image/svg+xml",
}
"""All there is below `/static`; anything else is not looked for."""

SIDE, SHORTER = 144, 768
THREADS = 16
KEPT = 8192
"""Thumbnails in memory: at some 3 kB each about 25 MB."""


def add_pages(app: FastAPI, views: Views) -> None:
    """The routes of the pages and of what they load."""
    render = _Templates(views, _add_static(app))
    _add_lists(app, views, render)
    _add_others(app, views, render)

    @app.exception_handler(Gone)
    def gone(request: Request, error: Gone) -> Response:
        return render.error(request, 404, str(error))

    @app.exception_handler(404)
    def not_found(request: Request, error: Exception) -> Response:
        return render.error(request, 404, "there is no such page")


def _add_static(app: FastAPI) -> str:
    """What pages load; returns the address that it is below.

    A digest is part of it, so that browsers may keep what they have loaded, and never one that is out of date.
    """
    static = {name: (files("selex.review.server") / "static" / name).read_bytes() for name in STATIC}
    digest = hashlib.sha256(b"".join(static.values())).hexdigest()[:12]

    @app.get("/static/{version}/{name}", include_in_schema=False)
    async def load(version: str, name: str) -> Response:
        if name not in static or version != digest:
            raise HTTPException(404)
        keep = {"cache-control": "private, max-age=31536000, immutable"}
        return Response(static[name], media_type=STATIC[name], headers=keep)

    return f"/static/{digest}"


def _add_lists(app: FastAPI, views: Views, render: _Templates) -> None:
    @app.get("/", include_in_schema=False)
    def home(
        request: Request,
        sort: schema.Sort = "size",
        filter: schema.CategoryFilter = "all",
        q: Words = "",
        level: int | None = None,
        cluster: int | None = None,
        page: Page = 1,
    ) -> Response:
        found = views.categories(sort, filter, q, level, cluster, page)
        return render("categories.html", found, request, "/api/categories", ideas=views.suggestions().suggestions)

    @app.get("/category/{category}", include_in_schema=False)
    def category(
        request: Request,
        category: int,
        sort: schema.ImageSort = "doubtful",
        filter: schema.ImageFilter = "all",
        page: Page = 1,
    ) -> Response:
        return render(
            "category.html", views.category(category, sort, filter, page), request, f"/api/categories/{category}"
        )

    @app.get("/images", include_in_schema=False)
    def images(
        request: Request,
        where: Asked,
        filter: schema.ImageFilter = "all",
        q: Words = "",
        sort: schema.ImageSort = "doubtful",
        page: Page = 1,
    ) -> Response:
        return render("images.html", views.images(filter, q, sort, page, where), request, "/api/images")


def _add_others(app: FastAPI, views: Views, render: _Templates) -> None:
    @app.get("/image/{row}", include_in_schema=False)
    def image(request: Request, row: int) -> Response:
        return render("image.html", views.image(row), request, f"/api/images/{row}")

    @app.get("/next", include_in_schema=False)
    def suggestions(request: Request) -> Response:
        return render("next.html", views.suggestions(), request, "/api/suggestions")

    @app.get("/map", include_in_schema=False)
    def map_page(request: Request) -> Response:
        return render("map.html", views.suggestions(), request, "/api/map")

    @app.get("/check", include_in_schema=False)
    def check(request: Request) -> Response:
        return render("check.html", views.check(), request, "/api/check")

    @app.get("/aside", include_in_schema=False)
    def aside(request: Request, page: Page = 1) -> Response:
        return render("aside.html", views.aside(page), request, "/api/aside")

    @app.get("/history", include_in_schema=False)
    def history(request: Request, page: Page = 1, round: int | None = None) -> Response:
        return render("history.html", views.history(page, round), request, "/api/history")


class _Templates:
    """Templates with what all of them need."""

    def __init__(self, views: Views, static: str) -> None:
        self._views = views
        self._environment = Environment(
            loader=PackageLoader("selex.review.server"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        limits = {"largest": LARGEST_IMAGE, "longest": LONGEST_NAME}
        self._environment.globals |= {"static": static, "scripts": _SCRIPTS, **limits}
        self._environment.filters |= {"percent": _percent, "count": counted, "moment": _moment, "base": _base}
        self._environment.filters["confidence"] = _confidence

    def __call__(self, name: str, data: BaseModel, request: Request, twin: str, **more: Any) -> Response:
        """A page about `data`, whose JSON twin is at `twin`."""
        query = request.url.query

        def here(**changes: Any) -> str:
            """The address of this page with some of its questions put otherwise."""
            kept = [(key, value) for key, value in request.query_params.multi_items() if key not in {"page", *changes}]
            words = urlencode([(key, value) for key, value in [*kept, *changes.items()] if value not in (None, "")])
            return f"{request.url.path}?{words}" if words else request.url.path

        values = {field: getattr(data, field) for field in type(data).model_fields}
        twin = f"{twin}?{query}" if query else twin
        return HTMLResponse(self._environment.get_template(name).render(**values, here=here, twin=twin, **more))

    def error(self, request: Request, status: int, detail: str) -> Response:
        """That something is not there: for a person, or for a program."""
        if request.url.path.startswith(("/api/", "/thumb/", "/picture/", "/static/")):
            return JSONResponse({"detail": detail}, status)
        values = {"standing": self._views.standing(), "detail": detail, "twin": "/api/standing"}
        return HTMLResponse(self._environment.get_template("error.html").render(**values), status)


def _percent(value: float) -> str:
    return f"{100 * value:.0f} %"


def _confidence(value: float) -> str:
    """Never rounded up to 100 %, which would say more than we know."""
    return _percent(min(value, 0.99))


def _moment(value: float) -> str:
    return datetime.datetime.fromtimestamp(value).strftime("%Y-%m-%d %H:%M:%S")


def _base(file: str) -> str:
    return file.rpartition("/")[2]


def _large(path: str) -> bytes:
    return picture(path, SHORTER)


class Pictures:
    """Pictures of the run's images, by row: small ones, kept once made, and large ones.

    No path of a request ever reaches the disk.
    """

    def __init__(self, review: Review) -> None:
        self._review = review
        self._known: tuple[int, Sequence[str]] = (0, [])  # round and paths, changed as one
        self._small: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._lock = threading.Lock()

    def add_to(self, app: FastAPI, aside: Callable[[int, int], str | None]) -> None:
        """Their routes, in threads of their own: photos on a slow disk keep no page waiting.

        `aside` says where a photo is that an earlier round set aside.
        """
        threads = Threads(THREADS)

        @app.get("/thumb/{row}", include_in_schema=False)
        async def small(row: int, r: int | None = None) -> Response:
            return await threads(lambda: self._answer(self._path(row, r), self._thumbnail))

        @app.get("/picture/{row}", include_in_schema=False)
        async def large(row: int, r: int | None = None) -> Response:
            return await threads(lambda: self._answer(self._path(row, r), _large))

        @app.get("/aside/{number}/{row}", include_in_schema=False)
        async def small_aside(number: int, row: int) -> Response:
            return await threads(lambda: self._answer(aside(number, row), self._thumbnail))

        @app.get("/aside/{number}/{row}/large", include_in_schema=False)
        async def large_aside(number: int, row: int) -> Response:
            return await threads(lambda: self._answer(aside(number, row), _large))

    def _answer(self, path: str | None, make: Callable[[str], bytes]) -> Response:
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
