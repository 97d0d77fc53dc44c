"""Where long work stands, on a terminal and in a log."""

import pytest

from selex import progress


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass when a test says so."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_in_a_log_training_says_where_it_stands_from_time_to_time(clock, capsys):
    with progress.training_bar(epochs=10, steps=2, batch=64) as advance:
        for epoch in range(5):
            for loss in (3.0, 2.5 - epoch):
                clock[0] += 3
                advance(epoch, loss)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "training: epoch 2 of 10, loss 1.500, about 50 s left",
        "training: epoch 4 of 10, loss -0.500, about 40 s left",
    ]


def test_epochs_of_an_earlier_start_are_no_part_of_the_rate(clock, capsys):
    with progress.training_bar(epochs=100, steps=1, batch=64) as advance:
        clock[0] += 60
        advance(69, 1.0)
    assert capsys.readouterr().err == "training: epoch 70 of 100, loss 1.000, about 30 min left\n"


def test_nothing_is_shown_unless_asked(clock, capsys):
    with progress.training_bar(epochs=2, steps=1, batch=64, shown=False) as advance:
        clock[0] += 60
        advance(0, 1.0)
    assert capsys.readouterr() == ("", "")
