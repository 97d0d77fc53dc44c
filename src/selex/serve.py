"""A run behind HTTP: new images in, their categories out. Limits and timeouts are those of the review page."""

from __future__ import annotations

import base64
import binascii
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, cast

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import PlainTextResponse, Response

from selex import __version__
from selex.data.decode import Unreadable
from selex.errors import InputError
from selex.review.server.guard import IMAGES, ONE_IMAGE, Bodies, Door, Guard, Room, Threads
from selex.review.server.serve import LOOPBACK, address_of, door_for, listen, server_of
from selex.runs.predictor import load
from selex.runs.sorter import Row, Sorter

MOST_IMAGES = 64


class Prediction(BaseModel):
    """Where an image belongs, as in the table of `selex predict`."""

    category: str = Field(description="Its category, or `none of these`.")
    known: bool = Field(description="Whether that category is known; false if it is novel or none.")
    confidence: float = Field(description="Probability that the nearest category is right, from 0 to 1.")
    nearest: str = Field(description="The nearest category, whether the image fits it or not.")
    runner_up: str = Field(description="The next best category; empty if there is only one.")
    distance: float = Field(description="Distance to the centre of the nearest category; small means typical.")
    fits: bool = Field(description="Whether that distance is usual.")
    mark: Literal["", "doubtful", "unlike any"] = Field(
        description="`unlike any` if the image fits none, `doubtful` if it fits but confidence is below one half."
    )


class Images(BaseModel):
    """Several images at once."""

    model_config = ConfigDict(extra="forbid")
    images: list[str] = Field(min_length=1, max_length=MOST_IMAGES, description="Image files, each in base64.")


class Predictions(BaseModel):
    """Where images belong, in the order in which they were sent."""

    predictions: list[Prediction]


class Category(BaseModel):
    """A category of the run."""

    name: str
    known: bool


class Categories(BaseModel):
    """All categories of the run, the known ones first."""

    categories: list[Category]


class Health(BaseModel):
    """The server answers, and its network is in memory."""

    status: Literal["ok"] = "ok"
    version: str = Field(description="Of selex.")
    backbone: str = Field(description="Name of the network.")
    device: str = Field(description="Where it runs.")


class Problem(BaseModel):
    """Nothing was sorted."""

    detail: str = Field(description="Why, in one line.")


THREADS = 40
"""Requests whose images are decoded, or wait for the network, at a time; others wait, and `/healthz` answers."""
BODIES = Bodies(IMAGES.largest, ("application/json",))
START = """selex serve: sorts images into the categories of a run.

  curl --data-binary @photo.jpg -H "Content-Type: image/jpeg" ADDRESS/predict

Where a token is needed, add -H "Authorization: Bearer TOKEN".

/categories lists the categories, /openapi.json describes the whole API.
"""
ABOUT = """Sorts images into the categories of a run, as `selex predict` does.

An image is sent as it is on disk, as the body of a request, or several in base64. Nothing that is sent is kept."""
Errors = dict[int | str, dict[str, Any]]


def _text(about: str) -> dict[str, Any]:
    return {"description": about, "content": {"text/plain": {"schema": {"type": "string"}}}}


def _problem(about: str) -> dict[str, Any]:
    return {"description": about, "model": Problem}


ANY: Errors = {
    401: _text("The token is missing."),
    403: _text("The request comes from another site, or uses another host name."),
}
SENT: Errors = {
    411: _text("The length of the body is missing, and it does not come in chunks."),
    413: _text("The body is larger than 32 MB."),
    415: _text("The content type is not that of an image, or not JSON."),
    422: _problem("The body is not a readable image."),
    503: _problem("The server is busy: try again in a second."),
}


def create_app(sorter: Sorter, door: Door) -> FastAPI:
    """The server of a model."""
    app = _with_routes(sorter)
    app.add_exception_handler(Unreadable, lambda request, error: _problem_of(422, cast(Unreadable, error).reason))
    app.add_exception_handler(RequestValidationError, _not_as_described)
    app.add_exception_handler(InputError, lambda request, error: _problem_of(503, str(error)))
    app.add_middleware(Room)
    app.add_middleware(Guard, door=door, bodies=BODIES, others={"/predict": IMAGES})
    return app


def schema_of() -> dict[str, Any]:
    """The OpenAPI description, without a model."""
    return _with_routes(cast(Any, None)).openapi()


def _with_routes(sorter: Sorter) -> FastAPI:
    about: dict[str, Any] = {"title": "selex serve", "version": __version__, "description": ABOUT}
    app = FastAPI(**about, docs_url=None, redoc_url=None, responses=ANY)  # those pages load scripts from elsewhere
    sorting = Threads(THREADS)

    @app.post("/predict", tags=["sort"], responses=SENT, openapi_extra=ONE_IMAGE)
    async def predict(request: Request) -> Prediction:
        """The category of one image, which is the body of the request."""
        found = await sorting(sorter.sort, [await request.body()])
        return Prediction(**found[0])

    @app.post("/predict/batch", tags=["sort"], responses=SENT | {400: _problem("The body is not text.")})
    async def predict_batch(given: Images) -> Predictions:
        """The categories of several images; if one of them cannot be read, none is sorted."""
        found = await sorting(_sorted, sorter, given.images)
        return Predictions(predictions=[Prediction(**row) for row in found])

    @app.get("/categories", tags=["about"])
    def categories() -> Categories:
        """The categories of the run."""
        names = enumerate(sorter.model.names)
        of = [Category(name=name, known=number < sorter.model.n_known) for number, name in names]
        return Categories(categories=of)

    @app.get("/", include_in_schema=False)
    def start() -> Response:
        return PlainTextResponse(START)

    @app.get("/healthz", tags=["about"])
    def health() -> Health:
        """Responds once the server is ready."""
        return Health(version=__version__, backbone=sorter.model.backbone, device=str(sorter.device))

    return app


def _sorted(sorter: Sorter, images: list[str]) -> list[Row]:
    return sorter.sort([_decoded(number, text) for number, text in enumerate(images)])


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
    if first["type"] == "json_invalid":
        return _problem_of(422, "the body is not JSON")
    place = ".".join(str(part) for part in first["loc"][1:])
    return _problem_of(422, f"{place}: {first['msg']}" if place else str(first["msg"]))


def serve(
    folder: Path,
    *,
    host: str = LOOPBACK,
    port: int = 8770,
    device: str = "cpu",
    tell: Callable[[str], None] = lambda line: None,
) -> None:
    """Sort images for whoever sends them, until Ctrl-C.

    Args:
        folder: a finished run.
        host: where to listen; anything but this machine itself needs a token, which the address shown has.
        port: 0 takes any that is free.
        device: where the backbone runs.
        tell: called with what a person should know.
    """
    with listen(host, port) as listener:
        sorter = Sorter(load(folder), device)
        door = door_for(host, listener.getsockname()[1])
        tell(f"serving: {address_of(host, door)}")
        tell("POST an image to /predict; /openapi.json describes the rest. Ctrl-C ends the server.")
        server = server_of(create_app(sorter, door))
        with suppress(KeyboardInterrupt), warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"PIL\.")  # of odd metadata and large images: we have our limits
            server.run(sockets=[listener])  # raises KeyboardInterrupt again once it has ended in good order
        sorter.close()
        tell("The server has ended.")
