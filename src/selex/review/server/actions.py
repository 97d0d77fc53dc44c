"""The shapes of the JSON of what is done on the review page: requests, their answers, and the history of decisions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from selex.review.server.schema import Paged, Standing

Number = Annotated[int, Field(ge=0, lt=2**31)]


class Happened(BaseModel):
    """An event of a round."""

    number: int
    kind: Literal["decide", "undo", "redo"]
    summary: str
    time: float


class History(Paged):
    """Events of a round, the latest first."""

    round: int
    rounds: list[int] = Field(description="All rounds so far.")
    events: list[Happened]


class DecisionIn(BaseModel):
    """A decision: its kind, the fields of that kind, and the version of the state it was made on."""

    model_config = ConfigDict(extra="forbid")
    version: str
    kind: Literal["name", "merge", "split", "move", "confirm", "unsure", "set_aside", "clear", "restore"]
    category: Number | None = None
    categories: list[Number] = []
    rows: list[Number] = []
    parts: list[list[Number]] = []
    name: str | None = None
    photos: list[tuple[Number, Number]] = Field([], description="Photos set aside in earlier rounds: round and row.")
    reason: Literal["near-duplicate", "blurred", "dark", "empty"] | None = None


class StepIn(BaseModel):
    """Undo or redo what was last done in this version of the state."""

    model_config = ConfigDict(extra="forbid")
    version: str


class Decided(BaseModel):
    """A decision has been stored on disk."""

    summary: str
    missed: list[str] = Field(description="Decisions about other categories made since that version.")
    standing: Standing


class Problem(BaseModel):
    """Nothing was done."""

    detail: str | list[dict[str, Any]] = Field(description="The reason: a sentence, or what is wrong with each value.")


class Missed(BaseModel):
    """A decision about the same categories was made since that version; nothing was done."""

    detail: str
    missed: list[str]


class ExportIn(BaseModel):
    """What to write; the server chooses where, in the run folder."""

    model_config = ConfigDict(extra="forbid")
    to: Literal["folders", "csv", "parquet", "label-studio", "fiftyone"]


class Written(BaseModel):
    """What an export wrote."""

    path: str
    images: int
    categories: int
    advice: str


class ReclusterOut(BaseModel):
    """Progress of reclustering: `state` is `idle`, `running`, `done` or `failed`."""

    state: Literal["idle", "running", "done", "failed"]
    lines: list[str] = Field(description="Its output so far.")
    doing: str | None = Field(default=None, description="The current step, such as `clustering, level 2 of 4`.")
    seconds: float = Field(default=0, description="How long it has been running.")
    seconds_left: float | None = Field(
        default=None, description="Estimated time left, from the last run and the current step."
    )
