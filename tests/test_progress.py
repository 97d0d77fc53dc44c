"""Where long work stands, on a terminal and in a log."""

from contextlib import nullcontext

import pytest

from selex import progress


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass when a test says so."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_in_a_log_training_says_where_it_stands_from_time_to_time(clock, capsys):
    with progress.training_bar(epochs=10, steps=2) as advance:
        for epoch in range(5):
            for loss in (3.0, 2.5 - epoch):
                clock[0] += 3
                advance(epoch, loss)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "training, epoch 2 of 10, loss 1.500, about 50 s left",
        "training, epoch 4 of 10, loss -0.500, about 40 s left",
    ]


def test_an_epoch_that_takes_long_is_not_silent(clock, capsys):
    with progress.training_bar(epochs=3, steps=100) as advance:
        for _ in range(2):
            clock[0] += 9
            advance(0, 3.0)
    assert capsys.readouterr().err == "training, epoch 1 of 3, 2 % of it, loss 3.000, about 45 min left\n"


def test_the_last_seconds_are_not_rounded_away(clock, capsys):
    with progress.images_bar("embedding", 216) as advance:
        clock[0] += 12
        advance(180)
    assert capsys.readouterr().err == "embedding, image 180 of 216, 15 images/s, about 3 s left\n"


def test_training_says_which_one_it_is(clock, capsys):
    told = []
    for heard in (nullcontext(), progress.listening(lambda *at: told.append(at))):
        with heard, progress.training_bar(2, 1, doing="training again with all labels") as advance:
            clock[0] += 20
            advance(0, 1.5)
    assert capsys.readouterr().err == "training again with all labels, epoch 1 of 2, loss 1.500, about 20 s left\n"
    assert told == [("training again with all labels, epoch", 1, 2)]


def test_a_listener_is_told_in_place_of_lines(capsys):
    told = []
    with progress.listening(lambda *at: told.append(at)):
        with progress.progress_bar("clustering, level") as advance:
            advance(1, 4)
        with progress.images_bar("embedding", 20, done=5) as images:
            images(6)
        with progress.training_bar(epochs=3, steps=1) as epochs:
            epochs(1, 0.5)
        with progress.progress_bar("unseen", shown=False) as unseen:
            unseen(1, 2)
    with progress.progress_bar("afterwards") as advance:
        advance(1, 2)
    assert told == [("clustering, level", 1, 4), ("embedding, image", 6, 20), ("training, epoch", 2, 3)]
    assert capsys.readouterr().err == ""


def test_epochs_of_an_earlier_start_are_no_part_of_the_rate(clock, capsys):
    with progress.training_bar(epochs=100, steps=1) as advance:
        clock[0] += 60
        advance(69, 1.0)
    assert capsys.readouterr().err == "training, epoch 70 of 100, loss 1.000, about 30 min left\n"


def test_in_a_log_images_are_counted_from_time_to_time(clock, capsys):
    with progress.images_bar("embedding", 6000, done=2000) as advance:
        for done in range(2100, 6001, 100):
            clock[0] += 5
            advance(done)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 19  # every ten seconds; not at the end, when the step has its own line
    assert lines[0] == "embedding, image 2,200 of 6,000, 20 images/s, about 3 min left"
    assert lines[-1] == "embedding, image 5,800 of 6,000, 20 images/s, about 10 s left"


def test_in_a_log_other_work_says_how_much_is_left(clock, capsys):
    with progress.progress_bar("clustering, level") as advance:
        clock[0] += 12
        advance(0, 7)
        clock[0] += 12
        advance(2, 7)
        clock[0] += 3
        advance(3, 7)
    assert capsys.readouterr().err == "clustering, level 0 of 7\nclustering, level 2 of 7, about 60 s left\n"


def test_nothing_is_shown_unless_asked(clock, capsys):
    with progress.training_bar(epochs=2, steps=1, shown=False) as advance:
        clock[0] += 60
        advance(0, 1.0)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_names_the_epoch_that_is_trained(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    with progress.training_bar(epochs=10, steps=2) as advance:
        advance(6, 1.5)
    assert "7/10" in capsys.readouterr().err
