"""The server's routes: images in, categories out."""

from __future__ import annotations

import base64
import binascii
from typing import Any, cast

from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.responses import Response

from selex import __version__
from selex.data.decode import Unreadable
from selex.errors import InputError
from selex.review.server.guard import Bodies, Door, Guard
from selex.review.server.uploads import IMAGES, ONE_IMAGE, Room
from selex.runs.sorter import Sorter
from selex.serve import schema

BODIES = Bodies(IMAGES.largest, (*IMAGES.kinds, "application/json"))
ABOUT = """Sorts images into the categories of a run, as `selex predict` does.

An image is sent as it is on disk, as the body of a request, or several in base64. Nothing that is sent is kept."""
Errors = dict[int | str, dict[str, Any]]


def _text(about: str) -> dict[str, Any]:
    return {"description": about, "content": {"text/plain": {"schema": {"type": "string"}}}}


def _problem(about: str) -> dict[str, Any]:
    return {"description": about, "model": schema.Problem}


ANY: Errors = {401: _text("The token is missing."), 403: _text("Another site asks, or another name is used.")}
SENT: Errors = {
    411: _text("The length of the body is missing."),
    413: _text("The body is too large."),
    415: _text("The body is not called an image, or not JSON."),
    422: _problem("What was sent is no image that can be read."),
    503: _problem("Too much at once: try again in a second."),
}


def create_app(sorter: Sorter, door: Door) -> FastAPI:
    """The server of a model."""
    app = _bare()
    _add_routes(app, sorter)
    app.add_exception_handler(Unreadable, lambda request, error: _problem_of(422, cast(Unreadable, error).reason))
    app.add_exception_handler(RequestValidationError, _not_as_described)
    app.add_exception_handler(InputError, lambda request, error: _problem_of(503, str(error)))
    app.add_middleware(Room)
    app.add_middleware(Guard, door=door, bodies=BODIES)
    return app


def schema_of() -> dict[str, Any]:
    """The OpenAPI description, without a model."""
    app = _bare()
    _add_routes(app, cast(Any, None))
    return app.openapi()


def _bare() -> FastAPI:
    about: dict[str, Any] = {"title": "selex serve", "version": __version__, "description": ABOUT}
    return FastAPI(**about, docs_url=None, redoc_url=None, responses=ANY)  # those pages load scripts from elsewhere


def _add_routes(app: FastAPI, sorter: Sorter) -> None:
    @app.post("/predict", tags=["sort"], responses=SENT, openapi_extra=ONE_IMAGE)
    async def predict(request: Request) -> schema.Prediction:
        """The category of one image, which is the body of the request."""
        found = await run_in_threadpool(sorter.sort, [await request.body()])
        return schema.Prediction(**found[0])

    @app.post("/predict/batch", tags=["sort"], responses=SENT)
    def predict_batch(given: schema.Images) -> schema.Predictions:
        """The categories of several images; if one of them cannot be read, none is sorted."""
        found = sorter.sort([_decoded(number, text) for number, text in enumerate(given.images)])
        return schema.Predictions(predictions=[schema.Prediction(**row) for row in found])

    @app.get("/categories", tags=["about"])
    def categories() -> schema.Categories:
        """The categories of the run."""
        names = enumerate(sorter.model.names)
        of = [schema.Category(name=name, known=number < sorter.model.n_known) for number, name in names]
        return schema.Categories(categories=of)

    @app.get("/healthz", tags=["about"])
    def health() -> schema.Health:
        """Whether the server is ready: it is, once it answers."""
        return schema.Health(version=__version__, backbone=sorter.model.backbone, device=str(sorter.device))


def _decoded(number: int, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):  # the latter for what is not ASCII
        raise Unreadable(f"image {number} is not base64") from None


def _problem_of(status: int, detail: str) -> Response:
    return JSONResponse({"detail": detail}, status)


def _not_as_described(request: Request, error: Exception) -> Response:
    """The first thing that is wrong with a body, in one line."""
    first = cast(RequestValidationError, error).errors()[0]
    place = ".".join(str(part) for part in first["loc"][1:])
    return _problem_of(422, f"{place}: {first['msg']}" if place else str(first["msg"]))
