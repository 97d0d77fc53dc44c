"""New rows into known clusters: which one, how sure, what else it could be, and whether it fits at all.

Shapes: n rows, d dimensions, k clusters, b rows of a block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from torch import Tensor

from selex.cluster.rows import DEFAULT_MEMORY, Rows, count
from selex.types import UNLABELLED, Level

Floats = NDArray[np.float32]
_SPREADS = (
    3.0  # a row fits if it is no farther than the mean distance of its cluster's rows plus so many of their spreads
)
_FEW = 10  # rows; a smaller cluster borrows the spread of all


@dataclass(frozen=True)
class Assignment:
    """Where rows go, one entry a row.

    Attributes:
        labels: the cluster.
        confidence: probability of that cluster among all, in [0, 1].
        runner_up: the next best cluster, -1 where there is only one.
        distances: distance to the cluster's centre.
        fits: whether that distance is usual for the cluster; where not, the row belongs to nothing that is known.
    """

    labels: NDArray[np.int64]
    confidence: Floats
    runner_up: NDArray[np.int64]
    distances: Floats
    fits: NDArray[np.bool_]


@dataclass(frozen=True)
class Assigner:
    """Clusters ready to take new rows.

    Confidence is a softmax over minus squared distances to the centres, divided by `temperature`. The temperature is
    the one under which the labelled rows are likeliest to have their own labels, each looked at as if it had not been
    there when its centre was worked out.

    Attributes:
        centers: centre of every cluster, `(k, d)`.
        reach: distance up to which a row fits each cluster, `(k,)`.
        temperature: squared distance over which the odds between two clusters change by a factor of e.
    """

    centers: Floats
    reach: Floats
    temperature: float

    def __call__(self, data: Any, labels: Any = None, memory: int = DEFAULT_MEMORY) -> Assignment:
        """Assign rows to their nearest cluster, or judge the `labels` that they have already."""
        rows = Rows(data, memory)
        centers = torch.as_tensor(self.centers).to(rows.device, rows.dtype) - rows.shift
        own = rows.nearest(centers)[0] if labels is None else torch.as_tensor(labels).to(rows.device)
        confidence, runner_up, squared = _judge(rows, centers, own, self.temperature)
        distances = squared.sqrt().float().cpu().numpy()
        found = own.cpu().numpy()
        return Assignment(found, confidence, runner_up, distances, distances <= self.reach[found])


def fit_assigner(data: Any, level: Level, labels: Any, memory: int = DEFAULT_MEMORY) -> Assigner:
    """The assigner of a clustering; `labels` holds the known category of each row, -1 where it has none."""
    rows = Rows(data, memory)
    centers = torch.as_tensor(level.centers).to(rows.device, rows.dtype) - rows.shift
    clusters, known = (torch.as_tensor(ids).to(rows.device) for ids in (level.labels, labels))
    own = rows.distances_to_own(centers, clusters)
    temperature = _temperature(rows, centers, clusters, known)
    return Assigner(
        np.asarray(torch.as_tensor(level.centers).float().cpu()),
        _reach(own.sqrt(), clusters, len(centers)),
        temperature,
    )


def _judge(rows: Rows, centers: Tensor, own: Tensor, temperature: float) -> tuple[Floats, NDArray[np.int64], Tensor]:
    """Probability of each row's own cluster, the best other one, and the squared distance to its own."""
    confidence, runner_up, squared = [], [], []
    step = rows.step(3 * len(centers))
    for start in range(0, rows.n, step):
        part = slice(start, min(start + step, rows.n))
        to_all = rows.distances(centers, part)
        mine = own[part, None]
        confidence.append((-to_all / temperature).softmax(1).gather(1, mine)[:, 0])
        squared.append(to_all.gather(1, mine)[:, 0])
        others = to_all.scatter(1, mine, torch.inf)
        runner_up.append(others.argmin(1) if len(centers) > 1 else torch.full_like(mine[:, 0], UNLABELLED))
    return torch.cat(confidence).float().cpu().numpy(), torch.cat(runner_up).cpu().numpy(), torch.cat(squared)


def _temperature(rows: Rows, centers: Tensor, clusters: Tensor, known: Tensor) -> float:
    """Fitted to the labelled rows; without any, the gap between first and second cluster that is usual."""
    held = torch.nonzero(known != UNLABELLED)[:, 0][:20_000]  # plenty for one number
    sample = held if len(held) else torch.arange(min(rows.n, 20_000), device=rows.device)
    if len(centers) < 2:
        return 1.0
    to_all = rows.at(sample).distances(centers)
    two = to_all.topk(2, largest=False).values
    usual = float((two[:, 1] - two[:, 0]).median().clamp(min=torch.finfo(rows.dtype).tiny))
    if not len(held):
        return usual
    mine = clusters[sample, None]
    size = count(clusters, len(centers))[mine].to(rows.dtype)
    # a centre without the row itself is farther from it, by n / (n - 1)
    alone = torch.where(size > 1, (size / (size - 1).clamp(min=1)).square(), 4.0)
    to_all = to_all.scatter(1, mine, to_all.gather(1, mine) * alone).double()

    def unlikely(power: float) -> float:
        return float(-(-to_all / (usual * 2.0**power)).log_softmax(1).gather(1, mine).mean())

    power = float(minimize_scalar(unlikely, bounds=(-8, 8), method="bounded").x)
    return float(usual * 2**power)


def _reach(distances: Tensor, clusters: Tensor, k: int) -> Floats:
    own, ids = distances.double().cpu().numpy(), clusters.cpu().numpy()
    sizes = np.bincount(ids, minlength=k)
    mean = np.bincount(ids, own, minlength=k) / np.maximum(sizes, 1)
    variance = np.bincount(ids, (own - mean[ids]) ** 2, minlength=k)
    pooled = variance.sum() / max(len(own) - k, 1)
    spread = np.sqrt(np.where(sizes >= _FEW, variance / np.maximum(sizes - 1, 1), pooled))
    mean = np.where(sizes >= _FEW, mean, np.maximum(mean, own.mean()))
    return (mean + _SPREADS * spread).astype(np.float32)
