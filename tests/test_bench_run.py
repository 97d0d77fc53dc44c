"""`selex bench run` from end to end: a small dataset of one's own, a miniature of CUB, results, tables."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest

from commands import digit_photos, refused, selex
from selex import ClusterConfig, Config, InputError, Run, bssk, fit_clusters, load, split_accuracy
from selex.bench.datasets.splits import own_dataset
from selex.bench.paper import SUITES
from selex.bench.results import read_results
from selex.bench.runner import BenchJob, read_split, result_name, run_job
from selex.config import PAPER
from selex.runs.versions import commit_of

SMALL = (
    "--backbone",
    "tiny-vit",
    "--epochs",
    1,
    "--set",
    "train.batch=16",
    "--set",
    "train.lr=0.01",
    "--set",
    "train.flip=false",
    "--device",
    "cpu",
)


@pytest.fixture
def digits(tmp_path, monkeypatch):
    """Digit images with a CSV that says which is which: 0-2 known, 3-4 novel."""
    monkeypatch.setenv("SELEX_CACHE", str(tmp_path / "cache"))
    home = tmp_path / "digits"
    truth = digit_photos(home / "photos")
    with (home / "labels.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["file", "class", "known"])
        writer.writerows([f"photos/{name}", digit, int(digit < 3)] for name, digit in truth.items())
    return tmp_path


def test_a_run_and_its_table(digits):
    command = ("bench", "run", "--dataset", "digits/labels.csv", "--seeds", 2, "--method", "gcd", *SMALL)
    done = selex(*command, cwd=digits)
    assert done.returncode == 0, done.stderr
    results = read_results(digits / "results")
    assert [result.seed for result in results] == [0, 1]
    first = results[0]
    assert (first.dataset, first.method, first.variant, first.suite) == ("digits", "gcd", "paper", "main")
    assert first.epochs == 1
    assert first.n_categories == 5
    assert [point["epoch"] for point in first.curve] == [0]
    assert first.curve[0]["all"] > 0
    assert first.parameters > 1000
    assert first.seconds["epoch"] > 0
    assert set(first.transductive) == {"v1", "v2"}
    assert first.inductive is None
    assert first.command.startswith("selex bench run --dataset digits/labels.csv")
    text = (digits / "results" / first.file_name).read_text()
    assert str(digits) not in text
    assert first.versions["selex"]
    assert (first.commit is None) == (commit_of()[0] is None)
    table = selex("bench", "table", "results", cwd=digits)
    assert "| GCD | tiny-vit | 1 | 2 |" in table.stdout
    again = selex(*command, cwd=digits)
    assert again.stdout.count("exists, skipped") == 2


def test_two_tables_in_one_folder_are_two_datasets(digits):
    lines = (digits / "digits" / "labels.csv").read_text().splitlines()
    fewer = [line for line in lines if ",3," not in line]
    (digits / "digits" / "fewer.csv").write_text("\n".join(fewer))
    frozen = ("--seeds", 1, "--method", "frozen", "--backbone", "pixels", "--device", "cpu")
    for name in ("labels.csv", "fewer.csv"):
        done = selex("bench", "run", "--dataset", f"digits/{name}", *frozen, cwd=digits)
        assert done.returncode == 0, done.stderr
    found = {result.dataset: result.n_categories for result in read_results(digits / "results")}
    assert found == {"digits": 5, "digits-fewer": 4}
    # what was there is not shown for a table that has changed
    (digits / "digits" / "labels.csv").write_text("\n".join(fewer))
    refused(
        "was made from another table than digits/labels.csv",
        "bench",
        "run",
        "--dataset",
        "digits/labels.csv",
        *frozen,
        cwd=digits,
    )


def test_rows_of_a_suite_one_by_one(digits):
    command = ("bench", "run", "--dataset", "digits/labels.csv", "--suite", "components", "--seeds", 1, *SMALL)
    done = selex(*command, "--row", "SSE", "--row", "none", cwd=digits)
    assert done.returncode == 0, done.stderr
    assert sorted(result.row for result in read_results(digits / "results")) == ["SSE", "none"]
    alone = ("bench", "run", "--dataset", "digits/labels.csv", *SMALL, "--row", "SSE")
    refused("suite main has one row: leave --row out", *alone, cwd=digits)
    refused("no row of components 'hssk'; did you mean 'HSSK'?", *command, "--row", "hssk", cwd=digits)


def test_a_row_that_changes_nothing_is_run_once(digits):
    command = ("bench", "run", "--dataset", "digits/labels.csv", "--seeds", 1, *SMALL)
    done = selex(*command, "--suite", "alpha", "--row", "alpha=0.1", "--row", "alpha=0.5", cwd=digits)
    assert done.returncode == 0, done.stderr
    assert sorted((run.suite, run.row) for run in read_results(digits / "results")) == [
        ("alpha", "alpha=0.1"),
        ("main", ""),
    ]
    again = selex(*command, "--suite", "lambda", "--row", "lambda=0.35", cwd=digits)
    assert again.stdout.count("exists, skipped") == 1
    table = selex("bench", "table", "results", "--suite", "alpha", cwd=digits)
    assert "| alpha=0.1 | 1 |" in table.stdout
    assert "| alpha=0.5 | 1 |" in table.stdout


def test_frozen_blocks_flops_and_shuffled_rows(digits):
    job = BenchJob(str(digits / "digits" / "labels.csv"), None, "selex", "tiny-vit", _settings())
    whole = run_job(job, 0, tell=lambda line: None)
    gcd = run_job(replace(job, method="gcd"), 0, tell=lambda line: None)
    assert whole.flops > 2 * 2 * whole.parameters  # two views, and a multiplication and an addition a weight and token
    assert gcd.flops == pytest.approx(whole.flops, rel=0.3)
    row = SUITES["row-order"].row("shuffled")
    mixed, by_class = read_split(replace(job, row=row))[0], read_split(job)[0]
    assert mixed.table.files != by_class.table.files
    assert sorted(zip(mixed.table.files, mixed.truth, mixed.known, mixed.table.labels, strict=True)) == sorted(
        zip(by_class.table.files, by_class.truth, by_class.known, by_class.table.labels, strict=True)
    )
    assert run_job(replace(job, suite="row-order", row=row), 0, tell=lambda line: None).config["shuffled"] is True


def test_seeds_differ_and_repeat(digits):
    job = BenchJob(str(digits / "digits" / "labels.csv"), None, "gcd", "tiny-vit", _settings())
    one, same, other = (run_job(job, seed, tell=lambda line: None) for seed in (0, 0, 1))
    assert one.curve == same.curve
    assert one.transductive == same.transductive
    assert one.curve != other.curve


def test_rows_of_a_suite_change_what_they_say(digits):
    rows = SUITES["components"].rows
    job = BenchJob(str(digits / "digits" / "labels.csv"), None, "selex", "tiny-vit", _settings(), suite="components")
    results = [run_job(replace(job, row=row), 0, tell=lambda line: None) for row in (rows[0], rows[-1])]
    assert [result.row for result in results] == ["none", "HSSK+USE+SSE"]
    assert [result.config["train"]["hssk"] for result in results] == [False, True]
    assert results[0].curve[0]["loss"] != results[1].curve[0]["loss"]
    assert [result_name(replace(job, row=row), 0) for row in (rows[0], rows[-1])] == [r.file_name for r in results]


def test_estimated_categories_and_a_model_that_stays(digits):
    done = selex(
        *("bench", "run", "--dataset", "digits/labels.csv", "--seeds", 1, "--method", "frozen", "--backbone", "pixels"),
        *("--categories", "auto", "--runs", "runs", "--device", "cpu"),
        cwd=digits,
    )
    assert done.returncode == 0, done.stderr
    (result,) = read_results(digits / "results")
    assert result.estimated["low"] <= result.n_categories <= result.estimated["high"]
    assert result.epochs == 0
    (folder,) = (path for path in (digits / "runs").iterdir() if path.is_dir())
    predicted = selex("predict", folder, "digits/photos", cwd=digits)
    assert predicted.returncode == 0, predicted.stderr


def test_plain_k_means_uses_no_label(digits):
    job = BenchJob(str(digits / "digits" / "labels.csv"), None, "kmeans", "pixels", _settings(), runs=digits / "runs")
    result = run_job(job, 0, tell=lambda line: None)
    assert (result.method, result.epochs, result.n_categories, result.inductive) == ("kmeans", 0, 5, None)
    features = Run.open(next(path for path in (digits / "runs").iterdir() if path.is_dir())).embeddings
    found = np.asarray(bssk(features, None, 5, balanced=False, n_init=10, rng=0).labels)
    benchmark = own_dataset(digits / "digits" / "labels.csv")
    free = ~np.asarray(benchmark.table.labelled)
    assert result.transductive["v2"] == split_accuracy(benchmark.truth[free], found[free], benchmark.known[free])


def test_a_row_says_how_the_clustering_ended(digits):
    command = ("bench", "run", "--dataset", "digits/labels.csv", "--method", "frozen", "--backbone", "pixels")
    more = ("--device", "cpu", "--seeds", 1, "--runs", "runs")
    for variant, refine in (("paper", ()), ("soft", ("--refine", "proportional", "--variant", "soft"))):
        done = selex(*command, *more, *refine, cwd=digits)
        assert done.returncode == 0, done.stderr
        (result,) = (result for result in read_results(digits / "results") if result.variant == variant)
        expected = "proportional" if refine else "none"
        assert result.config["cluster"]["refine"] == result.config["selected"]["refine"] == expected
    assert " --refine proportional " in result.command
    ended = [load(folder).assigner.offsets is not None for folder in (digits / "runs").iterdir() if folder.is_dir()]
    assert sorted(ended) == [False, True]


def test_labels_and_truth_of_ones_own(digits):
    benchmark = own_dataset(digits / "digits" / "labels.csv")
    held = np.asarray(benchmark.table.labelled)
    assert benchmark.n_known == 3
    assert held.sum() == benchmark.known.sum() // 2
    assert not held[~benchmark.known].any()
    names = np.array(benchmark.table.label_names)
    assert (names[held] == np.array(benchmark.classes)[benchmark.truth[held]]).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--dataset", "cub"), "--root is missing: give the folder of cub"),
        (("--dataset", "cubb", "--root", "digits"), "did you mean"),
        (("--dataset", "none.csv"), "none.csv: no such file"),
        (("--dataset", "mixed.csv"), "class a is known in some lines and not in others"),
        (("--dataset", "novel.csv"), "no line has known 1"),
        (("--dataset", "bare.csv"), "has no column 'known'"),
        (("--dataset", "digits/labels.csv", "--suite", "componentz"), "did you mean"),
        (("--dataset", "digits/labels.csv", "--set", "train.all=false"), "no setting 'train.all'; did you mean"),
        (
            ("--dataset", "digits/labels.csv", "--method", "means"),
            "no method 'means'; did you mean",
        ),
        (
            ("--dataset", "digits/labels.csv", "--method", "kmeans", "--set", "cluster.whiten=0.5"),
            "kmeans uses no labels",
        ),
        (
            ("--dataset", "digits/labels.csv", "--method", "kmeans", "--refine", "proportional"),
            "kmeans is plain k-means",
        ),
        (
            ("--dataset", "digits/labels.csv", "--method", "simgcd", "--refine", "proportional"),
            "simgcd is a classifier",
        ),
        (
            ("--dataset", "digits/labels.csv", "--method", "frozen", "--refine", "big"),
            "proportional or balanced, not 'big'",
        ),
    ],
)
def test_bad_input_is_one_line(digits, arguments, message):
    (digits / "mixed.csv").write_text("file,class,known\nx.png,a,1\ny.png,a,0\n")
    (digits / "novel.csv").write_text("file,class,known\nx.png,a,0\n")
    (digits / "bare.csv").write_text("file,class\nx.png,a\n")
    refused(message, "bench", "run", *arguments, "--device", "cpu", cwd=digits)
    assert not (digits / "results").exists()


def test_an_image_that_cannot_be_read_stops_it(digits):
    next((digits / "digits" / "photos").rglob("*.png")).write_text("no image")
    job = BenchJob(str(digits / "digits" / "labels.csv"), None, "frozen", "pixels", _settings())
    with pytest.raises(InputError, match="not a JPEG"):
        run_job(job, 0)


def _settings():
    return PAPER.change(epochs=1, batch=16, lr=0.01, flip=False)


def test_it_finds_what_the_pipeline_finds(digits):
    """With the defaults of `discover`: what was embedded and labelled, clustered again on its own."""
    job = BenchJob(str(digits / "digits" / "labels.csv"), None, "frozen", "pixels", Config(), runs=digits / "runs")
    result = run_job(job, 3, tell=lambda line: None)
    run = Run(digits / "runs" / result_name(job, 3).removesuffix(".json"))
    clusters = np.array(run.clusters["cluster"])
    labels = np.where(np.array(run.clusters["labelled"]) == 1, clusters, -1)
    found = fit_clusters(np.array(run.embeddings), labels, ClusterConfig(categories=5), rng=3)
    assert found.labels.tolist() == clusters.tolist()
    assert result.config["selected"] == found.selection.settings


def test_settings_are_in_the_file(digits):
    job = BenchJob(str(digits / "digits" / "labels.csv"), None, "frozen", "pixels", _settings())
    path = run_job(job, 0, tell=lambda line: None).save(digits / "out")
    config = json.loads(path.read_text())["config"]
    assert config["train"]["lr"] == 0.01
    assert config["label_ratio"] == 0.5
    assert "photos" not in config["data"]
