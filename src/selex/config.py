"""What a job was asked to do: decided once, then frozen, and kept with its results."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from selex.errors import InputError

METHODS = ("frozen",)


@dataclass(frozen=True)
class Config:
    """The settings of `discover`.

    Attributes:
        photos: the folder, table or files given.
        labels: the label file given, if any.
        categories: how many categories, known and novel together; None estimates it.
        backbone: name of the network that turns images into features.
        weights: a file with its weights, where one was given.
        method: `"frozen"` clusters the features of the backbone as it is.
        levels: at most so many levels of abstraction; None makes all.
        restarts: clustering runs, of which the tightest is kept.
        balanced: limit cluster sizes; off for long tails.
        size: shorter side of stored images, in pixels; None takes what suits the backbone.
        seed: seed of everything random.
    """

    photos: str
    labels: str | None = None
    categories: int | None = None
    backbone: str = "efficientnet-lite1"
    weights: str | None = None
    method: str = "frozen"
    levels: int | None = None
    restarts: int = 3
    balanced: bool = True
    size: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise InputError(f"method {self.method!r} is not one of {', '.join(METHODS)}")
        for name in ("categories", "levels", "restarts", "size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} must be at least 1, not {value}")
        if self.seed < 0:
            raise InputError(f"seed must be at least 0, not {self.seed}")

    def to_json(self) -> dict[str, Any]:
        """Plain values for a JSON file."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Config:
        """A config from such values; ones it does not know are of another version."""
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise InputError(f"settings of another version of selex: {', '.join(unknown)}")
        return cls(**values)
