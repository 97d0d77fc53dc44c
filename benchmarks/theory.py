"""What the paper's theory predicts for its benchmark, and what the levels look like on real features.

With `--features` (an `.npz` file with the arrays `center`, `labels`, `truth` and `known`), also where novel images are
at each level of the hierarchy. The rest needs no images.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np
import torch

from common import save
from selex import hssk
from selex.bench.datasets.catalog import published_facts
from selex.bench.paper import SUITES
from selex.losses import prefix_products, prefix_sizes
from selex.losses.similarity import logits_of
from selex.models.heads import ProjectionHead

SEEDS = range(3)


def bounds() -> list[dict[str, object]]:
    """The bound that motivates the hierarchy, `lg K · ln(N / K²)`, on every dataset of the paper."""
    rows = list[dict[str, object]]()
    for name in SUITES["main"].datasets:
        about = published_facts(name)
        if isinstance(about.train, int):
            bound = math.log2(about.classes) * math.log(about.train / about.classes**2)
            row = {"N": about.train, "K": about.classes, "N / K²": round(about.train / about.classes**2, 3)}
            rows.append({"what": f"the bound on {about.title}", **row, "value": round(bound, 1)})
    return rows


def prefixes(n: int = 512, levels: int = 7) -> list[dict[str, object]]:
    """Distances over the first dims of a projection head's outputs, beside those over all of them."""
    torch.manual_seed(0)
    head, features = ProjectionHead(384, 65_536), torch.randn(n, 384)
    with torch.no_grad():
        rows = torch.nn.functional.normalize(head(features), dim=1)
        sizes = prefix_sizes(rows.shape[1], levels)
        apart = -logits_of(prefix_products(rows, sizes), "distance")
    pairs = torch.triu_indices(n, n, 1)
    whole, found = apart[0][pairs[0], pairs[1]], list[dict[str, object]]()
    for level, size in enumerate(sizes):
        part = apart[level][pairs[0], pairs[1]]
        values = {
            "times the whole": round(float((part / whole).mean()), 4),
            "2^(-k/2)": round(2 ** (-level / 2), 4),
            "correlation": round(float(torch.corrcoef(torch.stack([whole, part]))[0, 1]), 3),
        }
        found.append({"what": f"distances over {size} dims, level {level}", **values})
    return found


def swallowed(path: Path) -> list[dict[str, object]]:
    """Share of the novel images in known clusters, level by level."""
    with np.load(path) as arrays:
        rows, labels, truth_known = arrays["center"].astype(np.float32), arrays["labels"], arrays["known"]
        n_clusters = len(np.unique(arrays["truth"]))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    novel, shares = (labels < 0) & ~truth_known, list[list[float]]()
    for seed in SEEDS:
        levels = hssk(rows, labels, n_clusters, rng=seed).levels
        shares.append([float((level.labels[novel] < level.n_known).mean()) for level in levels])
    means = np.mean(shares, axis=0)
    sizes = [level.n_clusters for level in levels]
    return [
        {
            "what": f"novel images in known clusters, {size} clusters",
            "value": round(float(mean), 3),
            "seeds": len(SEEDS),
        }
        for size, mean in zip(sizes, means, strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--features", type=Path)
    asked = parser.parse_args()
    save("theory", [*bounds(), *prefixes(), *(swallowed(asked.features) if asked.features else [])])


if __name__ == "__main__":
    main()
