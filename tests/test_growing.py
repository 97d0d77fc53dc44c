"""A collection that grows: only what is new is embedded, whatever else changes."""

import os
import shutil
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from commands import digit_photos, refused, selex
from selex.cluster import pipeline
from selex.cluster.assign import Assigner, Calibration
from selex.config import Config
from selex.data.crops import HostImages, TwoScaleImages
from selex.data.store import ImageStore
from selex.data.table import read_table
from selex.discovery import discover
from selex.errors import Note
from selex.features.cache import FeatureCache
from selex.features.embed import embed, feature_cache
from selex.models import load_backbone
from selex.review.core.decisions import Decision
from selex.review.core.session import Review
from selex.review.core.state import State
from selex.review.recluster import recluster
from selex.runs.earlier import Earlier, continues
from selex.runs.predictor import load
from selex.runs.results import Results
from selex.runs.run import Run

FIVE = ("discover", "photos", "--backbone", "pixels", "--categories", 5, "--out")


def made(run):
    """How many images were embedded when a run was last done."""
    return [entry["made"] for entry in Run.open(run).metrics if entry["step"] == "embed"][-1]


def go(place, *arguments):
    done = selex(*arguments, cwd=place)
    assert done.returncode == 0, done.stderr
    return done.stdout


def photo(path, seed):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (20, 20, 3), dtype=np.uint8)).save(path)


def test_only_what_is_new_is_embedded(place):
    run, unlabelled = place / "run", place / "photos" / "unlabelled"
    go(place, *FIVE, "run")
    assert made(run) == 60
    before = np.load(run / "embeddings.npy")

    go(place, *FIVE, "other")
    assert made(place / "other") == 0
    assert np.array_equal(np.load(place / "other" / "embeddings.npy"), before)
    go(place, *FIVE, "run", "--preset", "fast")
    assert made(run) == 0

    for number in range(3):
        photo(unlabelled / f"0 new {number}.png", number)
    assert "embed: 63 images, 3 of them new, in" in go(place, *FIVE, "run")
    assert made(run) == 3
    grown = {row["file"]: row for row in Run.open(run).clusters.to_pylist()}
    kept = [row for row, file in enumerate(grown) if " new " not in file]
    assert np.array_equal(np.load(run / "embeddings.npy")[kept], before)

    (unlabelled / "0 new 0.png").unlink()
    (unlabelled / "0 new 1.png").rename(unlabelled / "zzz.png")
    shutil.move(place / "photos" / "digit 0", place / "photos" / "nought")
    go(place, *FIVE, "run")
    assert made(run) == 0
    assert len(np.load(run / "embeddings.npy")) == 62

    shutil.copytree(place / "photos", place / "copy")
    go(place, "discover", "copy", *FIVE[2:], "copied")
    assert made(place / "copied") == 0


def test_folders_added_to_a_run(place):
    run = place / "run"
    go(place, *FIVE, "run", "--seed", 3)
    names = Run.open(run).hierarchy["names"]
    for number in range(3):
        photo(place / "june" / f"{number}.png", number)
    photo(place / "june" / "robin" / "3.png", 3)
    june = ("discover", "run", "--add", "june")
    refused("--add writes to the run itself (run): do not give --out", *june, "--out", "x", cwd=place)
    refused("nowhere: no such file or folder", "discover", "run", "--add", "nowhere", cwd=place)
    refused("is inside the folder of photos, which is only read", "discover", "run", "--add", ".", cwd=place)
    refused("photos: is not a run folder", "discover", "photos", "--add", "june", cwd=place)
    assert Run.open(run).config.data.added == ""

    said = go(place, *june, "--categories", 7)
    assert "embed: 64 images, 4 of them new, in" in said
    assert "changed: 4 images new; " in said
    opened = Run.open(run)
    table = {row["file"]: row for row in opened.clusters.to_pylist()}
    assert table[str(place / "june" / "robin" / "3.png")]["category"] == "robin"
    assert (opened.config.seed, opened.config.cluster.categories) == (3, 7)
    assert set(names[:3]) < set(opened.hierarchy["names"])
    assert all(os.path.exists(path) for path in opened.image_paths(list(table)))

    review = Review(run)
    review.decide(Decision("name", category=len(names), name="wren"), review.version)
    review.ledger.close()
    for number in (10, 11):
        photo(place / "july" / "lark" / f"{number}.png", number)
    go(place, *june, "--add", "july", "--categories", 8)
    assert made(run) == 2
    found = Run.open(run).hierarchy
    assert {"robin", "wren", "lark"} < set(found["names"][: found["levels"][0]["n_known"]])
    go(place, *FIVE, "run", "--categories", 8)  # the command of the beginning leaves out nothing
    assert (made(run), len(Run.open(run).clusters)) == (0, 66)


def test_folders_that_were_moved_since(place):
    """Nothing is a dead end: the message says what to type, and names and decisions are kept."""
    run = place / "run"
    go(place, *FIVE, "run")
    for number in range(3):
        photo(place / "june" / f"{number}.png", number)
    go(place, "discover", "run", "--add", "june")
    review = Review(run)
    review.decide(Decision("name", category=len(review.state.names) - 1, name="wren"), review.version)
    review.ledger.close()

    (place / "june").rename(place / "summer")
    advice = "june: was added to this run and no longer exists; if it was moved: selex discover run --add ITS_NEW_PLACE"
    refused(advice, "recluster", "run", cwd=place)
    refused(advice, *FIVE, "run", cwd=place)
    assert ", 0 of them new, " in go(place, "discover", "run", "--add", "summer")
    assert Run.open(run).config.data.added == str(place / "summer")
    shutil.rmtree(place / "summer")
    go(place, "discover", "run", "--add", "photos")
    assert len(Run.open(run).clusters) == 60

    (place / "photos").rename(place / "pictures")
    refused("if it was moved: selex discover ITS_NEW_PLACE --out run", "recluster", "run", cwd=place)
    for file in (place / "pictures").rglob("*.png"):  # a camera gives the same names to other photos
        photo(place / "others" / file.relative_to(place / "pictures"), 1)
    refused("holds a run of other photos", "discover", "others", "--out", "run", cwd=place)
    said = go(place, "discover", "pictures", *FIVE[2:], "run")
    assert ", 0 of them new, " in said
    assert "changed: 0 images in another category" in said
    assert "wren" in Run.open(run).hierarchy["names"]
    go(place, "recluster", "run")


def test_setting_photos_aside_costs_no_embedding(tmp_path, monkeypatch):
    monkeypatch.setenv("SELEX_CACHE", str(tmp_path / "cache"))
    digit_photos(tmp_path / "photos")
    config = Config.of(str(tmp_path / "photos"), categories=5, backbone="pixels")
    folder = discover(config, tmp_path / "run").folder
    review = Review(folder)
    review.decide(Decision("set_aside", rows=(0, 30)), review.version)
    review.ledger.close()
    run = recluster(folder).run
    assert (len(run.embeddings), made(folder)) == (58, 0)


def test_predicting_the_same_photos_again(place, monkeypatch):
    go(place, *FIVE, "run")
    broken = ("selex.features.embed:_features", 1)  # embedding again would kill it
    done = selex("predict", "run", "photos", cwd=place, kill=broken)
    assert done.returncode == 0, done.stderr
    photo(place / "photos" / "new.png", 0)
    assert selex("predict", "run", "photos", cwd=place, kill=broken).returncode == -9


# the cache itself


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SELEX_CACHE", str(tmp_path / "cache"))
    return FeatureCache("some way", 8)


def keys(*numbers):
    return np.array([f"{number:016d}".encode() for number in numbers], dtype="S16")


def rows(*numbers):
    return np.array([np.random.default_rng(number).normal(size=8) for number in numbers], dtype=np.float32)


def found(cache, *numbers):
    """Which of some keys are there, after a look whether their rows are right and nothing else was written."""
    features = np.full((len(numbers), 8), np.nan, dtype=np.float32)
    here = cache.read(keys(*numbers), features)
    assert np.array_equal(features[here], rows(*numbers)[here])
    assert np.isnan(features[~here]).all()
    return here.tolist()


def files(cache):
    return sorted(path for path in cache.folder.iterdir() if path.suffix == ".rows")


def test_rows_are_found_by_their_keys(cache):
    assert found(cache, 1, 2) == [False, False]
    cache.add(keys(3, 1, 4), rows(3, 1, 4))
    cache.add(keys(5, 9), rows(5, 9))
    assert found(cache, 1, 2, 3, 9, 1, 5) == [True, False, True, True, True, True]
    assert found(FeatureCache("some way", 8), 1, 2) == [True, False]
    assert found(FeatureCache("another way", 8), 1, 2) == [False, False]


def test_rows_that_are_done_already_are_left_alone(cache):
    cache.add(keys(1, 2), rows(1, 2))
    features = np.zeros((3, 8), dtype=np.float32)
    assert cache.read(keys(1, 7, 2), features, start=1).tolist() == [True, False, True]
    assert np.array_equal(features, np.stack([np.zeros(8), np.zeros(8), *rows(2)]).astype(np.float32))


def flip(path, place):
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    "damage",
    [
        partial(flip, place=-1),
        partial(flip, place=5),
        partial(flip, place=60),
        cut_short,
        lambda path: path.write_bytes(b""),
    ],
    ids=["row", "magic", "header", "cut", "empty"],
)
def test_what_is_damaged_is_made_anew(damage, cache):
    cache.add(keys(1, 2), rows(1, 2))
    (path,) = files(cache)
    cache.add(keys(3), rows(3))
    damage(path)
    features = np.zeros((3, 8), dtype=np.float32)
    with pytest.warns(Note, match="is damaged; its features are computed again"):
        here = cache.read(keys(1, 2, 3), features)
    assert here.tolist() == [False, False, True]
    assert np.array_equal(features[2:], rows(3))
    cache.add(keys(1, 2), rows(1, 2))
    assert found(cache, 1, 2, 3) == [True, True, True]
    assert path not in files(cache)


def test_links_are_not_followed(cache, tmp_path):
    cache.add(keys(1), rows(1))
    (path,) = files(cache)
    elsewhere = tmp_path / "elsewhere"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    assert found(cache, 1) == [False]
    shutil.rmtree(cache.folder)
    (tmp_path / "theirs").mkdir()
    cache.folder.symlink_to(tmp_path / "theirs")
    with pytest.warns(Note, match="features cannot be kept for other runs"):
        cache.add(keys(1), rows(1))
    assert not os.listdir(tmp_path / "theirs")
    assert found(cache, 1) == [False]


def test_a_cache_that_cannot_be_written_is_noted_and_does_no_harm(cache, tmp_path, monkeypatch):
    (tmp_path / "cache").write_text("a file")
    with pytest.warns(Note, match="features cannot be kept for other runs"):
        cache.add(keys(1), rows(1))
    (tmp_path / "cache").unlink()
    cache.add(keys(1), rows(1))

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("selex.features.cache.npy.write_array", full)
    with pytest.warns(Note, match="No space left on device"):
        cache.add(keys(2), rows(2))
    assert found(cache, 1, 2) == [True, False]
    assert len(os.listdir(cache.folder)) == 2  # the mark, and one file


def test_many_small_files_become_one(cache, monkeypatch):
    monkeypatch.setattr("selex.features.cache._MANY", 5)
    monkeypatch.setattr("selex.features.cache._LARGE", 20)
    cache.add(keys(*range(100, 120)), rows(*range(100, 120)))
    (large,) = files(cache)
    for number in range(5):
        cache.add(keys(number, 7), rows(number, 7))
    assert len(files(cache)) == 6
    cache.add(keys(5), rows(5))
    assert len(files(cache)) == 2
    assert large in files(cache)
    assert found(cache, 0, 1, 2, 3, 4, 5, 6, 7, 119) == [True] * 6 + [False, True, True]


def test_two_at_once(cache):
    other = FeatureCache("some way", 8)
    cache.add(keys(1, 2), rows(1, 2))
    other.add(keys(2, 3), rows(2, 3))
    assert found(cache, 1, 2, 3) == [True, True, True]


# images in it


@pytest.fixture
def images(tmp_path, monkeypatch):
    monkeypatch.setenv("SELEX_CACHE", str(tmp_path / "cache"))
    for number in range(12):
        photo(tmp_path / "photos" / f"{number:02}.png", number)
    store = ImageStore.build(read_table(tmp_path / "photos"), tmp_path / "store", size=32)
    return HostImages(store)


def count(images, **how):
    """Features and how many of them were made."""
    backbone = load_backbone("pixels")
    cache = feature_cache(backbone, "cpu", how.get("views", 1))
    return embed(backbone, images, device="cpu", batch_size=4, cache=cache, **how), cache.made


def test_other_views_and_scales_are_other_features(images):
    first, n = count(images)
    assert n == 12
    again, n = count(images)
    assert n == 0
    assert np.array_equal(again, first)
    assert count(images, views=2)[1] == 12
    both = TwoScaleImages(images, images)
    assert count(both)[1] == 12
    assert count(both)[1] == 0


def test_a_file_that_is_half_done_and_a_cache_with_gaps(images, tmp_path, monkeypatch):
    """Rows from both, and from the network where neither has them, each in its place."""
    expected = embed(load_backbone("pixels"), images, device="cpu")
    backbone = load_backbone("pixels")
    cache = feature_cache(backbone, "cpu")
    cache.add(images.digests[[1, 5, 6, 11]], expected[[1, 5, 6, 11]])
    asked = []
    crops = images.centre_crops
    monkeypatch.setattr(images, "centre_crops", lambda rows, crop: asked.append(rows.tolist()) or crops(rows, crop))
    found = embed(backbone, images, tmp_path / "f.npy", device="cpu", batch_size=3, cache=cache)
    assert asked == [[0, 2, 3], [4, 7, 8], [9, 10]]
    assert np.array_equal(found, expected)
    assert cache.made == 8
    assert count(images)[1] == 0


def test_photos_that_are_added_leave_the_others_where_they_are(tmp_path, monkeypatch):
    monkeypatch.setenv("SELEX_CACHE", str(tmp_path / "cache"))
    digit_photos(tmp_path / "photos", per_digit=20, n_known=3, digits=5)
    (tmp_path / "more").mkdir()
    for file in sorted((tmp_path / "photos" / "unlabelled").glob("*"))[:12]:
        shutil.move(file, tmp_path / "more" / file.name)
    assert selex(*FIVE, "run", cwd=tmp_path).returncode == 0
    before = Run.open(tmp_path / "run").clusters.to_pydict()
    done = selex("discover", "run", "--add", "more", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "12 images new; 0 images in another category" in done.stdout
    after = Run.open(tmp_path / "run")
    now = dict(zip(after.clusters["file"].to_pylist(), after.clusters["category"].to_pylist(), strict=True))
    assert {file: now[file] for file in before["file"]} == dict(zip(before["file"], before["category"], strict=True))
    assert len(set(now.values())) == 5, "they are no reason for another category"
    rows = [after.clusters["file"].to_pylist().index(file) for file in before["file"]]
    for name in [name for name in before if name.startswith("level_")]:
        assert [after.clusters[name].to_pylist()[row] for row in rows] == before[name]
    assert [entry.get("resumed") for entry in after.metrics if entry["step"] == "cluster"] == [None, True]


def test_photos_that_stay_are_not_judged_again_unless_they_changed(tmp_path, monkeypatch):
    monkeypatch.setenv("SELEX_CACHE", str(tmp_path / "cache"))
    photos, asked = tmp_path / "photos", []
    digit_photos(photos, per_digit=20, n_known=1, digits=6)
    later = [(file, file.read_bytes()) for file in sorted((photos / "unlabelled").glob("*"))[:12]]
    for file, _ in later:
        file.unlink()
    config = Config.of(str(photos), backbone="pixels", categories=6)
    discover(config, tmp_path / "run")
    grow = pipeline.with_added
    monkeypatch.setattr(pipeline, "with_added", lambda *arguments: asked.append(grow(*arguments)) or asked[-1])
    other = sorted((photos / "unlabelled").glob("*"))[0]
    for part, judged_alone, replaced in ((later[:6], 1, ()), (later[6:9], 2, ()), (later[9:], 2, (other,))):
        before = rows_of(tmp_path / "run")
        for file, content in part:
            file.write_bytes(content)
        for file in replaced:
            photo(file, 0)  # another photo under the same name
        found = Results.read(Run.open(tmp_path / "run"), distances=True)
        discover(config, tmp_path / "run", earlier=Earlier.grown(Run.open(tmp_path / "run"), found))
        after = rows_of(tmp_path / "run")
        assert len(asked) == judged_alone
        counted_as_found(Run.open(tmp_path / "run"))
        tolerance = 1e-6 if replaced else 0  # where all are judged again
        for name, row in before.items():
            distance = pytest.approx(row["distance"], rel=tolerance, abs=0)
            assert (after[name]["distance"] == distance) is (
                name not in {f"unlabelled/{file.name}" for file in replaced}
            )
            if not replaced:
                assert after[name] == row
    assert all(asked)


REVIEWS = {
    "nothing": ((), {"owl": 0, "wren": 1, "gull": 2, "novel-1": 3}),
    "changed": ((Decision("move", rows=(2,), category=3),), {"owl": 0, "gull": 2}),
    "new name": ((Decision("name", category=0, name="barn owl"),), {"barn owl": 0, "wren": 1, "gull": 2, "novel-1": 3}),
    "names swapped": (
        tuple(Decision("name", category=c, name=name) for c, name in ((0, "other"), (1, "owl"), (0, "wren"))),
        {"wren": 0, "owl": 1, "gull": 2, "novel-1": 3},
    ),
    "name of one that is gone": (
        (Decision("merge", categories=(1, 0)), Decision("name", category=2, name="owl")),
        {"owl": 2, "novel-1": 3},
    ),
}


@pytest.mark.parametrize("review", REVIEWS)
def test_categories_that_no_photo_left_keep_what_the_model_knows_of_them_whatever_they_are_called(review):
    """Others get what is usual of what is added to the odds of known ones; their centres are to be computed."""
    decisions, unchanged = REVIEWS[review]
    state = State(four_categories())
    for decision in decisions:
        state.apply(decision)
    names = sorted({state.names[category] for category in state.category})
    centers = np.arange(8, dtype=np.float32).reshape(4, 2)
    shifts, margins = (-3.0, 0.5, 1.0), np.arange(12.0).reshape(4, 3)
    calibration = Calibration(1.0, 0.9, -0.1, shifts)
    assigner = Assigner(centers, np.ones(4, np.float32), calibration, margins=margins, n_known=3)
    model = SimpleNamespace(assigner=assigner, names=state.results.names, maps=None)
    earlier = Earlier.standing(model, None, state.results, state.category, state.names)
    nothing = np.zeros(8, dtype=bool)
    start = earlier.start(SimpleNamespace(files=state.results.files, labelled=~nothing, categories=names))
    own = dict(enumerate(shifts))
    assert start.calibration == (1.0, 0.9, -0.1, tuple(own.get(unchanged.get(name), 0.5) for name in names))
    assert start.stays.tolist() == [name in unchanged for name in names]
    assert start.centers[start.stays].tolist() == [centers[unchanged[n]].tolist() for n in names if n in unchanged]
    if len(unchanged) < 4:
        assert start.margins is None
    else:
        assert start.margins.tolist() == [margins[unchanged[name]].tolist() for name in names]


def four_categories():
    """A run of eight photos, two in each category."""
    zeros = np.zeros(8)
    files, names = [f"{number}.png" for number in range(8)], ["owl", "wren", "gull", "novel-1"]
    return Results(files, names, 3, np.arange(8) // 2, zeros > 0, zeros, zeros.astype(int))


def counted_as_found(run):
    """What a model keeps of the images of each category is of that category, whatever number it had before."""
    results, model = Results.read(run), load(run.folder)
    found = [results.names[number] for number in results.category[~results.labelled]]
    assert dict(zip(model.names, model.assigner.margins[:, 0], strict=True)) == {n: found.count(n) for n in model.names}


def rows_of(run):
    """What a run says of each photo, but for the number of its category."""
    return {row["file"]: {**row, "cluster": None, "level_1": None} for row in Run.open(run).clusters.to_pylist()}


def test_a_search_that_is_left_open_is_the_one_of_before():
    swaps, left_open = Config.of("photos", search="swaps"), Config.of("photos", search="auto")
    assert continues(swaps, left_open)
    assert continues(left_open, left_open)
    assert not continues(left_open, swaps)
    assert not continues(swaps, Config.of("photos", search="smoothed"))
