"""New rows into known clusters: which one, with what confidence, what else it could be, and whether it fits at all.

Shapes: n rows, d dimensions, k clusters, b rows of a block.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from selex.cluster.rows import DEFAULT_MEMORY, Rows, as_rows, count
from selex.types import UNLABELLED, Level

Floats = NDArray[np.float32]
FALSE_ALARMS = 0.02
"""Share of rows that belong to a cluster and are said to fit nothing all the same."""
SUREST = 1 - 1e-4
"""Most that a probability counts before its log-odds are shifted: whatever is added to those, 1 would stay 1."""
_ROUNDING = np.float32(1e-4)  # of the length of a row: copies of an image are never so far apart
_SAMPLE = 20_000  # rows; plenty for one number
_OF_GAP = 0.3  # the temperature as a share of the usual gap between the nearest two clusters, if labels do not tell
_BELIEF = 10.0  # how firmly that is believed: what a few labels say counts as much


@dataclass(frozen=True)
class Assignment:
    """The clusters of rows, one entry per row."""

    labels: NDArray[np.int64]  # the cluster
    confidence: Floats  # the probability that it is right, in [0, 1]
    runner_up: NDArray[np.int64]  # the next best cluster, -1 where there is only one
    distances: Floats  # distance to the cluster's centre
    fits: NDArray[np.bool_]  # whether that distance is usual for the cluster; if not, the row fits no cluster
    others: Floats  # squared distance to the nearest other centre, infinite where there is none

    def rows(self, part: slice | NDArray[np.int64]) -> Assignment:
        """That of some rows."""
        return Assignment(*(getattr(self, entry.name)[part] for entry in fields(self)))


class Calibration(NamedTuple):
    """How confidence is computed from distances."""

    temperature: float  # squared distance over which the odds between two clusters change by a factor of e
    share: float = 1.0  # what probabilities of known clusters are multiplied by, 1 at most: novel rows are there too
    shift: float = 0.0  # what is added to the log-odds of known clusters before that, 0 at most, for the same reason
    shifts: tuple[float, ...] = ()  # what is added to those of each in place of both, if labels tell sizes; any number

    def adjusted(self, confidence: Floats, clusters: NDArray[np.int64]) -> Floats:
        """Confidence in these known clusters, from the probability among all clusters.

        It can be lower or higher where each cluster has a shift of its own, else only lower.
        """
        if self.shifts:
            factors = np.exp(np.array(self.shifts, dtype=np.float32))[clusters]
            return _shifted(np.minimum(confidence, np.float32(SUREST)), factors)
        return np.float32(self.share) * _shifted(confidence, np.exp(np.float32(self.shift)))


def _shifted(confidence: Floats, factor: Floats | np.float32) -> Floats:
    """Probabilities whose odds are multiplied by a factor."""
    return factor * confidence / (1 - (1 - factor) * confidence)


@dataclass(frozen=True)
class Assigner:
    """Clusters ready to take new rows.

    Confidence is a softmax over minus squared distances to the centres, less the clusters' `offsets`, divided by the
    temperature. In known clusters it is adjusted: it can be lower or higher. The temperature is the one under which
    labelled rows are likeliest to have their own labels, each of them scored leave-one-out, or held out.
    """

    centers: Floats  # centre of every cluster, (k, d)
    reach: Floats  # distance up to which a row fits each cluster, (k,)
    calibration: Calibration  # the temperature, and how confidence is adjusted in known clusters
    offsets: Floats | None = None  # what is taken off squared distances to each centre, (k,); None takes nothing
    margins: NDArray[np.float64] | None = (
        None  # how distinct clusters are, (k, 3), see `margins_of`; None: not computed
    )
    n_known: int = 0  # how many clusters are known categories; they come first

    @property
    def temperature(self) -> float:
        """That of the softmax."""
        return self.calibration.temperature

    def __call__(self, data: Any, labels: Any = None, memory: int = DEFAULT_MEMORY) -> Assignment:
        """Assign rows to their nearest cluster, or judge the `labels` that they have already."""
        places = torch.as_tensor(self.centers)
        data = data.own() if isinstance(data, Rows) else data
        rows = Rows(data, memory, places.mean(0))  # not the mean of the rows: no row's answer depends on the others
        centers, offsets = places.to(rows.device, rows.dtype) - rows.shift, offsets_of(self, rows)
        own = rows.nearest(centers, offsets)[0] if labels is None else torch.as_tensor(labels).to(rows.device)
        confidence, runner_up, others = _judge(rows, centers, offsets, own, self.temperature)
        distances = rows.distances_to_own(centers, own).sqrt_().float().cpu().numpy()
        found = own.cpu().numpy()
        known = found < self.n_known
        confidence[known] = self.calibration.adjusted(confidence[known], found[known])
        return Assignment(found, confidence, runner_up, distances, distances <= self.reach[found], others)

    def probabilities(self, data: Any, memory: int = DEFAULT_MEMORY) -> Floats:
        """Probability of every cluster for each row, `(n, k)`: how they compare, whether or not one is right."""
        places = torch.as_tensor(self.centers)
        rows = Rows(data, memory, places.mean(0))
        centers, offsets = places.to(rows.device, rows.dtype) - rows.shift, offsets_of(self, rows)
        return probabilities(rows, centers, offsets, self.temperature).float().cpu().numpy()


def fit_assigner(
    data: Any, level: Level, labels: Any, memory: int = DEFAULT_MEMORY, calibration: Calibration | None = None
) -> Assigner:
    """The assigner of a clustering; `labels` holds the known category of each row, -1 where it has none.

    They tell the temperature, where no calibration is given.
    """
    rows = as_rows(data, memory)
    centers = torch.as_tensor(level.centers).to(rows.device, rows.dtype) - rows.shift
    clusters, known = (torch.as_tensor(ids).to(rows.device) for ids in (level.labels, labels))
    factors = _apart(clusters, len(centers), rows)
    own = (rows.distances_to_own(centers, clusters) * factors).sqrt()
    places = np.asarray(torch.as_tensor(level.centers).float().cpu())
    return Assigner(
        places,
        at_least_rounding(_reach(own[factors > 0], len(centers), rows), places),
        calibration or Calibration(_temperature(rows, centers, offsets_of(level, rows), clusters, known, factors)),
        None if level.offsets is None else np.asarray(torch.as_tensor(level.offsets).float().cpu()),
        n_known=level.n_known,
    )


def offsets_of(level: Level | Assigner, rows: Rows) -> Tensor:
    """Offsets of clusters beside the rows; where there are none, a 0 for all clusters."""
    return torch.as_tensor(0.0 if level.offsets is None else level.offsets).to(rows.device, rows.dtype)


def probabilities(rows: Rows, centers: Tensor, offsets: Tensor, temperature: float) -> Tensor:
    """Probability of every cluster for each row, `(n, k)`, by its centre among rows and what is taken off for it."""
    step = rows.step(3 * len(centers))
    parts = (slice(start, min(start + step, rows.n)) for start in range(0, max(rows.n, 1), step))  # none may be here
    return torch.cat([_softmax(rows.distances(centers, part) - offsets, temperature) for part in parts])


def _softmax(to_all: Tensor, temperature: float) -> Tensor:
    return (-to_all / temperature).softmax(1)


def _judge(
    rows: Rows, centers: Tensor, offsets: Tensor, own: Tensor, temperature: float
) -> tuple[Floats, NDArray[np.int64], Floats]:
    """Probability of each row's own cluster, the best other one, and the squared distance to the nearest other one."""
    confidence, runner_up, distances = [], [], []
    step = rows.step(3 * len(centers))
    for start in range(0, rows.n, step):
        part = slice(start, min(start + step, rows.n))
        to_all, mine = rows.distances(centers, part), own[part, None]
        confidence.append(_softmax(to_all - offsets, temperature).gather(1, mine)[:, 0])
        others = to_all.scatter(1, mine, torch.inf)
        distances.append(others.min(1).values)
        others -= offsets
        runner_up.append(others.argmin(1) if len(centers) > 1 else torch.full_like(mine[:, 0], UNLABELLED))
    sure, far = (torch.cat(parts).float().cpu().numpy() for parts in (confidence, distances))
    return sure, torch.cat(runner_up).cpu().numpy(), far


def margins_of(found: Assignment, free: NDArray[np.bool_], k: int) -> NDArray[np.float64]:
    """Of the rows that are `free` in each cluster, `(k, 3)`: how many they are, and the sums of their squared distances
    to their own centre and to the nearest other one.
    """
    own = found.labels[free]
    sums = (np.bincount(own, weights, k) for weights in (found.distances[free].astype(float) ** 2, found.others[free]))
    return np.stack([np.bincount(own, minlength=k), *sums], axis=1).astype(np.float64)


def reach_of(own: NDArray[Any], clusters: NDArray[Any], k: int) -> Floats:
    """The distance up to which a row fits each cluster, from the distances `own` of rows to their centres."""
    sizes = np.bincount(clusters, minlength=k)[clusters].astype(float)
    several = sizes > 1
    return _usual_reach(own[several] * sizes[several] / (sizes[several] - 1), k)


def at_least_rounding(reach: Floats, centers: Floats) -> Floats:
    """A reach within which copies of an image are, however close the rows of a cluster are."""
    return np.maximum(reach, _ROUNDING * np.linalg.norm(centers, axis=1).max())


def _apart(clusters: Tensor, k: int, rows: Rows) -> Tensor:
    """By what to multiply each row's squared distance to its centre, as if the row had not helped to make the centre.

    Without one of its n rows a centre is n / (n - 1) times as far from that row. A row alone gets 0: nothing is known.
    """
    sizes = rows.group.sum(count(clusters, k))[clusters].double()
    return (sizes / (sizes - 1)).square().nan_to_num(posinf=0)


def _temperature(
    rows: Rows, centers: Tensor, offsets: Tensor, clusters: Tensor, known: Tensor, factors: Tensor
) -> float:
    """Fitted to the labelled rows; without any, a share of the gap between first and second cluster that is usual."""
    held = torch.nonzero((known != UNLABELLED) & (factors > 0))[:, 0]
    nobody = rows.group.all(not len(held))
    sample = sampled(torch.arange(rows.n, device=rows.device) if nobody else held, rows, len(centers))
    if len(centers) < 2:
        return 1.0
    to_all = rows.group.gather(rows.at(sample).distances(centers).double())
    usual = _usual_gap(to_all - offsets)
    if nobody:
        return _OF_GAP * usual
    mine = rows.group.gather(clusters[sample, None])
    to_all = to_all.scatter(1, mine, to_all.gather(1, mine) * rows.group.gather(factors[sample, None]))
    return _likeliest(to_all - offsets, mine, usual)


def likeliest_temperature(rows: Rows, level: Level, index: Tensor, own: Tensor) -> float:
    """The temperature under which the rows of `index` are likeliest to be in their `own` clusters."""
    centers = torch.as_tensor(level.centers).to(rows.device, rows.dtype) - rows.shift
    some = sampled(torch.arange(len(index), device=rows.device), rows, len(centers))
    to_all = rows.group.gather((rows.at(index[some]).distances(centers) - offsets_of(level, rows)).double())
    return _likeliest(to_all, rows.group.gather(own[some, None]), _usual_gap(to_all))


def sampled(index: Tensor, rows: Rows, k: int) -> Tensor:
    """Some of these rows, as many as are plenty and fit in memory; evenly, as rows often come sorted by category.

    Rows count through all processes: the sample is the one of a single process.
    """
    most = min(_SAMPLE, max(1, rows.memory // (64 * k)))
    lengths = rows.group.gather(torch.tensor([len(index)], device=index.device))
    every, before = -(-int(lengths.sum()) // most), int(lengths[: rows.group.rank].sum())
    return index[-before % every :: every] if every else index


def _usual_gap(to_all: Tensor) -> float:
    """By how much the second cluster is usually farther than the first, from squared distances `(n, k)`."""
    two = to_all.topk(2, largest=False).values
    gaps = (two[:, 1] - two[:, 0])[two[:, 1] > two[:, 0]]
    return float(gaps.median()) if len(gaps) else 1.0


def _likeliest(to_all: Tensor, own: Tensor, usual: float) -> float:
    """The temperature under which rows are likeliest in their own clusters `(n, 1)`.

    Beforehand its logarithm is taken to be normal around a share of the `usual` gap: a few rows say little.
    """
    expected = _OF_GAP * usual

    def unlikely(power: float) -> float:
        likely = (-to_all / (expected * 2.0**power)).log_softmax(1).gather(1, own).sum()
        return float(_BELIEF * power**2 / 2 - likely)

    from scipy.optimize import minimize_scalar  # only here: it takes half a second to import

    power = float(minimize_scalar(unlikely, bounds=(-8, 8), method="bounded").x)
    return float(expected * 2**power)


def _reach(distances: Tensor, k: int, rows: Rows) -> Floats:
    """The reach, from distances of the rows of this process, and of those of the others."""
    return _usual_reach(rows.group.gather(distances).double().cpu().numpy(), k)


def _usual_reach(own: NDArray[np.float64], k: int) -> Floats:
    """The distance that a promised share of rows exceeds; one for all clusters, as that tells strangers best."""
    share = min(1.0, (1 - FALSE_ALARMS) * (len(own) + 1) / max(len(own), 1))  # as a new row would be the next of them
    return np.full(k, np.quantile(own, share, method="higher") if len(own) else np.inf, dtype=np.float32)
