"""The levels of abstraction as a tree: which categories are below which coarser cluster."""

from __future__ import annotations

from typing import Any

import numpy as np

from selex.review.server.schema import Node

Array = np.ndarray[Any, Any]

_SHOWN = 40  # nodes of a level that the tree shows; the largest


class Tree:
    """The levels of a run. Level 1 is the categories themselves, the highest one has fewest clusters."""

    def __init__(self, hierarchy: dict[str, Any]) -> None:
        levels = hierarchy["levels"]
        self._n_known = [level["n_known"] for level in levels]
        self._above = [np.arange(len(hierarchy["names"]))]  # of each category of the run: its cluster at each level
        for level in levels[:-1]:
            self._above.append(np.array(level["parents"])[self._above[-1]])

    @property
    def top(self) -> int:
        """The highest level."""
        return len(self._above)

    def below(self, level: int, cluster: int, origin: Array) -> Array:
        """Which categories are below a cluster; `origin` says which category of the run each came from."""
        if not 1 <= level <= self.top:
            return np.zeros(len(origin), dtype=bool)
        found: Array = self._above[level - 1][origin] == cluster
        return found

    def nodes(
        self, names: list[str], origin: Array, sizes: Array, level: int | None, cluster: int | None
    ) -> list[Node]:
        """The highest level, and below each node that leads to the chosen one the next level.

        `names`, `origin` and `sizes` are of the categories as they stand.
        """
        path = {}
        if level is not None and cluster is not None and 1 <= level <= self.top:
            members = np.flatnonzero(self._above[level - 1] == cluster)
            path = {at: int(self._above[at - 1][members[0]]) for at in range(level, self.top + 1) if len(members)}
        everything = np.ones(len(origin), dtype=bool)
        return self._level(self.top, everything, names, origin, sizes, path) if self.top > 1 else []

    def _level(
        self, level: int, within: Array, names: list[str], origin: Array, sizes: Array, path: dict[int, int]
    ) -> list[Node]:
        clusters = self._above[level - 1][origin]
        nodes = []
        for cluster in np.unique(clusters[within]).tolist():
            inside = within & (clusters == cluster)
            chosen = path.get(level) == cluster
            node = Node(
                level=level,
                cluster=cluster,
                known=cluster < self._n_known[level - 1],
                title=_title(names, np.flatnonzero(inside), sizes),
                categories=int(inside.sum()),
                images=int(sizes[inside].sum()),
                open=chosen,
                children=self._level(level - 1, inside, names, origin, sizes, path) if chosen and level > 2 else [],
            )
            nodes.append(node)
        return sorted(nodes, key=lambda node: -node.images)[:_SHOWN]


def _title(names: list[str], members: Array, sizes: Array) -> str:
    """The names of the largest members."""
    largest = members[np.argsort(-sizes[members], kind="stable")[:2]]
    more = "" if len(members) <= 2 else f" +{len(members) - 2}"
    return ", ".join(names[number] for number in largest) + more
