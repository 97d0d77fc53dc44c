"""Positives that clusterings agree on, for a network that is trained: a bank of rows to be compared with.

A batch of 128 images holds few pairs of one category where categories are many. So views are compared with a bank of
the features of all images as they were when pseudo-labels were made. b images of a batch, 2b views; m rows of the bank;
r runs; d dims.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from selex.cluster.adapt import AGREED, RUNS, TEMPERATURE, adapt, log_share_loss
from selex.cluster.consensus import agreement_runs
from selex.cluster.whiten import Whitener

BANK = 16_384
"""Rows that views are compared with, at most."""


class Agreement(NamedTuple):
    """What many clusterings say of all images, and the rows of the bank.

    Attributes:
        runs: `(r, n)` cluster of each image in each run.
        bank: `(m,)` images in the bank.
        keys: `(m, d)` their features, as they are clustered.
    """

    runs: Tensor
    bank: Tensor
    keys: Tensor

    def loss(self, rows: Tensor, images: Tensor) -> Tensor:
        """How far views `(2b, d)` of `images` (b) are from the rows of the bank that clusterings put them with."""
        weights = positives_among(self.runs[:, images], self.runs[:, self.bank])
        return log_share_loss(rows @ self.keys.T / TEMPERATURE, weights.repeat(2, 1))


def agree(
    features: Tensor, labels: Tensor | None, n_clusters: int, whitener: Whitener | None, balanced: bool, rng: Any
) -> tuple[Agreement, Whitener]:
    """Many clusterings of features on the linear map that suits them best, and that map."""
    adapted = adapt(features, labels, n_clusters, whitener, balanced=balanced, rng=rng)
    rows = adapted(features)
    runs = agreement_runs(rows, labels, n_clusters, RUNS, balanced=balanced, rng=rng)
    bank = torch.from_numpy(rng.permutation(len(rows))[:BANK]).to(rows.device)
    return Agreement(runs, bank, rows[bank]), adapted


def positives_among(ours: Tensor, theirs: Tensor) -> Tensor:
    """How far rows `(r, b)` and `(r, m)` are positive pairs, `(b, m)`: the share of runs that agree, where enough do."""
    share = torch.zeros(ours.shape[1], theirs.shape[1], device=ours.device)
    for mine, other in zip(ours, theirs, strict=True):
        share += mine[:, None] == other
    share /= len(ours)
    return share.where(share >= AGREED, 0)
