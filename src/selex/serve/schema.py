"""What programs send and are sent."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

MOST_IMAGES = 64


class Prediction(BaseModel):
    """Where an image belongs, as in the table of `selex predict`."""

    category: str = Field(description="Its category, or `none of these`.")
    known: bool = Field(description="Whether that category is known; false if it is novel or none.")
    confidence: float = Field(description="Probability of the nearest category among all, from 0 to 1.")
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
