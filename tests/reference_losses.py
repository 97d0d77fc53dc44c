"""The losses as plain loops over Python floats, straight from their formulas."""

from math import dist, exp, log, log1p, sqrt


def alike(x, y, kind):
    if kind == "distance":
        return -dist(x, y)
    norms = sqrt(sum(v * v for v in x)) * sqrt(sum(v * v for v in y))
    return sum(v * w for v, w in zip(x, y, strict=True)) / norms


def shares(rows, i, others, temperature, kind):
    """Softmax of row i's logits over some other rows: {row: share}."""
    weights = {j: exp(alike(rows[i], rows[j], kind) / temperature) for j in others}
    return {j: weight / sum(weights.values()) for j, weight in weights.items()}


def view_shares(view_a, view_b, temperature, kind):
    rows = [*view_a, *view_b]
    return [shares(rows, i, [j for j in range(len(rows)) if j != i], temperature, kind) for i in range(len(rows))]


def other_view(i, b):
    return i + b if i < b else i - b


def info_nce(view_a, view_b, temperature, kind):
    b = len(view_a)
    table = view_shares(view_a, view_b, temperature, kind)
    return sum(-log(table[i][other_view(i, b)]) for i in range(2 * b)) / (2 * b)


def supervised_contrastive(rows, labels, temperature, kind):
    terms = []
    for i in range(len(rows)):
        others = [j for j in range(len(rows)) if j != i and labels[j] != -1]
        positives = [j for j in others if labels[j] == labels[i]]
        if positives:
            share = shares(rows, i, others, temperature, kind)
            terms.append(sum(-log(share[j]) for j in positives) / len(positives))
    return sum(terms) / len(terms) if terms else 0.0


def targets(far, b, alpha):
    """`far(i, j)`: how far apart rows i and j are, the sum of eq. 8."""
    n = 2 * b
    y = [[0.0] * n for _ in range(n)]
    for i in range(n):
        for j in range(n):
            if j == other_view(i, b):
                y[i][j] = 1.0
            elif j != i:
                y[i][j] = far(i, j)
    sums = [sum(row) for row in y]
    for i in range(n):
        for j in range(n):
            positive = 1.0 if j == other_view(i, b) else 0.0
            y[i][j] = alpha * y[i][j] / sums[i] + (1 - alpha) * positive
    return y


def label_targets(level_labels, b, alpha):
    def far(i, j):
        return sum((c[i % b] != c[j % b]) / 2**k for k, c in enumerate(level_labels, start=1))

    return targets(far, b, alpha)


def radius_targets(features_a, features_b, radii, alpha):
    rows = [[v / sqrt(sum(w * w for w in row)) for v in row] for row in [*features_a, *features_b]]
    b = len(features_a)

    def far(i, j):
        return sum((dist(rows[i], rows[j]) > r[i % b]) / 2**k for k, r in enumerate(radii, start=1))

    return targets(far, b, alpha)


def unsupervised_self_expertise(view_a, view_b, y, temperature, kind, form):
    total = 0.0
    for i, share in enumerate(view_shares(view_a, view_b, temperature, kind)):
        for j, p in share.items():
            total -= y[i][j] * log(p)
            if form == "binary":
                total -= (1 - y[i][j]) * log1p(-p)
    return total / (2 * len(view_a))


def supervised_self_expertise(rows, labels, level_labels, temperature, kind):
    total = supervised_contrastive(rows, labels, temperature, kind)
    for k, clusters in enumerate(level_labels, start=1):
        prefixes = [row[: max(1, len(row) // 2**k)] for row in rows]
        total += supervised_contrastive(prefixes, clusters, temperature, kind) / 2**k
    return total / 2 if level_labels else total


def softmax(row, temperature):
    weights = [exp(v / temperature) for v in row]
    return [weight / sum(weights) for weight in weights]


def self_distillation(logits_a, logits_b, teacher_temperature, student_temperature):
    total = 0.0
    for student, teacher in [(logits_a, logits_b), (logits_b, logits_a)]:
        for s, t in zip(student, teacher, strict=True):
            pairs = zip(softmax(s, student_temperature), softmax(t, teacher_temperature), strict=True)
            total -= sum(q * log(p) for p, q in pairs)
    return total / (2 * len(logits_a))


def mean_entropy(logits, temperature):
    predictions = [softmax(row, temperature) for row in logits]
    means = [sum(column) / len(logits) for column in zip(*predictions, strict=True)]
    return log(len(means)) + sum(p * log(p) for p in means)


def supervised_cross_entropy(logits, labels, temperature):
    terms = [-log(softmax(row, temperature)[label]) for row, label in zip(logits, labels, strict=True) if label != -1]
    return sum(terms) / len(terms) if terms else 0.0
