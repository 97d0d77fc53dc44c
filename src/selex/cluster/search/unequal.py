"""Clusters of very unequal size: large categories are not cut up, small ones are not swallowed.

k-means cuts a large category into pieces before it finds a small one, since that lowers the inertia more. Here rows
that were averaged with their neighbours, see `smoothed`, are sorted into more clusters than are asked for, and clusters
with the most neighbours in common are merged: parts of one category have many where they meet, categories few,
whatever their sizes. A part of a known category has its share of labelled rows for neighbours; a novel category next
to it has hardly any.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincc

_CHANCE = 0.01  # that so few labelled rows are near a part of their category, below which it is not one
_SHARE = 0.7  # of the number expected, that is enough: other parts of the category have their share, too
_TIMES = 2  # as many clusters to merge as are asked for
_MORE = 40  # than asked for, where these are few
_NODES = 3  # of each of them, at least on average
_LAST = 1e9  # what sets back a merger that labels speak against
_BORDER = 0.75  # power of the number of nodes, by which those at the border of a cluster become more


def starting_clusters(k: int, n_known: int, n_free: int) -> int:
    """How many clusters to merge to k: more than k, of which those without labels have a few nodes on average."""
    return max(k, min(max(_TIMES * k, k + _MORE), n_known + n_free // _NODES))


class Parts(NamedTuple):
    """Clusters to merge, m of them, the first c known ones: what links them, and what labels say of them."""

    links: NDArray[np.float64]  # how much they are linked, (m, m)
    sizes: NDArray[np.int64]  # their numbers of nodes, (m,)
    means: NDArray[np.float64]  # of their nodes, (m, d)
    free: NDArray[np.float64]  # their rows without a label, (m,)
    near: NDArray[np.float64]  # labelled rows of each known category whose neighbours they are, (c, m)
    labelled: NDArray[np.float64]  # labelled rows of each known category, (c,)


def merge_to_k(parts: Parts, k: int) -> NDArray[np.int64]:
    """Which of k clusters each of m belongs to: agglomerative merging of the two with the most links, time and again.

    Links count for each node of the smaller, to a power below 1. Clusters without any link follow, by Ward's cost.
    Known clusters are never merged with each other. Labels are a random sample of their category: the fewer of its
    labelled rows are near a novel cluster, the less the links between the two count; where so few cannot be chance,
    the two are merged last of all.
    """
    merging = _Merging(Parts(*(part.copy() for part in parts)))
    for _ in range(len(parts.sizes) - k):
        merging.merge()
    return np.unique(merging.found, return_inverse=True)[1]


class _Merging:
    """Clusters, and how much each two are tied to each other."""

    def __init__(self, parts: Parts) -> None:
        self.parts, m, n_known = parts._replace(sizes=np.maximum(parts.sizes, 1)), len(parts.sizes), len(parts.labelled)
        self.barred = np.eye(m, dtype=bool)
        self.barred[:n_known, :n_known] = True
        self.found = np.arange(m)
        self.ties = np.stack([self._ties(one) for one in range(m)])

    def merge(self) -> None:
        """The two with the strongest tie become one."""
        one, other = sorted(int(place) for place in np.unravel_index(self.ties.argmax(), self.ties.shape))
        links, sizes, means, free, near, _ = self.parts
        self.found[self.found == other] = one
        means[one] += (means[other] - means[one]) * sizes[other] / (sizes[one] + sizes[other])
        for values in (links, sizes, free, near.T):
            values[one] += values[other]
        links[:, one] = links[one]
        self.barred[other] = self.barred[:, other] = True
        self.ties[one] = self.ties[:, one] = self._ties(one)
        self.ties[other] = self.ties[:, other] = -np.inf

    def _ties(self, one: int) -> NDArray[np.float64]:
        links, sizes, means = self.parts[:3]
        linked = links[one] / np.minimum(sizes[one], sizes) ** _BORDER
        ward = sizes[one] * sizes / (sizes[one] + sizes) * np.square(means[one] - means).sum(1)
        found, expected = self._near(one)
        seen = np.minimum((found + 1) / (_SHARE * expected + 1), 1)
        foreign = (found < _SHARE * expected) & (gammaincc(found + 1, expected) < _CHANCE)
        ties = np.where(linked > 0, linked * seen, -ward) - np.where(foreign, _LAST, 0)
        return np.where(self.barred[one], -np.inf, ties)

    def _near(self, one: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Labelled rows near the novel one of two clusters, and how many there would be if it were of the known one.

        They would be shared out like its other rows. Both numbers are 0 where both clusters are novel, or both known.
        """
        _, _, _, free, near, labelled = self.parts
        n_known, found, expected = len(labelled), np.zeros(len(free)), np.zeros(len(free))
        others = slice(n_known) if one >= n_known else slice(n_known, None)
        known, novel = (others, one) if one >= n_known else (one, others)
        found[others] = near[known, novel]
        expected[others] = labelled[known] * free[novel] / np.maximum(free[known] + free[novel], 1)
        return found, expected
