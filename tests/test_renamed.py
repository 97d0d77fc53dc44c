"""Photos that were renamed or moved: what was decided about them, and the names of categories, follow by content."""

import shutil
import warnings
from contextlib import closing

import numpy as np
import pytest

from commands import digit_photos, selex
from review_runs import aside_files, labels_by_file
from selex import Config, Run, discover
from selex.errors import Note
from selex.review.core.decisions import Decision
from selex.review.core.labels import labels_of
from selex.review.core.ledger import Ledger
from selex.review.core.session import Review
from selex.review.recluster import recluster
from selex.runs.naming import renamed, same_images
from selex.runs.results import Results

FIVE = ("discover", "photos", "--backbone", "pixels", "--categories", 5, "--out", "run")


def test_of_copies_the_one_with_the_same_name_elsewhere_is_the_same_then_the_first():
    gone = [("a/1.png", b"x"), ("a/2.png", b"x"), ("a/3.png", b"x"), ("a/4.png", b"y"), ("a/5.png", b"")]
    came = [("b/7.png", b"x"), ("b/2.png", b"x"), ("b/4.png", b"z"), ("b/5.png", b"")]
    assert renamed(gone, came) == {1: 1, 0: 0}


def same(before, now, **how):
    """Pairs of rows of the same images; a file is a name and, after a colon, a content."""
    tables = [[file.split(":") for file in table.split()] for table in (before, now)]
    names, content = ([[file[part] for file in table] for table in tables] for part in (0, 1))
    found = same_images(*names, *(np.array([key.encode() for key in keys], "S16") for keys in content), **how)
    return list(zip(*(rows.tolist() for rows in found), strict=True))


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ("a:1 b:2", "a:2 b:1", [(0, 1), (1, 0)]),  # swapped
        ("a:1 b:2 c:3", "a:2 b:3 c:4", [(1, 0), (2, 1)]),  # one gone, the others moved up, a new one at the end
        ("a:1 b:2", "a:3 b:1 c:2", [(0, 1), (1, 2)]),  # a new one at the beginning
        ("a:1 b:2 c:3 d:4", "b:1 e:3 a:2", [(0, 0), (1, 2), (2, 1)]),
        ("a:1 b:2", "a:3 b:2", [(0, 0), (1, 1)]),  # edited
        ("a:1 b:2", "a:3 b:1", [(0, 1)]),  # one took the name of another that is gone: nothing was edited
        ("a:1 b:2", "a:2 b:2", [(1, 1)]),  # replaced by a copy of another, which is not an edit
        ("a:1 c:1", "b:1 a:1", [(0, 1), (1, 0)]),  # of copies the one that kept its name
        ("a:1 b:1 c:2", "a:2 b:1 c:1", [(0, 2), (1, 1), (2, 0)]),  # a copy swapped with another image
        ("a:1 b:1", "a:3 b:1", [(0, 0), (1, 1)]),  # a copy edited
        ("a: b:2", "a:1 b:", [(0, 0), (1, 1)]),  # not known what they were, or are
        ("a: b:2", "a:2 b:1", [(1, 0)]),
        ("a:1 a:2", "a:2", [(1, 0)]),  # names of several rounds
        ("a:1 a:2", "a:3", [(0, 0)]),
    ],
)
def test_content_tells_images_then_names(before, now, expected):
    assert same(before, now) == expected


def test_what_is_left_out_has_not_become_another():
    assert same("a:1 b:1 c:2 d:3", "e:1 c:4 d:3", left_out=np.array([True, False, True, True])) == [(1, 0), (3, 2)]


def test_where_no_content_is_known_names_tell():
    for content, now in ((None, np.array([b"1", b"1"])), (np.array([b"1", b"1"]), None)):
        old, new = same_images(["a", "c"], ["a", "b"], content, now)
        assert (old.tolist(), new.tolist()) == ([0], [0])
    old, new = same_images(["a", "a"], ["b", "a"])
    assert (old.tolist(), new.tolist()) == ([0], [1])


def test_whatever_is_renamed_is_found():
    rng = np.random.default_rng(0)
    for _ in range(50):
        before = [f"{name}:{rng.integers(1, 30)}" for name in range(20)]
        names = rng.permutation(rng.permutation(25)[:20])
        now = [f"{name}:{file.split(':')[1]}" for name, file in zip(names, before, strict=True)]
        found = same(" ".join(before), " ".join(now))
        assert len(found) == 20
        assert len({new for _, new in found}) == 20
        assert all(before[old].split(":")[1] == now[new].split(":")[1] for old, new in found)


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
        ("set_aside", {"rows": (70, 71)}),
    )
    labels = labels_of(Run.open(place / "run"))
    now = move(place, files, "unlabelled/first")
    done = without_notes(place)
    assert (done.changes.aside, done.changes.lost) == (2, 0), "those set aside alone"
    assert (done.changes.before >= 0).all(), "no photo is new"
    after = categories(place)
    assert after.keys() == {now[file] for row, file in enumerate(files) if row not in (70, 71)}
    assert all(after[now[file]] == name for file, name in labels_by_file(labels).items())
    again = move(place, now.values(), "unlabelled/second")
    without_notes(place)
    assert categories(place) == {again[file]: name for file, name in after.items()}
    kept = labels_of(Run.open(place / "run"))
    assert labels_by_file(kept) == {again[now[file]]: name for file, name in labels_by_file(labels).items()}
    review = Review(place / "run")
    assert {review.results.files[row] for row in np.flatnonzero(review.given).tolist()} == {
        again[now[file]] for file in files if not file.startswith("unlabelled/")
    }
    review.ledger.close()


def test_of_two_copies_one_may_be_set_aside(place):
    """Whichever of the two is renamed, deleted or both: one is left out, the other is not."""
    before = categories(place)
    copies = [file for file in before if "/copy-" in file]
    rows = tuple(row for row, file in enumerate(before) if file in copies)
    decide(place, ("set_aside", {"rows": rows}))
    originals = [file.replace("copy-", "") for file in copies]
    (place / "photos" / copies[1]).unlink()  # set aside, deleted; the other one is renamed
    now = move(place, [originals[0], originals[1], copies[2]], "unlabelled/away")
    without_notes(place)
    found = categories(place)
    assert {now[originals[0]], now[originals[1]], originals[2]} <= found.keys()
    assert not {*copies, now[copies[2]]} & found.keys()
    assert len(found) == len(before) - 3


def test_a_copy_is_a_new_photo(place):
    files, _ = decide(place, ("name", {"category": 3, "name": "three"}), ("set_aside", {"rows": (70,)}))
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


def test_within_the_folder_of_a_category_decisions_stay_and_photos_are_set_aside_anywhere(place):
    files = list(categories(place))
    own = [row for row, file in enumerate(files) if file.startswith("digit 0/")]
    decide(place, ("set_aside", {"rows": tuple(own[:2])}), ("move", {"rows": (own[2],), "category": 1}))
    aside = move(place, [files[own[0]]], "digit 0/2026") | move(place, [files[own[1]]], "felines")
    now = {files[own[2]]: "digit 0/2026/moved.png"}
    (place / "photos" / files[own[2]]).rename(place / "photos" / now[files[own[2]]])
    with warnings.catch_warnings():
        warnings.simplefilter("error", Note)
        recluster(place / "run", store=place / "store", config=config(place))
    found = categories(place)
    assert not set(aside.values()) & found.keys()
    assert found[now[files[own[2]]]] == "digit 1"


def test_a_label_that_came_from_a_folder_alone_does_not_leave_it(place):
    files, _ = decide(place, ("name", {"category": 3, "name": "three"}))
    out = next(file for file in files if file.startswith("digit 0/"))
    now = move(place, [out], "unlabelled/out")
    with pytest.warns(Note, match="decisions about 1 image are ignored"):
        recluster(place / "run", store=place / "store", config=config(place))
    assert now[out] not in labels_by_file(labels_of(Run.open(place / "run")))


def test_a_photo_that_was_changed_too_is_another(place):
    files, _ = decide(place, ("name", {"category": 3, "name": "three"}), ("confirm", {"category": 3}))
    labelled = [file for file, name in labels_by_file(labels_of(Run.open(place / "run"))).items() if name == "three"]
    now = move(place, labelled[:1], "unlabelled/changed")
    shutil.copy(place / "photos" / files[0], place / "photos" / now[labelled[0]])
    with pytest.warns(Note, match=rf"decisions about 1 image are ignored: .* the first is {labelled[0]}"):
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


def cycle(place, files):
    """Each photo gets the name of the next one; the name that each has now."""
    photos = place / "photos"
    for number, file in enumerate(files):
        (photos / file).rename(photos / f"{number}.aside")
    now = dict(zip(files, [*files[1:], files[0]], strict=True))
    for number, file in enumerate(files):
        (photos / f"{number}.aside").rename(photos / now[file])
    return now


def test_decisions_follow_photos_that_swap_names_and_do_so_again(place):
    files = list(categories(place))
    free = [row for row, file in enumerate(files) if file.startswith("unlabelled/") and "copy-" not in file]
    _, state = decide(
        place,
        ("name", {"category": 3, "name": "three"}),
        ("move", {"rows": tuple(free[5:8]), "category": 0}),
        ("set_aside", {"rows": tuple(free[::9])}),
    )
    labels = labels_of(Run.open(place / "run"))
    aside = {files[row] for row in free[::9]}
    assert aside_files(labels) == aside
    now = cycle(place, [files[row] for row in free])
    done = without_notes(place)
    assert (done.changes.aside, done.changes.lost) == (len(aside), 0), "those set aside alone"
    assert (done.changes.before >= 0).all(), "no photo is new"
    after = categories(place)
    assert after.keys() == {now.get(file, file) for file in files if file not in aside}
    assert all(after[now.get(file, file)] == name for file, name in labels_by_file(labels).items())
    undecided = [row for row in free if files[row] not in aside | labels_by_file(labels).keys()]
    assert [after[now[files[row]]] for row in undecided] == [state.names[state.category[row]] for row in undecided]
    again = cycle(place, sorted(after)[3:40:4])
    without_notes(place)
    assert categories(place) == {again.get(file, file): name for file, name in after.items()}
    kept = labels_of(Run.open(place / "run"))
    assert labels_by_file(kept) == {
        again.get(now.get(f, f), now.get(f, f)): name for f, name in labels_by_file(labels).items()
    }


def test_a_new_photo_with_the_name_of_another_is_new(place):
    """One is inserted, and all that follow get the name of the next: IMG_1 is IMG_2 now."""
    files = [file for file in categories(place) if file.startswith("unlabelled/") and "copy-" not in file]
    rows = {file: row for row, file in enumerate(categories(place))}
    moved = tuple(rows[file] for file in files[:2])
    decide(place, ("move", {"rows": moved, "name": "first"}), ("set_aside", {"rows": (rows[files[2]],)}))
    now = cycle(place, files)
    last = place / "photos" / now[files[-1]]
    last.rename(place / "photos" / "unlabelled" / "zzz.png")
    digit_photos(place / "other", per_digit=1, n_known=0, digits=9)
    shutil.copy(sorted((place / "other").rglob("*8*.png"))[-1], last)
    done = without_notes(place)
    after = categories(place)
    assert after[files[1]] == after[files[2]] == "first"
    assert files[3] not in after, "set aside"
    assert files[0] in after
    assert int((done.changes.before < 0).sum()) == 1
    assert done.run.clusters["file"].to_pylist()[int(np.flatnonzero(done.changes.before < 0)[0])] == files[0]


def test_a_photo_with_the_name_of_one_that_is_gone_is_not_decided_for_it(place):
    """Decided photos are deleted, and those that follow move up to their names: also a round later."""
    files = [file for file in categories(place) if file.startswith("unlabelled/") and "copy-" not in file][8:]
    rows = {file: row for row, file in enumerate(categories(place))}
    decide(place, ("move", {"rows": (rows[files[0]],), "name": "first"}), ("set_aside", {"rows": (rows[files[2]],)}))
    photos = place / "photos"
    (photos / files[1]).replace(photos / files[0])  # the decided one is gone
    (photos / files[3]).replace(photos / files[2])  # the one set aside is gone
    for _ in range(3):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Note)
            recluster(place / "run")
        after = categories(place)
        assert after[files[0]] != "first"
        assert files[2] in after


def test_a_new_photo_with_the_name_of_a_deleted_one_is_not_set_aside(place):
    files = [file for file in categories(place) if file.startswith("unlabelled/") and "copy-" not in file][8:]
    rows = {file: row for row, file in enumerate(categories(place))}
    decide(place, ("set_aside", {"rows": (rows[files[2]],)}))
    digit_photos(place / "other", per_digit=1, n_known=0, digits=9)
    shutil.copy(sorted((place / "other").rglob("*8*.png"))[-1], place / "photos" / files[2])
    for _ in range(2):
        without_notes(place)
        assert files[2] in categories(place)


def test_without_decisions_categories_follow_photos_that_swap_names(place):
    before = categories(place)
    now = cycle(place, [file for file in before if file.startswith("unlabelled/") and "copy-" not in file])
    done = selex(*FIVE[:4], "--categories", 6, "--out", "run", "--store", "store", cwd=place)
    assert done.returncode == 0, done.stderr
    assert "changed: 0 images in another category\n" in done.stdout
    assert categories(place) == {now.get(file, file): name for file, name in before.items()}


def test_photos_that_swap_folders_are_labelled_by_these(place):
    files = list(categories(place))
    own = [next(file for file in files if file.startswith(f"digit {digit}/")) for digit in (0, 1)]
    decide(place, ("name", {"category": 3, "name": "three"}))
    cycle(place, own)
    with pytest.warns(Note, match="decisions about 2 images are ignored"):
        recluster(place / "run", store=place / "store", config=config(place))
    assert [categories(place)[file] for file in own] == ["digit 0", "digit 1"]
    assert labels_by_file(labels_of(Run.open(place / "run")))[own[0]] == "digit 0"
