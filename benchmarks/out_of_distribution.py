"""Out-of-distribution photos: how well distance and `fits` separate them from new photos of a run's categories.

The file is one of `benchmarks/estimate_k.py`, with groups of classes in the array `--by`. A fifth of the rows is held
out as new photos. All rows of six groups, drawn by the seed, are near out-of-distribution; the rows of `--others`,
features of the same network, are far out-of-distribution. Half the rows of known classes are labelled and K is given.
Clusters come from `fit_clusters` without adaptation, with `swaps` search, no refinement and one start.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from sklearn.metrics import roc_auc_score

from common import save
from estimate_k import read_columns
from selex.cluster.assign import FALSE_ALARMS
from selex.cluster.pipeline import fit_clusters
from selex.config import ClusterConfig

LEFT_OUT = 6


def measure(columns: dict[str, np.ndarray], others: np.ndarray, by: str, seed: int) -> dict[str, object]:
    rng = np.random.default_rng([seed, 7])
    strange = np.isin(columns[by], rng.permutation(np.unique(columns[by]))[:LEFT_OUT])
    new = (rng.random(len(strange)) < 0.2) & ~strange
    part = ~new & ~strange
    features, names = columns["features"][part], columns["classes"][part]
    known = np.unique(names[columns["known"][part]])
    order = {name: number for number, name in enumerate([*known, *np.setdiff1d(names, known)])}
    truth = np.array([order[name] for name in names])
    labels = np.where((truth < len(known)) & (rng.random(len(truth)) < 0.5), truth, -1)
    config = ClusterConfig(categories=len(order), adapt="off", search="swaps", refine="none", levels=1, restarts=1)
    found = fit_clusters(features, labels, config, rng=seed)
    assert found.assigner
    shown = {"same groups": columns["features"][new], f"{by} left out": columns["features"][strange], "others": others}
    judged = {name: found.assigner(found.transform(rows)) for name, rows in shown.items()}
    usual = judged.pop("same groups")
    row: dict[str, object] = {"seed": seed, "promised false alarms": FALSE_ALARMS, "new photos": int(new.sum())}
    row["false alarms"] = round(float(1 - usual.fits.mean()), 4)
    for name, one in judged.items():
        strangers = np.repeat([0, 1], [len(usual.labels), len(one.labels)])
        row[f"{name}: rows"] = len(one.labels)
        for what in ("distances", "confidence"):
            sign = 1 if what == "distances" else -1
            score = sign * np.concatenate([getattr(usual, what), getattr(one, what)])
            row[f"{name}: AUROC of {what}"] = round(float(roc_auc_score(strangers, score)), 4)
        row[f"{name}: marked"] = round(float(1 - one.fits.mean()), 4)
    print(row, flush=True)
    return row


def main(file: Path, others: Path, by: str, seeds: int, out: Path | None) -> None:
    columns, strangers = read_columns(file), read_columns(others)["features"]
    save(f"out_of_distribution_{file.stem}", [measure(columns, strangers, by, seed) for seed in range(seeds)], out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--others", type=Path, required=True)
    parser.add_argument("--by", default="family")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    main(**vars(parser.parse_args()))
