"""The loop closed: decisions become labels, a run is clustered again, and nothing of before is lost."""

import csv
import http.client
import json
import multiprocessing
import re
import shutil
import threading
import time
from contextlib import closing

import numpy as np
import pytest

from commands import contents, digit_photos, refused, selex, start
from review_runs import aside_files, labels_by_file, small_run
from selex import Config, Run, discover
from selex.errors import InputError
from selex.review.core.decisions import Decision
from selex.review.core.labels import labels_of
from selex.review.core.ledger import FILE
from selex.review.core.session import Review
from selex.review.recluster import recluster
from selex.review.server.job import ReclusterJob, seconds_last_time, work
from selex.review.server.views import Views
from selex.runs.run import LABELS
from selex.runs.writer import RunWriter


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits")
    digit_photos(folder / "photos", per_digit=20, n_known=3, digits=6)
    discover(Config.of(str(folder / "photos"), categories=6, backbone="pixels"), folder / "run", store=folder / "store")
    return folder


@pytest.fixture
def folder(made, tmp_path):
    shutil.copytree(made / "run", tmp_path / "run")
    return tmp_path / "run"


def decide(folder, *decisions):
    review = Review(folder)
    for kind, fields in decisions:
        review.decide(Decision(kind, **fields), review.version)
    review.ledger.close()
    return review


def labels_in(folder):
    with (folder / LABELS).open(newline="") as file:
        return {line["file_name"]: line["label"] for line in csv.DictReader(file)}


def test_decisions_become_labels_and_start_anew(made, folder):
    before = decide(
        folder,
        ("name", {"category": 3, "name": "three, “3”"}),
        ("move", {"rows": (7, 8), "category": 0}),
        ("set_aside", {"rows": (0, 50)}),
    )
    expected = labels_of(before.run)
    done = recluster(folder, store=made / "store")
    table = done.run.clusters.to_pydict()
    aside = {before.results.files[0], before.results.files[50]}
    assert set(table["file"]) == set(before.results.files) - aside
    given = labels_in(folder)
    assert given == labels_by_file(expected)
    labelled = {
        file: name for file, name, held in zip(table["file"], table["category"], table["labelled"], strict=True) if held
    }
    assert labelled == given
    assert "three, “3”" in done.changes.now_known
    assert done.run.config.cluster.categories == 6
    assert (done.run.config.features.backbone, done.run.config.seed, done.run.config.data.photos) == (
        "pixels",
        0,
        str(made / "photos"),
    )
    after = Review(folder)
    assert (after.version, after.timeline.n_decisions) == ("2.0", 0), "decisions of before are not applied twice"
    assert str(after.changes) == str(done.changes)


def test_names_leave_every_other_image_where_it_was(made, folder):
    before = decide(
        folder, *(("name", {"category": c, "name": f"digit {c}"}) for c in (3, 4)), ("confirm", {"category": 5})
    )
    done = recluster(folder, store=made / "store")
    assert done.changes.images == 0
    assert (done.changes.came, done.changes.went) == ([], [])
    table = done.run.clusters.to_pydict()
    assert table["category"] == [before.state.names[c] for c in before.state.category]
    assert [entry.get("resumed") for entry in done.run.metrics if entry["step"] == "cluster"] == [None, True]


def test_other_settings_cluster_from_nothing(made, folder):
    decide(folder, ("name", {"category": 3, "name": "three"}))
    recluster(folder, store=made / "store", change=lambda config: config.change(refine="balanced"))
    done = [entry for entry in Run.open(folder).metrics if entry["step"] == "cluster"][-1]
    assert ("resumed" not in done, done["refine"]) == (True, "balanced")


def test_a_second_round_keeps_the_first(made, folder):
    first = decide(folder, ("name", {"category": 3, "name": "three"}), ("set_aside", {"rows": (0,)}))
    recluster(folder, store=made / "store")
    second = Review(folder)
    other = next(c for c in np.unique(second.state.category).tolist() if not second.state.known(c))
    three = second.state.names.index("three")
    second.decide(Decision("name", category=other, name="other"), second.version)
    second.decide(Decision("name", category=three, name="THREE"), second.version)
    labels = labels_of(second.run)
    assert {"THREE", "other"} <= set(labels_by_file(labels).values())
    assert "three" not in labels_by_file(labels).values(), "a new name counts for labels of earlier rounds too"
    assert aside_files(labels) == {first.results.files[0]}
    done = recluster(folder, store=made / "store")
    assert first.results.files[0] not in done.run.clusters["file"].to_pylist()
    assert {"THREE", "other"} <= set(done.run.hierarchy["names"][: done.run.hierarchy["levels"][0]["n_known"]])
    third = Review(folder)
    assert third.round == 3
    history = [event.summary for event in Views(third).history(number=1).events]
    assert history == ["set 1 image aside", "named novel-1 “three”"]


def test_the_count_of_categories_follows_merging_and_splitting(made, folder):
    review = decide(folder, ("merge", {"categories": (3, 4)}))
    assert recluster(folder, store=made / "store").run.config.cluster.categories == 5
    review = Review(folder)
    rows = tuple(np.flatnonzero(review.state.category == 0)[:3].tolist())
    review.decide(Decision("split", category=0, parts=(rows,)), review.version)
    assert recluster(folder, store=made / "store").run.config.cluster.categories == 6


def test_a_number_that_the_review_gave_is_never_that_of_another(made, folder):
    """A part is split off and named; the number that it had for a while is not that of the next category."""
    last = Run.open(folder).hierarchy["last_number"]
    review = Review(folder)
    rows = tuple(np.flatnonzero(review.state.category == 3)[:5].tolist())
    review.ledger.close()
    review = decide(folder, ("split", {"category": 3, "parts": (rows,)}), ("name", {"category": 6, "name": "six"}))
    assert review.state.names[6] == "six"
    done = recluster(folder, store=made / "store", change=lambda config: config.change(categories=9))
    assert done.run.hierarchy["last_number"] > last + 1
    assert f"novel-{last + 1}" not in done.run.hierarchy["names"]


def test_labels_of_the_first_round_are_given_in_every_later_one(made, folder, monkeypatch):
    decide(folder, ("name", {"category": 3, "name": "three"}))
    before = Review(folder)
    files = set(np.array(list(before.results.files))[before.given])
    before.ledger.close()
    recluster(folder, store=made / "store")
    after = Review(folder)
    assert after.round == 2
    assert after.results.labelled.sum() > after.given.sum(), "a name labels the surer half, which nobody looked at"
    assert set(np.array(list(after.results.files))[after.given]) == files
    monkeypatch.setattr(after.ledger, "results", pytest.fail)
    assert after.given.sum() == len(files), "the first round is read once"
    after.ledger.close()


def test_a_plain_discover_in_between_forgets_nothing(made, folder):
    decide(folder, ("name", {"category": 3, "name": "three"}))
    discover(Config.of(str(made / "photos"), categories=7, backbone="pixels"), folder, store=made / "store")
    assert "three" not in Run.open(folder).hierarchy["names"]
    done = recluster(folder, store=made / "store")
    assert "three" in done.run.hierarchy["names"]


def test_the_command_says_what_changed(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("SELEX_CACHE", str(tmp_path / "cache"))
    decide(folder, ("name", {"category": 3, "name": "three"}), ("confirm", {"category": 4}))
    done = selex("recluster", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "labels: " in done.stdout
    assert "\nchanged: " in done.stdout
    assert "now known: novel-2, three" in done.stdout


def test_the_report_says_that_decisions_are_not_in_it(folder, tmp_path):
    assert "decided" not in selex("report", "run", cwd=tmp_path).stdout
    decide(folder, ("name", {"category": 3, "name": "three"}))
    done = selex("report", "run", cwd=tmp_path)
    assert "without 1 decision from `selex review`" in done.stdout, done


def test_mistakes_are_one_line_and_change_nothing(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("SELEX_CACHE", str(tmp_path / "cache"))
    refused("nothing has been decided yet", "recluster", "run", cwd=tmp_path)
    refused("no such run folder", "recluster", "nowhere", cwd=tmp_path)
    decide(folder, ("set_aside", {"rows": tuple(range(120))}))
    refused("every image is set aside", "recluster", "run", cwd=tmp_path)
    refused("No such option: --categories", "recluster", "run", "--categories", "5", cwd=tmp_path)
    refused("every image is set aside", "export", "run", "--to", "csv", "--out", "x.csv", cwd=tmp_path)


def test_images_from_a_list_cannot_be_found_again(made, tmp_path):
    files = [str(path) for path in sorted((made / "photos").rglob("*.png"))]
    config = Config.of("", categories=4, backbone="pixels")
    discover(config, tmp_path / "run", photos=files, store=made / "store")
    decide(tmp_path / "run", ("name", {"category": 0, "name": "x"}))
    before = contents(tmp_path / "run")
    with pytest.raises(InputError, match="from a list in Python"):
        recluster(tmp_path / "run")
    assert contents(tmp_path / "run") == before


def test_every_answered_decision_outlasts_kill_9(tmp_path):
    """The server is killed while decisions pour in: whatever it said was done is there."""
    small_run(tmp_path)
    process = start("review", "run", "--no-browser", "--port", "0", cwd=tmp_path)
    told = tmp_path / ".stdout"
    while not told.exists() or "review: http" not in told.read_text():
        assert process.is_alive()
        time.sleep(0.02)
    port = int(re.search(r":(\d+)/", told.read_text())[1])
    answered = []

    def pour():
        with closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
            for number in range(10_000):
                move = {"version": f"1.{number}", "kind": "move", "rows": [number % 40], "category": number % 5}
                try:
                    connection.request("POST", "/api/decisions", json.dumps(move), {"Content-Type": "application/json"})
                    answer = connection.getresponse()
                    answer.read()
                except (OSError, http.client.HTTPException):
                    return
                if answer.status == 200:
                    answered.append((number % 40, number % 5))

    thread = threading.Thread(target=pour)
    thread.start()
    while len(answered) < 25:
        assert thread.is_alive()
        time.sleep(0.005)
    process.kill()
    thread.join()
    process.join()
    review = Review(tmp_path / "run")
    kept = [(played.event.decision.rows[0], played.event.decision.category) for played in review.timeline.played]
    assert kept[: len(answered)] == answered
    assert len(kept) <= len(answered) + 1, "at most the one that was under way"
    assert (tmp_path / "run" / FILE).stat().st_size


def test_a_trained_run_is_trained_again_with_the_labels(made, tmp_path):
    training = {"epochs": 1, "batch": 32, "lr": 0.01, "temperature": 0.1, "flip": False}
    config = Config.of(str(made / "photos"), categories=6, backbone="tiny-vit", method="selex", **training)
    first = discover(config, tmp_path / "run", store=made / "store")
    features = first.embeddings.copy()
    decide(first.folder, ("name", {"category": 3, "name": "three"}))
    lines = []
    done = recluster(first.folder, tell=lines.append)
    epochs = [entry for entry in done.run.metrics if entry["step"] == "epoch"]
    assert (len(epochs), done.run.config.train) == (2, config.train)
    assert any(line.startswith("train: 120 images") for line in lines)
    assert "three" in done.run.hierarchy["names"][: done.run.hierarchy["levels"][0]["n_known"]]
    assert not np.array_equal(features, done.run.embeddings), "other labels, other features"


def test_the_store_of_the_run_is_used_again(made, folder, tmp_path, monkeypatch):
    monkeypatch.setenv("SELEX_CACHE", str(tmp_path / "cache"))
    decide(folder, ("confirm", {"category": 3}))
    assert recluster(folder).run.store == made / "store"
    assert not (tmp_path / "cache" / "images").exists()


def test_what_is_decided_in_the_meantime_is_said_and_kept(made, folder):
    decide(folder, ("confirm", {"category": 3}))
    lines = []

    def tell(line):
        if line.startswith("labels:"):
            decide(folder, ("name", {"category": 4, "name": "late"}))
        lines.append(line)

    done = recluster(folder, store=made / "store", tell=tell)
    assert "note: decisions made in the meantime: 1; they count the next time" in lines
    assert "late" in labels_by_file(labels_of(done.run)).values()


def test_a_failure_of_the_work_is_told(folder, monkeypatch):
    def broken(*arguments, **options):
        raise MemoryError("too much")

    monkeypatch.setattr("selex.review.recluster.recluster", broken)
    here, there = multiprocessing.Pipe(duplex=False)
    with pytest.raises(MemoryError):
        work(folder, there)
    kind, line = here.recv()
    assert (kind, "MemoryError: too much" in line) == ("failed", True)


def test_epochs_are_told_while_it_trains(folder):
    job, run = ReclusterJob(folder), RunWriter(folder)
    run.log(step="epoch", epoch=7, loss=9.0)
    time.sleep(0.01)
    job._state, job._lines, job._began = "running", ["training 0.69 M parameters"], time.time()
    assert job.status().lines == ["training 0.69 M parameters"], "not those of earlier trainings"
    run.log(step="epoch", epoch=19, loss=4.25)
    assert job.status().lines[1:] == ["epoch 20 of 20, loss 4.250"]
    run.log(step="train", seconds=1.0)
    job._lines += ["training again, with all labels", "training 0.69 M parameters"]
    assert job.status().lines[3:] == [], "the second training has not begun"
    run.log(step="epoch", epoch=0, loss=4.5, again=True)
    assert job.status().lines[3:] == ["epoch 1 of 20, loss 4.500"]


def test_what_is_done_is_not_shown_as_if_it_went_on(folder):
    job = ReclusterJob(folder)
    job._state, job._began = "running", time.time()
    here, there = multiprocessing.Pipe(duplex=False)
    there.send(("at", ("training, epoch", 20, 20)))
    there.send(("line", "train: done"))
    there.close()
    job._listen(here)
    job._state = "running"
    assert (job.status().doing, job.status().lines) == (None, ["train: done"])


def test_the_time_left_goes_by_the_last_time_and_by_what_it_is_at(folder, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("selex.review.server.job.time.time", lambda: now[0])
    assert seconds_last_time([{"step": "cluster", "seconds": 5}, {"step": "embed", "seconds": 99}]) == 5
    assert seconds_last_time([{"step": "cluster", "seconds": "many"}, {"step": "train", "seconds": 7}, {}]) == 7
    twice = [
        ("decode", 1),
        ("cluster", 50),
        ("decode", 1),
        ("cluster", 2),
        ("train", 30),
        ("cluster", 3),
        ("cluster", 4),
    ]
    assert seconds_last_time([{"step": step, "seconds": seconds} for step, seconds in twice]) == 39, "of the last round"
    job = ReclusterJob(folder)
    job._state, job._began, job._expected = "running", 990.0, 30.0
    assert (job.status().doing, job.status().seconds_left) == (None, None), "it has not begun"
    job._first_word = 1000.0
    job._show_progress("clustering, level", 1, 5)
    now[0] = 1010.0
    assert (job.status().doing, job.status().seconds_left) == ("clustering, level 1 of 5", 20.0)
    job._show_progress("clustering, level", 2, 5)
    assert job.status().seconds_left == 30.0, "ten seconds a level, three more"
    job._show_progress("clustering, level", 5, 5)
    now[0] = 1050.0
    assert job.status().seconds_left is None, "longer than last time"
    assert job.status().seconds == 60.0
