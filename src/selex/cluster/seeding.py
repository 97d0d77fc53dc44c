"""Where clusters start: known centres from labelled rows, novel ones drawn apart from everything chosen so far.

Shapes: n rows, d dimensions, k centres, c the balanced cluster size.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from selex.cluster.rows import Rows


def draw_apart(rows: Rows, anchors: Tensor, pool: Tensor, count: int, size: int, rng: np.random.Generator) -> Tensor:
    """Algorithm 1: draw up to `count` rows of `pool` at random, none among the `size` nearest rows of a chosen centre.

    Rows are tried in one random order, a batch at a time: a candidate stands unless an earlier centre barred it, which
    is what drawing one after the other from the rows that are left gives. Fewer than `count` come back when nobody is
    left to draw.
    """
    barred = torch.zeros(rows.n, dtype=torch.bool, device=rows.device)
    for batch in torch.split(anchors, _batch(rows)):
        barred |= _closest(rows, batch, size).any(0)
    order = pool[torch.from_numpy(rng.permutation(len(pool))).to(pool.device)]
    chosen = order[:0]
    while len(chosen) < count:
        order = order[~barred[order]]
        candidates = order[: min(_batch(rows), count - len(chosen))]
        if not len(candidates):
            break
        close = _closest(rows, rows.take(candidates), size)
        standing = _standing(close[:, candidates].cpu().numpy())
        stood = torch.from_numpy(standing).to(order.device)
        barred |= close[stood].any(0)
        chosen = torch.cat([chosen, candidates[stood]])
        order = order[len(candidates) :]
    return chosen


def draw_spread(rows: Rows, anchors: Tensor, pool: Tensor, count: int, rng: np.random.Generator) -> Tensor:
    """D² sampling (k-means++): each next row is drawn with weight squared distance to the nearest centre so far."""
    candidates = rows.at(pool)
    if len(anchors):
        _, closest = candidates.nearest(anchors)
    else:
        closest = torch.ones_like(candidates.norms)  # no centre yet: the first row is drawn uniformly
    chosen: list[int] = []
    for _ in range(count):
        weights = closest.cpu().numpy().astype(np.float64)
        weights[chosen] = 0  # what is left of their own distance is rounding
        if not weights.any():  # every row lies on a centre
            weights[:] = 1
            weights[chosen] = 0
        chosen.append(_pick(weights, rng))
        center = candidates.take(torch.tensor(chosen[-1:], device=pool.device))
        _, distances = candidates.nearest(center)
        closest = distances if len(chosen) == 1 and not len(anchors) else torch.minimum(closest, distances)
    return pool[torch.tensor(chosen, dtype=torch.long, device=pool.device)]


def _closest(rows: Rows, centers: Tensor, size: int) -> Tensor:
    """Which rows are among the `size` nearest of each centre (ties count as near): booleans `(k, n)`."""
    distances = torch.empty(len(centers), rows.n, dtype=rows.dtype, device=rows.device)
    for part, x in rows.blocks(len(centers)):
        torch.addmm(rows.norms[part], centers, x.T, alpha=-2, out=distances[:, part])
    radius = distances.topk(min(size, rows.n), dim=1, largest=False, sorted=False).values.amax(1, keepdim=True)
    return distances <= radius


def _standing(close: np.ndarray) -> np.ndarray:
    """Which of a batch of candidates stand, tried in order: `close[i, j]` says that i, once chosen, bars j."""
    barred = np.zeros(len(close), dtype=bool)
    standing = np.zeros(len(close), dtype=bool)
    for i, bars in enumerate(close):
        if not barred[i]:
            standing[i] = True
            barred |= bars
    return standing


def _batch(rows: Rows) -> int:
    """How many centres' distances to all rows fit the memory budget, with what top-k needs beside them."""
    return max(1, rows.memory // (4 * rows.n * rows.dtype.itemsize))


def _pick(weights: np.ndarray, rng: np.random.Generator) -> int:
    """One index, drawn with the given weights."""
    cumulative = np.cumsum(weights)
    found = int(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))
    return min(found, int(np.flatnonzero(weights)[-1]))  # rounding may run past the last row that can be drawn
