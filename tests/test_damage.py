"""Damage is noticed: whatever happens to a file, its values are the same, or one line names it. Never other values."""

import hashlib
import io
import os
import shutil
import warnings
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from commands import digit_photos, refused
from selex import Config, InputError, Run, discover
from selex.checksums import Damaged, is_sealed, seal
from selex.data.store import ImageStore
from selex.data.table import read_table
from selex.errors import Note
from selex.features.cache import FeatureFile, Standing
from selex.features.embed import embed
from selex.models import load_backbone
from selex.models.download import save_stream as store_file
from selex.models.registry import UrlFile
from selex.models.weights import find_weights
from selex.review.core.decisions import Decision
from selex.review.core.labels import labels_of
from selex.review.core.ledger import FILE
from selex.review.core.outcome import count_decisions, reviewed
from selex.review.core.session import Review
from selex.review.recluster import recluster
from selex.runs.export import export
from selex.runs.predictor import load
from selex.runs.run import LABELS
from selex.training.checkpoint import checkpoint_paths, newest_checkpoint

FLIPS = 40
"""Of one bit each, in every file. `make chaos` makes more."""


def made(folder, seed):
    """A run of its own with decisions."""
    config = Config.of(str(folder / "photos"), categories=5, backbone="pixels", seed=seed, refine="none")
    run = discover(config, folder / f"run-{seed}", store=folder / "store")
    review = Review(run.folder)
    for decision in (Decision("name", 3, name=f"seven {seed}"), Decision("merge", categories=(0, 4))):
        review.decide(decision, review.version)
    review.ledger.close()
    return run.folder


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("damage")
    digit_photos(folder / "photos")
    (folder / "photos" / "broken.png").write_text("no image")
    made(folder, 0)
    made(folder, 1)
    return folder


@pytest.fixture
def run(home, tmp_path):
    shutil.copytree(home / "run-0", tmp_path / "run")
    return tmp_path / "run"


def values(folder):
    """All that can be read of a run."""
    run, model = Run.open(folder), load(folder)
    arrays = [model.assigner.centers, model.assigner.reach, run.embeddings, model.maps.steps[0].matrix.numpy()]
    about = {key: value for key, value in model.__dict__.items() if key not in ("assigner", "maps", "trained")}
    review = Review(folder)
    state = review.state.category.tolist(), review.state.mark.tolist(), review.state.names, review.version
    review.ledger.close()
    return (
        [array.tobytes() for array in arrays],
        (about, model.assigner.temperature, sorted(model.trained)),
        (asdict(run.config), run.root, run.clusters.to_pydict(), run.hierarchy, run.skipped),
        (labels_of(run), list((reviewed(run) or [()])[0]), count_decisions(run), state),
    )


FILES = [
    "config.json",
    "clusters.parquet",
    "hierarchy.json",
    "skipped.csv",
    "content.npy",
    "embeddings.npy",
    "embeddings.npy.json",
    "model/model.json",
    "model/model.safetensors",
    FILE,
]


def same_or_named(folder, name, expected):
    """Whether the damage was noticed; if not, all values are what they were."""
    try:
        found = values(folder)
    except InputError as error:
        line = str(error)
    else:
        assert found == expected
        return False
    assert str(folder) in line
    assert len(line.splitlines()) == 1
    return True


def test_these_are_all_the_files_of_a_run(home):
    there = {path.relative_to(home / "run-0").as_posix() for path in (home / "run-0").rglob("*") if path.is_file()}
    assert there == {*FILES, "metrics.jsonl", "clusters.csv"}


@pytest.mark.parametrize("name", FILES)
def test_a_bit_that_flips(home, run, name):
    expected, path = values(run), run / name
    good, rng = path.read_bytes(), np.random.default_rng(len(name))
    noticed = 0
    for position in rng.integers(0, 8 * len(good), FLIPS).tolist():
        data = bytearray(good)
        data[position // 8] ^= 1 << position % 8
        path.write_bytes(data)
        noticed += same_or_named(run, name, expected)
    path.write_bytes(good)
    assert values(run) == expected
    if name == FILE:  # much of a page of a database is not in use
        assert noticed
    elif name != "embeddings.npy.json":  # which is read when features are needed again
        assert noticed == FLIPS


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("length", [0, 1, 0.5, 0.99, None])
def test_a_file_that_is_cut_short_or_gone(run, name, length):
    if name == FILE and length is None:
        pytest.skip("to remove it is how one begins anew")
    expected, path = values(run), run / name
    good = path.read_bytes()
    path.unlink()
    if length is not None:
        path.write_bytes(good[: length if isinstance(length, int) else int(length * len(good))])
    noticed = same_or_named(run, name, expected)
    assert noticed or name == "embeddings.npy.json"


@pytest.mark.parametrize("name", FILES)
def test_the_file_of_another_run(home, run, name):
    expected = values(run)
    shutil.copyfile(home / "run-1" / name, run / name)
    changed = (home / "run-1" / name).read_bytes() != (home / "run-0" / name).read_bytes()
    assert same_or_named(run, name, expected) == (changed and name != "embeddings.npy.json")


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="no list of open files")
@pytest.mark.parametrize(("old", "new"), [(b"seven 0", b"seven 1"), (b"SQLite format 3", b"SQLite format 4")])
def test_a_ledger_that_is_refused_is_let_go(run, old, new):
    ledger = run / FILE
    assert old in ledger.read_bytes()
    ledger.write_bytes(ledger.read_bytes().replace(old, new))
    with pytest.raises(InputError) as refusal:
        Review(run)
    open_files = {os.path.realpath(path) for path in Path("/proc/self/fd").iterdir()}
    assert str(ledger.resolve()) not in open_files, refusal


def test_a_table_for_people_may_be_changed(run):
    expected = values(run)
    (run / "clusters.csv").write_text("mine,now\n")
    (run / "notes.txt").write_text("look at 3 again")
    assert values(run) == expected


def test_decisions_belong_to_what_the_table_says_not_to_its_bytes(home, run, tmp_path):
    expected = values(run)
    config = Run.open(run).config
    discover(config, run, store=home / "store")  # the same results, in new files
    assert values(run) == expected
    export(Run.open(run), "csv", tmp_path / "table.csv", table=reviewed(Run.open(run))[0])
    assert "seven 0" in (tmp_path / "table.csv").read_text()


def flips(path, count, seed=0):
    """The file with one bit flipped, so many times; whole again at the end."""
    good, rng = path.read_bytes(), np.random.default_rng(seed)
    for position in rng.integers(0, 8 * len(good), count).tolist():
        data = bytearray(good)
        data[position // 8] ^= 1 << position % 8
        path.write_bytes(data)
        yield
    path.write_bytes(good)


def test_a_line_of_the_log_that_is_damaged_is_left_out_and_said(run):
    expected = Run.open(run).metrics
    for _ in flips(run / "metrics.jsonl", 200):
        with pytest.warns(Note, match=r"metrics.jsonl: damaged or truncated lines skipped: \d"):
            found = Run.open(run).metrics
        assert all(entry in expected for entry in found)
        assert len(expected) - len(found) in (1, 2)  # a flip may join two lines
    assert Run.open(run).metrics == expected


def test_labels_of_decisions_that_are_damaged_are_named_and_made_anew(home, run):
    store = home / "store"
    found = recluster(run, store=store).run
    labels = (run / LABELS).read_bytes()
    assert found.result(LABELS) == run / LABELS
    for _ in flips(run / LABELS, FLIPS):
        with pytest.raises(Damaged, match=rf"{LABELS}: is damaged, .*, or run `selex recluster` again"):
            discover(found.config, run, store=store)
    (run / LABELS).write_bytes(b"")
    recluster(run, store=store)
    assert (run / LABELS).read_bytes() == labels
    discover(found.config, run, store=store)


def test_decisions_that_are_gone_are_missed(run):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert reviewed(Run.open(run))
    (run / FILE).unlink()
    gone = f"{FILE}: is missing; all decisions made before are lost with it"
    for read in (reviewed, labels_of, count_decisions):
        with pytest.warns(Note, match=gone):
            read(Run.open(run))
    with pytest.warns(Note, match=gone):
        Review(run).ledger.close()
    with warnings.catch_warnings():  # begun anew
        warnings.simplefilter("error")
        assert count_decisions(Run.open(run)) == 0


def test_trained_weights_that_are_damaged_are_named(home, tmp_path):
    settings = {"backbone": "tiny-vit", "method": "gcd", "epochs": 1, "batch": 16, "lr": 0.01}
    config = Config.of(str(home / "photos"), categories=5, **settings)
    run = discover(config, tmp_path / "run", store=home / "store-tiny")
    path = run.folder / "model" / "trained.safetensors"
    expected = load(run.folder).trained
    for _ in flips(path, FLIPS):
        with pytest.raises(Damaged, match=r"trained.safetensors: is damaged, or of another run"):
            load(run.folder)
    assert all(torch.equal(value, expected[name]) for name, value in load(run.folder).trained.items())
    for data in (b"", path.read_bytes()[:-1], (run.folder / "model" / "model.safetensors").read_bytes()):
        path.write_bytes(data)
        with pytest.raises(Damaged, match=r"trained.safetensors: is damaged, or of another run"):
            load(run.folder)
    path.unlink()
    with pytest.raises(Damaged, match=r"trained.safetensors: is missing"):
        load(run.folder)


@pytest.mark.parametrize("command", ["info", "report", "export", "predict", "review"])
def test_commands_name_what_is_damaged(home, run, command):
    path = run / ("model/model.safetensors" if command == "predict" else "clusters.parquet")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    more = {"export": ["--to", "csv", "--out", "t.csv"], "predict": [home / "photos"], "review": ["--port", "0"]}
    refused(f"{path}: is damaged, or of another run", command, run, *more.get(command, []), cwd=run.parent)


def test_damaged_results_are_made_anew_by_the_same_command(home, run):
    expected = values(run)
    for name in ("clusters.parquet", "hierarchy.json", "model/model.safetensors", "skipped.csv"):
        (run / name).write_bytes(b"")
    config = Run.open(run).config
    discover(config, run, store=home / "store")
    assert values(run) == expected


@pytest.mark.parametrize("name", ["embeddings.npy", "embeddings.npy.json"])
def test_features_that_are_damaged_are_made_anew(home, run, name):
    expected, path = values(run), run / name
    config, good = Run.open(run).config, path.read_bytes()
    rng = np.random.default_rng(3)
    for position in [None, *rng.integers(0, 8 * len(good), 6).tolist()]:
        data = bytearray(good if position is not None else b"")
        if position is not None:
            data[position // 8] ^= 1 << position % 8
        path.write_bytes(data)
        with pytest.warns(Note, match=f"{name}: is damaged; features are computed again"):
            discover(config, run, store=home / "store")
        assert values(run) == expected


def test_half_done_features_that_are_damaged_are_made_anew(home, tmp_path):
    store = ImageStore.build(read_table(home / "photos" / "unlabelled"), tmp_path / "store", size=32)
    backbone, out = load_backbone("pixels"), tmp_path / "features.npy"
    expected = np.array(embed(backbone, store, out, device="cpu", batch_size=8))
    half = FeatureFile(out, FeatureFile(out, Standing("", *expected.shape, 8)).standing)  # type: ignore[call-arg]
    out.unlink()
    half.standing = replace(half.standing, key=f"pixels {backbone.fingerprint()} {store.key}")
    half.rows()[:8] = expected[:8]
    half.save(8)
    half.part.write_bytes(half.part.read_bytes().replace(expected[3].tobytes(), expected[4].tobytes()))
    with pytest.warns(Note, match=r"features.npy.part: is damaged; features are computed again"):
        assert np.array_equal(embed(backbone, store, out, device="cpu", batch_size=8), expected)


def test_a_store_that_is_damaged_is_decoded_anew(home, tmp_path):
    table = read_table(home / "photos" / "unlabelled")
    store = ImageStore.build(table, tmp_path / "store", size=32)
    expected = [store[row].copy() for row in range(len(store))]
    rng = np.random.default_rng(4)
    for name in ("index.npz", "images.u8"):
        path = tmp_path / "store" / name
        for position in rng.integers(0, 8 * path.stat().st_size, 25).tolist():
            data = bytearray(path.read_bytes())
            data[position // 8] ^= 1 << position % 8
            path.write_bytes(data)
            with warnings.catch_warnings(record=True) as notes:
                warnings.simplefilter("always")
                found = ImageStore.build(table, tmp_path / "store", size=32)
                assert all(np.array_equal(found[row], expected[row]) for row in range(len(table)))
            assert name == "index.npz" or any("is damaged" in str(note.message) for note in notes)
    again = ImageStore.build(table, tmp_path / "store", size=32)
    assert all(np.array_equal(again[row], expected[row]) for row in range(len(table)))  # and no note any more


def test_a_key_of_seals_that_is_damaged_gives_way_to_a_new_one(tmp_path, monkeypatch):
    monkeypatch.setenv("SELEX_CACHE", str(tmp_path))
    path, about = tmp_path / "seal.key", ("/photos", [["a.jpg"]])
    before = seal(*about)
    assert is_sealed(before, *about)
    good = path.read_bytes()
    damaged = [b"", good[:-1], good[:32], *(good[:place] + b"\x00\xff" + good[place + 2 :] for place in (0, 30, 38))]
    for data in damaged:
        path.write_bytes(data)
        assert not is_sealed(before, *about)
        with pytest.warns(Note, match=r"seal.key: is damaged; a new key is made, and earlier runs count as"):
            after = seal(*about)
        assert is_sealed(after, *about)
        assert not is_sealed(before, *about)
    path.write_bytes(good)
    assert seal(*about) == before


class Place(UrlFile):
    """Where a weight file can be had, as often as one asks."""

    def cached(self):
        return None

    def fetch(self, folder):
        return store_file(io.BytesIO(b"weights" * 1000), folder / self.file, self.sha256)


@pytest.mark.parametrize("pinned", [True, False])
def test_weights_in_our_cache_that_are_damaged_are_fetched_anew(tmp_path, monkeypatch, pinned):
    monkeypatch.setenv("SELEX_CACHE", str(tmp_path))
    monkeypatch.delenv("SELEX_WEIGHTS", raising=False)
    place = Place("place/net.pth", hashlib.sha256(b"weights" * 1000).hexdigest() if pinned else None)
    found = find_weights("net", [place])
    found.path.write_bytes(b"weighty" + found.path.read_bytes()[7:])
    with pytest.warns(Note, match=r"net.pth: is damaged; it is fetched again"):
        assert find_weights("net", [place]) == found
    assert found.path.read_bytes() == b"weights" * 1000
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "net.pth").write_bytes(b"other")
    monkeypatch.setenv("SELEX_WEIGHTS", str(tmp_path / "mine"))  # a folder of the user's own is left alone
    if pinned:
        with pytest.raises(InputError, match="is not the file it should be"):
            find_weights("net", [place])
    assert (tmp_path / "mine" / "net.pth").read_bytes() == b"other"


def test_a_checkpoint_that_is_damaged_is_not_gone_on_with(tmp_path):
    for epoch in (1, 2):
        torch.save({"format": 3, "weights": torch.arange(1000.0) + epoch}, tmp_path / f"checkpoint-{epoch:05d}.pt")
    path = tmp_path / "checkpoint-00002.pt"
    path.write_bytes(path.read_bytes().replace(np.float32(500).tobytes(), np.float32(5000).tobytes()))
    with pytest.warns(Note, match=r"is damaged\); training resumes from checkpoint-00001.pt"):
        assert newest_checkpoint(checkpoint_paths(tmp_path))[1]["weights"][0] == 1
