"""Ways to search for the clusters of the base level, by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from selex.cluster.kmeans import Problem
from selex.cluster.search.consensus import consensus
from selex.cluster.search.swaps import best_swapped
from selex.errors import InputError
from selex.types import SEARCHES, Level, Search


def _smoothed(problem: Problem, rng: np.random.Generator, unequal: bool = False) -> Level:
    from selex.cluster.search.smoothed import best_smoothed  # which imports scipy.sparse

    return best_smoothed(problem, rng, unequal)


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
