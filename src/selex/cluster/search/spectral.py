"""Clusters from a graph of neighbours, cut where it is thin: for categories that are wide, bent or of unequal size.

k-means draws borders half-way between centres, so that a category much wider than the others is cut into pieces. Here
rows are joined with their nearest neighbours, and clusters are made among the leading eigenvectors of that graph
(normalised cut); centres and offsets then keep rows where they were found, so that new rows are sorted by centres as
ever. Where rows are many, small groups of them stand for them. Shapes: n rows, d dimensions, k clusters, m nodes.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, diags_array
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import ArpackNoConvergence, eigsh
from torch import Tensor
from torch.nn.functional import cross_entropy

from selex.cluster.kmeans import Problem, Settings
from selex.cluster.refine import without_empty
from selex.cluster.rows import Rows
from selex.cluster.search.swaps import ROWS, small_groups, swapped
from selex.types import Level

_NODES = 6000  # at most: so many take a second or two
_NEIGHBOURS = {True: 20, False: 10}  # of each node, where labelled rows of a category are joined and where not
_EACH = 10  # nodes for each cluster at least: fewer make no graph to speak of, and eigenvectors are dear
_SMALL = 200  # nodes of a part whose eigenvectors are all worked out
_DIGITS = 9  # of eigenvalues; what differs by less is equal
_STARTS = 3  # of k-means among eigenvectors
_SOFTNESS = 0.12  # of the mean squared distance, as in soft refinement
_HELD = 10  # rows that hold each centre at the mean of its cluster
_STEPS = 25  # towards borders between clusters


def can_cut(n: int, k: int) -> bool:
    """Whether n rows make a graph that can be cut into k clusters."""
    nodes = n if n <= _NODES else min(_NODES, n // ROWS)
    return k > 1 and nodes >= _EACH * k


def from_spectral(problem: Problem, rng: np.random.Generator, joined: bool = True) -> Level:
    """Clusters of the graph of neighbours. Without enough rows: BSSK.

    `joined` makes the labelled rows of a category one node of the graph; otherwise it is a graph of the rows alone.
    """
    if not can_cut(problem.rows.n, problem.k):
        return problem.solve(rng)
    try:
        seen = Rows(eigenvectors(problem, rng, joined), problem.rows.memory)
    except ArpackNoConvergence:
        return problem.solve(rng)
    settings = Settings(balanced=False, n_iter=problem.settings.n_iter, n_init=_STARTS)
    cut = Problem(seen, problem.known, problem.n_known, problem.k - problem.n_known, settings)
    labels = torch.as_tensor(swapped(cut, cut.best(rng)).labels)
    return as_cut(problem, labels)


def eigenvectors(problem: Problem, rng: np.random.Generator, joined: bool) -> Tensor:
    """The leading k of the graph at each row, `(n, k)`, as random walks see them."""
    node, means = _nodes(problem, rng, joined)
    graph, place = _neighbours(means, _NEIGHBOURS[joined], problem.rows.memory), node
    if joined:
        graph, place = _contracted(graph, problem, node)
    degrees = np.maximum(np.asarray(graph.sum(axis=1)).ravel(), np.finfo(float).tiny)
    root = diags_array(1 / np.sqrt(degrees))
    walked = np.asarray(root @ _leading(csr_array(root @ graph @ root), problem.k), dtype=np.float32)
    return torch.from_numpy(walked / walked.std()).to(problem.rows.device)[place]


def _leading(matrix: csr_array, k: int) -> NDArray[np.float64]:
    """The k leading eigenvectors, `(m, k)`, part by part: a search through all would find one of several equal ones.

    Of equal ones, those of the largest parts come first.
    """
    n_parts, part = connected_components(matrix)
    found = []
    for number in range(n_parts):
        index = np.flatnonzero(part == number)
        values, vectors = _of_part(matrix[index][:, index], min(k, len(index)))
        found += [(round(value, _DIGITS), index, vector) for value, vector in zip(values, vectors.T, strict=True)]
    found.sort(key=lambda one: (-one[0], -len(one[1])))
    leading = np.zeros((matrix.shape[0], k))
    for column, (_, index, vector) in enumerate(found[:k]):
        leading[index, column] = vector
    return leading


def _of_part(matrix: csr_array, k: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    m = matrix.shape[0]
    if m <= max(_SMALL, 3 * k):
        values, vectors = np.linalg.eigh(matrix.toarray())
        return values[-k:], vectors[:, -k:]
    values, vectors = eigsh(matrix, k=k, which="LA", v0=np.random.default_rng(0).random(m))
    return values, vectors


def _nodes(problem: Problem, rng: np.random.Generator, apart: bool) -> tuple[Tensor, Tensor]:
    """The node of every row and the means of nodes: a row each, or small groups, labelled rows `apart` from others.

    They are numbered by what they hold, so that the order of the rows does not matter.
    """
    rows = problem.rows
    group = torch.arange(rows.n, device=rows.device)
    if rows.n > _NODES:
        group = small_groups(rows, rng, _NODES)[0]
    if apart:
        group = group * (problem.n_known + 1) + problem.known + 1
    node = torch.unique(group, return_inverse=True)[1]
    sums, counts = rows.sums(node, int(node.max()) + 1)
    means = sums / counts[:, None]
    order = Rows(means, rows.memory).by_content()
    return order.argsort()[node], means[order]


def _neighbours(means: Tensor, many: int, memory: int) -> csr_array:
    """How nodes are joined, `(m, m)`: with 1 where each is among the nearest of the other, 0.5 where one is."""
    rows, m = Rows(means, memory), len(means)
    nearest = []
    step = rows.step(2 * m)
    for start in range(0, m, step):
        index = torch.arange(start, min(start + step, m), device=means.device)
        away = rows.distances(rows.take(slice(None)), index)
        away[torch.arange(len(index), device=means.device), index] = torch.inf
        nearest.append(away.topk(min(many, m - 1), largest=False).indices)
    ends = torch.cat(nearest).cpu().numpy()
    starts = np.repeat(np.arange(m), ends.shape[1])
    joined = csr_array((np.ones(ends.size), (starts, ends.ravel())), shape=(m, m))
    return (joined + joined.T) / 2


def _contracted(graph: csr_array, problem: Problem, node: Tensor) -> tuple[csr_array, Tensor]:
    """The graph with one node for each known category, before all others; and the node of every row in it."""
    category = torch.full((graph.shape[0],), -1, device=node.device)
    category[node] = problem.known
    free = category < 0
    number = torch.where(free, problem.n_known + free.cumsum(0) - 1, category)
    m, to = problem.n_known + int(free.sum()), number.cpu().numpy()
    merge = csr_array((np.ones(len(to)), (np.arange(len(to)), to)), shape=(len(to), m))
    return merge.T @ graph @ merge, number[node]


def as_cut(problem: Problem, labels: Tensor) -> Level:
    """The level of centres and offsets under which rows are where they are here, as far as flat borders can do it.

    Borders half-way between means are not those of the cut. So centres are moved a little (logistic regression, each
    held at its mean as if by some rows), and with them the offsets, which leave clusters as large as they are here.
    """
    means = problem.means(labels[problem.free_index])
    inertia = float(problem.rows.distances_to_own(means, labels).sum(dtype=torch.float64))
    if not inertia:  # every row is where its centre is: no offset is needed, and no cluster may be lost
        return problem.ended(means)
    centers, offsets = _borders(problem.rows, labels, means, _SOFTNESS * inertia / problem.rows.n)
    found = problem.known.clone()
    found[problem.free_index] = problem.free.nearest(centers, offsets)[0]
    return without_empty(problem.rows, found, centers, offsets, problem.n_known, 0)


def _borders(rows: Rows, labels: Tensor, means: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Centres near these means, `(k, d)`, and offsets, `(k,)`, under which rows are likeliest where they are."""
    from scipy.optimize import minimize  # takes half a second to import

    def unlikely(numbers: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        both = torch.from_numpy(numbers).to(means).reshape(len(means), -1)
        moves, offsets = both[:, :-1], both[:, -1]
        centers = means + moves
        lead, sums, counts = offsets - (centers * centers).sum(1), torch.zeros_like(means), torch.zeros_like(offsets)
        cost = _HELD * moves.square().sum(dtype=torch.float64) / temperature
        for part, x in rows.blocks(3 * len(means)):
            odds = torch.addmm(lead, x, centers.T, alpha=2) / temperature
            cost += cross_entropy(odds, labels[part], reduction="sum").double()
            beyond = odds.softmax(1)
            beyond[torch.arange(len(x), device=x.device), labels[part]] -= 1
            sums.addmm_(beyond.T, x)
            counts += beyond.sum(0)
        slope = 2 * (sums - counts[:, None] * centers + _HELD * moves)
        slopes = torch.cat([slope, counts[:, None]], 1).double() / temperature
        return float(cost), slopes.cpu().numpy().ravel()

    start = np.zeros(means.shape[0] * (means.shape[1] + 1))
    found = minimize(unlikely, start, jac=True, method="L-BFGS-B", options={"maxiter": _STEPS}).x
    both = torch.from_numpy(found).to(means).reshape(len(means), -1)
    return means + both[:, :-1], both[:, -1] - both[:, -1].mean()
