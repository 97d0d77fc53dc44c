"""Clusters of rows that were averaged with their neighbours: for categories that are wide, bent or of unequal size.

k-means draws borders half-way between centres, so that a category much wider than the others is cut into pieces. Here
rows first move towards their nearest neighbours, step by step, and labelled rows of a category as one: what hangs
together draws together, what is apart stays apart. Clusters are searched for there. Centres and offsets among the
features then keep rows where they were found, so that new rows are sorted by centres as ever. Where rows are many,
small groups of them stand for them; every process has them all. Shapes: n rows of a process, d dimensions, k clusters,
m nodes.
"""

from __future__ import annotations

from copy import deepcopy
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, diags_array, hstack
from torch import Tensor
from torch.nn.functional import cross_entropy

from selex.cluster.distributed.group import Group
from selex.cluster.kmeans import Problem
from selex.cluster.refine import without_empty
from selex.cluster.rows import Rows, count
from selex.cluster.search.swaps import ROWS, best_swapped, small_groups
from selex.cluster.search.unequal import Parts, merge_to_k, starting_clusters
from selex.types import Level

_NODES = 6000  # at most: so many take a second or two
_EACH = 10  # small groups for each cluster at least: fewer would join categories
_NEIGHBOURS = 10  # of each node
_SMOOTHINGS = 16  # steps towards them, each half of the way
_NOTHING = 1e-100  # what joins a node with itself
_SOFTNESS = 0.12  # of the mean squared distance, as in soft refinement
_HELD = 10  # rows that hold each centre at the mean of its cluster
_STEPS = 25  # towards borders between clusters


def best_smoothed(problem: Problem, rng: np.random.Generator, unequal: bool = False) -> Level:
    """Swaps among rows averaged with their neighbours; where sizes are unequal more clusters, of which some merge."""
    own, k, n_known = deepcopy(rng), problem.k, problem.n_known  # others draw as they would without it
    if not can_smooth(problem.rows.total, k):
        return best_swapped(problem, own)
    nodes = nodes_of(problem, own)
    graph = graph_of(problem, nodes)
    most = starting_clusters(k, n_known, len(graph.means) - n_known) if unequal else k
    found = best_swapped(smoothed(problem, nodes, graph, most), own)
    labels = torch.as_tensor(found.labels)
    if found.n_clusters > k:
        labels = merged(problem, nodes, graph, labels, found.n_clusters)
    return bordered(problem, nodes, labels)


def can_smooth(n: int, k: int) -> bool:
    """Whether n rows, or the small groups that stand for them, are enough for k clusters."""
    return k > 1 and (n <= _NODES or min(_NODES, n // ROWS) >= _EACH * k)


class Nodes(NamedTuple):
    """What stands for the rows of all processes: a row each, or small groups, labelled rows apart from others."""

    of: Tensor  # the node of each row of this process, (n,)
    means: Tensor  # (m, d), in centred coordinates
    sizes: Tensor  # rows of each, (m,)
    category: Tensor  # of each, -1 where its rows have no label, (m,)


def nodes_of(problem: Problem, rng: np.random.Generator) -> Nodes:
    """The nodes, numbered by what they hold: the order of the rows does not matter."""
    rows, kinds = problem.rows, problem.n_known + 1
    group = rows.first + torch.arange(rows.n, device=rows.device)
    if rows.total > _NODES:
        group = small_groups(rows, rng, _NODES)[0]
    mine = group * kinds + problem.known + 1
    every = torch.unique(rows.group.gather(mine))
    of = torch.searchsorted(every, mine)
    sums, sizes = rows.sums(of, len(every))
    means = sums / sizes[:, None]
    order = rows.group.agree(Rows(means, rows.memory).by_content())
    return Nodes(order.argsort()[of], means[order], sizes[order], (every % kinds - 1)[order])


class Graph(NamedTuple):
    """How known categories, each as one, and nodes without a label are joined with their neighbours; p in all."""

    links: csr_array  # (p, p)
    place: Tensor  # of each node, (m,)
    means: NDArray[np.float64]  # (p, d)
    near: csr_array  # how many labelled rows of each known category have each for a neighbour, (c, p)


def smoothed(problem: Problem, nodes: Nodes, graph: Graph, k: int) -> Problem:
    """The same problem, but for so many clusters, among rows that have moved towards their neighbours."""
    rows, values = problem.rows, graph.means
    walk = diags_array(1 / graph.links.sum(axis=1)) @ graph.links
    for _ in range(_SMOOTHINGS):
        values = (values + walk @ values) / 2
    moved = rows.group.agree(torch.from_numpy(values).to(nodes.means))
    made = rows.made(moved[graph.place[nodes.of]])
    return Problem(made, problem.known, problem.n_known, k - problem.n_known, problem.settings)


def graph_of(problem: Problem, nodes: Nodes) -> Graph:
    """The graph of nodes, labelled ones of a category as one, before all others.

    A node is joined with itself by next to nothing: it stays where it is if it has no neighbours.
    """
    n_known, free = problem.n_known, nodes.category < 0
    place = torch.where(free, n_known + free.cumsum(0) - 1, nodes.category)
    means = torch.cat([problem.mass[:n_known] / problem.counts[:n_known, None], nodes.means[free]])
    each = _neighbours(nodes.means, problem.rows.memory)
    links = _summed(each, place, len(means))
    apart = links - diags_array(links.diagonal()) + diags_array(np.full(len(means), _NOTHING))
    return Graph(csr_array(apart), place, means.double().cpu().numpy(), _near(each, nodes, place, n_known, len(means)))


def _near(links: csr_array, nodes: Nodes, place: Tensor, n_known: int, p: int) -> csr_array:
    """How many labelled rows of each known category have free nodes for neighbours, `(n_known, p)`: shares of each."""
    category, sizes = nodes.category.cpu().numpy(), nodes.sizes.cpu().numpy()
    labelled = np.flatnonzero(category >= 0)
    there = csr_array(links[labelled] @ _of(place.cpu().numpy(), p)[:, n_known:])
    each = diags_array(sizes[labelled] / np.maximum(there.sum(axis=1), _NOTHING)) @ there
    return csr_array(hstack([csr_array((n_known, n_known)), _of(category[labelled], n_known).T @ each]))


def merged(problem: Problem, nodes: Nodes, graph: Graph, labels: Tensor, m: int) -> Tensor:
    """The clusters of a problem's rows, `(n,)`, from these m: those with the most links are merged."""
    group, where = problem.rows.group, torch.zeros(len(graph.means), dtype=torch.long)
    theirs = labels_of(nodes, labels, group).cpu()
    where[graph.place.cpu()] = theirs
    sizes = count(theirs, m).numpy()
    means = np.zeros((m, graph.means.shape[1]))
    np.add.at(means, theirs.numpy(), nodes.means.double().cpu().numpy())
    means /= np.maximum(sizes, 1)[:, None]
    free = (nodes.sizes * (nodes.category < 0)).double().cpu().numpy() @ _of(theirs.numpy(), m)
    near = (graph.near @ _of(where.numpy(), m)).toarray()
    labelled = problem.counts[: problem.n_known].double().cpu().numpy()
    parts = Parts(_summed(graph.links, where, m).toarray(), sizes, means, free, near, labelled)
    found = merge_to_k(parts, problem.k)
    return group.agree(torch.from_numpy(found).to(labels))[labels]


def _summed(links: csr_array, number: Tensor, m: int) -> csr_array:
    """The links between m groups of what they join, by their numbers."""
    of = _of(number.cpu().numpy(), m)
    return csr_array(of.T @ links @ of)


def _of(number: NDArray[np.int64], m: int) -> csr_array:
    """Which of m groups each belongs to, `(n, m)`."""
    return csr_array((np.ones(len(number)), (np.arange(len(number)), number)), shape=(len(number), m))


def _neighbours(means: Tensor, memory: int) -> csr_array:
    """How nodes are joined, `(m, m)`: by 1 with the nearest, 1/2 with the next and so on; the mean of both ways."""
    rows, m = Rows(means, memory), len(means)
    nearest = []
    step = rows.step(2 * m)
    for start in range(0, m, step):
        index = torch.arange(start, min(start + step, m), device=means.device)
        away = rows.distances(rows.take(slice(None)), index)
        away[torch.arange(len(index), device=means.device), index] = torch.inf
        nearest.append(away.topk(min(_NEIGHBOURS, m - 1), largest=False).indices)
    ends = torch.cat(nearest).cpu().numpy()
    starts = np.repeat(np.arange(m), ends.shape[1])
    weights = np.tile(1 / np.arange(1, ends.shape[1] + 1), m)
    there = csr_array((weights, (starts, ends.ravel())), shape=(m, m))
    return (there + there.T) / 2


def bordered(problem: Problem, nodes: Nodes, labels: Tensor) -> Level:
    """The level of centres and offsets under which rows are where they are here, as far as flat borders can do it.

    Borders half-way between means are not those that were found. So centres are moved a little (logistic regression,
    each held at its mean as if by some rows), and with them the offsets, which leave clusters as large as they are
    here.
    """
    rows = problem.rows
    means = problem.means(labels[problem.free_index])
    inertia = float(rows.group.sum(rows.distances_to_own(means, labels).sum(dtype=torch.float64)))
    if not inertia:  # every row is where its centre is: no offset is needed, and no cluster may be lost
        return problem.ended(means)
    theirs = labels_of(nodes, labels, rows.group)
    both = _borders(nodes, theirs, means, _SOFTNESS * inertia / rows.total, rows.step(3 * problem.k))
    centers, offsets = (rows.group.agree(values) for values in both)
    found = problem.known.clone()
    found[problem.free_index] = problem.free.nearest(centers, offsets)[0]
    return without_empty(rows, found, centers, offsets, problem.n_known, 0)


def labels_of(nodes: Nodes, labels: Tensor, group: Group) -> Tensor:
    """The cluster of each node, from those of the rows of each process."""
    mine = torch.full_like(nodes.category, -1)
    mine[nodes.of] = labels
    return group.gather(mine[None]).amax(0)


def _borders(nodes: Nodes, labels: Tensor, means: Tensor, temperature: float, step: int) -> tuple[Tensor, Tensor]:
    """Centres near these means, `(k, d)`, and offsets, `(k,)`, under which nodes are likeliest where they are."""
    from scipy.optimize import minimize  # takes half a second to import

    start, sizes = means.double(), nodes.sizes.double()  # steps that single precision misleads end elsewhere
    blocks = [torch.split(part, step) for part in (nodes.means.double(), labels, sizes)]

    def unlikely(numbers: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        both = torch.from_numpy(numbers).to(start).reshape(len(start), -1)
        moves, offsets = both[:, :-1], both[:, -1]
        centers = start + moves
        lead, sums, counts = offsets - (centers * centers).sum(1), torch.zeros_like(start), torch.zeros_like(offsets)
        cost = _HELD * moves.square().sum() / temperature
        for x, where, times in zip(*blocks, strict=True):
            odds = torch.addmm(lead, x, centers.T, alpha=2) / temperature
            cost += (cross_entropy(odds, where, reduction="none") * times).sum()
            beyond = odds.softmax(1)
            beyond[torch.arange(len(x), device=x.device), where] -= 1
            beyond *= times[:, None]
            sums.addmm_(beyond.T, x)
            counts += beyond.sum(0)
        slope = 2 * (sums - counts[:, None] * centers + _HELD * moves)
        slopes = torch.cat([slope, counts[:, None]], 1) / temperature
        return float(cost), slopes.cpu().numpy().ravel()

    flat = np.zeros(means.shape[0] * (means.shape[1] + 1))
    found = minimize(unlikely, flat, jac=True, method="L-BFGS-B", options={"maxiter": _STEPS}).x
    both = torch.from_numpy(found).to(start).reshape(len(start), -1)
    offsets = both[:, -1] - both[:, -1].mean()
    return (start + both[:, :-1]).to(means), offsets.to(means)
