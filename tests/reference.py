"""The formulas as plain loops: slow, obvious, and what the fast code is held against."""

from __future__ import annotations

from itertools import permutations

import numpy as np


def squared(a, b):
    return sum((float(x) - float(y)) ** 2 for x, y in zip(a, b, strict=True))


def nearest(rows, centers):
    return [min(range(len(centers)), key=lambda k: (squared(row, centers[k]), k)) for row in rows]


def draw_apart(rows, anchors, order, count, size):
    """Algorithm 1, one draw after the other: `order` is the random order in which rows come up."""
    barred = set()

    def bar(center):
        radius = sorted(squared(row, center) for row in rows)[min(size, len(rows)) - 1]
        barred.update(i for i, row in enumerate(rows) if squared(row, center) <= radius)

    for anchor in anchors:
        bar(anchor)
    chosen = []
    for row in order:
        if len(chosen) < count and row not in barred:
            chosen.append(row)
            bar(rows[row])
    return chosen


def stable_match(distance, capacity):
    """Deferred acceptance, one proposal at a time. `distance[i][k]`; rows and clusters both prefer what is near."""
    wishes = [sorted(range(len(capacity)), key=lambda k, i=i: (distance[i][k], k)) for i in range(len(distance))]  # type: ignore[misc]
    held = [[] for _ in capacity]
    free = list(range(len(distance)))
    while free:
        row = free.pop()
        cluster = wishes[row].pop(0)
        held[cluster].append(row)
        if len(held[cluster]) > capacity[cluster]:
            worst = max(held[cluster], key=lambda i: (distance[i][cluster], i))
            held[cluster].remove(worst)
            free.append(worst)
    labels = [0] * len(distance)
    for cluster, rows in enumerate(held):
        for row in rows:
            labels[row] = cluster
    return labels


def blocking_pairs(distance, capacity, labels):
    """Pairs of row and cluster that would both rather have each other than what they have."""
    pairs = []
    for row, own in enumerate(labels):
        for cluster in range(len(capacity)):
            if distance[row][cluster] >= distance[row][own]:
                continue
            members = [i for i, label in enumerate(labels) if label == cluster]
            if len(members) < capacity[cluster] or (
                any(distance[i][cluster] > distance[row][cluster] for i in members) and capacity[cluster]
            ):
                pairs.append((row, cluster))
    return pairs


def means(rows, labels, k):
    return [np.mean([row for row, label in zip(rows, labels, strict=True) if label == j], axis=0) for j in range(k)]


def bssk(rows, known, n_known, k, centers, n_iter):
    """Stages 2 and 3 of BSSK from given centres, where no cluster runs empty."""
    size = -(-len(rows) // k)
    free = [i for i, label in enumerate(known) if label == -1]
    capacity = [max(0, size - list(known).count(j)) for j in range(k)]
    centers = [np.array(center, dtype=float) for center in centers]
    for _ in range(n_iter):
        matched = stable_match([[squared(rows[i], center) for center in centers] for i in free], capacity)
        labels = np.array(known)
        labels[free] = matched
        centers = centers[:n_known] + means(rows, labels, k)[n_known:]
    for _ in range(n_iter):
        labels[free] = nearest([rows[i] for i in free], centers)
        centers = means(rows, labels, k)
    labels[free] = nearest([rows[i] for i in free], centers)
    return labels, centers


def best_accuracy(truth, clusters):
    """Share of rows that the best one-to-one matching of clusters to categories gets right, by trying them all."""
    categories, ids = sorted(set(truth)), sorted(set(clusters))
    ids += [None] * (len(categories) - len(ids))
    best = 0
    for order in permutations(ids, len(categories)):
        partner = dict(zip(categories, order, strict=True))
        best = max(best, sum(partner[t] == c for t, c in zip(truth, clusters, strict=True)))
    return best / len(truth)
