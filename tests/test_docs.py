"""The manual is complete, its generated pages are fresh, its links lead somewhere and its examples run."""

import importlib.util
import inspect
import json
import pkgutil
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import typer

import selex
from commands import digit_photos
from results_for_tests import result, three_seeds
from selex.cli import app

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


def load_generator():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


COMMANDS = load_generator().all_commands(typer.main.get_command(app))
ESTIMATORS = ["HierarchicalKMeans", "SemiSupervisedKMeans"]
FUNCTIONS = [name for name in selex.__all__ if inspect.isfunction(getattr(selex, name))]
FENCE = re.compile(r"^(?P<marker><!-- not run:[^\n]*-->\n)?```(?P<kind>\w*)[^\n]*\n(?P<body>.*?)^```$", re.M | re.S)


def blocks(page, kind):
    """Fenced blocks of a kind; those marked `<!-- not run: why -->` are left out."""
    found = FENCE.finditer(page.read_text())
    return [block["body"] for block in found if block["kind"] == kind and not block["marker"]]


def commands(page):
    """Lines of a page's shell blocks that call selex."""
    lines = [line for body in blocks(page, "bash") for line in body.splitlines()]
    return [line for line in lines if line.startswith("selex ")]


def undocumented(command, section):
    """Options of a command that a section of the reference leaves out."""
    params = [param for param in command.params if param.expose_value]  # the others are for shell completion
    options = [option for param in params for option in param.opts if option.startswith("--")]
    return [option for option in options if f"| `{option}` |" not in section]


def anchors(page):
    """What a link to a heading of the page may say after the #."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.M)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip()) for heading in headings}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_is_in_the_reference(name):
    text = (ROOT / "docs/reference/cli.md").read_text()
    _, heading, rest = text.partition(f"## selex {name}\n")
    assert heading, f"no section for selex {name}"
    section = rest.split("\n## ")[0]
    assert undocumented(COMMANDS[name], section) == []
    assert all(param.help for param in COMMANDS[name].params), "a parameter has no help"
    assert "Example:" in section


def test_options_of_selex_itself_are_in_the_reference():
    _, heading, section = (ROOT / "docs/reference/cli.md").read_text().partition("## selex\n")
    assert heading
    assert undocumented(typer.main.get_command(app), section) == []


@pytest.mark.parametrize("name", selex.__all__)
def test_every_public_name_is_in_the_reference_and_has_a_docstring(name):
    reference = (ROOT / "docs/reference/python.md").read_text()
    assert re.search(rf"^::: selex\.{name}$", reference, re.M), f"selex.{name} is not in reference/python.md"
    thing = getattr(selex, name)
    if inspect.isclass(thing) or inspect.isfunction(thing):
        assert thing.__doc__
        # dataclasses and named tuples write a signature where there is no docstring
        assert not thing.__doc__.startswith(f"{name}(")
    else:  # a constant is documented by the string below it
        source = (ROOT / "src/selex/types.py").read_text()
        assert re.search(rf'^{name} = .*\n"""', source, re.M)


def test_every_name_in_the_reference_exists():
    names = re.findall(r"^::: (\S+)$", (ROOT / "docs/reference/python.md").read_text(), re.M)
    assert [name for name in names if not pkgutil.resolve_name(name).__doc__] == []


@pytest.mark.parametrize("name", [*ESTIMATORS, *FUNCTIONS, "Variant"])
def test_every_parameter_is_in_the_docstring(name):
    doc = inspect.getdoc(getattr(selex, name))
    parameters = list(inspect.signature(getattr(selex, name)).parameters)
    # two parameters may be named in a sentence, more need a list
    pattern = r"\b{}\b" if len(parameters) < 3 else r"^ +{}: \S"
    assert [parameter for parameter in parameters if not re.search(pattern.format(parameter), doc, re.M)] == []


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_method_of_the_estimators_has_a_docstring(name):
    methods = ["fit", "predict", "fit_predict", "transform"]
    assert [method for method in methods if not inspect.getdoc(getattr(getattr(selex, name), method))] == []


@pytest.mark.parametrize(
    "page", ["reference/cli.md", "reference/settings.md", "reference/api.md", "benchmarks.md", "results.md"]
)
def test_generated_pages_are_fresh(page):
    generate = load_generator()
    path = generate.DOCS / page
    assert path.read_text() == generate.page(path), "run python docs/generate.py"


def test_pages_of_benchmarks_are_fresh():
    generate = load_generator()
    made = {path: text for path, text in generate.all_pages().items() if path.parent.name == "benchmarks"}
    stale = [path.name for path, text in made.items() if not path.exists() or path.read_text() != text]
    assert stale == [], "run python docs/generate.py"


def test_every_benchmark_with_results_answers_one_question():
    generate = load_generator()
    listed = [script for scripts in generate.BENCHMARKS.values() for script in scripts]
    assert sorted(listed) == sorted(generate.results_of())


def test_page_of_a_benchmark_shows_whatever_a_result_holds(tmp_path, monkeypatch):
    generate = load_generator()
    results = [{"n": 1000000, "k": [2, 1]}, {"s": 0.5}]
    record = {"command": "python benchmarks/decode.py", "device": "a|b", "results": results}
    (tmp_path / "x.json").write_text(json.dumps(record))
    monkeypatch.setattr(generate, "RESULTS", tmp_path)
    assert "[`decode`](benchmarks/decode.md) | Decoding and storing" in generate.benchmarks_page()
    page = generate.benchmark_page("decode", generate.results_of()["decode"])
    table = "| n | k | s |\n| --- | --- | --- |\n| 1,000,000 | 2, 1 |  |\n|  |  | 0.5 |"
    for part in ("# decode\n", "## x\n", "device: a\\|b", "```bash\npython benchmarks/decode.py\n```", table):
        assert part in page


def test_results_page_has_a_table_for_each_suite_with_results(tmp_path, monkeypatch):
    generate = load_generator()
    monkeypatch.setattr(generate, "PAPER_RESULTS", tmp_path)
    assert "No result is stored yet." in generate.results_page()
    for run in three_seeds():
        run.save(tmp_path / "comparison")
    result((0.75, 0.8, 0.65), versions={"selex": "0.3.0"}).save(tmp_path / "again")
    result(suite="levels", row="levels=2", versions={"selex": "0.2.0"}).save(tmp_path / "ablations")
    page = generate.results_page()
    assert [line for line in page.splitlines() if line.startswith("## ")] == [
        "## Comparison of methods",
        "## Measured again",
        "## Effect of hierarchy levels",
    ]
    assert "| SelEx | dinov2-vits14-reg | 20 | 3 | 71.0 ± 1.0 |" in page
    assert "| SelEx | dinov2-vits14-reg | 20 | 1 | 75.0 |" in page
    assert "| levels=2 | 1 | 70.0 | 80.0 | 65.0 | 69.2 | 76.8 | 65.3 |" in page


def has_links(page):
    return re.search(r"\]\([^h)]", page.read_text()) is not None


@pytest.mark.parametrize("name", [name for name in NAMES if has_links(ROOT / name)])
def test_links_lead_somewhere(name):
    page = ROOT / name
    targets = re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text()))
    for target in [target for target in targets if not target.startswith(("http://", "https://"))]:
        path, _, anchor = target.partition("#")
        aim = (page.parent / path).resolve() if path else page
        assert aim.is_file(), f"{target}: no such file"
        assert ROOT in aim.parents, f"{target}: outside the repository"
        if anchor:
            assert anchor in anchors(aim), f"{target}: no such heading"


@pytest.mark.parametrize("name", [name for name in NAMES if commands(ROOT / name)])
def test_commands_in_the_manual_are_accepted(name):
    for line in commands(ROOT / name):
        _, *words = shlex.split(line, comments=True)
        words = words[2:] if words[:1] == ["--log-json"] else words  # it stands before any command, with its file
        size = 2 if " ".join(words[:2]) in COMMANDS else 1
        command, arguments = " ".join(words[:size]), words[size:]
        assert command in COMMANDS, f"{line}: no such command"
        COMMANDS[command].make_context(command, arguments)  # raises on an unknown option or a wrong value


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_make_targets_exist(name):
    called = re.findall(r"^make (\w+)", "\n".join(blocks(ROOT / name, "bash")), re.M)
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M)
    assert called
    assert set(called) <= set(targets)


def test_the_readme_shows_the_commands_that_matter():
    text = (ROOT / "README.md").read_text()
    for part in ("make demo", "make test", "pip install selex", "selex discover", "selex predict", "selex cluster"):
        assert part in text


@pytest.fixture
def example():
    """200 categories of four rows; two rows of each of the first 100 are labelled."""
    rng = np.random.default_rng(0)
    truth = np.tile(np.arange(200), 4)
    features = (4 * rng.normal(size=(200, 16))[truth] + rng.normal(size=(800, 16))).astype(np.float32)
    labels = np.where((truth < 100) & (np.arange(800) < 400), truth, -1)
    return {"features": features, "labels": labels, "truth": truth}


@pytest.mark.parametrize("name", [name for name in NAMES if blocks(ROOT / name, "python")])
def test_python_examples_run(name, example, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for folder in ("photos", "new-photos"):
        digit_photos(tmp_path / folder)
    names = dict(example)
    for number, body in enumerate(blocks(ROOT / name, "python"), start=1):
        exec(compile(body, f"{name}, python block {number}", "exec"), names)
    assert set(names) > set(example), "the examples of a page define something"


@pytest.mark.filterwarnings("ignore::selex.errors.Note")  # that a count is the lowest tried, of so few photos
def test_commands_of_the_readme_run_on_files(example, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = np.array([f"photos/{row:05}.jpg" for row in range(len(example["truth"]))])
    np.savez("features.npz", features=example["features"], files=names)
    for file, column in {"labels.csv": example["labels"], "truth.csv": example["truth"]}.items():
        lines = [f"{name},{label}" for name, label in zip(names, column, strict=True)]
        Path(file).write_text("\n".join(["file,label", *lines]) + "\n")
    for folder in ("photos", "new-photos"):
        digit_photos(tmp_path / folder)
    monkeypatch.setenv("SELEX_CACHE", str(tmp_path / "cache"))
    for module in ("discovery", "models.backbones"):  # no weights to be had here
        monkeypatch.setattr(f"selex.{module}.default_backbone", lambda device: "pixels")
    monkeypatch.setattr("selex.review.server.serve.serve", lambda run, **how: None)  # it would stay
    found = commands(ROOT / "README.md")
    named = ["discover", "review", "predict", "report", "export", "cluster", "evaluate"]
    assert [line.split()[1] for line in found] == named
    for line in found:
        app(shlex.split(line, comments=True)[1:], standalone_mode=False)
    assert (
        Path("predictions.csv")
        .read_text()
        .startswith("file,category,known,confidence,runner_up,distance,fits,nearest,mark\n")
    )
    assert Path("clusters.csv").read_text().startswith("file,cluster,category,known,labelled,distance,level_1,level_2")
    assert Path("birds/report.html").read_text().startswith("<!doctype html>")
    assert "unlabelled rows, accuracy (v2)" in capsys.readouterr().out


def test_the_page_on_theory_has_the_figures_of_its_benchmark():
    root = Path(__file__).parent.parent
    page = (root / "docs" / "theory.md").read_text()
    rows = {row["what"]: row for row in json.loads((root / "benchmarks/results/theory.json").read_text())["results"]}
    for name in ("CUB-200-2011", "Stanford Cars", "Herbarium-19", "Oxford-IIIT Pet", "CIFAR-100", "CIFAR-10"):
        assert f"{rows[f'the bound on {name}']['value']}" in page
    for level, size in ((1, 32768), (3, 8192), (6, 1024)):
        assert f"{rows[f'distances over {size} dims, level {level}']['correlation']} " in page.replace("\n", " ")
    shares = [row["value"] for what, row in rows.items() if what.startswith("novel images in known clusters")]
    assert "| " + " | ".join(f"{share:.2f}" for share in shares) + " |" in page
