"""The maps that features go through before they are clustered, one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from selex.cluster.whiten import Whitener


@dataclass(frozen=True)
class FeatureMaps:
    """Linear maps, each of which leaves rows L2-normalised, in the order in which they are applied.

    Attributes:
        steps: the maps; none leaves features as they are.
    """

    steps: tuple[Whitener, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.steps)

    def transform(self, features: Any) -> Any:
        """Rows `(n, d)` as they are compared with cluster centres: a tensor for a tensor, an array for an array."""
        for step in self.steps:
            features = step(features)
        return features

    def to_tensors(self) -> dict[str, Tensor]:
        """The maps by name, for a file of tensors."""
        named = ((f"map{number}", step) for number, step in enumerate(self.steps))
        return {f"{name}.{part}": getattr(step, part) for name, step in named for part in ("mean", "matrix")}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> FeatureMaps:
        """The maps of such a file, which may hold other tensors too."""
        count = sum(name.startswith("map") and name.endswith(".matrix") for name in tensors)
        steps = (Whitener(tensors[f"map{number}.mean"], tensors[f"map{number}.matrix"]) for number in range(count))
        return cls(tuple(steps))
