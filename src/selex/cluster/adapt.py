"""A linear map under which rows that many clusterings agree on come together: training, on features as they are.

A third of the pairs that share a cluster do not belong together; of the pairs that most of many quick clusterings put
together, few. With these as positives a linear map is trained by the supervised contrastive loss, starting from
the identity; the agreement is then taken again, and the map trained anew. n rows, d dims, b rows of a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from selex.cluster.distributed.group import ALONE, Group
from selex.cluster.rows import DEFAULT_MEMORY, Rows, as_rows
from selex.cluster.search.consensus import agreement, agreement_runs
from selex.cluster.whiten import Whitener
from selex.errors import InputError

ROUNDS = 2
"""How often the agreement is taken, and the map trained by it."""
RUNS = 20
"""Clusterings that vote."""
AGREED = 0.85
"""Share of the votes from which on two rows are a positive pair."""
FEW, AGREED_OF_FEW = 3000, 0.7
"""With fewer rows than these, so many of the votes: too few pairs would be left, and the map would drive rows apart.
`"auto"` does not adapt these: it takes minutes, and that it helps is not shown."""
EPOCHS, BATCH, LR, TEMPERATURE, DROPOUT = 10, 512, 1e-3, 0.1, 0.2
FEWEST_STEPS, MOST_STEPS = 150, 3000
"""Steps of a round for few rows, and for many: the map has `d × d` numbers either way."""


def adapt(
    features: Any,
    labels: Any,
    n_clusters: int,
    whitener: Whitener | None = None,
    *,
    balanced: bool = True,
    rng: np.random.Generator | int | None = None,
    memory: int = DEFAULT_MEMORY,
    progress: Callable[[int, int], None] | None = None,
) -> Whitener:
    """What whitens features and then maps them so that rows of one category come together, as one linear map.

    Args:
        features: `n × d` features: numpy (also memory-mapped) or torch on any device.
        labels: per row a known category `0 … n_known - 1` or -1; None if no row is labelled.
        n_clusters: K, known and novel together.
        whitener: what whitens them; None takes them as they are, L2-normalised.
        balanced: limit the sizes of the clusters that vote.
        rng: generator or seed.
        memory: bytes that temporary arrays may take.
        progress: called before each epoch with the epochs done and the epochs in all.

    Returns:
        The map, of the same kind as the whitener: rows in, L2-normalised rows out.
    """
    generator = np.random.default_rng(rng)
    spread = features if isinstance(features, Rows) else None
    whitened = whitener(features) if whitener else features
    seen = as_rows(whitened, memory)
    order, places = seen.ranked()  # batches hold the same rows wherever these stand
    given = seen.mapped(lambda x: x).own()[order] if spread else _taken(whitened, order)
    rows = normalize(given.float(), dim=1)
    known = None if labels is None else torch.as_tensor(labels).to(rows.device)[order]
    matrix = torch.eye(rows.shape[1], device=rows.device)
    how: dict[str, Any] = {"balanced": balanced, "rng": generator, "memory": memory}
    for turn in range(ROUNDS):
        mapped = normalize(rows @ matrix, dim=1)
        runs = agreement_runs(spread.made(mapped) if spread else mapped, known, n_clusters, RUNS, **how)
        matrix = train_map(rows, runs, generator, _after(progress, turn * EPOCHS), places, seen.group)
    if whitener is None:
        return Whitener(torch.zeros_like(matrix[0]), matrix)
    return Whitener(whitener.mean, whitener.matrix.to(matrix) @ matrix)  # rows are normalised once, after both


class _Drawn(NamedTuple):
    """Rows in an order by what they hold, the clusters that each run put them into, and their places among all."""

    rows: Tensor  # those of this process, (n, d)
    runs: Tensor  # their clusters, (r, n)
    places: Tensor | None  # their places among the rows of all processes; None where there is one
    group: Group  # these

    def at(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """The rows at some places and their clusters, from whichever process has them."""
        if self.places is None or self.group.size == 1:
            return self.rows[places], self.runs[:, places]
        row = torch.searchsorted(self.places, places).clamp(max=max(len(self.rows) - 1, 0))
        here = torch.nonzero(self.places[row] == places)[:, 0] if len(self.rows) else places[:0]
        rows = self.rows.new_zeros(len(places), self.rows.shape[1])
        runs = self.runs.new_zeros(len(self.runs), len(places))
        rows[here], runs[:, here] = self.rows[row[here]], self.runs[:, row[here]]
        return self.group.sum(rows), self.group.sum(runs)


def _taken(features: Any, order: torch.Tensor) -> torch.Tensor:
    """Rows in this order, copied before torch sees them: a mapped file can only be read."""
    return features[order] if isinstance(features, torch.Tensor) else torch.from_numpy(features[order.cpu().numpy()])


def train_map(
    rows: Tensor,
    runs: Any,
    rng: np.random.Generator,
    progress: Callable[[int], None],
    places: Tensor | None = None,
    group: Group = ALONE,
) -> Tensor:
    """The map `(d, d)` of one round, from the identity on; the same in every process of the group."""
    among = _Drawn(rows, torch.as_tensor(runs), places, group)
    n, d = int(group.sum(torch.tensor(len(rows)))), rows.shape[1]
    batch, least = min(BATCH, n), AGREED if n >= FEW else AGREED_OF_FEW
    per_epoch = min(max(n // batch, FEWEST_STEPS // EPOCHS), MOST_STEPS // EPOCHS)
    draws = torch.Generator().manual_seed(int(rng.integers(1 << 62)))  # on the CPU: the same for every device
    matrix = torch.eye(d, device=rows.device, requires_grad=True)
    optimizer = torch.optim.Adam([matrix], lr=LR)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    for epoch in range(EPOCHS):
        progress(epoch)
        for _ in range(per_epoch):
            drawn = torch.randperm(n, generator=draws)[:batch].to(rows.device)
            kept = (torch.rand(2 * batch, d, generator=draws) >= DROPOUT).to(rows.device)
            shown, agreed = among.at(drawn)
            views = normalize((shown.repeat(2, 1) * kept) @ matrix, dim=1)
            loss = weighted_contrastive(views, positives(agreed, agreed, least).repeat(2, 2), TEMPERATURE)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        schedule.step()
    return group.agree(matrix.detach())


def _after(progress: Callable[[int, int], None] | None, done: int) -> Callable[[int], None]:
    """Progress of one round, as that of all."""
    return lambda epoch: progress(done + epoch, ROUNDS * EPOCHS) if progress else None


def weighted_contrastive(embeddings: Tensor, weights: Tensor, temperature: float) -> Tensor:
    """Rows attract each other by the weight of their pair: the supervised contrastive loss with soft positives.

    Args:
        embeddings: `b × d` rows, L2-normalised.
        weights: `b × b`, 0 for a negative pair; entries of rows with themselves are not read.
        temperature: cosines are divided by it.

    Returns:
        The mean over rows of `-Σ_j w_ij log p_ij / Σ_j w_ij`, `p` the softmax over all other rows. A row without a
        positive adds 0.
    """
    if weights.shape != (len(embeddings), len(embeddings)):
        raise InputError(f"weights must be {len(embeddings)} × {len(embeddings)}, not of shape {tuple(weights.shape)}")
    own = torch.eye(len(embeddings), dtype=torch.bool, device=embeddings.device)
    logits = embeddings @ embeddings.T / temperature
    return attraction(logits.masked_fill(own, torch.finfo(logits.dtype).min), weights.masked_fill(own, 0))


def attraction(logits: Tensor, weights: Tensor) -> Tensor:
    """Mean over rows of the cross-entropy of their softmax over `b × m` logits against their share of the weights."""
    return -((weights * logits.log_softmax(1)).sum(1) / weights.sum(1).clamp(min=1e-12)).mean()


def positives(ours: Tensor, theirs: Tensor, least: float) -> Tensor:
    """How far rows `(r, b)` and `(r, m)` are positive pairs, `(b, m)`: the share of runs that agree, if `least` do."""
    share = agreement(ours, theirs)
    return share.where(share >= least, 0)
