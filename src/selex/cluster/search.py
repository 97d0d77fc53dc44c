"""Ways to search for the clusters of the base level, by name."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import numpy as np

from selex.cluster.consensus import consensus
from selex.cluster.kmeans import Problem
from selex.cluster.swaps import swapped
from selex.cluster.ward import from_ward
from selex.errors import InputError
from selex.types import SEARCHES, Level, Search

LOWER = 0.005
"""By this share of the inertia Ward's start must end lower to be taken: what lies nearer to each other is as good, and
seeds drawn apart then do better where categories are of one size."""


def best_swapped(problem: Problem, rng: np.random.Generator) -> Level:
    """Swaps from what BSSK finds, or from Ward's clusters where these end clearly lower: never above BSSK.

    Ward's draws are made from a copy of the generator, which moves on as with BSSK alone.
    """
    found = swapped(problem, problem.best(rng))
    other = swapped(problem, from_ward(problem, deepcopy(rng)))
    return other if other.inertia < (1 - LOWER) * found.inertia else found


_WAYS: dict[Search, Callable[[Problem, np.random.Generator], Level]] = {
    "bssk": lambda problem, rng: problem.best(rng),
    "swaps": best_swapped,
    "ward": lambda problem, rng: swapped(problem, from_ward(problem, rng)),
    "consensus": consensus,
}


def searched(problem: Problem, search: Search, rng: np.random.Generator) -> Level:
    """The clusters of a problem, searched for in this way; centres in centred coordinates."""
    check_search(search)
    if not len(problem.free_index) or problem.k == problem.n_known:  # nothing to search for
        search = "bssk"
    return _WAYS[search](problem, rng)


def check_search(search: Search) -> None:
    """Refuse another word."""
    if search not in SEARCHES:
        raise InputError(f"search must be {', '.join(SEARCHES[:-1])} or {SEARCHES[-1]}, not {search!r}")
