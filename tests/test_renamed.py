"""Photos that were renamed or moved: what was decided about them, and the names of categories, follow by content."""

import shutil
import warnings
from contextlib import closing

import numpy as np
import pytest

from commands import digit_photos, selex
from selex import Config, Run, discover
from selex.errors import Note
from selex.review.core.decisions import Decision
from selex.review.core.ledger import Ledger
from selex.review.core.outcome import labels_of
from selex.review.core.session import Review
from selex.review.recluster import recluster
from selex.runs.naming import renamed, same_images
from selex.runs.results import Results

FIVE = ("discover", "photos", "--backbone", "pixels", "--categories", 5, "--out", "run")


def test_of_copies_the_one_with_the_same_name_elsewhere_is_the_same_then_the_first():
    gone = [("a/1.png", b"x"), ("a/2.png", b"x"), ("a/3.png", b"x"), ("a/4.png", b"y"), ("a/5.png", b"")]
    came = [("b/7.png", b"x"), ("b/2.png", b"x"), ("b/4.png", b"z"), ("b/5.png", b"")]
    assert renamed(gone, came) == {1: 1, 0: 0}


def test_a_name_counts_more_than_content():
    old, new = same_images(
        ["a", "b", "c", "d"], ["b", "e", "a"], np.array([b"1", b"2", b"3", b"4"]), np.array([b"1", b"3", b"2"])
    )
    assert list(zip(old.tolist(), new.tolist(), strict=True)) == [(0, 2), (1, 0), (2, 1)]
    old, new = same_images(["a", "c"], ["b", "a"], np.array([b"1", b"1"]), np.array([b"1", b"1"]))
    assert list(zip(old.tolist(), new.tolist(), strict=True)) == [(0, 1), (1, 0)]
    old, new = same_images(["a", "c"], ["a", "b"], None, np.array([b"1", b"1"]))
    assert list(zip(old.tolist(), new.tolist(), strict=True)) == [(0, 0)], "nothing is known of the content"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits")
    digit_photos(folder / "photos", per_digit=20, n_known=3, digits=6)
    for number in range(3):  # copies
        first = sorted((folder / "photos" / "unlabelled").glob("*"))[20 * number]
        shutil.copy(first, first.with_name(f"copy-{first.name}"))
    return folder


@pytest.fixture
def place(made, tmp_path):
    shutil.copytree(made / "photos", tmp_path / "photos")
    discover(config(tmp_path), tmp_path / "run", store=tmp_path / "store")
    return tmp_path


def config(place):
    return Config.of(str(place / "photos"), categories=6, backbone="pixels")


def categories(place):
    """The category of every photo, by file."""
    table = Run.open(place / "run").clusters
    return dict(zip(table["file"].to_pylist(), table["category"].to_pylist(), strict=True))


def decide(place, *decisions):
    review = Review(place / "run")
    for kind, fields in decisions:
        review.decide(Decision(kind, **fields), review.version)
    review.ledger.close()
    return list(review.results.files), review.state


def move(place, files, folder):
    """Photos into another folder, under other names; the names they have now."""
    (place / "photos" / folder).mkdir(parents=True)
    now = {file: f"{folder}/new-{number:03d}.png" for number, file in enumerate(files)}
    for file, name in now.items():
        (place / "photos" / file).rename(place / "photos" / name)
    return now


def without_notes(place, **how):
    with warnings.catch_warnings():
        warnings.simplefilter("error", Note)
        return recluster(place / "run", store=place / "store", **how)


def test_without_decisions_categories_are_as_they_were(place):
    before = categories(place)
    now = move(place, [file for file in before if file.startswith("unlabelled/")], "unlabelled/2026")
    done = selex(*FIVE[:4], "--categories", 6, "--out", "run", "--store", "store", cwd=place)
    assert done.returncode == 0, done.stderr
    assert "changed: 0 images in another category\n" in done.stdout
    assert categories(place) == {now.get(file, file): name for file, name in before.items()}


def test_decisions_follow_and_do_so_again(place):
    files, _ = decide(
        place,
        ("name", {"category": 3, "name": "three"}),
        ("move", {"rows": (7, 8), "category": 0}),
        ("junk", {"rows": (70, 71)}),
    )
    labels = labels_of(Run.open(place / "run"))
    now = move(place, files, "unlabelled/first")
    done = without_notes(place)
    assert done.changes.lost == 2, "of junk alone"
    assert (done.changes.before >= 0).all(), "no photo is new"
    after = categories(place)
    assert after.keys() == {now[file] for row, file in enumerate(files) if row not in (70, 71)}
    assert all(after[now[file]] == name for file, name in labels.of.items())
    again = move(place, now.values(), "unlabelled/second")
    without_notes(place)
    assert categories(place) == {again[file]: name for file, name in after.items()}
    kept = labels_of(Run.open(place / "run"))
    assert kept.of == {again[now[file]]: name for file, name in labels.of.items()}
    review = Review(place / "run")
    assert {review.results.files[row] for row in np.flatnonzero(review.given).tolist()} == {
        again[now[file]] for file in files if not file.startswith("unlabelled/")
    }
    review.ledger.close()


def test_of_two_copies_one_may_be_junk(place):
    """Whichever of the two is renamed, deleted or both: one is left out, the other is not."""
    before = categories(place)
    copies = [file for file in before if "/copy-" in file]
    rows = tuple(row for row, file in enumerate(before) if file in copies)
    decide(place, ("junk", {"rows": rows}))
    originals = [file.replace("copy-", "") for file in copies]
    (place / "photos" / copies[1]).unlink()  # junk, deleted; the other one is renamed
    now = move(place, [originals[0], originals[1], copies[2]], "unlabelled/away")
    without_notes(place)
    found = categories(place)
    assert {now[originals[0]], now[originals[1]], originals[2]} <= found.keys()
    assert not {*copies, now[copies[2]]} & found.keys()
    assert len(found) == len(before) - 3


def test_a_copy_is_a_new_photo(place):
    files, _ = decide(place, ("name", {"category": 3, "name": "three"}), ("junk", {"rows": (70,)}))
    shutil.copy(place / "photos" / files[70], place / "photos" / "unlabelled" / "another.png")
    without_notes(place)
    assert "unlabelled/another.png" in categories(place)
    assert files[70] not in categories(place)


def test_a_photo_that_goes_to_the_folder_of_a_category_is_labelled_so(place):
    files, state = decide(place, ("move", {"rows": (70, 71), "name": "other"}))
    names = {file: f"{state.names[0]}/{file.replace('/', '-')}" for file in files[70:72]}
    for file, name in names.items():
        (place / "photos" / file).rename(place / "photos" / name)
    with pytest.warns(Note, match="decisions about 2 images are ignored"):
        recluster(place / "run", store=place / "store", config=config(place))
    assert [categories(place)[name] for name in names.values()] == [state.names[0]] * 2


def test_within_the_folder_of_a_category_decisions_stay_and_junk_is_junk_anywhere(place):
    files = list(categories(place))
    own = [row for row, file in enumerate(files) if file.startswith("digit 0/")]
    decide(place, ("junk", {"rows": tuple(own[:2])}), ("move", {"rows": (own[2],), "category": 1}))
    junk = move(place, [files[own[0]]], "digit 0/2026") | move(place, [files[own[1]]], "felines")
    now = {files[own[2]]: "digit 0/2026/moved.png"}
    (place / "photos" / files[own[2]]).rename(place / "photos" / now[files[own[2]]])
    with warnings.catch_warnings():
        warnings.simplefilter("error", Note)
        recluster(place / "run", store=place / "store", config=config(place))
    found = categories(place)
    assert not set(junk.values()) & found.keys()
    assert found[now[files[own[2]]]] == "digit 1"


def test_a_label_that_came_from_a_folder_alone_does_not_leave_it(place):
    files, _ = decide(place, ("name", {"category": 3, "name": "three"}))
    out = next(file for file in files if file.startswith("digit 0/"))
    now = move(place, [out], "unlabelled/out")
    with pytest.warns(Note, match="decisions about 1 image are ignored"):
        recluster(place / "run", store=place / "store", config=config(place))
    assert now[out] not in labels_of(Run.open(place / "run")).of


def test_a_photo_that_was_changed_too_is_another(place):
    files, _ = decide(place, ("name", {"category": 3, "name": "three"}), ("confirm", {"category": 3}))
    labelled = [file for file, name in labels_of(Run.open(place / "run")).of.items() if name == "three"]
    now = move(place, labelled[:1], "unlabelled/changed")
    shutil.copy(place / "photos" / files[0], place / "photos" / now[labelled[0]])
    with pytest.warns(Note, match=rf"decisions about 1 image are ignored, .* the first is {labelled[0]}"):
        recluster(place / "run", store=place / "store")


def test_new_photos_that_cannot_be_read_are_no_reason_to_stop(place):
    files, _ = decide(place, ("name", {"category": 3, "name": "three"}))
    (place / "photos" / files[70]).unlink()
    (place / "photos" / "unlabelled" / "new.png").write_bytes(b"no image")
    done = recluster(place / "run", store=place / "store")
    assert [file for file, _ in done.run.skipped] == ["unlabelled/new.png"]


def test_content_is_kept_beside_decisions(place):
    found = Results.read(Run.open(place / "run"))
    with closing(Ledger(place / "run")) as ledger:
        kept = ledger.results(ledger.round(found))
    assert (kept.content == found.content).all()
    assert len(set(found.content.tolist())) == len(found) - 3
