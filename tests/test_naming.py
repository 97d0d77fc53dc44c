"""Names that stay: from run to run, a category is called as before, and no number has two meanings."""

import re
import tracemalloc

import numpy as np
import pytest

from commands import digit_photos, refused, selex
from selex.config import Config
from selex.discovery import discover
from selex.review.core.decisions import Decision
from selex.review.core.outcome import compare
from selex.review.core.session import Review
from selex.review.core.state import State
from selex.runs.naming import last_number, lasting_names, match, same_images
from selex.runs.results import Results
from selex.runs.run import Run


def results(categories, names, n_known=0, last=0, files=None):
    """Results with images in these categories."""
    n = len(categories)
    files = files or [f"{row}.png" for row in range(n)]
    zeros = np.zeros(n)
    return Results(files, names, n_known, np.array(categories), zeros > 0, zeros, zeros.astype(int), zeros, last)


def named(earlier, labels, known=(), files=None):
    files = files or [f"{row}.png" for row in range(len(labels))]
    return lasting_names(known, files, np.array(labels), max(labels) + 1, earlier)


def test_first_names_count_from_one():
    assert named(None, [0, 1, 2, 3], known=["ant", "bee"]) == (["ant", "bee", "novel-1", "novel-2"], 2)
    assert named(None, [0, 1], known=["novel-7"]) == (["novel-7", "novel-8"], 8)


def test_a_category_keeps_its_name_whatever_its_number_is_now():
    earlier = results([0, 0, 1, 1, 2, 2, 2], ["ant", "novel-1", "novel-2"], n_known=1)
    # novel-1 was named bee and is known now; novel-2 lost an image and comes before a category that is new
    names, last = named(earlier, [0, 0, 1, 1, 2, 2, 3, 3], known=["ant", "bee"])
    assert (names, last) == (["ant", "bee", "novel-2", "novel-3"], 3)


def test_a_number_is_never_used_again():
    earlier = results([0, 0, 1, 1], ["novel-2", "novel-5"], last=9)
    names, last = named(earlier, [0, 1, 2, 3])
    assert set(names) == {"novel-2", "novel-5", "novel-10", "novel-11"}
    assert last == 11
    assert named(results([0], ["novel-3"], last=9, files=["gone.png"]), [0, 1]) == (["novel-10", "novel-11"], 11)


def test_the_review_gives_no_number_of_before():
    state = State(results([0, 0, 0, 1], ["novel-2", "novel-5"], last=9))
    state.apply(Decision("split", category=0, parts=((0,),)))
    assert state.names[-1] == "novel-10"


def test_what_was_kept_beside_decisions_has_the_last_number():
    packed = results([0, 0, 0, 1], ["novel-2", "novel-5"], last=9).pack()
    assert Results.unpack(packed, "it").last_number == 9


def test_categories_with_little_in_common_are_not_the_same():
    old = np.repeat([0, 1], 10)
    new = np.array([0] * 4 + [1] * 6 + [2] * 10)
    assert match(old, new, [0, 1], [0, 1, 2]) == {0: 1, 1: 2}
    assert match(old, new, [0], [2]) == {}
    scattered = np.concatenate([np.arange(10), np.arange(10)])  # each of ten has an image of both
    assert len(match(old, scattered, [0, 1], list(range(10)))) == 2  # half of two
    assert match(np.zeros(0, int), np.zeros(0, int), [], []) == {}


@pytest.mark.parametrize("seed", range(5))
def test_matches_are_those_that_keep_most_images(seed):
    """Against every way to pair four with four."""
    from itertools import permutations

    rng = np.random.default_rng(seed)
    old = rng.integers(4, size=200)
    new = np.where(rng.random(200) < 0.7, rng.permutation(4)[old], rng.integers(4, size=200))
    found = match(old, new, range(4), range(4))
    kept = sum(int(((old == c) & (new == d)).sum()) for c, d in found.items())
    best = max(sum(int(((old == c) & (new == d)).sum()) for c, d in enumerate(way)) for way in permutations(range(4)))
    assert kept == best


def test_many_categories_are_matched_without_a_table_of_all_pairs():
    rng = np.random.default_rng(0)
    order, old = rng.permutation(10_000), np.arange(40_000) % 10_000
    new = np.where(rng.random(40_000) < 0.05, rng.integers(10_000, size=40_000), order[old])
    tracemalloc.start()
    try:
        found = match(old, new, range(10_000), range(10_000))
        assert tracemalloc.get_traced_memory()[1] < 50e6  # a table of all pairs takes 800 MB
    finally:
        tracemalloc.stop()
    kept = np.array([order[c] == found.get(c) for c in range(10_000)])
    assert kept.mean() > 0.99


def test_the_last_number_among_names():
    assert last_number(["ant", "novel-3", "novel-12b", "novel-05", "a novel-99"]) == 3
    assert last_number([], 4) == 4


def test_what_changed_in_words():
    names = ["ant", "novel-1", "novel-2", "novel-3"]
    before = State(results([0] * 4 + [1] * 6 + [2] * 6 + [3] * 2, names, n_known=1))
    # novel-1 is split in two, novel-2 joins ant but for an image, novel-3 is scattered; two images come, none goes
    now = [0] * 4 + [1] * 4 + [2] * 2 + [0] * 5 + [1] + [0] + [1] + [3] * 2
    changes = compare(before, results(now, ["ant", "novel-1", "novel-4", "novel-5"], n_known=1))
    assert str(changes) == (
        "2 images new; 10 images in another category; new: novel-5 (2 images); gone: novel-3 (2 images); "
        "merged: novel-2 into ant (5 of 6 images); split: novel-4 from novel-1 (2 of 2 images)"
    )
    assert (changes.came, changes.went) == (["novel-4", "novel-5"], ["novel-2", "novel-3"])
    same = compare(before, before.results)
    assert str(same) == "0 images in another category"


# runs


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SELEX_CACHE", str(tmp_path / "cache"))
    digit_photos(tmp_path / "photos")
    return tmp_path


def config(home, count):
    return Config.of(str(home / "photos"), categories=count, backbone="pixels")


def contents_of(run):
    table = run.clusters.to_pydict()
    found = {}
    for file, category in zip(table["file"], table["category"], strict=True):
        found.setdefault(category, set()).add(file)
    return found


def test_runs_with_more_categories_and_fewer_photos_keep_names(home):
    first = contents_of(discover(config(home, 6), home / "run"))
    gone = sorted(first["novel-1"])[0]
    (home / "photos" / gone).unlink()
    run = discover(config(home, 8), home / "run")
    second = contents_of(run)
    for name in set(first) & set(second) - {"digit 0", "digit 1", "digit 2"}:
        smaller = min(len(first[name] - {gone}), len(second[name]))
        assert 2 * len(first[name] & second[name]) >= smaller, name
    numbers = [int(found[1]) for name in second if (found := re.fullmatch(r"novel-(\d+)", name))]
    assert run.hierarchy["last_number"] == max(numbers) >= 5
    model_names = [name for name in run.hierarchy["names"] if name in second]
    assert set(model_names) == set(second)

    third = discover(config(home, 5), home / "run")
    assert third.hierarchy["last_number"] == max(numbers)
    fourth = discover(config(home, 8), home / "run")
    came = set(contents_of(fourth)) - set(contents_of(third))
    assert all(int(name.removeprefix("novel-")) > max(numbers) for name in came)


def decide(folder, **decision):
    review = Review(folder)
    review.decide(Decision(**decision), review.version)
    review.ledger.close()


def test_a_plain_discover_keeps_what_was_decided(home):
    command = ("discover", "photos", "--backbone", "pixels", "--categories", 6, "--out", "run")
    first = selex(*command, cwd=home)
    assert first.returncode == 0, first.stderr
    assert "changed:" not in first.stdout
    again = selex(*command, cwd=home)
    assert "\nchanged: 0 images in another category\n" in again.stdout
    names = Run.open(home / "run").hierarchy["names"]
    decide(home / "run", kind="name", category=3, name="three")
    decide(home / "run", kind="set_aside", rows=(0,))

    (home / "labels.csv").write_text("file_name,label\n")
    asked = (*command, "--labels", "labels.csv")
    refused("run: has 2 decisions from `selex review`, which --labels would replace", *asked, cwd=home)
    (home / "photos" / "robin").mkdir()
    source = sorted((home / "photos" / "unlabelled").iterdir())[3]
    (home / "photos" / "robin" / "new.png").write_bytes(source.read_bytes())
    done = selex(*command, cwd=home)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("with 2 decisions from `selex review`\n")
    assert "1 image new; 1 image set aside; " in done.stdout
    assert "now known: robin, three" in done.stdout
    now = Run.open(home / "run").hierarchy
    assert {"three", "robin"} < set(now["names"][: now["levels"][0]["n_known"]])
    assert names[3] not in now["names"]
    assert selex(*command, cwd=home).stdout.startswith("with 2 decisions from `selex review`\n")
    assert "three" in Run.open(home / "run").hierarchy["names"]


def test_images_in_both_tables_are_found_by_name_whatever_their_order():
    rng = np.random.default_rng(0)
    names = [f"{folder}/{row}é.jpg" for folder in ("a", "b") for row in range(60)]
    for case in range(30):
        old, new = (rng.permutation(names)[: rng.integers(1, 121)].tolist() for _ in range(2))
        old = new if case == 0 else sorted(old)
        row_of = {file: row for row, file in enumerate(new)}
        expected = [(row, row_of[file]) for row, file in enumerate(old) if file in row_of]
        assert list(zip(*(rows.tolist() for rows in same_images(old, new)), strict=True)) == expected
    assert [len(rows) for rows in same_images(["a"], ["b"])] == [0, 0]
    assert [len(rows) for rows in same_images(["a"], [])] == [0, 0]
