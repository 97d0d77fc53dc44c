"""Miniatures of the benchmark datasets in their official layouts: real folders and file formats, a few tiny images."""

import io
import pickle
from typing import Any, ClassVar

import numpy as np
from PIL import Image
from scipy.io import savemat

from selex.bench.datasets.catalog import published_facts


def picture(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 3), (200, 100, 0)).save(path, format="JPEG")


def write(path, *lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def cub(root):
    """Three species; the list is by image number, not by name, as the official one is."""
    names = ["001.Black_footed_Albatross", "002.Laysan_Albatross", "003.Sooty_Albatross"]
    images = [
        (names[0], "Black_Footed_Albatross_0046_18", 0),
        (names[0], "Black_Footed_Albatross_0009_34", 1),
        (names[0], "Black_Footed_Albatross_0002_55", 1),
        (names[1], "Laysan_Albatross_0003_1033", 1),
        (names[1], "Laysan_Albatross_0082_524", 0),
        (names[2], "Sooty_Albatross_0048_1130", 1),
    ]
    write(root / "classes.txt", *(f"{row} {name}" for row, name in enumerate(names, 1)))
    write(root / "images.txt", *(f"{row} {name}/{file}.jpg" for row, (name, file, _) in enumerate(images, 1)))
    write(
        root / "image_class_labels.txt",
        *(f"{row} {names.index(name) + 1}" for row, (name, _, _) in enumerate(images, 1)),
    )
    write(root / "train_test_split.txt", *(f"{row} {flag}" for row, (_, _, flag) in enumerate(images, 1)))
    for name, file, _ in images:
        picture(root / "images" / name / f"{file}.jpg")


def aircraft(root):
    """Three variants, one of them with blanks in its name and one with a slash."""
    write(root / "variants.txt", "707-320", "BAE 146-200", "F-16A/B")
    write(root / "images_variant_trainval.txt", "1025794 707-320", "0481847 F-16A/B", "1340192 BAE 146-200")
    write(root / "images_variant_test.txt", "1514522 BAE 146-200")
    for image in ("1025794", "0481847", "1340192", "1514522"):
        picture(root / "images" / f"{image}.jpg")


CARS = ["AM General Hummer SUV 2000", "Acura RL Sedan 2012", "Acura TL Sedan 2012"]


def cars_devkit(root, test_annotations="devkit/cars_test_annos_withlabels.mat"):
    """Annotations as the devkit has them: a struct array with one entry an image."""
    (root / "devkit").mkdir(parents=True)
    savemat(root / "devkit" / "cars_meta.mat", {"class_names": _cells(CARS)})
    _annotations(root / "devkit" / "cars_train_annos.mat", [("00001.jpg", 3), ("00002.jpg", 1), ("00003.jpg", 2)])
    _annotations(root / test_annotations, [("00001.jpg", 2)])
    for image in ("cars_train/00001", "cars_train/00002", "cars_train/00003", "cars_test/00001"):
        picture(root / f"{image}.jpg")


def cars_one_file(root):
    """The single file of the later release, sorted by class, with a flag for test images."""
    rows = [("car_ims/000001.jpg", 1, 0), ("car_ims/000002.jpg", 1, 1), ("car_ims/000003.jpg", 3, 0)]
    fields = [("relative_im_path", object), *_BOX, ("class", object), ("test", object)]
    entries = [(name, 1, 2, 3, 4, number, flag) for name, number, flag in rows]
    root.mkdir(parents=True, exist_ok=True)
    content = {"annotations": np.array([entries], dtype=fields), "class_names": _cells(CARS)}
    savemat(root / "cars_annos.mat", content)
    for name, _, _ in rows:
        picture(root / name)


_BOX = [(f"bbox_{side}", object) for side in ("x1", "y1", "x2", "y2")]


def _cells(names):
    return np.array([names], dtype=object)


def _annotations(path, rows):
    entries = [(1, 2, 3, 4, number, name) for name, number in rows]
    fields = [*_BOX, ("class", object), ("fname", object)]
    savemat(path, {"annotations": np.array([entries], dtype=fields)})


def pets(root):
    """Names of cats start with a capital; blanks in a breed are underscores."""
    write(
        root / "annotations" / "trainval.txt",
        "Maine_Coon_12 3 1 2",
        "american_bulldog_100 2 2 1",
        "Abyssinian_100 1 1 1",
    )
    write(root / "annotations" / "test.txt", "Abyssinian_201 1 1 1", "american_bulldog_7 2 2 1")
    for name in ("Maine_Coon_12", "american_bulldog_100", "Abyssinian_100", "Abyssinian_201", "american_bulldog_7"):
        picture(root / "images" / f"{name}.jpg")


_PICKLER: Any = pickle._Pickler


class _OldPickler(_PICKLER):
    """Writes bytes and text as Python 2 wrote its strings, and numpy's parts under their old names."""

    dispatch: ClassVar = dict(_PICKLER.dispatch)

    def save_old_string(self, text):
        data = text.encode("latin1") if isinstance(text, str) else text
        self.write(pickle.BINSTRING + len(data).to_bytes(4, "little") + data)
        self.memoize(text)

    def save_global(self, thing, name=None):
        name = name or thing.__name__
        module = "numpy.core.multiarray" if name == "_reconstruct" else thing.__module__
        self.write(pickle.GLOBAL + f"{module}\n{name}\n".encode())
        self.memoize(thing)

    dispatch[bytes] = dispatch[str] = save_old_string


def old_pickle(content):
    """What Python 2 would have written, as the official batches were."""
    file = io.BytesIO()
    pickler = _OldPickler(file, protocol=2)
    pickler.dump(content)
    return file.getvalue()


def batch(labels, key="labels"):
    """Images whose red is their label, whose green is 7 and whose blue counts the pixels."""
    planes = np.zeros((len(labels), 3, 32, 32), dtype=np.uint8)
    planes[:, 0] = np.array(labels)[:, None, None]
    planes[:, 1] = 7
    planes[:, 2] = (np.arange(1024) % 256).reshape(32, 32)
    names = [f"thing_s_{row:06d}.png" for row in range(len(labels))]
    return old_pickle({"data": planes.reshape(len(labels), 3072), key: labels, "filenames": names})


def cifar10(root):
    root.mkdir(parents=True, exist_ok=True)
    for number in range(1, 6):
        (root / f"data_batch_{number}").write_bytes(batch([number, 0]))
    (root / "test_batch").write_bytes(batch([9, 5, 4]))
    names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    (root / "batches.meta").write_bytes(old_pickle({"num_cases_per_batch": 10000, "label_names": names}))


def cifar100(root):
    root.mkdir(parents=True, exist_ok=True)
    (root / "train").write_bytes(batch([99, 0, 80], "fine_labels"))
    (root / "test").write_bytes(batch([79], "fine_labels"))
    (root / "meta").write_bytes(old_pickle({"fine_label_names": [f"name {number}" for number in range(100)]}))


def imagenet100(root, others=("n01440764",)):
    """The hundred synsets with one training and one validation image each, among others that do not count."""
    for number, synset in enumerate([*published_facts("imagenet100").synsets, *others]):
        picture(root / "train" / synset / f"{synset}_{number}.JPEG")
        picture(root / "val" / synset / f"ILSVRC2012_val_{number:08d}.JPEG")


def herbarium19(root, small="small-"):
    """Four categories; 10 comes before 2 as text does."""
    for category in ("0", "1", "2", "10"):
        for image in ("00001", "00000"):
            picture(root / f"{small}train" / category / f"{image}.jpg")
        picture(root / f"{small}validation" / category / "00000.jpg")


MINIATURES = {
    "cub": cub,
    "aircraft": aircraft,
    "cars": cars_devkit,
    "pets": pets,
    "cifar10": cifar10,
    "cifar100": cifar100,
    "imagenet100": imagenet100,
    "herbarium19": herbarium19,
}
