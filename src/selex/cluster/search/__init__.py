"""Ways to search for the clusters of the base level, by name."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial

import numpy as np
import torch

from selex.cluster.kmeans import Problem
from selex.cluster.search.consensus import consensus
from selex.cluster.search.swaps import from_ward, swapped
from selex.cluster.search.unequal import starting_clusters
from selex.errors import InputError
from selex.types import SEARCHES, Level, Search

LOWER_INERTIA = 0.005
"""By this share of the inertia Ward's start must end lower to be taken: minima that are nearer to each other are as
good, and seeds drawn apart then do better where categories are of one size."""
MORE_ACCURACY = 0.05
"""Or by this share it must keep more labelled rows nearest to the centres of their own categories."""


def best_swapped(problem: Problem, rng: np.random.Generator) -> Level:
    """Swaps from what BSSK finds, or from Ward's clusters where these are clearly better: never above BSSK's inertia.

    Ward's draws are made from a copy of the generator, which moves on as with BSSK alone.
    """
    start = problem.best(rng)
    found = swapped(problem, start)
    other = swapped(problem, from_ward(problem, deepcopy(rng)))
    if other.inertia < (1 - LOWER_INERTIA) * found.inertia:
        return other
    better = (
        other.inertia <= start.inertia
        and labelled_accuracy(problem, other) > labelled_accuracy(problem, found) + MORE_ACCURACY
    )
    return other if better else found


def labelled_accuracy(problem: Problem, level: Level) -> float:
    """Share of the labelled rows that are nearest to the centre of their own category: others lost it to a novel one.

    Inertia does not see this, since labelled rows stay where they are.
    """
    held = problem.held
    if not held.total:
        return 1.0
    nearest, _ = held.nearest(torch.as_tensor(level.centers))
    return float(held.group.sum((nearest == problem.held_labels).double().sum())) / held.total


def _smoothed(problem: Problem, rng: np.random.Generator, unequal: bool = False) -> Level:
    """Swaps among rows averaged with their neighbours; where sizes are unequal more clusters, of which some merge."""
    from selex.cluster.search import smoothed as by  # which imports scipy.sparse

    own, k, n_known = deepcopy(rng), problem.k, problem.n_known  # others draw as they would without it
    if not by.can_smooth(problem.rows.total, k):
        return best_swapped(problem, own)
    nodes = by.nodes_of(problem, own)
    graph = by.graph_of(problem, nodes)
    most = starting_clusters(k, n_known, len(graph.means) - n_known) if unequal else k
    found = best_swapped(by.smoothed(problem, nodes, graph, most), own)
    labels = torch.as_tensor(found.labels)
    if found.n_clusters > k:
        labels = by.merged(problem, nodes, graph, labels, found.n_clusters)
    return by.bordered(problem, nodes, labels)


_WAYS: dict[Search, Callable[[Problem, np.random.Generator], Level]] = {
    "bssk": lambda problem, rng: problem.best(rng),
    "swaps": best_swapped,
    "smoothed": _smoothed,
    "unequal": partial(_smoothed, unequal=True),
    "consensus": consensus,
}


def searched(problem: Problem, search: Search, rng: np.random.Generator) -> Level:
    """The clusters of a problem, searched for in this way; centres in centred coordinates."""
    if search not in SEARCHES:
        raise InputError(f"search must be {', '.join(SEARCHES[:-1])} or {SEARCHES[-1]}, not {search!r}")
    if not problem.n_free or problem.k == problem.n_known:  # nothing to search for
        search = "bssk"
    return _WAYS[search](problem, rng)
