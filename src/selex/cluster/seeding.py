"""Where clusters start: known centres from labelled rows, novel ones drawn apart from everything chosen so far.

Shapes: n rows, d dimensions, k centres, c the balanced cluster size.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from selex.cluster.distributed.group import Group
from selex.cluster.rows import Rows

_NEVER = torch.iinfo(torch.long).max
_GRID = 256


def draw_apart(
    rows: Rows,
    anchors: Tensor,
    pool: Tensor,
    count: int,
    size: int,
    rng: np.random.Generator,
    ranks: Tensor | None = None,
) -> Tensor:
    """Algorithm 1: draw up to `count` rows of `pool` at random, none among the `size` nearest rows of a chosen centre.

    Rows are tried in one random order, a batch at a time: a candidate stands unless an earlier centre barred it, which
    is what drawing one after the other from the rows that are left gives. Fewer than `count` come back when no row is
    left to draw. `ranks` are the places of `pool`, this process's rows, in a pool of all processes; what comes back are
    row numbers through all of them.
    """
    barred = torch.zeros(rows.n, dtype=torch.bool, device=rows.device)
    batch = _batch(rows)
    for some in torch.split(anchors, batch):
        barred |= _closest(rows, some, size).any(0)
    order, turn = _shuffled(rows, pool, ranks, rng)
    chosen = order[:0]
    while len(chosen) < count:
        left = ~barred[order]
        order, turn = order[left], turn[left]
        numbers, place, lengths = _called(rows, order, turn, min(batch, count - len(chosen)))
        if not len(numbers):
            break
        mine = lengths[rows.group.rank]
        close = _closest(rows, rows.fetch(numbers), size)
        among = rows.group.gather(close[:, order[:mine]].T, lengths)[place]
        standing = _standing(among.T.cpu().numpy())
        stood = torch.from_numpy(standing).to(order.device)
        barred |= close[stood].any(0)
        chosen = torch.cat([chosen, numbers[stood]])
        order, turn = order[mine:], turn[mine:]
    return chosen


def _shuffled(rows: Rows, pool: Tensor, ranks: Tensor | None, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """The rows of the pool that this process has, in a random order of all, and each one's turn."""
    if rows.group.size == 1:
        order = torch.from_numpy(rng.permutation(len(pool))).to(pool.device)
        return pool[order], torch.arange(len(pool), device=pool.device)
    ranks = torch.arange(len(pool), device=pool.device) if ranks is None else ranks
    total = int(rows.group.sum(torch.tensor(len(pool))))
    turn = torch.empty(total, dtype=torch.long)
    turn[torch.from_numpy(rng.permutation(total))] = torch.arange(total)
    mine = turn[ranks.cpu()].to(pool.device)
    order = mine.argsort()
    return pool[order], mine[order]


def _called(rows: Rows, order: Tensor, turn: Tensor, most: int) -> tuple[Tensor, Tensor, list[int]]:
    """The next `most` rows of all processes.

    Their numbers by turn, where each is once every process has sent its own, and how many each process has.
    """
    if rows.group.size == 1:
        numbers = order[:most]
        return numbers, torch.arange(len(numbers), device=order.device), [len(numbers)]
    sent = turn.new_full((most, 2), _NEVER)
    sent[: len(turn[:most])] = torch.stack([turn[:most], order[:most] + rows.first], 1)
    turns, numbers = rows.group.gather(sent, [most] * rows.group.size).unbind(1)
    called = turns.argsort()[: min(most, int((turns < _NEVER).sum()))]
    by_process = (called // most).argsort(stable=True)
    lengths = torch.bincount(called // most, minlength=rows.group.size).tolist()
    return numbers[called], by_process.argsort(), lengths


def draw_spread(
    rows: Rows, anchors: Tensor, pool: Tensor, count: int, rng: np.random.Generator, ranks: Tensor | None = None
) -> Tensor:
    """D² sampling (k-means++): each next row is drawn with weight squared distance to the nearest centre so far.

    `ranks` and what comes back as in `draw_apart`.
    """
    candidates = rows.at(pool)
    places = np.arange(len(pool)) if ranks is None else ranks.cpu().numpy()
    numbers = pool.cpu() + rows.first
    if len(anchors):
        _, closest = candidates.nearest(anchors)
    else:
        closest = torch.ones_like(candidates.norms)  # no centre yet: the first row is drawn uniformly
    chosen: list[int] = []  # of this process
    drawn: list[Tensor] = []
    for _ in range(count):
        weights = closest.cpu().numpy().astype(np.float64)
        weights[chosen] = 0  # what is left of their own distance is rounding
        if rows.group.all(not weights.any()):  # every row lies on a centre
            weights[:] = 1
            weights[chosen] = 0
        here = np.flatnonzero(places == _pick(weights, places, rows.group, rng))
        chosen += here.tolist()
        drawn.append(rows.group.sum(numbers[here].sum(0, keepdim=True)).to(pool.device))
        _, distances = candidates.nearest(rows.fetch(drawn[-1]))
        closest = distances if len(drawn) == 1 and not len(anchors) else torch.minimum(closest, distances)
    return torch.cat([pool[:0], *drawn])


def _closest(rows: Rows, centers: Tensor, size: int) -> Tensor:
    """Which rows are among the `size` nearest of each centre (ties count as near): booleans `(k, n)`."""
    distances = torch.empty(len(centers), rows.n, dtype=rows.dtype, device=rows.device)
    for part, x in rows.blocks(len(centers)):
        torch.addmm(rows.norms[part], centers, x.T, alpha=-2, out=distances[:, part])
    near = distances.topk(min(size, rows.n), dim=1, largest=False, sorted=False).values
    if rows.group.size > 1:
        near = rows.group.gather(near.T.contiguous()).T
        near = near.topk(min(size, rows.total), dim=1, largest=False, sorted=False).values
    return distances <= near.amax(1, keepdim=True)


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
    most = max(1, rows.memory // (4 * rows.n * rows.dtype.itemsize))
    return int(rows.group.gather(torch.tensor([most])).min())


def _pick(weights: np.ndarray, places: np.ndarray, group: Group, rng: np.random.Generator) -> int:
    """One place among all processes' rows, drawn with the given weights; a process's places ascend."""
    upto = np.cumsum(weights)
    if group.size == 1:
        found = np.searchsorted(upto, rng.random() * upto[-1], side="right")
        return int(places[min(found, np.flatnonzero(weights)[-1])])  # rounding may run past the last row
    cumulative = np.concatenate([[0], upto])
    last = places[np.flatnonzero(weights)[-1]] if weights.any() else 0
    both = group.gather(torch.tensor([[cumulative[-1], last]], dtype=torch.float64), [1] * group.size)
    target = group.agree(rng.random() * float(both[:, 0].sum()))
    low, high = 0, int(both[:, 1].max())  # rounding may run past the last row that can be drawn
    while low < high:  # the first place up to which weights add up to more; many places are asked about in one message
        grid = np.unique(np.linspace(low, high - 1, _GRID).astype(np.int64))
        sums = group.sum(torch.from_numpy(cumulative[np.searchsorted(places, grid, side="right")]))
        found = int(np.searchsorted(sums.numpy(), target, side="right"))
        low, high = (grid[found - 1] + 1 if found else low), (grid[found] if found < len(grid) else high)
    return int(low)
