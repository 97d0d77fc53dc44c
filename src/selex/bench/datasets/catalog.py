"""The eight benchmark datasets: what is published about each, and how it is read from its official files.

Sizes and known classes are those of `splits.json`. Rows come in the order of the official lists: the benchmark draws
its labelled half by position, so order matters.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from selex.bench.datasets.layout import (
    Lookup,
    find_path,
    image_names,
    read_batch,
    read_lines,
    read_mat,
    read_names,
    read_pairs,
    still_packed,
    visible_names,
)
from selex.data.table import Labels
from selex.errors import InputError, Note, unknown

Count = int | str
"""A number of rows, or the rounded one that was published, such as "2.0K"."""


@dataclass(frozen=True)
class DatasetFacts:
    """One dataset as `splits.json` has it; a size that nobody published is None."""

    title: str  # the dataset's own name
    classes: int  # how many classes there are, known and novel
    known: frozenset[int]  # the known classes, counted from 0 in the dataset's official order
    labelled: Count  # training images that keep their label
    unlabelled: Count  # the other training images
    test: int
    train: int | None = None
    file_list: str | None = None  # SHA-256 of the sorted names of the training images, one a line
    md5: dict[str, str] = field(default_factory=dict)  # of official files, by name
    synsets: tuple[str, ...] = ()  # for ImageNet-100, the folders that make it up


def published_facts(name: str) -> DatasetFacts:
    """What is published about a dataset; a name that does not exist is answered with the nearest one."""
    published = _published()
    if name not in published:
        raise unknown("dataset", name, published)
    entry = dict(published[name])
    known, synsets = _numbers(entry.pop("known")), tuple(entry.pop("synsets", "").split())
    return DatasetFacts(known=known, synsets=synsets, **entry)


def matches_published(found: int, published: Count | None) -> bool:
    """Whether a number of rows is the published one, as exactly as that was published."""
    if isinstance(published, str):
        return abs(found - 1000 * float(published.removesuffix("K"))) <= 50
    return published is None or found == published


@cache
def _published() -> dict[str, dict[str, Any]]:
    text = files("selex.bench.datasets").joinpath("splits.json").read_text(encoding="utf-8")
    return json.loads(text)


def _numbers(text: str) -> frozenset[int]:
    """The numbers of a list such as "0-4 7 9-10"."""
    ends = [(first, last or first) for first, _, last in (part.partition("-") for part in text.split())]
    return frozenset(number for first, last in ends for number in range(int(first), int(last) + 1))


@dataclass(frozen=True, eq=False)
class Part:
    """Training or test images in official order: names, class of each, and the images that no file of its own holds."""

    files: list[str]
    truth: Labels
    images: dict[int, Image.Image] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.files)


@dataclass(frozen=True, eq=False)
class Dataset:
    """A dataset on disk: `root` is where the names of files start, `truth` of both parts counts into `classes`."""

    root: str
    classes: list[str]
    train: Part
    test: Part


def load_dataset(name: str, root: str | os.PathLike[str]) -> Dataset:
    """One of the datasets of `CATALOG` by name; no image file is opened."""
    published_facts(name)  # a wrong name is answered before a wrong folder
    dataset = CATALOG[name](Path(root))
    for part in (dataset.train, dataset.test):
        if not len(part):
            raise InputError(f"{dataset.root}: no training or no test images; unpack the official archive again")
        wrong = part.truth[(part.truth < 0) | (part.truth >= len(dataset.classes))]
        if len(wrong):
            raise InputError(f"{dataset.root}: an image is of class {wrong[0]}, but there are {len(dataset.classes)}")
    return dataset


def cub(root: Path) -> Dataset:
    """CUB-200-2011: `images.txt` and its three companions."""
    base = find_path(root, "images.txt", "CUB_200_2011/images.txt").parent
    names = read_pairs(base / "classes.txt")
    number = Lookup(((key, row) for row, (key, _) in enumerate(names)), base / "classes.txt")
    class_of = Lookup(read_pairs(base / "image_class_labels.txt"), base / "image_class_labels.txt")
    in_train = Lookup(read_pairs(base / "train_test_split.txt"), base / "train_test_split.txt")
    images = read_pairs(base / "images.txt")

    def part(flag: str) -> Part:
        return _part((f"images/{name}", number[class_of[key]]) for key, name in images if in_train[key] == flag)

    return Dataset(str(base), [name for _, name in names], part("1"), part("0"))


def aircraft(root: Path) -> Dataset:
    """FGVC-Aircraft by variant, training and validation images together."""
    places = ("variants.txt", "data/variants.txt", "fgvc-aircraft-2013b/data/variants.txt")
    base = find_path(root, *places).parent
    classes = read_lines(base / "variants.txt")
    number = Lookup(((name, row) for row, name in enumerate(classes)), base / "variants.txt")

    def part(file: str) -> Part:
        return _part((f"images/{image}.jpg", number[variant]) for image, variant in read_pairs(base / file))

    return Dataset(str(base), classes, part("images_variant_trainval.txt"), part("images_variant_test.txt"))


def cars(root: Path) -> Dataset:
    """Stanford Cars, from the devkit or from the single `cars_annos.mat`; the devkit's order is the published one."""
    names = ("devkit/cars_train_annos.mat", "cars_annos.mat", "devkit/cars_annos.mat")
    found = find_path(root, *names, *(f"stanford_cars/{name}" for name in names))
    base = found.parent.parent if found.parent.name == "devkit" else found.parent
    return _cars_of_one_file(base, found) if found.name == "cars_annos.mat" else _cars_of_devkit(base)


def pets(root: Path) -> Dataset:
    """Oxford-IIIT Pet: `annotations/trainval.txt` and `annotations/test.txt`."""
    base = find_path(root, "annotations/trainval.txt", "oxford-iiit-pet/annotations/trainval.txt").parent.parent
    parts = [read_pairs(base / "annotations" / name) for name in ("trainval.txt", "test.txt")]
    # an image is called after its breed: Maine_Coon_12 23 1 11
    names = {rest.split()[0]: image.rpartition("_")[0] for part in parts for image, rest in part}
    if set(names) != {str(number) for number in range(1, len(names) + 1)}:
        raise InputError(f"{base / 'annotations'}: class ids do not count from 1 to {len(names)}; unpack it again")
    train, test = (_part((f"images/{image}.jpg", int(rest.split()[0]) - 1) for image, rest in part) for part in parts)
    return Dataset(str(base), [names[str(number + 1)] for number in range(len(names))], train, test)


def cifar10(root: Path) -> Dataset:
    """CIFAR-10, python version."""
    base = find_path(root, "batches.meta", "cifar-10-batches-py/batches.meta").parent
    batches = [f"data_batch_{number}" for number in range(1, 6)]
    return Dataset(
        str(base),
        read_names(base / "batches.meta", "label_names"),
        _cifar_part(base, batches, "labels"),
        _cifar_part(base, ["test_batch"], "labels"),
    )


def cifar100(root: Path) -> Dataset:
    """CIFAR-100 with its fine labels, python version."""
    base = find_path(root, "meta", "cifar-100-python/meta").parent
    return Dataset(
        str(base),
        read_names(base / "meta", "fine_label_names"),
        _cifar_part(base, ["train"], "fine_labels"),
        _cifar_part(base, ["test"], "fine_labels"),
    )


def imagenet100(root: Path) -> Dataset:
    """ImageNet-100: 100 of the synset folders of an ImageNet tree with `train` and `val`; the others are ignored."""
    base = find_path(root, "train", "ILSVRC/Data/CLS-LOC/train").parent
    classes = list(published_facts("imagenet100").synsets)
    return Dataset(str(base), classes, _tree(base, "train", classes), _tree(base, "val", classes))


def herbarium19(root: Path) -> Dataset:
    """Herbarium-19: a folder per category, in the small or in the full release.

    Classes count the folders in the order of their names as text (0, 1, 10, 100, ...): so does the published split.
    """
    train = find_path(root, "small-train", "train")
    classes = [name for name in visible_names(train) if (train / name).is_dir()]
    test = train.name.replace("train", "validation")
    return Dataset(str(root), classes, _tree(root, train.name, classes), _tree(root, test, classes))


CATALOG: dict[str, Callable[[Path], Dataset]] = {
    "cub": cub,
    "aircraft": aircraft,
    "cars": cars,
    "pets": pets,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "imagenet100": imagenet100,
    "herbarium19": herbarium19,
}


def _part(rows: Iterable[tuple[str, int]], images: Sequence[Image.Image] = ()) -> Part:
    found = list(rows)
    truth = np.array([number for _, number in found], dtype=np.int64)
    return Part([name for name, _ in found], truth, dict(enumerate(images)))


def _cars_of_devkit(base: Path) -> Dataset:
    places = ("devkit/cars_test_annos_withlabels.mat", "cars_test_annos_withlabels.mat")
    if not any((base / place).exists() for place in places):
        raise InputError(f"{base}: the labels of the test images are missing; put {places[1]} into {base / 'devkit'}")
    [names] = read_mat(base / "devkit" / "cars_meta.mat", "class_names")

    def part(annotations: Path, folder: str) -> Part:
        [rows] = read_mat(annotations, "annotations")
        _check_fields(annotations, rows, "fname", "class")
        return _part((f"{folder}/{row['fname']}", int(row["class"]) - 1) for row in rows)

    train = part(base / "devkit" / "cars_train_annos.mat", "cars_train")
    return Dataset(str(base), [str(name) for name in names], train, part(find_path(base, *places), "cars_test"))


def _cars_of_one_file(base: Path, annotations: Path) -> Dataset:
    names, rows = read_mat(annotations, "class_names", "annotations")
    _check_fields(annotations, rows, "relative_im_path", "class", "test")
    warnings.warn(
        f"{annotations.name} lists the images in another order than the devkit: as many are labelled as published, "
        "but not the same ones",
        Note,
        stacklevel=2,
    )

    def part(flag: int) -> Part:
        return _part((str(row["relative_im_path"]), int(row["class"]) - 1) for row in rows if int(row["test"]) == flag)

    return Dataset(str(base), [str(name) for name in names], part(0), part(1))


def _check_fields(path: Path, rows: Any, *fields: str) -> None:
    absent = set(fields) - set(rows.dtype.names or ())
    if absent:
        raise InputError(f"{path}: the annotations have no field {min(absent)!r}; is it the official file?")


def _cifar_part(base: Path, batches: Sequence[str], key: str) -> Part:
    rows, images = list[tuple[str, int]](), list[Image.Image]()
    for batch in batches:
        more, labels = read_batch(base / batch, key)
        rows += [(f"{batch}/{row:05d}", label) for row, label in enumerate(labels)]
        images += more
    return _part(rows, images)


def _tree(base: Path, part: str, classes: Sequence[str]) -> Part:
    """The images of the folder `part`, one sub-folder a class."""
    folder = find_path(base, part)
    absent = [name for name in classes if not (folder / name).is_dir()]
    if absent:
        loose = "sort its images into a folder for each class" if image_names(folder) else ""
        advice = loose or still_packed(folder) or "unpack its archive again"
        raise InputError(f"{folder}: {len(absent)} of {len(classes)} folders are missing, first {absent[0]}; {advice}")
    return _part(
        (f"{part}/{name}/{image}", number)
        for number, name in enumerate(classes)
        for image in image_names(folder / name)
    )
