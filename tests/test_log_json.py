"""`--log-json`: every line is JSON, a key has one type, and what the manual says of it is so."""

import json
import re
from datetime import datetime
from pathlib import Path

import pytest

from commands import contents, digit_photos, selex, several
from selex.cli.log import JsonLog

PAGE = (Path(__file__).parent.parent / "docs" / "programs.md").read_text()
TYPES = {"string": str, "integer": int, "number": float}
DISCOVER = ("discover", "photos", "--backbone", "pixels", "--categories", 5, "--out", "run", "--store", "store")
TINY = tuple("tiny-vit" if word == "pixels" else word for word in DISCOVER)
TRAIN = ("train", "run", "--method", "gcd", "--epochs", 2, "--set", "train.batch=16", "--device", "cpu")


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("SELEX_CACHE", str(tmp_path / "cache"))
    digit_photos(tmp_path / "photos")
    return tmp_path


def lines_of(text):
    return [json.loads(line) for line in text.splitlines()]


def keys_of_the_manual():
    """The type of each key that is described, and the keys of each event."""
    keys = {}
    for names, kind in re.findall(r"^\| (`.+`) \| (string|integer|number) \|", PAGE, re.MULTILINE):
        keys |= dict.fromkeys(re.findall(r"`(\w+)`", names), TYPES[kind])
    events = re.findall(r"^\| `(\w+)` \| [^|]+ \| (.*`.*) \|$", PAGE, re.MULTILINE)
    return keys, {event: set(re.findall(r"`(\w+)`", names)) for event, names in events}


def check(lines):
    """As the manual says: times in order, known events with their keys, and one type for each key."""
    keys, events = keys_of_the_manual()
    times = [datetime.fromisoformat(line["time"]) for line in lines]
    assert times == sorted(times)
    assert all(time.utcoffset().total_seconds() == 0 for time in times)
    for line in lines:
        own = set(line) - {"time", "event"}
        if line["event"] == "step":
            assert {"step", "seconds"} <= own
        else:
            assert own <= events[line["event"]]
            assert own >= events[line["event"]] - {"seconds_left"}
        for key in set(line) & set(keys):
            assert type(line[key]) is keys[key], (key, line)
    found = {}
    for line in lines:
        for key, value in line.items():
            found.setdefault(key, set()).add(type(value))
    assert {key: types for key, types in found.items() if len(types) > 1} == {}


def test_a_run_and_its_training_in_one_file(place):
    done = selex("--log-json", "log.jsonl", *TINY, cwd=place)
    assert (done.returncode, done.stderr) == (0, "")
    assert "next:" in done.stdout
    first = (place / "log.jsonl").read_text()
    lines = lines_of(first)
    assert [line["event"] for line in lines if line["event"] != "progress"] == ["start", "step", "step", "step", "end"]
    assert (lines[0]["command"], lines[-1]["exit_code"]) == ("discover", 0)
    assert [line["step"] for line in lines if line["event"] == "step"] == ["decode", "embed", "cluster"]
    tasks = {line["task"]: line for line in lines if line["event"] == "progress"}  # the last of each
    assert set(tasks) >= {"decoding", "embedding", "clustering"}
    assert (tasks["embedding"]["unit"], tasks["embedding"]["done"], tasks["embedding"]["total"]) == ("image", 60, 60)
    trained = selex("--log-json", "log.jsonl", *TRAIN, cwd=place)
    assert trained.returncode == 0, trained.stderr
    text = (place / "log.jsonl").read_text()
    assert text.startswith(first)  # nothing of before is gone
    lines = lines_of(text)
    assert [line["epoch"] for line in lines if line.get("step") == "epoch"] == [0, 1]
    assert "training" in {line.get("task") for line in lines}
    check(lines)


def test_on_standard_error_there_is_nothing_else(place):
    (place / "photos" / "broken.png").write_text("hello")
    done = selex("--log-json", "-", *DISCOVER, cwd=place)
    lines = lines_of(done.stderr)
    check(lines)
    assert lines[-1]["exit_code"] == 0
    wrong = selex("--log-json", "-", "predict", "run", "nowhere", cwd=place)
    assert wrong.returncode == 2
    lines = lines_of(wrong.stderr)
    check(lines)
    assert [line["event"] for line in lines] == ["start", "error", "end"]
    assert lines[1]["message"].startswith("nowhere: ")
    assert lines[2]["exit_code"] == 2
    one = selex("--log-json", "-", "predict", "run", "photos", "--store", "other", cwd=place)
    notes = [line for line in lines_of(one.stderr) if line["event"] == "note"]
    assert ["1 of 61 images cannot be read" in line["message"] for line in notes] == [True]
    typo = selex("--log-json", "-", "discover", "photos", "--nonsense", cwd=place)
    assert [line["event"] for line in lines_of(typo.stderr)] == ["start", "error", "end"]


def test_ctrl_c_is_an_event(place):
    done = selex("--log-json", "log.jsonl", *DISCOVER, cwd=place, interrupt=("selex.discovery_steps:embed", 1))
    assert done.returncode == 130
    lines = lines_of((place / "log.jsonl").read_text())
    check(lines)
    assert [line["event"] for line in lines][-2:] == ["stopped", "end"]
    assert lines[-1]["exit_code"] == 130
    assert done.stderr.startswith("stopped; ")


def test_of_two_processes_the_first_one_writes(place):
    assert selex(*TINY, cwd=place).returncode == 0
    for done in several("--log-json", "log.jsonl", *TRAIN, cwd=place):
        assert done.returncode == 0, done.stderr
    events = [line["event"] for line in lines_of((place / "log.jsonl").read_text())]
    assert (events.count("start"), events.count("end")) == (1, 1)


def test_what_is_no_log_stays_as_it_is(place):
    photo = next((place / "photos" / "unlabelled").iterdir())
    mine = {"notes.txt": "dear diary\n", "data.jsonl": '{"time": "noon", "event": "lunch"}\n', "list.json": "[]"}
    for name, text in mine.items():
        (place / name).write_text(text)
    (place / "empty").touch()
    before = contents(place)
    for target in (*mine, str(photo), "photos", "/dev/null", "nowhere/log.jsonl"):
        done = selex("--log-json", target, "info", "run", cwd=place)
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert line.startswith(f"error: --log-json {target}: ")
        assert contents(place) == before
    assert selex("--log-json", "empty", *DISCOVER, cwd=place).returncode == 0
    check(lines_of((place / "empty").read_text()))


def test_a_link_is_not_followed(place):
    (place / "link").symlink_to(place / "elsewhere")
    done = selex("--log-json", "link", "config", cwd=place)
    assert done.returncode == 2
    assert not (place / "elsewhere").exists()


def test_a_full_disk_ends_the_log_and_not_the_work(tmp_path):
    assert selex("--log-json", "log.jsonl", "config", cwd=tmp_path).returncode == 0
    first = (tmp_path / "log.jsonl").read_text()
    filler = json.dumps({"filler": "x" * (8192 - len(first) - 60)}) + "\n"
    (tmp_path / "log.jsonl").write_text(first + filler)
    done = selex("--log-json", "log.jsonl", "config", cwd=tmp_path, file_limit=8192)
    assert done.returncode == 0
    assert done.stderr.splitlines() == ["note: --log-json: cannot be written (File too large); logging stops here"]
    written = (tmp_path / "log.jsonl").read_text()
    assert written.startswith(first + filler)
    assert all(lines_of(written)), "what the disk had room for of a line is taken back"
    assert written.endswith("\n")


def test_a_line_that_a_kill_cut_is_removed_and_one_without_an_end_is_ended(tmp_path):
    log = tmp_path / "log.jsonl"
    assert selex("--log-json", "log.jsonl", "config", cwd=tmp_path).returncode == 0
    whole = log.read_text()
    for before, kept in ((whole + '{"time": "2026-', whole), (whole.rstrip("\n"), whole), (whole[:50], "")):
        log.write_text(before)
        assert selex("--log-json", "log.jsonl", "config", cwd=tmp_path).returncode == 0
        assert log.read_text().startswith(kept)
        assert [line["event"] for line in lines_of(log.read_text())][-2:] == ["start", "end"]
        assert len(lines_of(log.read_text())) == len(kept.splitlines()) + 2


def test_not_among_the_photos(place):
    assert selex(*DISCOVER, cwd=place).returncode == 0
    for command in (DISCOVER, ("info", "run"), ("predict", "run", "photos"), ("discover", "run", "--add=photos")):
        before = contents(place)
        done = selex("--log-json", "photos/unlabelled/log.jsonl", *command, cwd=place)
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert line.startswith("error: photos/unlabelled/log.jsonl: is inside the folder of photos, which is only read")
        assert contents(place) == before
    assert selex("--log-json", "run/log.jsonl", "info", "run", cwd=place).returncode == 0
    assert selex("--log-json", "store/log.jsonl", *DISCOVER, "--restart", cwd=place).returncode == 0


def test_what_only_looks_like_photos_or_like_a_run(tmp_path):
    """Features are no photos, a command is no folder; another program's config.json makes no run of photos."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "mine.txt").write_text("mine")
    assert selex("--log-json", "config/log.jsonl", "config", cwd=tmp_path).returncode == 0
    digit_photos(tmp_path / "photos")
    (tmp_path / "photos" / "config.json").write_text("{}")
    (tmp_path / "loop").symlink_to("loop")
    for target, message in (("photos/log.jsonl", "is inside the folder of photos"), ("loop", "--log-json loop: ")):
        done = selex("--log-json", target, *DISCOVER, cwd=tmp_path)
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert line.startswith("error: ")
        assert message in line
    assert not (tmp_path / "photos" / "log.jsonl").exists()


def test_a_line_a_second_at_most_and_the_first_and_the_last(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("selex.cli.log.time.monotonic", lambda: now[0])
    log = JsonLog()
    log.open("-", command="x", version="y")
    for done in range(1, 101):
        log.progress("embedding, image", done, 100)
        now[0] += 0.125
    log.progress("embedding, image", 1, 50)  # again, of others
    log.write("step", step="x", seconds=float("nan"))
    log.close(0)
    log.progress("embedding, image", 2, 50)
    lines = lines_of(capsys.readouterr().err)
    progress = [line for line in lines if line["event"] == "progress"]
    assert [line["done"] for line in progress][:3] == [1, 9, 17]
    assert [line["done"] for line in progress][-2:] == [100, 1]
    assert "seconds_left" not in progress[0]
    assert (progress[1]["rate"], progress[1]["seconds_left"]) == (8, 11.4)
    assert progress[-1]["rate"] == 0
    assert "seconds" not in lines[-2]
    assert lines[-1]["event"] == "end"
