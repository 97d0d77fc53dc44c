"""Training that is stopped, in whatever way, goes on to the very result of one that was not."""

import json
import shutil

import pytest
import torch

import selex as package
from commands import contents, digit_photos, refused, selex
from selex.errors import InputError, Note
from selex.training.checkpoint import Checkpoints, checkpoint_paths, newest_checkpoint
from selex.training.methods import Task
from selex.training.steps import Steps
from training_for_tests import TRAINED, digit_data, fit, seen_twice, small, weights, without_times

TINY = (
    "--backbone",
    "tiny-vit",
    "--categories",
    5,
    "--set",
    "train.batch=16",
    "--set",
    "train.lr=0.01",
    "--store",
    "store",
)
DISCOVER = ("discover", "photos", *TINY, "--method", "selex", "--epochs", 3)
STEP = "selex.training.steps:Steps.step"  # three an epoch


def found(run):
    """What a run found: all but times."""
    return {name: data for name, data in contents(run).items() if name != "metrics.jsonl"}


def epochs(run):
    """The metrics of each epoch; one that was done twice must be the same twice."""
    entries = without_times(entry for entry in package.Run.open(run).metrics if entry["step"] == "epoch")
    by_epoch = {entry["epoch"]: entry for entry in entries}
    assert all(by_epoch[entry["epoch"]] == entry for entry in entries)
    return by_epoch


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    digit_photos(home / "photos")
    return home


@pytest.fixture(scope="module")
def undisturbed(home):
    """Runs by their options, each made once."""
    made = {}

    def get(*options):
        if options not in made:
            out = made[options] = home / f"undisturbed {len(made)}"
            done = selex(*DISCOVER, *options, "--out", out.name, cwd=home)
            assert (done.returncode, done.stderr) == (0, "")
        return made[options]

    return get


STOPS = [
    ((), ("kill", STEP, 5)),  # in the middle of the second epoch
    ((), ("kill", STEP, 1)),
    ((), ("kill", "selex.training.checkpoint:torch.save", 2)),
    ((), ("kill", "selex.discovery_steps:fit_clusters", 1)),  # trained, not yet sorted
    ((), ("interrupt", STEP, 8)),
    (("--set", "train.interval=2"), ("kill", STEP, 5)),
    (("--set", "train.view_bank=2", "--set", "train.color_jitter=0.4"), ("kill", STEP, 8)),
    (("--set", "train.published=true", "--set", "train.micro_batch=4"), ("kill", STEP, 5)),
]


@pytest.mark.parametrize(("options", "stop"), STOPS, ids=str)
def test_stopped_and_resumed(home, undisturbed, options, stop):
    expected = undisturbed(*options)
    way, place, call = stop
    out = f"stopped {STOPS.index((options, stop))}"
    done = selex(*DISCOVER, *options, "--out", out, cwd=home, **{way: (place, call)})
    assert done.returncode == (-9 if way == "kill" else 130)
    if way == "interrupt":
        kept = "stopped; finished images, features and epochs are kept: the same command resumes from there"
        assert done.stderr.splitlines() == [kept]
    resumes = any((home / out / ".work").glob("checkpoint-*.pt"))
    again = ("train", out, "--resume", "--store", "store") if resumes else (*DISCOVER, *options, "--out", out)
    done = selex(*again, cwd=home)
    assert (done.returncode, done.stderr) == (0, "")
    assert resumes == (call > 1 or "fit_clusters" in place)
    assert found(home / out) == found(expected)
    assert epochs(home / out) == epochs(expected)
    assert set(epochs(expected)) == {0, 1, 2}


def test_checkpoints_go_when_the_run_is_done(undisturbed):
    run = undisturbed()
    assert not (run / ".work").exists()
    assert "model/trained.safetensors" in contents(run)


@pytest.fixture
def stopped(home, request):
    """A run that was stopped in its third epoch, with two checkpoints, for a test to go on with."""
    first = home / "first"
    if not first.exists():
        assert selex(*DISCOVER, "--out", "first", cwd=home, kill=(STEP, 8)).returncode == -9
    names = sorted(path.name for path in (first / ".work").iterdir())
    assert names == ["checkpoint-00000.pt", "checkpoint-00001.pt"]
    return shutil.copytree(first, home / request.node.name)


def go_on(run, *options, **more):
    return selex(*DISCOVER, *options, "--out", run.name, cwd=run.parent, **more)


def test_a_damaged_checkpoint_is_passed_over(stopped, undisturbed):
    path = stopped / ".work" / "checkpoint-00001.pt"
    path.write_bytes(path.read_bytes()[:1000])
    done = go_on(stopped)
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"note: {stopped.name}/.work/checkpoint-00001.pt: cannot be read (")
    assert line.endswith("; training resumes from checkpoint-00000.pt")
    assert found(stopped) == found(undisturbed())


def test_no_checkpoint_can_be_read(stopped, undisturbed):
    for path in (stopped / ".work").iterdir():
        path.write_bytes(b"")
    message = "checkpoint-00000.pt: cannot be read"
    refused(message, "train", stopped.name, "--resume", cwd=stopped.parent)
    assert message in go_on(stopped).stderr
    assert go_on(stopped, "--restart").returncode == 0
    assert found(stopped) == found(undisturbed())


def test_a_checkpoint_of_other_settings(stopped, undisturbed):
    before = contents(stopped / ".work")
    done = go_on(stopped, "--set", "train.lr=0.02", "--set", "train.alpha=0.5")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "checkpoint-00001.pt: belongs to a training with other settings" in line
    assert "(lr 0.01 there, 0.02 here, alpha 1.0 there, 0.5 here)" in line
    assert "--restart to start from the beginning" in line
    names = sorted(path.relative_to(stopped.parent / "photos") for path in (stopped.parent / "photos").rglob("*.png"))
    lines = [f"{name},{name.parts[0].replace('unlabelled', '')}" for name in names]
    other = [f"{names[-1]},digit 0" if line.startswith(str(names[-1])) else line for line in lines]
    for number, text in enumerate((lines, other)):
        (stopped.parent / f"labels {number}.csv").write_text("\n".join(["file_name,label", *text]) + "\n")
    one_more = go_on(stopped, "--labels", "labels 1.csv").stderr
    assert "labels have changed since this training began" in one_more
    assert contents(stopped / ".work") == before
    assert go_on(stopped, "--labels", "labels 0.csv").returncode == 0  # the same labels, told in another way
    assert (stopped / "clusters.csv").read_bytes() == (undisturbed() / "clusters.csv").read_bytes()


def test_a_disk_that_is_full_at_a_checkpoint(stopped, undisturbed):
    before = contents(stopped / ".work")
    done = go_on(stopped, file_limit=1_000_000)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: {stopped.name}/.work/checkpoint-00002.pt: cannot be written (")
    assert line.endswith("; the last good checkpoint is checkpoint-00001.pt")
    assert contents(stopped / ".work") == before
    assert go_on(stopped).returncode == 0
    assert found(stopped) == found(undisturbed())


def test_a_new_run_that_fails_later_keeps_its_checkpoints(home, undisturbed, monkeypatch):
    """A loss that is not a number in the second epoch, in a folder that was not there before."""
    real, calls = Steps.step, []

    def step(self, batch):
        calls.append(1)
        return real(self, batch) | ({"loss": torch.tensor(float("nan"))} if len(calls) == 5 else {})

    monkeypatch.setattr(Steps, "step", step)
    training = {"epochs": 3, "batch": 16, "lr": 0.01}
    config = package.Config.of(str(home / "photos"), categories=5, backbone="tiny-vit", method="selex", **training)
    with pytest.raises(InputError, match=r"the loss is nan in epoch 1, step 1 .* checkpoint is .*checkpoint-00000.pt"):
        package.discover(config, home / "new", store=home / "store")
    assert [path.name for path in (home / "new" / ".work").iterdir()] == ["checkpoint-00000.pt"]
    monkeypatch.undo()
    package.discover(config, home / "new", store=home / "store")
    assert found(home / "new") == found(undisturbed())


def test_nothing_to_resume(home, undisturbed):
    run = undisturbed()
    refused("nowhere: no such run folder", "train", "nowhere", "--resume", cwd=home)
    refused(": has no checkpoint to resume from", "train", run.name, "--resume", cwd=home)
    settings = {"--epochs": 9, "--method": "gcd", "--set": "train.epochs=9", "--config": "x.toml", "--preset": "best"}
    for option, value in settings.items():
        message = f"--resume uses the settings of the interrupted training: leave out {option} or --resume"
        refused(message, "train", run.name, "--resume", option, value, cwd=home)


# the same in one process


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return digit_data(tmp_path_factory.mktemp("digits"))


BEYOND = {"prototypes": 0.35, "random_crop": 0.6, "color_jitter": 0.4, "interval": 2, "task": Task(5, 3, whiten=0.5)}


@pytest.mark.parametrize(("name", "more"), [*((name, {}) for name in TRAINED), ("selex", BEYOND)])
def test_every_method_goes_on_to_the_same_weights(name, more, data, tmp_path):
    goes_on(name, more, data, tmp_path)


@pytest.mark.parametrize(
    ("name", "more"), [("gcd", {}), ("selex", {"view_bank": 2}), ("selex", {"published": True})], ids=str
)
def test_images_looked_at_twice_go_on_to_the_same_weights(name, more, data, tmp_path):
    goes_on(name, more, seen_twice(data), tmp_path)


def goes_on(name, more, data, folder):
    """Stopped in its third epoch and gone on with, a training ends as one that was not."""
    whole = small(name, epochs=3, **more)
    expected = fit(whole, data)
    stopped = small(name, epochs=3, **more)
    real, calls = stopped.losses, []

    def losses(*arguments):
        calls.append(1)
        if len(calls) == 8:
            raise KeyboardInterrupt
        return real(*arguments)

    stopped.losses = losses
    with pytest.raises(KeyboardInterrupt):
        fit(stopped, data, checkpoints=Checkpoints(folder, {"seed": 0}))
    again = small(name, epochs=3, **more)
    keep = Checkpoints(folder, {"seed": 0})
    history = fit(again, data, checkpoints=keep)
    assert without_times(history) == without_times(expected)
    assert all(torch.equal(tensor, weights(again)[key]) for key, tensor in weights(whole).items())
    assert [path.name for path in keep.paths()] == ["checkpoint-00001.pt", "checkpoint-00002.pt"]
    assert len(fit(small(name, epochs=3, **more), data, checkpoints=keep)) == 3  # nothing is left to do


def other_momentum(state):
    kept = next(kept for kept in state["optimizer"].values() if kept["momentum_buffer"].ndim == 2)
    kept["momentum_buffer"] = kept["momentum_buffer"][:, :1]  # would be broadcast without a word


def fewer_weights(state):
    del state["method"][next(iter(state["method"]))]


def fewer_clusters(state):
    state["clusters"] = state["clusters"][1:]


@pytest.mark.parametrize("change", [other_momentum, fewer_weights, fewer_clusters])
def test_a_checkpoint_of_another_shape(change, data, tmp_path):
    fit(small("selex", epochs=1), data, checkpoints=Checkpoints(tmp_path, {}))
    path, state = newest_checkpoint(checkpoint_paths(tmp_path))
    change(state)
    torch.save(state, path)
    with pytest.raises(
        InputError, match=r"does not fit this training \(.*\); give --restart to train from the beginning"
    ):
        fit(small("selex", epochs=2), data, checkpoints=Checkpoints(tmp_path, {}))


def test_a_checkpoint_is_whole_or_not_there(tmp_path, monkeypatch):
    keep = Checkpoints(tmp_path, {"lr": 1})
    tensor = torch.ones(3)
    keep.save(0, {"x": tensor})
    tensor.zero_()  # training goes on while it is written
    keep.wait()
    assert keep.latest()["x"].tolist() == [1, 1, 1]

    def full(state, path):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    keep.save(1, {"x": tensor})
    with pytest.raises(
        InputError, match=r"00001.pt: cannot be written .*; the last good checkpoint is checkpoint-00000"
    ):
        keep.save(2, {"x": tensor})
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-00000.pt"]


def test_a_checkpoint_of_another_version(tmp_path):
    for other in (99, 1):  # weights have other names in 1
        torch.save({"format": other, "settings": {}, "epoch": 3}, tmp_path / "checkpoint-00003.pt")
        with pytest.raises(
            InputError,
            match=r"00003.pt: was written by another version of selex; give --restart to train from the beginning",
        ):
            Checkpoints(tmp_path, {}).latest()
    (tmp_path / "checkpoint-00004.pt").write_bytes(b"damaged")
    with pytest.warns(Note, match="00004.pt: cannot be read .*; training resumes from checkpoint-00003.pt"):
        path, _ = newest_checkpoint(checkpoint_paths(tmp_path))
    assert path.name == "checkpoint-00003.pt"


def test_metrics_of_a_run_are_one_line_an_epoch(undisturbed):
    lines = [json.loads(line) for line in (undisturbed() / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == ["decode", "epoch", "epoch", "epoch", "train", "embed", "cluster"]
