"""The benchmark's split of a dataset: known and novel classes, and which images of the known ones are labelled.

Also of datasets of one's own, a CSV file that says which image is of which class, and which classes are known; and
whether a dataset on disk is the published one: what was expected, what was found, and how to mend it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from selex.bench.datasets.catalog import (
    Count,
    Dataset,
    DatasetFacts,
    Part,
    load_dataset,
    matches_published,
    published_facts,
)
from selex.bench.datasets.layout import still_packed
from selex.data.labels import encode
from selex.data.table import ImageTable, Labels
from selex.errors import InputError
from selex.io import column, read_csv

Mask = np.ndarray[Any, np.dtype[np.bool_]]

FOLDS = 4
"""Ways to hold out labels."""


@dataclass(frozen=True, eq=False)
class Benchmark:
    """One part of a dataset as the benchmark sees it, in official row order."""

    table: ImageTable  # the images; only labelled rows carry a label
    truth: Labels  # class of every row, counting into `classes`; for scoring, never for training
    known: Mask  # which rows are of a known class
    classes: list[str]
    n_known: int  # how many of them are known
    held_out: Mask | None = None  # which rows have a held-out label, to be scored alone; None where none was

    @property
    def scored(self) -> Mask:
        """The rows that count: unlabelled ones, or those whose label is held out."""
        return ~np.asarray(self.table.labelled) if self.held_out is None else self.held_out


class Split(NamedTuple):
    """The training part, in which categories are discovered, and the test part, of which no row is labelled."""

    train: Benchmark
    test: Benchmark


def load_benchmark(name: str, root: str | os.PathLike[str], label_ratio: float = 0.5) -> Split:
    """A dataset by name from its folder, split as published; one that is not whole is refused."""
    dataset, published = load_dataset(name, root), published_facts(name)
    advice = f"see selex data check {name} --root {os.fspath(root)}"
    if absent := missing_images(dataset):
        raise InputError(f"{dataset.root}: {len(absent)} images are missing or empty, first {absent[0]}; {advice}")
    expected, found = (published.train, published.test), (len(dataset.train), len(dataset.test))
    for word, many, count in zip(("training", "test"), expected, found, strict=True):
        if not matches_published(count, many):
            raise InputError(f"{dataset.root}: {count} {word} images where {published.title} has {many}; {advice}")
    return split_dataset(dataset, published.known, label_ratio)


def split_dataset(dataset: Dataset, known_classes: frozenset[int], label_ratio: float = 0.5) -> Split:
    """The one rule for all datasets: a share of the known classes' training rows keeps its label."""
    if not 0 < label_ratio <= 1:
        raise InputError(f"label ratio {label_ratio}: give a share above 0 and up to 1")
    outside = [number for number in sorted(known_classes) if number >= len(dataset.classes)]
    if outside:
        raise InputError(f"{dataset.root}: has {len(dataset.classes)} classes, but class {outside[0]} should be known")
    train, test = (np.isin(part.truth, list(known_classes)) for part in (dataset.train, dataset.test))
    nobody = np.zeros(len(test), dtype=np.bool_)
    return Split(
        _benchmark(dataset, dataset.train, train, draw_labelled(train, label_ratio), len(known_classes)),
        _benchmark(dataset, dataset.test, test, nobody, len(known_classes)),
    )


def draw_labelled(known: Mask, label_ratio: float = 0.5) -> Mask:
    """Which rows keep their label: the published draw among the rows of known classes, in row order."""
    rows = np.flatnonzero(known)
    generator = np.random.RandomState(0)  # numpy's legacy generator: later ones draw other rows
    chosen = generator.choice(len(rows), replace=False, size=int(label_ratio * len(rows)))
    labelled = np.zeros(len(known), dtype=np.bool_)
    labelled[rows[chosen]] = True
    return labelled


def hold_out_labels(benchmark: Benchmark, fold: int) -> Benchmark:
    """The same part with some labels held out: all of every fourth known class, a third of each of the others.

    What is held out is scored alone, so that settings can be compared without looking at any label that is not given.
    The classes held out as a whole have to be discovered: they count as novel.
    """
    labels = np.asarray(benchmark.table.labels)
    place = np.zeros(len(labels), dtype=np.int64)  # of a row among the labelled ones of its class
    for number in range(benchmark.table.n_known):
        rows = np.flatnonzero(labels == number)
        place[rows] = np.arange(len(rows))
    whole = labels % FOLDS == fold
    held_out = (labels >= 0) & (whole | (place % 3 == fold % 3))
    table = benchmark.table
    names = [
        table.categories[label] if label >= 0 and not gone else "" for label, gone in zip(labels, held_out, strict=True)
    ]
    left = ImageTable(table.files, *encode(names), table.root, table.sources)
    return replace(
        benchmark, table=left, known=benchmark.known & ~(held_out & whole), n_known=left.n_known, held_out=held_out
    )


def long_tail(benchmark: Benchmark, imbalance: float, rng: np.random.Generator) -> Benchmark:
    """The same part with its classes thinned, exponentially, to a long tail; rows stay in order.

    The classes of each kind, known and novel, run in random order from their full size down to `1 / imbalance` of it.
    Labelled and unlabelled rows of a class are thinned alike, and one of each is left: a known class stays known.
    """
    if not imbalance >= 1:
        raise InputError(f"imbalance {imbalance}: give how many times larger the largest class is, at least 1")
    shares = _tail_shares(benchmark, imbalance, rng)
    labelled, kept = benchmark.table.labelled, list[int]()
    for number, share in shares.items():
        for held in (True, False):
            rows = np.flatnonzero((benchmark.truth == number) & (labelled == held))
            kept += rng.permutation(rows)[: max(1, round(share * len(rows)))].tolist()
    return take_rows(benchmark, np.sort(np.array(kept, dtype=np.int64)))


def take_rows(benchmark: Benchmark, rows: Labels) -> Benchmark:
    """Some rows of a part."""
    table, truth, known = benchmark.table.take(rows), benchmark.truth[rows], benchmark.known[rows]
    return replace(benchmark, table=table, truth=truth, known=known)


def missing_images(dataset: Dataset) -> list[str]:
    """Names of the images that are not there or empty, as a broken download or an interrupted unpacking leaves them."""
    names = [name for part in (dataset.train, dataset.test) if not part.images for name in part.files]
    return [name for name in names if not _has_content(os.path.join(dataset.root, name))]


def _tail_shares(benchmark: Benchmark, imbalance: float, rng: np.random.Generator) -> dict[int, float]:
    """By class, the share of its rows that is left."""
    shares: dict[int, float] = {}
    for kind in (benchmark.known, ~benchmark.known):
        classes = rng.permutation(np.unique(benchmark.truth[kind])).tolist()
        shares |= {number: imbalance ** -(rank / max(1, len(classes) - 1)) for rank, number in enumerate(classes)}
    return shares


def _has_content(path: str) -> bool:
    try:
        return os.stat(path).st_size > 0
    except OSError:
        return False


def _benchmark(dataset: Dataset, part: Part, known: Mask, labelled: Mask, n_known: int) -> Benchmark:
    names = [dataset.classes[number] if held else "" for number, held in zip(part.truth, labelled, strict=True)]
    table = ImageTable(part.files, *encode(names), dataset.root, dict(part.images))
    return Benchmark(table, part.truth, known, dataset.classes, n_known)


def own_dataset(path: Path, label_ratio: float = 0.5) -> Benchmark:
    """A dataset of one's own: `file` and `class` of every image, `known` 1 where the class counts as known."""
    lines = read_csv(path)
    header = lines[0][1]
    places = [column(path, header, [name]) for name in ("file", "class", "known")]
    files, names, flags = ([line[place] for _, line in lines[1:]] for place in places)
    known = np.array([flag == "1" for flag in flags], dtype=bool)  # of no lines, too
    classes = sorted(set(names))
    mixed = sorted({name for name, flag in zip(names, known, strict=True) if flag} & set(_where(names, ~known)))
    if mixed:
        raise InputError(
            f"{path}: class {mixed[0]} is known in some lines and not in others; a class is either known or not"
        )
    if not known.any():
        raise InputError(f"{path}: no line has known 1: say which classes are known")
    number = {name: index for index, name in enumerate(classes)}
    truth = np.array([number[name] for name in names])
    labelled = draw_labelled(known, label_ratio)
    shown = [name if held else "" for name, held in zip(names, labelled, strict=True)]
    table = ImageTable(files, *encode(shown), str(path.absolute().parent), {})
    return Benchmark(table, truth, known, classes, len(set(_where(names, known))))


def _where(names: list[str], mask: Any) -> list[str]:
    return [name for name, held in zip(names, mask, strict=True) if held]


SHOWN = 16  # of the 64 digits of a hash: enough to tell two apart


@dataclass(frozen=True)
class Finding:
    """One line of a check; `expected` is "" where nothing is published, `mend` says what to do if it is not `ok`."""

    what: str
    expected: str
    found: str
    ok: bool
    mend: str = ""


def check_dataset(name: str, root: str | os.PathLike[str]) -> list[Finding]:
    """Compare a dataset with what is published about it: sizes, classes, labelled rows, names and contents of files.

    A root that cannot be read at all, or a name that does not exist, is an `InputError`.
    """
    published, dataset = published_facts(name), load_dataset(name, root)
    findings = [*_sizes(published, dataset), _images(dataset), *_halves(published, dataset), _names(published, dataset)]
    return [*findings, _contents(published, dataset)] if published.md5 else findings


def file_list_hash(files: list[str]) -> str:
    """SHA-256 of the names in sorted order, one a line: the same whatever order the files are listed in."""
    return hashlib.sha256("\n".join(sorted(files)).encode()).hexdigest()


def _sizes(published: DatasetFacts, dataset: Dataset) -> Iterator[Finding]:
    again = still_packed(Path(dataset.root)) or "unpack the official archives again, into an empty folder"
    yield _count("classes", published.classes, len(np.unique(dataset.train.truth)), again)
    yield _count("training images", published.train, len(dataset.train), again)
    yield _count("test images", published.test, len(dataset.test), again)


def _images(dataset: Dataset) -> Finding:
    absent, total = missing_images(dataset), len(dataset.train) + len(dataset.test)
    if not absent:
        return Finding("missing images", "0", "0", True)
    state = "its images are not unpacked" if len(absent) == total else "an archive is only partly unpacked"
    advice = still_packed(Path(dataset.root)) or "unpack the official archive of the images again"
    return Finding("missing images", "0", f"{len(absent):,}, first {absent[0]}", False, f"{state}: {advice}")


def _halves(published: DatasetFacts, dataset: Dataset) -> Iterator[Finding]:
    labelled = draw_labelled(np.isin(dataset.train.truth, list(published.known)))
    count = int(labelled.sum())
    mend = "it follows from the classes of the training images: fix those first"
    yield _count("labelled images", published.labelled, count, mend)
    yield _count("unlabelled images", published.unlabelled, len(labelled) - count, mend)


def _names(published: DatasetFacts, dataset: Dataset) -> Finding:
    found, expected = file_list_hash(dataset.train.files), published.file_list or ""
    mend = "training images have other names than the official ones: unpack the official archive again"
    return Finding("names of training files", expected[:SHOWN], found[:SHOWN], expected in ("", found), mend)


def _contents(published: DatasetFacts, dataset: Dataset) -> Finding:
    read = {name: (Path(dataset.root) / name).read_bytes() for name in published.md5}
    found = {name: hashlib.md5(content, usedforsecurity=False).hexdigest() for name, content in read.items()}
    changed = [name for name in found if found[name] != published.md5[name]]
    words = f"{len(changed)} changed, first {changed[0]}" if changed else f"{len(found)} unchanged"
    mend = "download and unpack the official archive again"
    return Finding("official files", f"{len(found)} unchanged", words, not changed, mend)


def _count(what: str, expected: Count | None, found: int, mend: str) -> Finding:
    shown = f"{expected:,}" if isinstance(expected, int) else expected or ""
    return Finding(what, shown, f"{found:,}", matches_published(found, expected), mend)
