"""HSSK: pseudo-labels at every level of abstraction (paper algorithm 5)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from selex.cluster.kmeans import Problem, Settings, as_data, novel_clusters, prepare, run
from selex.cluster.refine import check_refinement, refined
from selex.cluster.rows import DEFAULT_MEMORY, Rows
from selex.cluster.search import searched
from selex.errors import InputError
from selex.types import UNLABELLED, Hierarchy, Level, Refinement, Search, Variant


def hssk(
    data: Any,
    labels: Any,
    n_clusters: int,
    *,
    n_levels: int | None = None,
    balanced: bool = True,
    search: Search = "bssk",
    refine: Refinement = "none",
    n_iter: int = 10,
    n_init: int = 1,
    variant: Variant | None = None,
    probes: int | None = None,
    rng: np.random.Generator | int | None = None,
    memory: int = DEFAULT_MEMORY,
    progress: Callable[[int, int], None] | None = None,
) -> Hierarchy:
    """Hierarchical balanced semi-supervised k-means: BSSK at the base, then with half as many clusters at every level.

    Args:
        data: `n × d` features: numpy (also memory-mapped) or torch on any device.
        labels: per row a known category `0 … n_known - 1` or -1; None if no row is labelled.
        n_clusters: clusters of the base level, known and novel together.
        n_levels: maximum number of levels; None makes all, up to 'known' against 'novel'.
        balanced: limit cluster sizes; off for long tails.
        search: how the base level is searched for: `"bssk"` as in the paper, `"swaps"` with swaps of novel centres
            after it or after Ward's linkage, whichever ends lower, `"smoothed"` the same among rows that were averaged
            with their nearest neighbours, `"unequal"` there for more clusters, of which those that hang together are
            joined, `"consensus"` from what many quick runs agree on.
        refine: how the base level is refined, see `refine_level`.
        n_iter: iterations of each stage of BSSK.
        n_init: restarts of each level's BSSK.
        variant: differences from the paper, for comparison.
        probes: while centres move, compare a row with the centres of so many of `√K` groups only; None: with all.
        rng: generator or seed.
        memory: bytes that temporary arrays may take.
        progress: called after each level with the levels done and the levels in all.

    Returns:
        The `Hierarchy`, finest level first, every level's labels in row order.
    """
    if n_levels is not None and (not isinstance(n_levels, (int, np.integer)) or n_levels < 1):
        raise InputError(f"n_levels must be a whole number of at least 1, not {n_levels!r}")
    settings = Settings(balanced, n_iter, n_init, variant or Variant(), probes)
    rows, known, n_known = prepare(data, labels, memory)
    check_refinement(refine, rows)
    generator = np.random.default_rng(rng)
    problem = Problem(rows, known, n_known, novel_clusters(n_clusters, n_known, known, rows), settings)
    base = refined(rows, known, searched(problem, search, generator), refine)
    return hierarchy_on(base, problem, data, n_levels, generator, progress)


def hierarchy_on(
    base: Level,
    problem: Problem,
    data: Any,
    n_levels: int | None,
    rng: np.random.Generator,
    progress: Callable[[int, int], None] | None = None,
) -> Hierarchy:
    """The levels above a base level, whose centres are in centred coordinates; arguments as of `hssk`."""
    rows, known, settings = problem.rows, problem.known, problem.settings
    levels = [base]
    coarser = level_sizes(base.n_known, base.n_novel)[1:n_levels]
    group = torch.arange(base.n_known, device=rows.device)  # of each known cluster of the base level
    for n_known, n_novel in coarser:
        if progress:
            progress(len(levels), len(coarser) + 1)
        if settings.variant.grouping == "base":
            group = rows.group.agree(_group(levels[0], n_known, rng, rows.memory))
        else:
            group = rows.group.agree(_group(levels[-1], n_known, rng, rows.memory))[group]
        levels.append(run(rows, _hyper_labels(levels[0], group), n_known, n_novel, settings, rng))
    if progress:
        progress(len(levels), len(levels))
    if settings.variant.level_order == "known-first":
        levels[1:] = [_known_first(level, levels[0], known) for level in levels[1:]]
    return Hierarchy(tuple(as_data(level, rows, data) for level in levels))


def level_sizes(n_known: int, n_novel: int) -> list[tuple[int, int]]:
    """`(known, novel)` clusters of every level, finest first, until one known cluster is left.

    Without known clusters the halving goes on until two or three are left. 100 known and 100 novel clusters give levels
    of 200, 100, 50, 24, 12, 6 and 2.
    """
    sizes = [(n_known, n_novel)]
    while n_known > 1 or (n_known == 0 and n_novel > 3):
        n_known, n_novel = max(n_known // 2, min(n_known, 1)), max(n_novel // 2, min(n_novel, 1))
        sizes.append((n_known, n_novel))
    return sizes


def _group(level: Level, n_groups: int, rng: np.random.Generator, memory: int) -> Tensor:
    """Plain k-means of a level's known prototypes: the group of each.

    They are few: on the host, which needs no launch for each small operation, and on one core of it.
    """
    centers = torch.as_tensor(level.centers)
    if not n_groups:
        return torch.arange(0, device=centers.device)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rows = Rows(centers[: level.n_known].cpu(), memory)
        unlabelled = torch.full((rows.n,), UNLABELLED)
        found = run(rows, unlabelled, 0, n_groups, Settings(balanced=False), rng)
    finally:
        torch.set_num_threads(threads)
    return torch.as_tensor(found.labels).to(centers.device)


def _hyper_labels(base: Level, group: Tensor) -> Tensor:
    """Each row that the base level put into a known cluster carries that cluster's group; the others carry -1."""
    cluster = torch.as_tensor(base.labels)
    return torch.cat([group, group.new_full((base.n_novel,), UNLABELLED)])[cluster]


def _known_first(level: Level, base: Level, known: Tensor) -> Level:
    """The published slip: with labelled rows listed first, labels come back known clusters first."""
    listed = torch.argsort((known == UNLABELLED).long(), stable=True)
    novel = torch.as_tensor(base.labels)[listed] >= base.n_known
    labels = torch.as_tensor(level.labels).clone()
    labels[listed] = labels[listed][torch.argsort(novel.long(), stable=True)]
    return replace(level, labels=labels)
