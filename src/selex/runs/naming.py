"""Names that stay: a category that is found again, in a run that is done again, is called as before.

Categories are the same if they have their images in common. The number of one that is gone is not given to another.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from selex.data.parquet import text_blocks
from selex.runs.results import Results

Array = np.ndarray[Any, Any]

_NUMBERED = re.compile(r"novel-([1-9]\d{0,8})")


def lasting_names(
    categories: Sequence[str],
    files: Sequence[str],
    labels: Array,
    n_clusters: int,
    earlier: Results | None,
    taken: int = 0,
    content: Array | None = None,
) -> tuple[list[str], int]:
    """A name for every cluster, and the last number that was ever given to one.

    The known categories' own come first. A novel cluster that has its images in common with a novel category of
    `earlier` results has that one's name, any other the next `novel-…`; numbers up to `taken` are not given.
    """
    names = [*map(str, categories), *[""] * (n_clusters - len(categories))]
    last = last_number([*names, *(earlier.names if earlier else ())], max(earlier.last_number if earlier else 0, taken))
    if earlier:
        rows, there_now = same_images(earlier.files, files, earlier.content, content)
        old, new = earlier.category[rows], np.asarray(labels)[there_now]
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


def same_images(
    before: Sequence[str],
    now: Sequence[str],
    content: Array | None = None,
    content_now: Array | None = None,
    left_out: Array | None = None,
    others: Array | None = None,
) -> tuple[Array, Array]:
    """Rows of the images that are in both tables, in the earlier one and in the later, in the earlier one's order.

    An image is the one of the same name and content; else one of the same content, whatever its name; else, where
    content is not known or the file was edited, so that its content was not there before, the one of the same name.
    Images that are `left_out` of the later table have not become another one, of which they may be a copy. `others` is
    the content of images that were there before, too, though not in the earlier table: none of them is an edited one.
    """
    old, new = _same_names(before, now)
    if content is None or content_now is None:
        first = _first(new)
        return old[first], new[first]
    same = (content[old] == content_now[new]) & (content[old] != b"")
    if same.all() and len(old) in (len(before), len(now)):
        return old, new
    gone, came = np.delete(np.arange(len(before)), old[same]), np.delete(np.arange(len(now)), new[same])
    stayed = gone if left_out is None else gone[~left_out[gone]]
    pairs = renamed(
        [(before[row], key) for row, key in zip(stayed.tolist(), content[stayed].tolist(), strict=True)],
        [(now[row], key) for row, key in zip(came.tolist(), content_now[came].tolist(), strict=True)],
    )
    moved, there = stayed[list(pairs)], came[list(pairs.values())]
    rest = np.flatnonzero(~same & ~np.isin(old, moved) & ~np.isin(new, np.concatenate([new[same], there])))
    unknown = (content[old[rest]] == b"") | (content_now[new[rest]] == b"")
    edited = ~np.isin(content_now[new[rest]], content if others is None else np.concatenate([content, others]))
    if left_out is not None:
        edited &= ~left_out[old[rest]]
    rest = rest[unknown | edited]
    rest = rest[_first(new[rest])]
    old = np.concatenate([old[same], moved, old[rest]])
    order = old.argsort()
    return old[order], np.concatenate([new[same], there, new[rest]])[order]


def _first(rows: Array) -> Array:
    """Where each row is for the first time: names may be those of several images, one after the other."""
    return np.sort(np.unique(rows, return_index=True)[1])


def renamed(gone: Sequence[tuple[str, bytes]], came: Sequence[tuple[str, bytes]]) -> dict[int, int]:
    """Which of the files that came is which of those that are gone, by their content; "" is that of none.

    Of copies, those that kept their name in another folder are the same, then the first of those gone and that came.
    """
    pairs = dict[int, int]()
    ways: tuple[Callable[[str, bytes], Hashable], ...] = (
        lambda file, content: (content, os.path.basename(file)),
        lambda file, content: content,
    )
    for key in ways:
        free, taken = defaultdict[Hashable, deque[int]](deque), set(pairs.values())
        for place, one in enumerate(came):
            if one[1] and place not in taken:
                free[key(*one)].append(place)
        for place, one in enumerate(gone):
            if place not in pairs and free.get(key(*one)):
                pairs[place] = free[key(*one)].popleft()
    return pairs


def _same_names(before: Sequence[str], now: Sequence[str]) -> tuple[Array, Array]:
    """Rows of the names that are in both tables, in the earlier one's order."""
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


class Shared(NamedTuple):
    """Pairs of an old and a new category that have images in common, by old and then new, and how many those are."""

    old: Array
    new: Array
    images: Array

    @classmethod
    def of(cls, old: Array, new: Array) -> Shared:
        """From the categories `old` and `new` of the same images."""
        width = int(new.max(initial=0)) + 1
        pairs, images = np.unique(old.astype(np.int64) * width + new, return_counts=True)
        return cls(pairs // width, pairs % width, images)

    def largest(self, axis: int) -> dict[int, tuple[int, int]]:
        """Of each old category (of each new one if `axis` is 1) the other that has most of its images, and how many."""
        own, other = (self.new, self.old) if axis else (self.old, self.new)
        order = np.lexsort((other, -self.images, own))
        first = order[np.unique(own[order], return_index=True)[1]]
        most = zip(other[first].tolist(), self.images[first].tolist(), strict=True)
        return dict(zip(own[first].tolist(), most, strict=True))


def match(old: Array, new: Array, among_old: Sequence[int], among_new: Sequence[int]) -> dict[int, int]:
    """The new category that each old one is now, by the categories `old` and `new` of the same images.

    Each is one at most, such that most images stay where they are. Two that share less than half of the images of the
    smaller one are not the same.
    """
    shared = Shared.of(old, new)
    smaller = np.minimum(np.bincount(old)[shared.old], np.bincount(new)[shared.new])
    among = np.flatnonzero(np.isin(shared.old, among_old) & np.isin(shared.new, among_new))
    found = among[_pairs(Shared(*(column[among] for column in shared)))].tolist()
    return {int(shared.old[i]): int(shared.new[i]) for i in found if 2 * shared.images[i] >= smaller[i]}


def _pairs(shared: Shared) -> Array:
    """Which pairs have the most images together, each category in one; at once where none is in two."""
    if all(len(np.unique(side)) == len(side) for side in shared[:2]):
        return np.arange(len(shared.images))
    from scipy.sparse import csr_array, hstack, identity  # takes half a second to import
    from scipy.sparse.csgraph import min_weight_full_bipartite_matching

    n_old, n_new = int(shared.old.max()) + 1, int(shared.new.max()) + 1
    images = csr_array((shared.images.astype(float), (shared.old, shared.new)), (n_old, n_new))
    nobody = identity(n_old, format="csr") * (0.5 / n_old)  # a category may be left without another
    old, new = min_weight_full_bipartite_matching(hstack([images, nobody], format="csr"), maximize=True)
    return np.flatnonzero(np.isin(shared.old * n_new + shared.new, (old * n_new + new)[new < n_new]))
