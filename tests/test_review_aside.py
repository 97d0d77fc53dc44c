"""Photos that were set aside: seen in every later round, taken back, there again when the run is clustered again."""

import shutil

import pytest
from PIL import Image
from starlette.testclient import TestClient

from commands import contents, digit_photos, selex
from review_runs import aside_files, labels_by_file
from selex import Config, Run, discover
from selex.errors import InputError
from selex.features.ray_cluster import RayEngine
from selex.review.core.decisions import Decision, Refused
from selex.review.core.labels import labels_of
from selex.review.core.session import Review
from selex.review.recluster import recluster
from selex.review.server.app import create_app
from selex.review.server.guard import Door
from selex.runs.results import Results
from selex.training.checkpoint import Checkpoints

HOST = "127.0.0.1:8760"


@pytest.fixture
def photos(tmp_path):
    digit_photos(tmp_path / "photos", per_digit=20, n_known=3, digits=6)
    return tmp_path / "photos"


@pytest.fixture
def place(photos, tmp_path):
    discover(Config.of(str(photos), categories=6, backbone="pixels"), tmp_path / "run", store=tmp_path / "store")
    return tmp_path


def decide(place, kind, **fields):
    review = Review(place / "run")
    review.decide(Decision(kind, **fields), review.version)
    review.ledger.close()


def again(place):
    return recluster(place / "run", store=place / "store").run


def pairs(place):
    review = Review(place / "run")
    found = {aside[:2]: photo.file for photo, aside in review.aside.items()}
    review.ledger.close()
    return found


def labelled_and_not(run):
    table = run.clusters.to_pydict()
    return table["labelled"].index(1), table["labelled"].index(0)


def test_photos_of_earlier_rounds_are_listed_with_when_and_why_and_come_back(place):
    run = Run.open(place / "run")
    given, free = labelled_and_not(run)
    files = run.clusters["file"].to_pylist()
    decide(place, "set_aside", rows=(given, free), reason="blurred")
    assert str(recluster(place / "run", store=place / "store").changes).startswith("2 images set aside; 0 images in")
    decide(place, "set_aside", rows=(5,))
    third = again(place)
    assert len(third.clusters) == len(files) - 3
    review = Review(place / "run")
    asides = {photo.file: aside for photo, aside in review.aside.items()}
    assert {(aside.round, aside.reason) for aside in asides.values()} == {(1, "blurred"), (2, None)}
    assert asides[files[given]].label == asides[files[given]].category
    assert asides[files[free]].label is None
    assert all(aside.time > 0 for aside in asides.values())
    review.decide(Decision("restore", photos=((1, given), (1, free))), review.version)
    review.ledger.close()
    labels = labels_of(Run.open(place / "run"))
    assert labels_by_file(labels)[files[given]] == run.clusters["category"][given].as_py()
    assert files[free] not in labels_by_file(labels)
    assert len(aside_files(labels)) == 1
    done = recluster(place / "run", store=place / "store")
    table = {row["file"]: row for row in done.run.clusters.to_pylist()}
    assert table[files[given]]["labelled"]
    assert not table[files[free]]["labelled"]
    assert str(done.changes).startswith("2 images new")
    assert [entry["made"] for entry in done.run.metrics if entry["step"] == "embed"][1:] == [0, 0, 0]
    assert len(pairs(place)) == 1


def test_what_is_as_it_was_rounds_ago_is_a_new_round_in_which_nothing_is_set_aside(place):
    for category in (3, 4, 5):  # known ones are in the order of their names
        decide(place, "name", category=category, name=f"digit {category}")
    run = again(place)
    before, (_, free) = Results.read(run).digest, labelled_and_not(run)
    file = run.clusters["file"][free].as_py()
    decide(place, "set_aside", rows=(free,))
    again(place)
    decide(place, "restore", photos=((2, free),))
    assert Results.read(again(place)).digest == before, "or this tests nothing"
    review = Review(place / "run")
    assert (review.version, review.aside, review.timeline.set_aside) == ("4.0", {}, {})
    review.ledger.close()
    decide(place, "unsure", rows=(free,))
    assert file in again(place).clusters["file"].to_pylist()


def test_undo_leaves_them_out_again(place):
    decide(place, "set_aside", rows=(4,))
    again(place)
    [pair] = pairs(place)
    review = Review(place / "run")
    review.decide(Decision("restore", photos=(pair,)), review.version)
    assert review.state.restored == {pair}
    review.step("undo", review.version)
    assert review.state.restored == frozenset()
    review.step("redo", review.version)
    assert review.state.restored == {pair}
    review.step("undo", review.version)
    review.ledger.close()
    assert len(aside_files(labels_of(Run.open(place / "run")))) == 1


def test_only_what_is_set_aside_can_be_taken_back(place):
    decide(place, "set_aside", rows=(4, 6))
    review = Review(place / "run")
    for fields in ({"rows": (5,)}, {"photos": ((1, 4),)}, {"photos": ((9, 9),)}, {}):
        with pytest.raises(Refused):
            review.decide(Decision("restore", **fields), review.version)
    review.decide(Decision("restore", rows=(4,)), review.version)
    assert set(review.timeline.set_aside) == {6}
    review.ledger.close()


def test_a_photo_is_taken_back_once(place):
    decide(place, "set_aside", rows=(4,))
    again(place)
    [pair] = pairs(place)
    decide(place, "restore", photos=(pair,))
    with pytest.raises(Refused, match="already"):
        decide(place, "restore", photos=(pair,))


def test_a_label_has_the_name_that_its_category_got_in_the_same_round(place):
    run = Run.open(place / "run")
    given, _ = labelled_and_not(run)
    file = run.clusters["file"][given].as_py()
    decide(place, "name", category=run.hierarchy["names"].index(file.split("/")[0]), name="another name")
    decide(place, "set_aside", rows=(given,))
    again(place)
    [pair] = pairs(place)
    decide(place, "restore", photos=(pair,))
    assert labels_by_file(labels_of(Run.open(place / "run")))[file] == "another name"


def test_a_label_of_a_category_that_is_gone_is_not_brought_back(place):
    given, _ = labelled_and_not(Run.open(place / "run"))
    file = Run.open(place / "run").clusters["file"][given].as_py()
    decide(place, "set_aside", rows=(given,))
    again(place)
    run = Run.open(place / "run")
    old = file.split("/")[0]
    decide(place, "name", category=run.hierarchy["names"].index(old), name="another name")
    [pair] = pairs(place)
    decide(place, "restore", photos=(pair,))
    assert file not in labels_by_file(labels_of(Run.open(place / "run")))
    done = again(place)
    assert file in done.clusters["file"].to_pylist()
    assert old not in done.hierarchy["names"]


def test_the_page_shows_all_of_them_and_the_photos_themselves(place):
    decide(place, "set_aside", rows=(3, 50), reason="dark")
    again(place)
    decide(place, "set_aside", rows=(7,))
    review = Review(place / "run")
    client = TestClient(create_app(review, Door(8760)), base_url=f"http://{HOST}")
    found = client.get("/api/aside").json()
    assert [(one["round"], one["row"], one["reason"]) for one in found["asides"]] == [
        (2, 7, None),
        (1, 3, "dark"),
        (1, 50, "dark"),
    ]
    assert (found["rows"], found["photos"], found["total"]) == ([7], [[1, 3], [1, 50]], 3)
    assert (found["standing"]["set_aside"], found["standing"]["aside"]) == (1, 2)
    small, large = client.get("/aside/1/3"), client.get("/aside/1/3/large")
    assert (small.headers["content-type"], large.headers["content-type"]) == ("image/jpeg", "image/jpeg")
    assert small.content != client.get("/aside/1/50").content
    assert client.get("/aside/1/4").status_code == 404
    assert client.get("/aside").text.count("data-aside") == 3
    body = {"version": found["standing"]["version"], "kind": "restore", "rows": [7], "photos": found["photos"]}
    assert client.post("/api/decisions", json=body).json()["summary"] == "took 3 images back"
    found = client.get("/api/aside").json()
    assert [(one["round"], one["restored"]) for one in found["asides"]] == [(1, True), (1, True)]
    assert (found["photos"], found["standing"]["aside"], found["standing"]["set_aside"]) == ([], 0, 0)
    review.ledger.close()


def test_another_photo_that_has_the_name_now_is_not_shown_for_it(place):
    file = Run.open(place / "run").clusters["file"][30].as_py()
    decide(place, "set_aside", rows=(30,))
    again(place)
    Image.new("L", (8, 8), 99).save(place / "photos" / file)
    decide(place, "unsure", rows=(2,))
    assert file in again(place).clusters["file"].to_pylist(), "another photo, which nobody set aside"
    review = Review(place / "run")
    client = TestClient(create_app(review, Door(8760)), base_url=f"http://{HOST}")
    gone = client.get("/aside/1/30").content
    Image.new("L", (8, 8), 9).save(place / "photos" / file)
    assert client.get("/aside/1/30").content == gone, "a grey square, whatever is there"
    review.ledger.close()


@pytest.mark.parametrize("renamed", [False, True])
def test_decisions_follow_photos_when_they_are_decoded_at_another_size(place, renamed):
    run = Run.open(place / "run")
    files = run.clusters["file"].to_pylist()
    free = [row for row, held in enumerate(run.clusters["labelled"].to_pylist()) if not held]
    aside, moved, other = free[0], free[1], free[2]
    decide(place, "set_aside", rows=(aside,))
    decide(place, "move", rows=(moved,), category=0)
    if renamed:  # each has the name of the next
        for old, new in ((aside, "kept"), (moved, files[aside]), (other, files[moved]), ("kept", files[other])):
            source = place / "photos" / (old if isinstance(old, str) else files[old])
            source.rename(place / "photos" / new)
    now = {aside: other, moved: aside, other: moved} if renamed else {row: row for row in (aside, moved, other)}
    config = run.config.change(size=40, labels=None)
    recluster(place / "run", config=config, store=place / "store")
    for number in range(2):
        table = {row["file"]: row for row in Run.open(place / "run").clusters.to_pylist()}
        assert files[now[aside]] not in table, f"it is set aside in round {number + 2}"
        labels = labels_by_file(labels_of(Run.open(place / "run")))
        assert labels[files[now[moved]]] == "digit 0"
        assert files[now[other]] not in labels
        assert [table[files[now[row]]]["labelled"] for row in (moved, other)] == [1, 0]
        decide(place, "unsure", rows=(0,))
        again(place)


def test_they_stay_aside_whatever_command_is_run(place):
    """Not only `recluster`: `discover` from Python, with other settings too, or with a list of photos."""
    run = Run.open(place / "run")
    rows, config = labelled_and_not(run), run.config.change(categories=None)
    files = {run.clusters["file"][row].as_py() for row in rows}
    decide(place, "set_aside", rows=rows)
    for change in ({}, {"seed": 1}, {"size": 40}):
        lines = []
        done = discover(config.change(**change), place / "run", store=place / "store", tell=lines.append)
        assert lines[0] == "left out: 2 images that were set aside in `selex review`"
        assert not files & set(done.clusters["file"].to_pylist())
        assert set(pairs(place).values()) == files
    (place / "photos" / sorted(files)[0]).rename(place / "photos" / "elsewhere.png")
    assert len(discover(config, place / "run", store=place / "store").clusters) == 118
    decide(place, "restore", photos=tuple(pairs(place)))
    done = discover(config, place / "run", store=place / "store")
    assert {"elsewhere.png", sorted(files)[1]} < set(done.clusters["file"].to_pylist())
    assert not pairs(place)


def test_a_copy_of_a_photo_that_was_set_aside_is_not(place):
    files = Run.open(place / "run").clusters["file"].to_pylist()
    shutil.copy(place / "photos" / files[0], place / "photos" / "copy.png")
    config = Run.open(place / "run").config.change(categories=None)
    run = discover(config, place / "run", store=place / "store")
    decide(place, "set_aside", rows=(run.clusters["file"].to_pylist().index("copy.png"),))
    (place / "photos" / "copy.png").unlink()
    assert discover(config, place / "run", store=place / "store").clusters["file"].to_pylist() == files


def test_photos_of_a_list_in_python_stay_aside_too(photos, tmp_path):
    files = [str(path) for path in sorted(photos.rglob("*.png"))]
    config = Config.of("", categories=4, backbone="pixels")
    discover(config, tmp_path / "run", photos=files, store=tmp_path / "store")
    decide(tmp_path, "set_aside", rows=(3,))
    done = discover(config, tmp_path / "run", photos=files, store=tmp_path / "store")
    assert done.clusters["file"].to_pylist() == files[:3] + files[4:]


def test_a_ray_cluster_which_reads_all_photos_is_refused_where_some_are_set_aside(place):
    decide(place, "set_aside", rows=(3,))
    before = contents(place / "run")
    with pytest.raises(InputError, match="photos are set aside in `selex review`: use `selex recluster`"):
        discover(Run.open(place / "run").config, place / "run", engine=RayEngine())
    assert contents(place / "run") == before


def test_other_photos_are_refused_before_any_is_decoded(place):
    decide(place, "set_aside", rows=(3,))
    digit_photos(place / "others")
    with pytest.raises(InputError, match="holds a run of other photos"):
        discover(Config.of(str(place / "others"), backbone="pixels"), place / "run", store=place / "other-store")
    assert not (place / "other-store").exists()


def test_a_photo_that_is_in_the_run_though_it_was_set_aside_is_taken_back_by_its_row(place, monkeypatch):
    """As earlier versions let it in."""
    run = Run.open(place / "run")
    rows = labelled_and_not(run)
    decide(place, "set_aside", rows=rows)
    monkeypatch.setattr("selex.discovery._photos_left", lambda run, config, table, *how: table)
    discover(run.config.change(categories=5), place / "run", store=place / "store")
    review = Review(place / "run")
    assert (review.round, {aside[:2] for aside in review.aside.values()}) == (2, {(1, row) for row in rows})
    review.decide(Decision("confirm", category=int(review.state.category[rows[1]])), review.version)
    assert len(labels_of(review.run).left_out) == 2, "nobody spoke of the photos themselves"
    review.decide(Decision("set_aside", rows=rows), review.version)
    review.decide(Decision("restore", rows=rows), review.version)
    review.ledger.close()
    assert labels_of(Run.open(place / "run")).left_out == set()
    assert len(again(place).clusters) == 120
    assert pairs(place) == {}


def test_a_training_that_was_interrupted_resumes_without_them(place, monkeypatch):
    training = {"epochs": 2, "batch": 32, "lr": 0.01, "temperature": 0.1, "flip": False}
    config = Config.of(str(place / "photos"), categories=6, backbone="tiny-vit", method="selex", **training)
    shutil.rmtree(place / "run")
    discover(config, place / "run", store=place / "store")
    decide(place, "set_aside", rows=(3, 50))
    saved = Checkpoints.save

    def stopped(self, epoch, state):
        saved(self, epoch, state)
        self.wait()
        raise KeyboardInterrupt

    monkeypatch.setattr(Checkpoints, "save", stopped)
    with pytest.raises(KeyboardInterrupt):
        again(place)
    decide(place, "set_aside", rows=(7,))
    done = selex("train", "run", "--resume", cwd=place)
    (line,) = done.stderr.splitlines()
    assert "photos or labels have changed since this training began (set aside, added, decided); add --restart" in line
    assert done.returncode == 2
    review = Review(place / "run")
    review.step("undo", review.version)
    review.ledger.close()
    done = selex("train", "run", "--resume", cwd=place)
    assert done.returncode == 0, done.stderr
    assert "2 left out" in done.stdout
    epochs = [entry["epoch"] for entry in Run.open(place / "run").metrics if entry["step"] == "epoch"]
    assert (len(Run.open(place / "run").clusters), epochs) == (118, [0, 1, 0, 1])
