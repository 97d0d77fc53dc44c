"""Names that stay: a category that is found again, in a run that is done again, is called as before.

Categories are the same if they have their images in common. The number of one that is gone is not given to another.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from selex.data.parquet import text_blocks
from selex.runs.results import Results

Array = np.ndarray[Any, Any]

_NUMBERED = re.compile(r"novel-([1-9]\d{0,8})")


def lasting_names(
    categories: Sequence[str], files: Sequence[str], labels: Array, n_clusters: int, earlier: Results | None
) -> tuple[list[str], int]:
    """A name for every cluster, and the last number that was ever given to one.

    The known categories' own come first. A novel cluster that has its images in common with a novel category of
    `earlier` results has that one's name, any other the next `novel-…`.
    """
    names = [*map(str, categories), *[""] * (n_clusters - len(categories))]
    last = last_number([*names, *(earlier.names if earlier else ())], earlier.last_number if earlier else 0)
    if earlier:
        old, new = common(earlier, files, labels)
        there = [c for c in np.unique(old).tolist() if earlier.names[c] not in names]
        novel = [c for c in np.unique(new).tolist() if c >= len(categories)]
        for before, now in match(old, new, there, novel).items():
            names[now] = earlier.names[before]
    for number, name in enumerate(names):
        if not name:
            last += 1
            names[number] = f"novel-{last}"
    return names, last


def last_number(names: Iterable[str], least: int = 0) -> int:
    """The largest number that a `novel-…` among names has."""
    return max([least, *(int(found[1]) for name in names if (found := _NUMBERED.fullmatch(name)))])


def common(earlier: Results, files: Sequence[str], labels: Array) -> tuple[Array, Array]:
    """The earlier and the new category of the images that both have."""
    old, new = same_images(earlier.files, files)
    return earlier.category[old], np.asarray(labels)[new]


def same_images(before: Sequence[str], now: Sequence[str]) -> tuple[Array, Array]:
    """Rows of the images that are in both tables, in the earlier one and in the later, in the earlier one's order."""
    old, new = _keys(before), _keys(now)
    if np.array_equal(old, new):
        return np.arange(len(old)), np.arange(len(new))
    if not len(new):
        return np.arange(0), np.arange(0)
    order = new.argsort()
    place = np.minimum(np.searchsorted(new, old, sorter=order), len(new) - 1)
    rows = np.flatnonzero(new[order[place]] == old)
    return rows, order[place[rows]]


def _keys(files: Sequence[str]) -> Array:
    """16 bytes for each name, a digest: less than the names themselves, of which one block at a time is in memory."""
    keys, done = np.empty(len(files), "V16"), 0
    for block in text_blocks(files):
        digests = (hashlib.blake2b(name.encode(), digest_size=16).digest() for name in block.to_pylist())
        keys[done : done + len(block)] = np.frombuffer(b"".join(digests), "V16")
        done += len(block)
    return keys.view("S16")  # which numpy sorts


def match(old: Array, new: Array, among_old: Sequence[int], among_new: Sequence[int]) -> dict[int, int]:
    """The new category that each old one is now, by the categories `old` and `new` of the same images.

    Each is one at most, such that most images stay where they are. Two that share less than half of the images of the
    smaller one are not the same.
    """
    shared = np.zeros((int(old.max(initial=0)) + 1, int(new.max(initial=0)) + 1), dtype=np.int64)
    np.add.at(shared, (old, new), 1)
    found = {among_old[i]: among_new[j] for i, j in _pairs(shared[np.ix_(among_old, among_new)])}
    least = {c: min(shared[c].sum(), shared[:, d].sum()) / 2 for c, d in found.items()}
    return {c: d for c, d in found.items() if shared[c, d] and shared[c, d] >= least[c]}


def _pairs(shared: Array) -> Iterable[tuple[int, int]]:
    """Pairs of rows and columns with the largest sum; at once where no row shares anything with two columns."""
    alone = (shared > 0).sum(0).max(initial=0) <= 1 and (shared > 0).sum(1).max(initial=0) <= 1
    if alone:
        return zip(*np.nonzero(shared), strict=True)
    from scipy.optimize import linear_sum_assignment  # takes half a second to import

    return zip(*linear_sum_assignment(-shared), strict=True)
