"""The published split: which classes are known, which rows keep their label, and the check of a dataset on disk."""

import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
from timm.data import ImageNetInfo
from typer.testing import CliRunner

import datasets_for_tests as official
import selex.bench.datasets.splits
from datasets_for_tests import MINIATURES
from selex.bench.datasets.catalog import Dataset, Part, load_dataset, matches_published, published_facts
from selex.bench.datasets.splits import (
    FOLDS,
    check_dataset,
    draw_labelled,
    file_list_hash,
    hold_out_labels,
    load_benchmark,
    long_tail,
    missing_images,
    split_dataset,
)
from selex.cli.data import data_app
from selex.errors import InputError

KNOWN = {
    "cub": 100,
    "aircraft": 50,
    "cars": 98,
    "pets": 19,
    "cifar10": 5,
    "cifar100": 80,
    "imagenet100": 50,
    "herbarium19": 341,
}


@pytest.fixture
def whole(tmp_path, monkeypatch):
    """A function that makes a miniature and says of it what is published of the real one."""

    def of(name, **more):
        MINIATURES[name](tmp_path)
        dataset = load_dataset(name, tmp_path)
        half = int(draw_labelled(np.isin(dataset.train.truth, list(published_facts(name).known))).sum())
        mine = replace(
            published_facts(name),
            classes=len(np.unique(dataset.train.truth)),
            train=len(dataset.train),
            test=len(dataset.test),
            known=frozenset(number for number in published_facts(name).known if number < len(dataset.classes)),
            labelled=half,
            unlabelled=len(dataset.train) - half,
            file_list=None,
            md5={},
        )
        mine = replace(mine, **more)
        for module in (selex.bench.datasets.splits, selex.bench.datasets.splits):
            monkeypatch.setattr(module, "published_facts", lambda name: mine)
        return tmp_path

    return of


@pytest.mark.parametrize("name", MINIATURES)
def test_known_classes_are_as_many_as_published(name):
    published = published_facts(name)
    assert len(published.known) == KNOWN[name]
    assert max(published.known) < published.classes


def test_some_known_classes_by_hand():
    assert {0, 5, 7, 9, 150, 199} <= published_facts("cub").known
    assert not {1, 2, 3, 4, 195} & published_facts("cub").known
    assert {0, 1, 2, 7, 195} <= published_facts("cars").known
    assert not {3, 4, 190} & published_facts("cars").known
    assert published_facts("pets").known == set(range(19))
    assert published_facts("cifar100").known == set(range(80))


def test_herbarium_classes_are_a_draw_of_the_legacy_generator():
    assert published_facts("herbarium19").known == set(np.random.RandomState(0).choice(range(683), 341, replace=False))


def test_imagenet_synsets_are_a_draw_of_the_legacy_generator():
    synsets = ImageNetInfo("imagenet-1k").label_names()
    assert synsets == sorted(synsets)
    drawn = np.sort(np.random.RandomState(0).choice(range(1000), 100, replace=False))
    assert published_facts("imagenet100").synsets == tuple(synsets[number] for number in drawn)


def published_draw(truth, known, ratio):
    """The rule word by word, row after row: the labelled rows by number."""
    np.random.seed(0)  # noqa: NPY002
    rows = [row for row, number in enumerate(truth) if number in known]
    chosen = np.random.choice(range(len(rows)), replace=False, size=(int(ratio * len(rows)),))  # noqa: NPY002
    return sorted(rows[position] for position in chosen)


@pytest.mark.parametrize("ratio", [0.1, 0.5, 0.8, 1.0])
def test_labelled_rows_are_the_published_draw(ratio):
    truth = np.random.default_rng(3).integers(0, 20, 501)
    labelled = draw_labelled(truth < 7, ratio)
    assert np.flatnonzero(labelled).tolist() == published_draw(truth, range(7), ratio)


def test_the_draw_itself_never_changes():
    assert np.flatnonzero(draw_labelled(np.ones(10, bool))).tolist() == [1, 2, 4, 8, 9]


def test_cub_has_1498_labelled_rows():
    """30 training images a class, 29 of six classes, of which three are known."""
    per_class = np.full(200, 30)
    per_class[[106, 125, 134, 140, 189, 195]] = 29
    truth = np.repeat(np.arange(200), per_class)
    assert len(truth) == published_facts("cub").train
    labelled = draw_labelled(np.isin(truth, list(published_facts("cub").known)))
    assert labelled.sum() == published_facts("cub").labelled == 1498
    assert (~labelled).sum() == published_facts("cub").unlabelled == 4496


@pytest.mark.parametrize(("name", "a_class"), [("cifar10", 5000), ("cifar100", 500)])
def test_cifar_sizes_follow_from_equal_classes(name, a_class):
    published = published_facts(name)
    labelled = draw_labelled(np.isin(np.repeat(np.arange(published.classes), a_class), list(published.known)))
    assert (labelled.sum(), (~labelled).sum()) == (published.labelled, published.unlabelled)


@pytest.mark.parametrize("name", [name for name in MINIATURES if published_facts(name).train])
def test_published_sizes_add_up(name):
    """Rounded to hundreds as some are."""
    published = published_facts(name)
    sizes = [
        1000 * float(size[:-1]) if isinstance(size, str) else size
        for size in (published.labelled, published.unlabelled)
    ]
    assert sum(sizes) == pytest.approx(published.train, abs=100)


def test_rounded_sizes_agree_within_their_rounding():
    assert [matches_published(count, "2.0K") for count in (1949, 1950, 2000, 2049, 2051)] == [
        False,
        True,
        True,
        True,
        False,
    ]
    assert matches_published(7, 7)
    assert not matches_published(7, 8)
    assert matches_published(7, None)


def test_a_split_labels_training_rows_of_known_classes_only(tmp_path):
    official.herbarium19(tmp_path)
    dataset = load_dataset("herbarium19", tmp_path)
    train, test = split_dataset(dataset, frozenset({1, 2}))
    assert train.truth.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert train.known.tolist() == [False, False, True, True, True, True, False, False]
    assert train.table.labelled.sum() == 2
    assert not train.table.labelled[~train.known].any()
    for name, number in zip(train.table.label_names, train.truth, strict=True):
        assert name in ("", train.classes[number])
    assert train.table.categories == sorted(train.table.categories)
    assert train.n_known == test.n_known == 2
    assert test.known.tolist() == [False, True, True, False]
    assert not test.table.labelled.any()
    assert test.table.n_known == 0
    assert test.table.source(2) == str(tmp_path / "small-validation" / "10" / "00000.jpg")


def test_a_split_of_cifar_holds_its_images(tmp_path):
    official.cifar10(tmp_path)
    train, _ = split_dataset(load_dataset("cifar10", tmp_path), published_facts("cifar10").known)
    assert np.asarray(train.table.source(8))[0, 0].tolist() == [5, 7, 0]
    assert train.table.labelled.sum() == 4
    assert set(train.table.categories) <= {"airplane", "automobile", "bird", "cat", "deer"}


@pytest.mark.parametrize("ratio", [0, -0.5, 1.5, float("nan")])
def test_label_ratios_outside_0_to_1_are_refused(tmp_path, ratio):
    official.cifar10(tmp_path)
    with pytest.raises(InputError, match="label ratio"):
        split_dataset(load_dataset("cifar10", tmp_path), published_facts("cifar10").known, ratio)


def test_a_dataset_without_its_known_classes_is_refused(tmp_path):
    official.cub(tmp_path)
    with pytest.raises(InputError, match="has 3 classes, but class 5 should be known"):
        split_dataset(load_dataset("cub", tmp_path), published_facts("cub").known)


@pytest.mark.parametrize("name", MINIATURES)
def test_a_whole_dataset_loads(whole, name):
    root = whole(name)
    train, test = load_benchmark(name, root)
    assert len(train.table) == len(train.truth) == len(train.known) > 0
    assert len(test.table) == len(test.truth) > 0
    assert all(finding.ok for finding in check_dataset(name, root))


def test_a_dataset_with_missing_or_empty_images_is_refused(whole):
    root = whole("cub")
    first, second = load_dataset("cub", root).train.files[:2]
    (root / first).unlink()
    (root / second).write_bytes(b"")
    assert missing_images(load_dataset("cub", root)) == [first, second]
    with pytest.raises(InputError, match=f"2 images are missing or empty, first {re.escape(first)}; see selex data"):
        load_benchmark("cub", root)


def test_a_dataset_of_another_size_is_refused(tmp_path):
    official.cub(tmp_path)
    with pytest.raises(InputError, match="4 training images where CUB-200-2011 has 5994"):
        load_benchmark("cub", tmp_path)


def test_the_hash_of_a_file_list_does_not_depend_on_its_order():
    by_hand = "7e18f737311b2dc3b2f269dd78396b0351f14fb66efa879f768cb23181883c78"  # printf 'a\nb' | sha256sum
    assert file_list_hash(["b", "a"]) == file_list_hash(["a", "b"]) == by_hand


def wrong(name, root):
    return {finding.what: finding for finding in check_dataset(name, root) if not finding.ok}


def test_check_of_a_miniature_says_what_was_expected(tmp_path):
    official.cub(tmp_path)
    found = wrong("cub", tmp_path)
    assert list(found) == [
        "classes",
        "training images",
        "test images",
        "labelled images",
        "unlabelled images",
        "names of training files",
    ]
    assert (found["training images"].expected, found["training images"].found) == ("5,994", "4")
    assert all(finding.mend for finding in found.values())


def test_check_names_missing_images_and_partly_unpacked_archives(whole):
    root = whole("cub")
    gone = root / "images" / "003.Sooty_Albatross"
    shutil.rmtree(gone)
    [finding] = wrong("cub", root).values()
    assert finding.found == "1, first images/003.Sooty_Albatross/Sooty_Albatross_0048_1130.jpg"
    assert finding.mend == "an archive is only partly unpacked: unpack the official archive of the images again"
    (root / "CUB_200_2011.tgz").touch()
    shutil.rmtree(root / "images")
    [finding] = wrong("cub", root).values()
    assert finding.found.startswith("6, first images/001.")
    assert finding.mend == "its images are not unpacked: unpack CUB_200_2011.tgz, which lies there"


def test_check_tells_other_file_names(whole):
    root = whole("cub", file_list="0" * 64)
    assert list(wrong("cub", root)) == ["names of training files"]


def test_check_tells_changed_official_files(whole):
    root = whole("cifar10", md5=published_facts("cifar10").md5)
    [finding] = wrong("cifar10", root).values()
    assert finding.what == "official files"
    assert finding.found == "7 changed, first data_batch_1"


def test_the_command_prints_a_table_and_exits_with_2(whole):
    root = whole("cub")
    done = CliRunner().invoke(data_app, ["check", "cub", "--root", str(root)])
    assert done.exit_code == 0, done.output
    assert "cub: as published" in done.stdout
    assert re.search(r"^training images +4 +4$", done.stdout, re.M)
    assert re.search(r"^names of training files +- +[0-9a-f]{16}$", done.stdout, re.M)
    (root / load_dataset("cub", root).test.files[0]).unlink()
    done = CliRunner().invoke(data_app, ["check", "cub", "--root", str(root)])
    assert done.exit_code == 2
    assert re.search(r"^missing images +0 +1, first images/\S+ +<- wrong$", done.stdout, re.M)
    assert "missing images: an archive is only partly unpacked" in done.stderr


def test_the_command_lets_a_wrong_name_through_as_the_users_mistake(tmp_path):
    done = CliRunner().invoke(data_app, ["check", "cubs", "--root", str(tmp_path)])
    assert isinstance(done.exception, InputError)
    assert "did you mean 'cub'?" in str(done.exception)


@pytest.fixture
def classes_of_forty(tmp_path):
    """Ten classes of 40 training rows, the first six known, half of them labelled; no image is opened."""
    rng = np.random.default_rng(0)
    truth = rng.permutation(np.repeat(np.arange(10), 40))
    part = Part([f"{row}.jpg" for row in range(400)], truth)
    names = [f"class {number}" for number in range(10)]
    return split_dataset(Dataset(str(tmp_path), names, part, part), frozenset(range(6)))


def test_a_long_tail_thins_classes_exponentially(classes_of_forty):
    before = classes_of_forty.train
    after = long_tail(before, 8, np.random.default_rng(0))
    sizes = np.bincount(after.truth, minlength=10)
    for n_classes, found in ((6, sizes[:6]), (4, sizes[6:])):
        expected = 40 * 8.0 ** -(np.arange(n_classes) / (n_classes - 1))
        # labelled and unlabelled rows are rounded apart
        assert np.abs(np.sort(found)[::-1] - expected).max() <= 1
    assert sizes.max() == 40
    assert sizes.min() == 5


def test_a_long_tail_keeps_rows_labels_and_order(classes_of_forty):
    before = classes_of_forty.train
    after = long_tail(before, 100, np.random.default_rng(1))
    rows = [int(name.removesuffix(".jpg")) for name in after.table.files]
    assert rows == sorted(rows)
    assert after.truth.tolist() == before.truth[rows].tolist()
    assert after.known.tolist() == before.known[rows].tolist()
    assert after.table.label_names == [before.table.label_names[row] for row in rows]
    assert after.table.categories == before.table.categories, "a known class stays known"
    assert set(after.truth[~after.table.labelled]) == set(range(10)), "and is there among the unlabelled rows"


def test_a_long_tail_follows_its_generator(classes_of_forty):
    one, same, other = (long_tail(classes_of_forty.train, 8, np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert one.table.files == same.table.files != other.table.files


def test_an_imbalance_of_one_changes_nothing(classes_of_forty):
    before = classes_of_forty.train
    after = long_tail(before, 1, np.random.default_rng(0))
    assert after.table.files == before.table.files
    assert after.table.labels.tolist() == before.table.labels.tolist()


@pytest.mark.parametrize("imbalance", [0, 0.5, -3, float("nan")])
def test_an_impossible_imbalance_is_refused(classes_of_forty, imbalance):
    with pytest.raises(InputError, match="imbalance"):
        long_tail(classes_of_forty.train, imbalance, np.random.default_rng(0))


def test_a_label_ratio_changes_the_labels_and_nothing_else(whole):
    root = whole("herbarium19")
    half, most = load_benchmark("herbarium19", root).train, load_benchmark("herbarium19", root, 1.0).train
    assert half.table.files == most.table.files
    assert half.truth.tolist() == most.truth.tolist()
    assert most.table.labelled.tolist() == most.known.tolist()
    assert half.table.labelled.sum() == int(0.5 * half.known.sum())


@pytest.mark.parametrize("fold", range(FOLDS))
def test_hidden_labels_are_whole_classes_and_a_third_of_the_others(classes_of_forty, fold):
    before, after = classes_of_forty.train, hold_out_labels(classes_of_forty.train, fold)
    labels = np.asarray(before.table.labels)
    gone = before.table.labelled & ~after.table.labelled
    assert np.array_equal(after.scored, gone)
    assert np.array_equal(before.scored, ~before.table.labelled)
    for number, name in enumerate(before.table.categories):
        rows, whole = labels == number, number % FOLDS == fold
        assert gone[rows].all() if whole else abs(gone[rows].mean() - 1 / 3) < 0.1
        assert (name in after.table.categories) == (not whole)
        assert (after.known[rows & gone] == (not whole)).all()
    assert after.n_known == len(after.table.categories) == after.table.n_known
    assert np.array_equal(after.truth, before.truth)
