"""Each dataset's loader on a miniature of its official layout, and what it says when files are missing or wrong."""

import pickle
import re
import shutil
import warnings

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

import datasets_for_tests as official
from datasets_for_tests import MINIATURES
from selex.bench.datasets.catalog import CATALOG, load_dataset
from selex.bench.datasets.layout import read_pickle
from selex.data.decode import decode
from selex.errors import InputError, Note


@pytest.fixture
def make(tmp_path):
    def of(name, folder="."):
        MINIATURES[name](tmp_path / folder)
        return tmp_path

    return of


def rows(part):
    return list(zip(part.files, part.truth.tolist(), strict=True))


def refused(name, root, words):
    """Loading fails with one line that has these words in it."""
    with pytest.raises(InputError, match=re.escape(words)) as caught:
        load_dataset(name, root)
    assert "\n" not in str(caught.value)


def test_every_dataset_has_its_loader_and_its_facts():
    assert list(CATALOG) == list(MINIATURES)


@pytest.mark.parametrize("folder", [".", "CUB_200_2011"])
def test_cub_is_in_the_order_of_its_list(make, tmp_path, folder):
    dataset = load_dataset("cub", make("cub", folder))
    assert dataset.root == str(tmp_path / folder)
    assert dataset.classes == ["001.Black_footed_Albatross", "002.Laysan_Albatross", "003.Sooty_Albatross"]
    assert rows(dataset.train) == [
        ("images/001.Black_footed_Albatross/Black_Footed_Albatross_0009_34.jpg", 0),
        ("images/001.Black_footed_Albatross/Black_Footed_Albatross_0002_55.jpg", 0),
        ("images/002.Laysan_Albatross/Laysan_Albatross_0003_1033.jpg", 1),
        ("images/003.Sooty_Albatross/Sooty_Albatross_0048_1130.jpg", 2),
    ]
    assert dataset.test.truth.tolist() == [0, 1]


@pytest.mark.parametrize("folder", [".", "data", "fgvc-aircraft-2013b/data"])
def test_aircraft_keeps_blanks_and_slashes_of_variants(make, folder):
    dataset = load_dataset("aircraft", make("aircraft", folder))
    assert dataset.classes == ["707-320", "BAE 146-200", "F-16A/B"]
    assert rows(dataset.train) == [("images/1025794.jpg", 0), ("images/0481847.jpg", 2), ("images/1340192.jpg", 1)]
    assert rows(dataset.test) == [("images/1514522.jpg", 1)]


@pytest.mark.parametrize("folder", [".", "stanford_cars"])
@pytest.mark.parametrize("test", ["cars_test_annos_withlabels.mat", "devkit/cars_test_annos_withlabels.mat"])
def test_cars_from_the_devkit(tmp_path, folder, test):
    official.cars_devkit(tmp_path / folder, test)
    dataset = load_dataset("cars", tmp_path)
    assert dataset.classes == official.CARS
    assert rows(dataset.train) == [
        ("cars_train/00001.jpg", 2),
        ("cars_train/00002.jpg", 0),
        ("cars_train/00003.jpg", 1),
    ]
    assert rows(dataset.test) == [("cars_test/00001.jpg", 1)]


def test_cars_from_one_file_says_that_its_order_is_another(tmp_path):
    official.cars_one_file(tmp_path)
    with pytest.warns(Note, match="another order"):
        dataset = load_dataset("cars", tmp_path)
    assert dataset.classes == official.CARS
    assert rows(dataset.train) == [("car_ims/000001.jpg", 0), ("car_ims/000003.jpg", 2)]
    assert rows(dataset.test) == [("car_ims/000002.jpg", 0)]


def test_of_both_layouts_of_cars_the_published_one_is_read(tmp_path):
    official.cars_devkit(tmp_path)
    official.cars_one_file(tmp_path)
    assert len(load_dataset("cars", tmp_path).train) == 3


def test_pets_are_numbered_by_their_class_ids(make):
    dataset = load_dataset("pets", make("pets"))
    assert dataset.classes == ["Abyssinian", "american_bulldog", "Maine_Coon"]
    assert rows(dataset.train) == [
        ("images/Maine_Coon_12.jpg", 2),
        ("images/american_bulldog_100.jpg", 1),
        ("images/Abyssinian_100.jpg", 0),
    ]
    assert dataset.test.truth.tolist() == [0, 1]


@pytest.mark.parametrize("folder", [".", "cifar-10-batches-py"])
def test_cifar10_from_its_python_batches(make, folder):
    dataset = load_dataset("cifar10", make("cifar10", folder))
    assert dataset.classes[0] == "airplane"
    assert dataset.train.truth.tolist() == [1, 0, 2, 0, 3, 0, 4, 0, 5, 0]
    assert dataset.train.files[:3] == ["data_batch_1/00000", "data_batch_1/00001", "data_batch_2/00000"]
    assert dataset.test.truth.tolist() == [9, 5, 4]
    pixels = np.asarray(dataset.train.images[4])
    assert pixels.shape == (32, 32, 3)
    assert pixels[0, 0].tolist() == [3, 7, 0]
    assert pixels[1, 2].tolist() == [3, 7, 34], "planes are row by row"


def test_cifar_arrays_may_be_written_column_by_column(make):
    root = make("cifar100")
    rows = np.arange(2 * 3072).reshape(2, 3072).astype(np.uint8)
    content = {"data": np.asfortranarray(rows), "fine_labels": [5, 6]}
    (root / "train").write_bytes(official.old_pickle(content))
    image = np.asarray(load_dataset("cifar100", root).train.images[1])
    assert (image == rows[1].reshape(3, 32, 32).transpose(1, 2, 0)).all()


def test_cifar100_takes_the_fine_labels(make):
    dataset = load_dataset("cifar100", make("cifar100", "cifar-100-python"))
    assert dataset.train.truth.tolist() == [99, 0, 80]
    assert dataset.test.truth.tolist() == [79]
    assert dataset.classes[99] == "name 99"


@pytest.mark.parametrize("folder", [".", "ILSVRC/Data/CLS-LOC"])
def test_imagenet100_takes_its_hundred_synsets_in_order(make, folder):
    dataset = load_dataset("imagenet100", make("imagenet100", folder))
    assert len(dataset.classes) == 100
    assert dataset.classes == sorted(dataset.classes)
    assert dataset.train.truth.tolist() == list(range(100)) == dataset.test.truth.tolist()
    assert dataset.train.files[1] == f"train/{dataset.classes[1]}/{dataset.classes[1]}_1.JPEG"
    assert not any("n01440764" in name for name in dataset.train.files)


@pytest.mark.parametrize("small", ["small-", ""])
def test_herbarium19_counts_folders_as_text(tmp_path, small):
    official.herbarium19(tmp_path, small)
    official.picture(tmp_path / f"{small}train" / "1" / "._00000.jpg")
    official.picture(tmp_path / f"{small}train" / ".hidden" / "00000.jpg")
    dataset = load_dataset("herbarium19", tmp_path)
    assert dataset.classes == ["0", "1", "10", "2"]
    assert dataset.train.truth.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert dataset.train.files[4:6] == [f"{small}train/10/00000.jpg", f"{small}train/10/00001.jpg"]
    assert len(dataset.test) == 4


@pytest.mark.parametrize("name", MINIATURES)
def test_every_row_has_an_image(make, name):
    root = make(name)
    dataset = load_dataset(name, str(root))
    for part in (dataset.train, dataset.test):
        for row, file in enumerate(part.files):
            assert decode(part.images[row] if part.images else str(root / file), 8).shape in ((8, 10, 3), (8, 8, 3))


@pytest.mark.parametrize("name", MINIATURES)
def test_bad_roots_are_one_line(name, tmp_path):
    refused(name, tmp_path / "nowhere", f"{tmp_path / 'nowhere'}: no such folder")
    refused(name, tmp_path, "the official archive was unpacked in")
    (tmp_path / "official.tar.gz").touch()
    refused(name, tmp_path, "unpack official.tar.gz, which lies there")


def test_an_unknown_name_is_answered_with_the_nearest(tmp_path):
    for wrong, near in {"CUB": "cub", "stanford_cars": "cars", "cifar": "cifar10", "herbarium": "herbarium19"}.items():
        refused(wrong, tmp_path, f"no dataset {wrong!r}; did you mean {near!r}?")
    refused("xyz", tmp_path, "no dataset 'xyz'; there are: cub, aircraft,")


class Evil:
    def __reduce__(self):
        return open, ("ran", "w")


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_malicious_pickle_is_refused_and_not_run(make, monkeypatch, tmp_path, protocol):
    root = make("cifar100")
    monkeypatch.chdir(tmp_path)
    (root / "train").write_bytes(pickle.dumps({"data": Evil()}, protocol=protocol))
    refused("cifar100", root, f"{root / 'train'}: damaged or not the official file (it asks for ")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("thing", [np.load, np.random.RandomState, Image.open, getattr])
def test_only_arrays_can_be_asked_for(tmp_path, thing):
    (tmp_path / "batch").write_bytes(pickle.dumps(thing, protocol=2))
    with pytest.raises(InputError, match="which no CIFAR batch needs"):
        read_pickle(tmp_path / "batch")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not a pickle",
        official.old_pickle([1, 2]),
        official.old_pickle({"data": [1], "fine_labels": [1]}),
        official.old_pickle({"data": np.zeros((2, 7), np.uint8), "fine_labels": [1, 2]}),
        official.old_pickle({"data": np.zeros((2, 3072), np.uint8), "fine_labels": [1]}),
        official.old_pickle({"data": np.zeros((2, 3072), np.int16), "fine_labels": [1, 2]}),
        official.batch([1, 2], "coarse_labels"),
        official.batch([1, 2], "fine_labels")[:3000],
    ],
)
def test_damaged_batches_are_one_line(make, content):
    root = make("cifar100")
    (root / "train").write_bytes(content)
    refused("cifar100", root, f"{root / 'train'}: damaged or not the official file")


def test_labels_outside_the_classes_are_refused(make):
    root = make("cifar100")
    (root / "train").write_bytes(official.batch([1, 200], "fine_labels"))
    refused("cifar100", root, "an image is of class 200, but there are 100")


def test_meta_file_without_names(make):
    root = make("cifar100")
    (root / "meta").write_bytes(official.old_pickle({"fine": []}))
    refused("cifar100", root, "no fine_label_names")


@pytest.mark.parametrize("file", ["classes.txt", "image_class_labels.txt", "train_test_split.txt"])
def test_a_text_file_that_is_missing_short_or_damaged(make, file):
    root = make("cub")
    path = root / file
    full = path.read_text()
    path.write_text(full.rsplit("\n", 2)[0])
    refused("cub", root, f"{path}: says nothing about")
    path.write_text("1\n")
    refused("cub", root, f"{path}: the line '1' should have two columns")
    path.write_bytes(b"1 \xff\xfe\n")
    refused("cub", root, f"{path}: damaged")
    path.unlink()
    refused("cub", root, f"{path}: no such file")


def test_lists_without_training_images(make):
    root = make("cub")
    (root / "train_test_split.txt").write_text("".join(f"{row} 0\n" for row in range(1, 7)))
    refused("cub", root, "no training or no test images")


def test_pets_with_a_gap_in_their_ids(make):
    root = make("pets")
    (root / "annotations" / "trainval.txt").write_text("Maine_Coon_12 4 1 2\n")
    refused("pets", root, "class ids do not count from 1 to 3")


def test_cars_without_labels_for_test_images(make):
    root = make("cars")
    (root / "devkit" / "cars_test_annos_withlabels.mat").unlink()
    refused("cars", root, "put cars_test_annos_withlabels.mat into")


def test_cars_with_other_mat_files(make):
    root = make("cars")
    meta, train = root / "devkit" / "cars_meta.mat", root / "devkit" / "cars_train_annos.mat"
    savemat(train, {"annotations": np.array([[("00001.jpg",)]], dtype=[("fname", object)])})
    refused("cars", root, "the annotations have no field 'class'")
    savemat(meta, {"names": 1})
    refused("cars", root, f"{meta}: has no variable 'class_names'")
    meta.write_bytes(b"MATLAB 5.0 MAT-file, cut off")
    refused("cars", root, f"{meta}: damaged")


def test_imagenet_that_is_half_unpacked(make):
    root = make("imagenet100")
    synset = load_dataset("imagenet100", root).classes[3]
    shutil.rmtree(root / "train" / synset)
    refused("imagenet100", root, f"1 of 100 folders are missing, first {synset}; unpack its archive again")
    (root / "train" / f"{synset}.tar").touch()
    refused("imagenet100", root, f"unpack {synset}.tar, which lies there")


def test_imagenet_whose_validation_images_are_not_sorted(make):
    root = make("imagenet100")
    shutil.rmtree(root / "val")
    official.picture(root / "val" / "ILSVRC2012_val_00000001.JPEG")
    refused("imagenet100", root, "sort its images into a folder for each class")


def test_no_loader_warns_about_official_files(make):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in MINIATURES:
            load_dataset(name, make(name, name) / name)
