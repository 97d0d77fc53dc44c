"""Where accuracy is lost: one linear map trained on pairs from ever better sources, and a fully supervised bound.

`embeddings.npy` holds the features of a run, and `labels.csv` the classes of its images as for `selex bench run`
(`file`, `class`, `known`). The linear map of `cluster.adapt` is trained on pairs from labels alone, from one BSSK
clustering, from the agreement of twenty clusterings, and from the true classes; BSSK then clusters the mapped features.
**Rows marked as insight use the true classes: they show what the features hold, and are not results.** The last of them
is a linear classifier in five-fold cross-validation, trained on the labels of all other images.

"positives right" is the share of positive pairs of unlabelled rows that really are of one class.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from common import save
from selex.bench.datasets.splits import Benchmark, own_dataset
from selex.cluster.adapt import AGREED, ROUNDS, RUNS, positives, train_map
from selex.cluster.kmeans import bssk
from selex.cluster.search.consensus import agreement_runs
from selex.cluster.whiten import fit_whitener
from selex.metrics import split_accuracy

WHITEN = 0.5
FOLDS = 5
SAMPLE = 4000
"""Rows among which pairs are counted."""
SCALE, DECAY, ITERATIONS = 30.0, 1e-3, 60  # of the classifier

Source = Callable[[Tensor], Tensor]
"""Clusters `(r, n)` that vote, from the features as they are mapped so far."""


class Ladder:
    """One dataset, one seed."""

    def __init__(self, features: Tensor, part: Benchmark, seed: int) -> None:
        labels = torch.as_tensor(np.asarray(part.table.labels), device=features.device)
        whitener = fit_whitener(features, labels.cpu().numpy(), WHITEN)
        self.rows = normalize(whitener(features) if whitener else features, dim=1)
        self.part, self.labels, self.seed = part, labels, seed
        self.k = len(np.unique(part.truth))

    def rungs(self) -> Iterator[tuple[str, int, Source | None]]:
        """What the pairs come from, and in how many rounds the map is trained."""
        n = len(self.rows)
        own = torch.arange(n, device=self.rows.device) + self.k
        truth = torch.from_numpy(self.part.truth).to(own)
        yield "not trained", 0, None
        yield "labels alone", 1, lambda rows: self.labels.where(self.labels >= 0, own)[None]
        yield "BSSK's clusters", ROUNDS, lambda rows: self.cluster(rows)[None]
        yield f"what {RUNS} clusterings agree on", ROUNDS, self.votes
        yield "the truth (insight)", 1, lambda rows: truth[None]

    def cluster(self, rows: Tensor) -> Tensor:
        """Clusters of BSSK."""
        return torch.as_tensor(bssk(rows, self.labels, self.k, rng=self.seed).labels).long()

    def votes(self, rows: Tensor) -> Tensor:
        """Clusters of many quick runs."""
        votes: Tensor = agreement_runs(rows, self.labels, self.k, RUNS, rng=self.seed)
        return votes.long()

    def climb(self, rounds: int, source: Source | None) -> tuple[Tensor, float | None]:
        """Features after the last round, and how many of its pairs were right."""
        rows, right = self.rows, None
        for _ in range(rounds if source else 0):
            assert source
            votes = source(rows)
            right = self.right(votes)
            matrix = train_map(self.rows, votes, np.random.default_rng(self.seed), lambda epoch: None)
            rows = normalize(self.rows @ matrix, dim=1)
        return rows, right

    def right(self, votes: Tensor) -> float | None:
        """The share of positive pairs of unlabelled rows that are of one class."""
        free = (self.labels < 0).nonzero()[:, 0].cpu().numpy()
        index = np.random.default_rng(0).permutation(free)[:SAMPLE]
        seen = votes[:, torch.from_numpy(index).to(votes.device)]
        together = positives(seen, seen, AGREED).fill_diagonal_(0).cpu().numpy() > 0
        same = self.part.truth[index][:, None] == self.part.truth[index]
        return float(same[together].mean()) if together.any() else None

    def results(self) -> Iterator[dict[str, object]]:
        """Every rung: train, cluster, score."""
        for name, rounds, source in self.rungs():
            begun = time.perf_counter()
            rows, right = self.climb(rounds, source)
            found, free = self.cluster(rows).cpu().numpy(), ~np.asarray(self.part.table.labelled)
            scores = split_accuracy(self.part.truth[free], found[free], self.part.known[free])
            pairs = None if right is None else round(100 * right, 1)
            yield _row(name, self.seed, tuple(scores), pairs, time.perf_counter() - begun)


def classified(features: Tensor, truth: np.ndarray) -> np.ndarray:
    """Which rows a linear classifier gets right that was given the labels of all others but a fifth."""
    rng, fold = np.random.default_rng(0), np.empty(len(truth), dtype=int)
    for number in np.unique(truth):
        rows = rng.permutation(np.flatnonzero(truth == number))
        fold[rows] = np.arange(len(rows)) % FOLDS
    right = np.zeros(len(truth), dtype=bool)
    for number in range(FOLDS):
        kept = fold != number
        weights = _classifier(features[torch.from_numpy(kept)], truth[kept], int(truth.max()) + 1)
        guess = (features[torch.from_numpy(~kept)] @ weights).argmax(1).cpu().numpy()
        right[~kept] = guess == truth[~kept]
    return right


def _classifier(rows: Tensor, truth: np.ndarray, k: int) -> Tensor:
    target = torch.from_numpy(truth).to(rows.device)
    weights = torch.zeros(rows.shape[1], k, device=rows.device, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=ITERATIONS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = cross_entropy(SCALE * rows @ weights, target) + DECAY * weights.square().sum() / 2
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    return weights.detach()


def _row(name: str, seed: int, scores: tuple[float, ...], right: object, took: float) -> dict[str, object]:
    accuracies = {key: round(100 * value, 1) for key, value in zip(("all", "known", "novel"), scores, strict=True)}
    row = {"pairs from": name, "seed": seed, **accuracies, "positives right": right, "seconds": round(took, 1)}
    print(row, flush=True)
    return row


def main(features: Path, labels: Path, name: str, seeds: int, device: str, out: Path | None) -> None:
    part = own_dataset(labels)
    rows = normalize(torch.from_numpy(np.load(features).astype(np.float32)).to(device), dim=1)
    results = [row for seed in range(seeds) for row in Ladder(rows, part, seed).results()]
    begun = time.perf_counter()
    right = classified(rows, part.truth)
    scores = right.mean(), right[part.known].mean(), right[~part.known].mean()
    results.append(
        _row("classifier with every label (insight)", 0, tuple(map(float, scores)), None, time.perf_counter() - begun)
    )
    save(f"ladder_{name}", results, out, quiet=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("features", type=Path)
    parser.add_argument("labels", type=Path)
    parser.add_argument("--name", required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    main(**vars(parser.parse_args()))
