"""The commands as a person runs them: a process of their own, real files, exit codes."""

import csv
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.utils import Bunch

import selex as selex_package
from commands import refused, selex
from conftest import blobs, half_labelled
from selex.cli import demo


def write(path, header, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])


def read(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def folder(tmp_path):
    """Features of eight blobs in .npy and .npz, labels of four of them, and the truth."""
    x, truth = blobs(8, 12, spread=0.05)
    names = np.array([f"bird {i} “ü”.jpg" for i in range(len(x))])
    known = half_labelled(truth, 4)
    np.save(tmp_path / "features.npy", x.astype(np.float32))
    np.savez(tmp_path / "features.npz", features=x.astype(np.float32), files=names)
    categories = [f"category {c}" for c in "abcdefgh"]
    write(tmp_path / "labels.csv", ["row", "label"], [(i, categories[k]) for i, k in enumerate(known) if k >= 0])
    write(
        tmp_path / "files.csv",
        ["file", "label"],
        [(names[i], categories[k] if k >= 0 else "") for i, k in enumerate(known)],
    )
    write(tmp_path / "truth.csv", ["row", "label"], [(i, categories[t]) for i, t in enumerate(truth)])
    return tmp_path


def test_cluster_then_evaluate(folder):
    done = selex("cluster", "features.npy", "--labels", "labels.csv", "--categories", 8, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "48 in 4 known categories, 48 in 4 novel ones; levels of 8, 4, 2" in done.stdout
    table = read(folder / "clusters.csv")
    assert list(table[0]) == [
        "row",
        "cluster",
        "category",
        "known",
        "labelled",
        "distance",
        "level_1",
        "level_2",
        "level_3",
    ]
    assert [line["row"] for line in table] == [str(i) for i in range(96)]
    given = {line["row"]: line["label"] for line in read(folder / "labels.csv")}
    for line in table:
        assert line["labelled"] == str(int(line["row"] in given))
        assert line["category"] == given.get(line["row"], line["category"])
        assert line["known"] == str(int(line["category"].startswith("category ")))
        assert line["cluster"] == line["level_1"]
        assert 0 <= float(line["distance"]) < 0.2
    assert {line["category"] for line in table} == {f"category {c}" for c in "abcd"} | {
        f"novel-{i}" for i in range(1, 5)
    }

    done = selex("evaluate", "clusters.csv", "--truth", "truth.csv", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[:4] == ["72", "unlabelled", "rows,", "accuracy"]
    scores = json.loads(selex("evaluate", "clusters.csv", "--truth", "truth.csv", "--json", cwd=folder).stdout)
    assert scores == {"rows": 72, "version": "v2", "all": 1, "known": 1, "novel": 1, "nmi": pytest.approx(1), "ari": 1}


def test_files_name_the_rows(folder):
    done = selex("cluster", "features.npz", "--labels", "files.csv", "--categories", 8, "--out", "out.csv", cwd=folder)
    assert done.returncode == 0, done.stderr
    table = read(folder / "out.csv")
    assert table[3]["file"] == "bird 3 “ü”.jpg"
    assert sum(line["labelled"] == "1" for line in table) == 24
    by_row = selex(
        "cluster", "features.npz", "--labels", "labels.csv", "--categories", 8, "--out", "two.csv", cwd=folder
    )
    assert by_row.returncode == 0, by_row.stderr
    assert read(folder / "two.csv") == table


def test_auto_and_estimate(folder):
    done = selex("estimate", "features.npy", "--labels", "labels.csv", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "8  1.0000  <- estimate" in done.stdout
    assert "estimated number of categories: 8 (90 % interval " in done.stdout
    assert (folder / "estimate.png").read_bytes().startswith(b"\x89PNG")
    done = selex("cluster", "features.npy", "--labels", "labels.csv", "--categories", "auto", cwd=folder)
    assert "in 4 known categories, 48 in 4 novel ones" in done.stdout


def test_an_estimate_takes_the_settings_of_a_clustering(folder):
    np.save(folder / "rough.npy", np.random.default_rng(0).standard_normal((96, 12)) * np.arange(1, 97)[:, None])
    base = ("estimate", "rough.npy", "--labels", "labels.csv", "--method", "silhouette")
    plain, one = selex(*base, cwd=folder), selex(*base, "--set", "cluster.balanced=false", cwd=folder)
    (folder / "settings.toml").write_text("[cluster]\nbalanced = false\n")
    other = selex(*base, "--config", "settings.toml", cwd=folder)
    assert (plain.returncode, one.returncode, other.returncode) == (0, 0, 0), one.stderr
    assert plain.stdout != one.stdout == other.stdout


def test_options_reach_the_library(folder):
    base = ("cluster", "features.npy", "--labels", "labels.csv", "--categories", 8)
    assert "levels of 8, 4\n" in selex(*base, "--set", "cluster.levels=2", cwd=folder).stdout
    np.save(folder / "rough.npy", np.random.default_rng(0).standard_normal((96, 12)) * np.arange(1, 97)[:, None])
    rough = ("cluster", "rough.npy", "--labels", "labels.csv", "--categories", 8)
    tables = []
    for option in (
        (),
        ("--set", "cluster.balanced=false"),
        ("--published",),
        ("--normalize",),
        ("--set", "cluster.restarts=5"),
        ("--seed", 5),
    ):
        done = selex(*rough, *option, cwd=folder)
        assert done.returncode == 0, (option, done.stderr)
        tables.append((folder / "clusters.csv").read_text())
    assert len(set(tables)) == 6  # each option makes a difference


def test_refinements_reach_the_library(folder):
    x = np.random.default_rng(0).standard_normal((96, 12))
    np.save(folder / "rough.npy", x * np.arange(1, 97)[:, None])
    base = ("cluster", "rough.npy", "--labels", "labels.csv", "--categories", 8, "--normalize")
    rows, known = x / np.linalg.norm(x, axis=1, keepdims=True), np.full(96, -1)
    for line in read(folder / "labels.csv"):
        known[int(line["row"])] = "abcd".index(line["label"][-1])
    plain, tables = ("--set", "cluster.whiten=0", "--set", "cluster.restarts=1"), {}
    for refine in ("none", "proportional", "balanced"):
        done = selex(*base, *plain, "--refine", refine, cwd=folder)
        assert done.returncode == 0, done.stderr
        tables[refine] = [int(line["cluster"]) for line in read(folder / "clusters.csv")]
        found = selex_package.hssk(rows, known, 8, search="swaps", refine=refine, rng=0)
        assert tables[refine] == found.levels[0].labels.tolist()
    assert len({tuple(tables[refine]) for refine in ("none", "proportional", "balanced")}) == 3
    done = selex(*base, *plain, "--refine", "auto", cwd=folder)
    assert "refine: proportional (auto)\n" in done.stdout  # fewer than 20 labels can be held out
    assert [int(line["cluster"]) for line in read(folder / "clusters.csv")] == tables["proportional"]
    done = selex(*base[:2], *base[4:], "--refine", "auto", cwd=folder)
    assert done.stderr.splitlines() == ["note: no row is labelled: every cluster will be novel"]
    assert "refine: proportional (auto)\n" in done.stdout


def test_refinements_that_cannot_be(folder):
    np.save(folder / "rough.npy", np.random.default_rng(0).standard_normal((96, 12)) * np.arange(1, 97)[:, None])
    base = ("--labels", "labels.csv", "--categories", 8)
    message = "cluster.refine must be auto, none, proportional or balanced, not 'large'"
    refused(message, "cluster", "features.npy", *base, "--refine", "large", cwd=folder)
    rough = ("cluster", "rough.npy", *base, "--set", "cluster.whiten=0")
    refused("(--normalize)", *rough, "--refine", "proportional", cwd=folder)
    assert "refine: none (auto)\n" in selex(*rough, cwd=folder).stdout  # rows of different length allow no other


def test_the_same_seed_writes_the_same_bytes(folder):
    for name in ("one.csv", "two.csv"):
        selex("cluster", "features.npy", "--labels", "labels.csv", "--categories", 8, "--out", name, cwd=folder)
    assert (folder / "one.csv").read_bytes() == (folder / "two.csv").read_bytes()


def test_without_labels_there_is_a_note(folder):
    done = selex("cluster", "features.npy", "--categories", 8, cwd=folder)
    assert done.returncode == 0
    assert done.stderr.splitlines() == ["note: no row is labelled: every cluster will be novel"]
    assert "0 in 0 known categories, 96 in 8 novel ones; levels of 8, 4, 2" in done.stdout


def bad_features(name):
    """Make one broken input in the folder; returns the arguments that use it."""
    path = f"{name}.npy"
    x = np.zeros((6, 2), dtype=np.float32)
    if name == "nan":
        x[4, 1] = np.nan
    arrays = {"nan": x, "objects": np.array([{}]), "flat": np.zeros(5), "words": np.array([["a", "b"]])}
    return path, arrays.get(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nan", "NaN: row 4, column 1"),
        ("objects", "objects.npy: not a readable .npy or .npz file"),
        ("flat", "flat.npy: features must be a table, rows × dimensions, not of shape (5,)"),
        ("words", "real numbers, not <U1"),
        ("missing", "missing.npy: no such file"),
    ],
)
def test_bad_features(tmp_path, name, message):
    path, array = bad_features(name)
    if array is not None:
        np.save(tmp_path / path, array, allow_pickle=True)
    refused(message, "cluster", path, "--categories", 2, cwd=tmp_path)


def test_unreadable_feature_files(tmp_path):
    (tmp_path / "text.npz").write_text("hello")
    refused("text.npz: not a readable .npy or .npz file", "cluster", "text.npz", cwd=tmp_path)
    (tmp_path / "empty.npy").touch()
    refused("empty.npy: not a readable", "cluster", "empty.npy", cwd=tmp_path)
    np.savez(tmp_path / "whole.npz", features=np.arange(4000.0).reshape(1000, 4))
    content = bytearray((tmp_path / "whole.npz").read_bytes())
    (tmp_path / "cut.npz").write_bytes(content[: len(content) // 2])
    refused("cut.npz: not a readable .npy or .npz file", "cluster", "cut.npz", cwd=tmp_path)
    content[len(content) // 2] ^= 255
    (tmp_path / "flipped.npz").write_bytes(content)
    refused("flipped.npz: ", "cluster", "flipped.npz", cwd=tmp_path)
    np.savez(tmp_path / "other.npz", embeddings=np.zeros((3, 2)))
    refused("other.npz: has no array 'features', only embeddings", "cluster", "other.npz", cwd=tmp_path)
    np.savez(tmp_path / "short.npz", features=np.zeros((3, 2)), files=np.array(["a", "b"]))
    refused("'files' has shape (2,) for 3 rows", "cluster", "short.npz", cwd=tmp_path)
    np.savez(tmp_path / "twice.npz", features=np.zeros((3, 2)), files=np.array(["a", "b", "a"]))
    refused("'files' names 'a' twice, again in row 2", "cluster", "twice.npz", cwd=tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("row,label\n0,a\n1,b\n0,a\n", "line 4: row '0' appears twice, first in line 2"),
        ("row,label\n96,a\n", "line 2: row '96' is not among the features' rows"),
        ("row,name\n0,a\n", "has no column 'label' or 'category' or 'class'; its columns are row, name"),
        ("id,label\n0,a\n", "has no column 'row' or 'file' or 'file_name'"),
        ("row,label\n0,a,b\n", "line 2: has 3 columns, the first line has 2"),
        ("file,label\nx.jpg,a\n", "names rows by 'file', but the other file only numbers them; use 'row'"),
        ("", "is empty; its first line must name the columns"),
        ("row,label\n0,\xff", "not a readable CSV file"),
    ],
)
def test_bad_labels(folder, content, message):
    (folder / "bad.csv").write_bytes(content.encode("latin-1"))
    refused(message, "cluster", "features.npy", "--labels", "bad.csv", "--categories", 8, cwd=folder)


def test_bad_counts_and_places(folder):
    base = ("cluster", "features.npy", "--labels", "labels.csv")
    refused("3 clusters for 4 known categories: ask for at least 4", *base, "--categories", 3, cwd=folder)
    refused("97 clusters for 96 rows", *base, "--categories", 97, cwd=folder)
    for count in ("many", "0", "-3", "2.5"):
        refused("cluster.categories must be", *base, "--categories", count, cwd=folder)
    refused("the folder nowhere does not exist", *base, "--categories", 8, "--out", "nowhere/out.csv", cwd=folder)
    refused("is an input of this command", *base, "--categories", 8, "--out", "labels.csv", cwd=folder)
    refused("is not what this command writes", *base, "--categories", 8, "--out", "truth.csv", cwd=folder)
    (folder / "photo.png").write_bytes(b"somebody's photograph")
    refused("is not what this command writes", "estimate", "features.npy", "--out", "photo.png", cwd=folder)
    refused("--device abacus: ", *base, "--categories", 8, "--device", "abacus", cwd=folder)
    (folder / "link.csv").symlink_to("truth.csv")
    refused("is a link or a device", *base, "--categories", 8, "--out", "link.csv", cwd=folder)
    refused("with this file extension", "estimate", "features.npy", "--out", "curve.xyz", cwd=folder)
    refused("'combined', 'accuracy' or 'silhouette'", "estimate", "features.npy", "--method", "luck", cwd=folder)
    refused("labels.csv: has no column 'cluster'", "evaluate", "labels.csv", "--truth", "truth.csv", cwd=folder)


def test_evaluate_needs_something_to_score(folder):
    header = ["row", "cluster", "category", "known", "labelled", "distance", "level_1"]
    write(folder / "all.csv", header, [(0, 0, "a", 1, 1, 0.1, 0)])
    refused("nothing to score", "evaluate", "all.csv", "--truth", "truth.csv", cwd=folder)
    write(folder / "twice.csv", header, [(0, 0, "a", 1, 0, 0.1, 0)] * 2)
    refused("line 3: row '0' appears twice", "evaluate", "twice.csv", "--truth", "truth.csv", cwd=folder)
    write(folder / "some.csv", header, [(row, 0, "novel-1", 0, 0, 0.1, 0) for row in (0, 1, 500)])
    done = selex("evaluate", "some.csv", "--truth", "truth.csv", cwd=folder)
    assert done.stderr.startswith("note: 1 unlabelled rows have no true category in truth.csv")
    assert "Known      - (no such row)" in done.stdout


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_no_permission(folder):
    folder.chmod(0o500)
    try:
        refused("cannot be written", "cluster", "features.npy", "--categories", 8, cwd=folder)
    finally:
        folder.chmod(0o700)


def test_a_full_disk_leaves_the_old_table(folder):
    """A limit on file size makes writing fail half-way, as a full disk does."""
    selex("cluster", "features.npy", "--categories", 8, cwd=folder)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    done = selex("cluster", "features.npy", "--categories", 7, cwd=folder, file_limit=1024)
    assert done.returncode == 2, done.stderr
    assert "clusters.csv: cannot be written (File too large)" in done.stderr
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_ctrl_c_stops_with_one_line_and_writes_nothing(tmp_path):
    np.save(tmp_path / "large.npy", np.random.default_rng(0).standard_normal((60_000, 64), dtype=np.float32))
    long = ("cluster", "large.npy", "--categories", "3000", "--set", "cluster.restarts=50")
    command = [sys.executable, "-m", "selex", "--log-json", "log.jsonl", *long]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    log, end = tmp_path / "log.jsonl", time.monotonic() + 60
    while time.monotonic() < end and not (log.exists() and log.stat().st_size):
        time.sleep(0.05)
    time.sleep(4)  # it clusters, or on a slow machine still reads
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.splitlines()[-1] == "stopped; nothing was written"
    assert {path.name for path in tmp_path.iterdir()} == {"large.npy", "log.jsonl"}


def test_help_is_quick_to_start():
    """Not timed here: what costs time are imports, and help must need none of the heavy ones."""
    code = (
        "import sys; sys.argv = ['selex', '--help']\n"
        "from selex.cli import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert end.code == 0\n"
        "heavy = {'torch', 'numpy', 'sklearn', 'scipy', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    for command in ("cluster", "estimate", "evaluate", "demo"):
        assert command in done.stdout


def test_sorting_photos_imports_nothing_that_only_scores_need():
    code = (
        "import sys, selex.discovery, selex.review.core.outcome, selex.runs.earlier\n"
        "slow = {'sklearn', 'scipy.stats', 'pandas', 'matplotlib'} & set(sys.modules)\n"
        "assert not slow, slow"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_start(tmp_path):
    module = [sys.executable, "-m", "selex"]  # as it is started outside of tests
    done = subprocess.run([*module, "juggle"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr == "error: No such command 'juggle'. (see selex --help)\n"
    assert "Usage" in selex(cwd=tmp_path).stdout
    assert selex("--version", cwd=tmp_path).stdout.strip() == selex_package.__version__
    refused(
        "seed must be a whole number of at least 0, not 'often'", "cluster", "x.npy", "--seed", "often", cwd=tmp_path
    )
    refused("Missing argument 'FEATURES'. (see selex cluster --help)", "cluster", cwd=tmp_path)


def test_help_lists_commands_on_photos_then_on_features_then_others(tmp_path):
    text = selex("--help", cwd=tmp_path).stdout
    places = [text.index(f" {name} ") for name in ("discover", "review", "cluster", "evaluate", "config", "bench")]
    assert places == sorted(places)


@pytest.mark.parametrize("command", ["cluster", "estimate", "evaluate", "demo", "export"])
def test_help_shows_an_example(command, tmp_path):
    done = selex(command, "--help", cwd=tmp_path)
    assert done.returncode == 0
    assert f"Example: selex {command}" in done.stdout


@pytest.mark.parametrize("command", [(), ("evaluate",), ("bench", "table")], ids=str)
def test_help_names_no_type_for_what_takes_no_value(command, tmp_path):
    text = selex(*command, "--help", cwd=tmp_path).stdout
    lines = [
        line for line in text.splitlines() if any(flag in line for flag in (" --help ", " --json ", " --inductive "))
    ]
    assert lines
    assert not any("bool" in line.lower() for line in lines)


@pytest.mark.parametrize("command", [("info",), ("discover",), ("config",), ("data", "check")], ids=" ".join)
def test_help_names_arguments_without_a_type(command, tmp_path):
    text = selex(*command, "--help", cwd=tmp_path).stdout
    assert "Arguments" in text
    assert not any(kind in text for kind in ("<path>", "<str>", "<text>", "PATH", "TEXT"))


def test_threads_sleep_while_they_wait_unless_the_user_says_otherwise():
    code = """
import os, sys
sys.argv[1:] = ["--version"]
from selex.__main__ import PATIENT, main
try:
    main()
except SystemExit:
    print("torch" in sys.modules, *(os.environ[name] for name in PATIENT))
"""
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "KMP_"))}
    for own, expected in (({}, "False PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "False ACTIVE")):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=bare | own)
        assert done.stdout.splitlines()[-1] == expected, done.stderr


def few_digits():
    """A third of the digits."""
    digits = load_digits()
    return Bunch(images=digits.images[:600], target=digits.target[:600])


def test_demo(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(demo, "TRAINING", {**demo.TRAINING, "epochs": 2})
    monkeypatch.setattr(demo, "load_digits", few_digits)
    results = demo.run_demo(tmp_path / "out")
    lines = capsys.readouterr().out.splitlines()
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        ".selex",
        "categories.png",
        "new",
        "photos",
        "pixels",
        "predictions.csv",
        "run",
        "store-pixels",
        "store-tiny-vit",
        "truth.csv",
    }
    assert list(results) == [
        "k-means on pixels",
        "BSSK on pixels",
        "k-means on SelEx's features",
        "SelEx",
    ]
    for name, scores in results.items():
        assert f"{name:<30}  {scores}" in lines
    assert lines[-1].split()[1] == str(tmp_path / "out" / "run" / "report.html")
    assert (tmp_path / "out" / "run" / "report.html").stat().st_size > 10_000
    for folder, name in (("run", "SelEx"), ("pixels", "BSSK on pixels")):
        scored = selex("evaluate", f"out/{folder}/clusters.csv", "--truth", "out/truth.csv", "--json", cwd=tmp_path)
        assert json.loads(scored.stdout)["all"] == pytest.approx(results[name].all, abs=5e-4)
    assert len(read(tmp_path / "out" / "predictions.csv")) == 197
