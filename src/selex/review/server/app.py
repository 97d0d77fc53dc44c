"""The server: pages, their JSON twins, decisions. Every route is a call of `Views` or `Review` and nothing more."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, cast

from fastapi import FastAPI, Query, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.responses import PlainTextResponse, Response

from selex import __version__
from selex.data.decode import Unreadable
from selex.errors import InputError
from selex.io import is_locked
from selex.review.core.decisions import Decision, Refused
from selex.review.core.overview import MOST_PARTS
from selex.review.core.session import Conflict, Review
from selex.review.core.timeline import REDO, UNDO
from selex.review.server import actions, schema
from selex.review.server.guard import IMAGES, ONE_IMAGE, Door, Guard, Room, Threads
from selex.review.server.job import ReclusterJob, write_export
from selex.review.server.pages import Asked, Page, Pictures, Words, add_pages
from selex.review.server.views import Views

Errors = dict[int | str, dict[str, Any]]
ABOUT = """What each page of `selex review` shows, as JSON, and how to decide.

Every response has a `standing` with the `version` of the state. A decision names the version it was made on. If
something about the same categories has been decided since, the response is 409 and nothing is done; if it was about
others, the decision is carried out and the response says what was missed. A decision is on disk before the response.
"""


def _error(about: str, model: type[BaseModel] | None = actions.Problem) -> dict[str, Any]:
    """How an error is described: a record, or a line of text."""
    return {"description": about} | ({"model": model} if model else {"content": {"text/plain": {"schema": TEXT}}})


TEXT = {"type": "string"}
ANY: Errors = {
    401: _error("The token is missing.", None),
    403: _error("The request comes from another site, or uses another host name.", None),
    422: _error("Something that was sent is invalid."),
    503: _error("The run cannot be read, or its folder cannot be written."),
}
GONE: Errors = {404: _error("There is no such category, image or round.")}
SENT: Errors = {
    400: _error("The body is not JSON."),
    411: _error("The length of the body is missing.", None),
    413: _error("The body is too large.", None),
    415: _error("The content type of the body is not JSON.", None),
}
SENT_IMAGE: Errors = {status: about for status, about in SENT.items() if status != 400} | {
    415: _error("The content type of the body is not an image.", None),
    422: _error("The body is not a readable image, or has too many pixels."),
    503: _error("The run cannot be read, the weights of its network are missing, or the server is busy."),
}
DECIDED: Errors = SENT | {409: _error("The state has changed since that version.", actions.Missed)}


SIMILAR = "/api/similar"


def create_app(review: Review, door: Door, table: str | None = None) -> FastAPI:
    """The server of a review; `table` has columns to filter photos by."""
    app, views, job = _bare(), Views(review, table), ReclusterJob(review.run.folder)
    app.state.views, app.state.job = views, job
    _reading(app, views)
    _deciding(app, views, job)
    _leaving(app, views, job)
    _looking(app, views)
    Pictures(review).add_to(app, views.aside_path)
    add_pages(app, views)
    for kind, status in ((Refused, 422), (Unreadable, 422), (InputError, 503)):
        app.add_exception_handler(kind, partial(_say, status))
    app.add_exception_handler(Conflict, _say_missed)
    app.add_middleware(Room)
    app.add_middleware(Guard, door=door, others={SIMILAR: IMAGES})
    return app


def schema_of() -> dict[str, Any]:
    """The OpenAPI description, without a run."""
    app, nothing = _bare(), cast(Any, None)
    _reading(app, nothing)
    _deciding(app, nothing, nothing)
    _leaving(app, nothing, nothing)
    _looking(app, nothing)
    return app.openapi()


def _bare() -> FastAPI:
    """No routes yet, and no pages of FastAPI's own: they load scripts from elsewhere."""
    about: dict[str, Any] = {"title": "selex review", "version": __version__, "description": ABOUT}
    return FastAPI(**about, docs_url=None, redoc_url=None, responses=ANY)


def _reading(app: FastAPI, views: Views) -> None:
    """What the pages show."""
    _categories(app, views)
    _images(app, views)
    _overviews(app, views)


def _categories(app: FastAPI, views: Views) -> None:

    @app.get("/api/standing", tags=["read"])
    def standing() -> schema.Standing:
        """Progress of the review; cheap enough to poll."""
        return views.standing()

    @app.get("/api/categories", tags=["read"])
    def categories(
        sort: schema.Sort = "size",
        filter: schema.CategoryFilter = "all",
        q: Words = "",
        level: int | None = None,
        cluster: int | None = None,
        page: Page = 1,
    ) -> schema.CategoryList:
        """Categories; `q` searches their names, `level` and `cluster` choose those below a coarser cluster."""
        return views.categories(sort, filter, q, level, cluster, page)

    @app.get("/api/alike", tags=["read"])
    def alike(name: Words) -> schema.Alike:
        """Categories whose name differs from `name` only in case, accents, spaces or punctuation."""
        return views.alike(name)

    @app.get("/api/categories/{category}", tags=["read"], responses=GONE)
    def category(
        category: int, sort: schema.ImageSort = "doubtful", filter: schema.ImageFilter = "all", page: Page = 1
    ) -> schema.CategoryPage:
        """A category, a page of its images, its neighbours."""
        return views.category(category, sort, filter, page)

    @app.get("/api/categories/{category}/parts", tags=["read"], responses=GONE)
    def parts(category: int, parts: Annotated[int, Query(ge=2, le=MOST_PARTS)] = 2) -> schema.Parts:
        """The parts that a category falls into. Nothing is changed; `split` takes the rows of all parts but one."""
        return views.parts(category, parts)


def _images(app: FastAPI, views: Views) -> None:
    @app.get("/api/images", tags=["read"])
    def images(
        where: Asked,
        filter: schema.ImageFilter = "all",
        q: Words = "",
        sort: schema.ImageSort = "doubtful",
        page: Page = 1,
    ) -> schema.FilteredImages:
        """Images of all categories; `q` searches file names, `since` and `until` are days such as 2024-05-31."""
        return views.images(filter, q, sort, page, where)

    @app.get("/api/rows", tags=["read"], responses=GONE)
    def rows(
        where: Asked, filter: schema.ImageFilter = "all", q: Words = "", category: int | None = None
    ) -> schema.Rows:
        """All images of a list at once, by row: for decisions about a list of many pages."""
        return views.rows(filter, q, category, where)

    @app.get("/api/images/{row}", tags=["read"], responses=GONE)
    def image(row: int) -> schema.ImagePage:
        """An image and those that look like it."""
        return views.image(row)


def _overviews(app: FastAPI, views: Views) -> None:
    @app.get("/api/suggestions", tags=["read"])
    def suggestions() -> schema.Suggestions:
        """Where one decision settles the most images."""
        return views.suggestions()

    @app.get("/api/map", tags=["read"])
    def map_of_images() -> schema.Map:
        """Positions of images on the map; computing them takes a few seconds the first time."""
        return views.map()

    @app.get("/api/check", tags=["read"])
    def check() -> schema.Check:
        """Near-duplicates, blurred, dark and empty photos, once the search has been started."""
        return views.check()

    @app.post("/api/check", tags=["read"], responses=SENT)
    def start_check() -> schema.Check:
        """Search all photos for those to set aside; nothing is changed."""
        return views.check(start=True)

    @app.get("/api/aside", tags=["read"])
    def aside(page: Page = 1) -> schema.SetAside:
        """Photos that are set aside, in this round and in earlier ones."""
        return views.aside(page)

    @app.get("/api/history", tags=["read"], responses=GONE)
    def history(page: Page = 1, round: int | None = None) -> actions.History:
        """What was decided in this round, or in an earlier one."""
        return views.history(page, round)


def _deciding(app: FastAPI, views: Views, job: ReclusterJob) -> None:
    """What changes the state."""

    @app.post("/api/decisions", tags=["decide"], responses=DECIDED)
    def decide(given: actions.DecisionIn) -> actions.Decided:
        """Make a decision."""
        _idle(views, job)
        parts = tuple(map(tuple, given.parts))
        fields = (given.category, tuple(given.categories), tuple(given.rows), parts, given.name)
        decision = Decision(given.kind, *fields, tuple(given.photos), given.reason)
        done = views.review.decide(decision, given.version)
        return actions.Decided(summary=done.summary, missed=done.missed, standing=views.standing())

    @app.post("/api/undo", tags=["decide"], responses=DECIDED)
    def undo(given: actions.StepIn) -> actions.Decided:
        """Undo the latest decision."""
        return _step(views, job, UNDO, given)

    @app.post("/api/redo", tags=["decide"], responses=DECIDED)
    def redo(given: actions.StepIn) -> actions.Decided:
        """Redo what was undone last."""
        return _step(views, job, REDO, given)


def _leaving(app: FastAPI, views: Views, job: ReclusterJob) -> None:
    """What makes something of the decisions."""

    @app.post("/api/export", tags=["leave"], responses=SENT)
    def export(given: actions.ExportIn) -> actions.Written:
        """Write the current categories to `exports` in the run folder."""
        return write_export(views.review, given.to)

    @app.post("/api/recluster", tags=["leave"], responses=SENT)
    def start_recluster() -> actions.ReclusterOut:
        """Recluster with the decisions; until that is done, none can be made."""
        return job.start()

    @app.get("/api/recluster", tags=["leave"])
    def recluster_status() -> actions.ReclusterOut:
        """Progress of reclustering."""
        return job.status()


def _looking(app: FastAPI, views: Views) -> None:
    """What is asked with an image, in few threads: those who wait for the network keep nobody else waiting."""
    looking = Threads(2)

    @app.post(SIMILAR, tags=["read"], responses=SENT_IMAGE, openapi_extra=ONE_IMAGE)
    async def similar(request: Request) -> schema.Similar:
        """The images most similar to the one in the body of the request, and the category it would be sorted into.

        It is not kept. The first one takes a few seconds, while the network is loaded.
        """
        return await looking(views.similar, await request.body())


def _step(views: Views, job: ReclusterJob, kind: str, given: actions.StepIn) -> actions.Decided:
    _idle(views, job)
    done = views.review.step(kind, given.version)
    return actions.Decided(summary=done.summary, missed=done.missed, standing=views.standing())


def _idle(views: Views, job: ReclusterJob) -> None:
    """Refuse to decide about results that are about to go, whoever makes the new ones."""
    if job.running or is_locked(views.review.run.folder):
        raise Refused("not now: the run is being reclustered with the decisions so far")


def _say(status: int, request: Request, error: Exception) -> Response:
    """In JSON for programs; a person gets a line of text, for there may be no state to make a page of."""
    if request.url.path.startswith("/api/"):
        return JSONResponse({"detail": str(error)}, status)
    return PlainTextResponse(f"error: {error}\n", status)


def _say_missed(request: Request, error: Exception) -> Response:
    assert isinstance(error, Conflict)
    return JSONResponse({"detail": str(error), "missed": error.missed}, 409)
