"""New clusters among new rows: opened only where these are as distinct as clusters are that there are already.

Shapes: n rows, m new rows, d dimensions, k clusters; centres in centred coordinates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from selex.cluster.rows import Rows, count

if TYPE_CHECKING:
    from scipy.cluster.hierarchy import ClusterNode

LEAST = 3
"""Rows that a new cluster has at least."""
USUAL = 0.25
"""Of the clusters that there are, so many may be less distinct than a new one."""
_MOST = 2000  # new rows that are compared with each other: those farthest from any centre


def opened(least: float | None, centers: Tensor, new: Tensor, shift: Tensor, length: Tensor | None) -> Tensor:
    """Centres of clusters that new rows ask for, `(new clusters, d)`.

    New rows are joined by Ward's linkage. A group of them is a cluster if its rows are nearer to its centre than to any
    other, in the mean by as much as in the clusters that there are, the least distinct quarter aside. Each row is
    looked at as if it had not helped to make its centre.

    Args:
        least: by how much a cluster is distinct that is hardly so, see `usual_margin`; None where nothing tells.
        centers: of all clusters, `(k, d)`.
        new: the new rows, `(m, d)`.
        shift: what centres and new rows are less, `(d,)`.
        length: of rows and centres, where they all have one.
    """
    if len(new) < LEAST or least is None:
        return centers[:0]
    nearest = torch.cdist(new, centers).square().min(1).values
    if float(nearest.max()) < least:  # no group can be so distinct, as its rows are some way from its own centre too
        return centers[:0]
    from scipy.cluster.hierarchy import linkage, to_tree  # only here: it takes half a second to import

    far = nearest.argsort(descending=True)[:_MOST]
    new, nearest = new[far], nearest[far]
    groups = _groups(to_tree(linkage(new.double().cpu().numpy(), "ward")), new, nearest, least, shift, length)
    found = centers[:0]
    for group in sorted(groups, key=len, reverse=True):  # what is no more distinct from a larger one is a part of it
        if _margin(new[group], nearest[group], shift, length) >= least:
            center = _center(new[group].sum(0, keepdim=True), float(len(group)), shift, length)
            found = torch.cat([found, center])
            nearest = torch.minimum(nearest, torch.cdist(new, center).square()[:, 0])
    return found


def usual_margin(margins: NDArray[np.float64]) -> float | None:
    """By how much rows are nearer to their own centre than to any other, in a cluster that is hardly distinct.

    Of each cluster that is how many rows count, and the sums of their squared distances to their own centre and to the
    nearest other one, `(k, 3)`.
    """
    sizes, own, other = margins[margins[:, 0] >= LEAST].T
    if len(margins) < 2 or not len(sizes):
        return None
    return float(np.quantile((other - own * (sizes / (sizes - 1)) ** 2) / sizes, USUAL))


def row_margins(rows: Rows, clusters: Tensor, centers: Tensor) -> NDArray[np.float64]:
    """The same sums of rows in clusters, `(k, 3)`."""
    k = len(centers)
    total = torch.zeros(2, k, dtype=torch.float64, device=centers.device)
    step = rows.step(3 * k)
    for start in range(0, rows.n if k > 1 else 0, step):
        part = slice(start, min(start + step, rows.n))
        to_all, own = rows.distances(centers, part).double(), clusters[part, None]
        nearest = to_all.scatter(1, own, torch.inf).min(1).values
        total.index_add_(1, own[:, 0], torch.stack([to_all.gather(1, own)[:, 0], nearest]))
    return torch.cat([count(clusters, k)[None].double(), total]).T.cpu().numpy()


def _groups(
    node: ClusterNode, new: Tensor, nearest: Tensor, least: float, shift: Tensor, length: Tensor | None
) -> list[list[int]]:
    """The largest groups of a tree that are distinct enough, as indices of new rows."""
    found, left = [], [node]
    while left:
        one = left.pop()
        group = one.pre_order()
        if len(group) < LEAST:
            continue
        if _margin(new[group], nearest[group], shift, length) >= least:
            found.append(group)
        else:
            left += [one.get_left(), one.get_right()]
    return found


def _margin(rows: Tensor, nearest: Tensor, shift: Tensor, length: Tensor | None) -> float:
    """By how much rows are nearer to the mean of the others than to the nearest centre, in the mean."""
    others = _center(rows.sum(0) - rows, len(rows) - 1.0, shift, length)
    return float((nearest - (rows - others).square().sum(1)).mean())


def _center(sums: Tensor, n: float, shift: Tensor, length: Tensor | None) -> Tensor:
    """The centres of n rows each, from their sums `(…, d)`; as long as rows are where these have one length."""
    return sums / n if length is None else normalize(sums / n + shift, dim=-1) * length - shift
