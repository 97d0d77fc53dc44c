"""Is a dataset on disk the published one? What was expected against what was found, and how to mend it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from selex.bench.datasets.catalog import Count, Dataset, Facts, load_dataset, matches_published, published_facts
from selex.bench.datasets.layout import still_packed
from selex.bench.datasets.splits import draw_labelled, missing_images

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


def _sizes(published: Facts, dataset: Dataset) -> Iterator[Finding]:
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


def _halves(published: Facts, dataset: Dataset) -> Iterator[Finding]:
    labelled = draw_labelled(np.isin(dataset.train.truth, list(published.known)))
    count = int(labelled.sum())
    mend = "it follows from the classes of the training images: fix those first"
    yield _count("labelled images", published.labelled, count, mend)
    yield _count("unlabelled images", published.unlabelled, len(labelled) - count, mend)


def _names(published: Facts, dataset: Dataset) -> Finding:
    found, expected = file_list_hash(dataset.train.files), published.file_list or ""
    mend = "training images have other names than the official ones: unpack the official archive again"
    return Finding("names of training files", expected[:SHOWN], found[:SHOWN], expected in ("", found), mend)


def _contents(published: Facts, dataset: Dataset) -> Finding:
    read = {name: (Path(dataset.root) / name).read_bytes() for name in published.md5}
    found = {name: hashlib.md5(content, usedforsecurity=False).hexdigest() for name, content in read.items()}
    changed = [name for name in found if found[name] != published.md5[name]]
    words = f"{len(changed)} changed, first {changed[0]}" if changed else f"{len(found)} unchanged"
    mend = "download and unpack the official archive again"
    return Finding("official files", f"{len(found)} unchanged", words, not changed, mend)


def _count(what: str, expected: Count | None, found: int, mend: str) -> Finding:
    shown = f"{expected:,}" if isinstance(expected, int) else expected or ""
    return Finding(what, shown, f"{found:,}", matches_published(found, expected), mend)
