"""Benchmark runs: a dataset, a method and a seed in, a result file out."""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from selex.bench.datasets.splits import (
    Benchmark,
    Split,
    hold_out_labels,
    load_benchmark,
    long_tail,
    own_dataset,
    take_rows,
)
from selex.bench.paper import Row
from selex.bench.results import VERSIONS, Result
from selex.checksums import file_digest
from selex.cluster.kmeans import bssk
from selex.config import PAPER, Config
from selex.data.store import ImageStore, store_for
from selex.discovery import discover
from selex.errors import InputError
from selex.folders import take_folder
from selex.io import temporary_folder
from selex.metrics import split_accuracy
from selex.models.backbones import load_backbone_for
from selex.runs.predictor import features_of, load
from selex.runs.run import Run, last_training
from selex.runs.versions import commit_of, versions
from selex.training.fit import TrainOptions, make_method
from selex.training.methods import check_method
from selex.types import Scores

MAIN = Row("")
KMEANS = "kmeans"


@dataclass(frozen=True)
class BenchJob:
    """What to run."""

    dataset: str  # a dataset of the catalog, or a CSV file with the columns `file`, `class` and `known` of one's own
    root: Path | None  # the folder of the dataset; a CSV file's own if not given
    method: str  # as in `selex discover`, or `kmeans`: plain k-means on frozen features
    backbone: str
    config: Config = PAPER  # settings; a row of a suite changes some
    variant: str = "paper"  # short name of these settings in tables
    suite: str = "main"
    row: Row = MAIN  # which of its rows
    device: str = "cpu"  # where it runs
    store: Path | None = None  # where decoded images are kept
    runs: Path | None = None  # where run folders are left, each a model for `selex predict`; None leaves none

    @property
    def name(self) -> str:
        """The dataset's name in tables: that of the catalog, or of the folder that a CSV file lies in.

        A CSV file that is not called `labels.csv` adds its own name: several in one folder are several datasets.
        """
        if not self.own:
            return self.dataset
        path = Path(self.dataset).absolute()
        return path.parent.name if path.name == "labels.csv" else f"{path.parent.name}-{path.stem}"

    @property
    def own(self) -> bool:
        """Whether the dataset is a CSV file."""
        return self.dataset.endswith(".csv")


def read_split(job: BenchJob) -> tuple[Benchmark, Benchmark | None]:
    """Training part and, where there is one, test part of the dataset that a row of a suite asks for."""
    if job.own:
        train, test = own_dataset(Path(job.dataset), job.row.label_ratio), None
    else:
        if job.root is None:
            raise InputError(f"--root is missing: give the folder of {job.dataset}")
        both: Split = load_benchmark(job.dataset, job.root, job.row.label_ratio)
        train, test = both.train, both.test
    if job.row.long_tail:
        train = long_tail(train, job.row.long_tail, np.random.default_rng(0))
    if job.row.shuffled:
        train = take_rows(train, np.random.default_rng(0).permutation(len(train.truth)))
    if job.row.fold is not None:
        return hold_out_labels(train, job.row.fold), None
    return train, test


def run_job(
    job: BenchJob, seed: int, command: str = "", progress: bool = False, tell: Callable[[str], None] = print
) -> Result:
    """One run with one seed."""
    train, test = read_split(job)
    config = _config(job, train, seed)
    begun = time.perf_counter()
    if _on_gpu(job):
        torch.cuda.reset_peak_memory_stats(job.device)
    with _folder(job, seed) as out:
        found = discover(
            config,
            out,
            photos=train.table,
            device=job.device,
            store=job.store,
            strict=True,
            progress=progress,
            options=TrainOptions(score=_scorer(train), progress=progress),
            tell=lambda line: None,
        )
        total = time.perf_counter() - begun
        result = _result(job, config, train, found, seed, total, command)
        if test is not None and _method(job) != KMEANS:
            result = replace(result, inductive=_inductive(found, test, job))
    tell(f"{result.file_name}: {result.transductive['v2']} in {total:.0f} s")
    return result


def as_main(job: BenchJob) -> BenchJob:
    """The job of the main suite, where that is the very same run: it is made once and counts once."""
    same = replace(job, suite="main", row=MAIN)
    drawn = replace(job.row, label="", settings={}, paper=None, value=None) == MAIN
    return same if drawn and _settings(job) == _settings(same) else job


def result_name(job: BenchJob, seed: int) -> str:
    """Name of the file that a run will write."""
    return _draft(job, seed, None).file_name


def _config(job: BenchJob, train: Benchmark, seed: int) -> Config:
    """What is asked of `discover`."""
    true = len(np.unique(train.truth))
    asked = {"photos": train.table.root, "categories": None if job.row.categories == "auto" else true, "seed": seed}
    return _settings(job).change(**asked)


def _settings(job: BenchJob) -> Config:
    """The settings with what the row changes."""
    method = _method(job)
    config = job.config.change(**job.row.settings, method="frozen" if method == KMEANS else method)
    if method == KMEANS and config.cluster.whiten:
        raise InputError("--method kmeans uses no labels, but whitening does: set cluster.whiten=0")
    if method == KMEANS and config.cluster.refine != "none":
        raise InputError("--method kmeans is plain k-means: set cluster.refine=none")
    check_method(config)
    return config.change(backbone=job.backbone)


def _method(job: BenchJob) -> str:
    return job.row.method or job.method


def _draft(job: BenchJob, seed: int, config: Config | None) -> Result:
    method = _method(job)
    commit, clean = commit_of()
    return Result(
        dataset=job.name,
        method=method,
        variant=job.variant,
        suite=job.suite,
        row=job.row.label,
        backbone=job.backbone,
        seed=seed,
        epochs=_settings(job).train.epochs if method not in ("frozen", KMEANS) else 0,
        n_categories=0,
        config={} if config is None else _record(job, config),
        versions=versions(),
        commit=commit,
        clean=clean,
        device=torch.cuda.get_device_name(job.device) if _on_gpu(job) else "CPU",
        seconds={},
        transductive={},
    )


def _record(job: BenchJob, config: Config) -> dict[str, Any]:
    """All settings but the folders of this machine."""
    settings = config.to_json()
    del settings["data"]["photos"], settings["data"]["labels"], settings["features"]["weights"]
    drawn = {"label_ratio": job.row.label_ratio, "long_tail": job.row.long_tail}
    own = {"table": table_digest(job)} if job.own else {}
    return {**settings, **drawn, **({"shuffled": True} if job.row.shuffled else {}), **own}


def table_digest(job: BenchJob) -> str:
    """Tells a CSV file of one's own from others of the same name, and from what it was."""
    return file_digest(Path(job.dataset))[:16]


def check_dataset(job: BenchJob, path: Path) -> None:
    """Refuse a result file that is there but is of another dataset: its numbers would stand for this one's."""
    found = Result.load(path).config.get("table") if job.own else None
    if found is not None and found != table_digest(job):
        raise InputError(
            f"{path}: was made from another table than {job.dataset}, or from an earlier version of it; choose another "
            "--out, or move it away"
        )


def _result(
    job: BenchJob, config: Config, train: Benchmark, found: Run, seed: int, total: float, command: str
) -> Result:
    tree, steps = found.hierarchy, {entry["step"]: entry for entry in found.metrics if "step" in entry}
    epochs = last_training(found.metrics)
    clusters = np.array(found.clusters["cluster"])
    if _method(job) == KMEANS:
        k = len(tree["names"])
        plain = bssk(found.embeddings, None, k, balanced=False, n_init=config.cluster.restarts, rng=seed)
        clusters = np.asarray(plain.labels)
    seconds = {"total": total, "embed": steps["embed"]["seconds"], "cluster": steps["cluster"]["seconds"]}
    if config.features.attention_crop:
        seconds["attention_crop"] = steps["attention_crop"]["seconds"]
    if epochs:
        seconds["epoch"] = statistics.median(entry["seconds"] for entry in epochs)
    estimate, draft, chosen = tree["estimate"], _draft(job, seed, config), steps.get("kept", steps["cluster"])
    selected = {name: chosen[name] for name in _SELECTED if name in chosen}  # what `auto` came to
    return replace(
        draft,
        config={**draft.config, "selected": selected},
        n_categories=len(tree["names"]),
        estimated=estimate and {key: estimate[key] for key in ("n_clusters", "low", "high")},
        seconds={key: round(value, 4) for key, value in seconds.items()},
        memory_gb=round(torch.cuda.max_memory_allocated(job.device) / 1e9, 2) if _on_gpu(job) else None,
        parameters=steps["train"]["parameters"] if epochs else 0,
        flops=_flops(config, len(tree["names"]), tree["levels"][0]["n_known"]) if epochs else 0,
        transductive=_scores(train, clusters, train.scored),
        curve=[{key: entry.get(key, math.nan) for key in _CURVE} for entry in epochs],
        command=command,
    )


_SELECTED = ("adapt", "search", "refine", "kept", "untrained", "trained", "averaged")
_CURVE = ("epoch", "all", "known", "novel", "loss")


def _flops(config: Config, n_categories: int, n_known: int) -> int:
    """Operations of one image in two views, forward and backward, counted without doing them; those of losses aside."""
    backbone, config = load_backbone_for(config, "cpu")
    method = make_method(config, backbone, n_categories, n_known).to("meta")
    size = config.train.view_size or backbone.crop
    views = torch.zeros(2, 3, size, size, device="meta")
    with FlopCounterMode(display=False) as counter:
        trunk = method.trunk.to("meta")
        encoded = method.encode((trunk if size == backbone.crop else trunk.resized(size))(views))
        torch.autograd.backward([part.sum() for part in encoded if part.requires_grad])
    return int(counter.get_total_flops())


def _on_gpu(job: BenchJob) -> bool:
    return torch.device(job.device).type == "cuda"


def _scores(part: Benchmark, clusters: Any, scored: Any) -> dict[str, Scores]:
    ways: Any = VERSIONS
    return {way: split_accuracy(part.truth[scored], clusters[scored], part.known[scored], way) for way in ways}


def _scorer(part: Benchmark) -> Callable[[Any], dict[str, float]]:
    """What scores the clusters of an epoch."""
    truth, known, scored = part.truth[part.scored], part.known[part.scored], part.scored
    return lambda clusters: split_accuracy(truth, clusters[scored], known)._asdict()


def _inductive(found: Run, test: Benchmark, job: BenchJob) -> dict[str, Scores]:
    """Accuracy on the test part, every image in the category nearest to it."""
    model = load(found.folder)
    folder = store_for(job.store, test.table.root, test.table.root, model.size)
    images = ImageStore.build(test.table, folder, size=model.size, strict=True)
    features = features_of(model, model.load_backbone(job.device), images, folder, job.device)
    return _scores(test, model.assigner(model.maps.transform(features)).labels, np.ones(len(test.truth), dtype=bool))


RUNS = "folder of benchmark runs"
"""What `--runs` of `selex bench run` is taken as."""


@contextmanager
def _folder(job: BenchJob, seed: int) -> Iterator[Path]:
    """Where the run is written: a folder that stays, or one that does not."""
    if job.runs:
        take_folder(job.runs, RUNS)
        yield job.runs / result_name(job, seed).removesuffix(".json")
        return
    with temporary_folder(Path(tempfile.gettempdir())) as folder:
        yield folder / "run"
