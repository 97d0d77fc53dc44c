"""A method that another package registers: it trains, resumes, sorts, and is in the tables of the bench."""

import os
import re
import signal
import subprocess
import sys
import time
from importlib import import_module, invalidate_caches
from pathlib import Path

import pytest

from commands import contents, digit_photos
from selex import Config, InputError, Run, discover, load
from selex.cli import app
from selex.training.methods import METHODS, Method, find_method
from selex.training.steps import Steps

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "own-method"
SETTINGS = {"backbone": "tiny-vit", "categories": 5, "epochs": 3, "batch": 16, "lr": 0.01, "method": "prototypes"}


def install(site, entries, **modules):
    """What an installer leaves of a package: its modules, and a folder that says what it registers."""
    about = site / "own_method-1.0.dist-info"
    about.mkdir(parents=True, exist_ok=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: own-method\nVersion: 1.0\n")
    lines = [f"{name} = {value}" for name, value in entries.items()]
    (about / "entry_points.txt").write_text("\n".join(["[selex.methods]", *lines]) + "\n")
    for name, text in modules.items():
        (site / f"{name}.py").write_text(text)
    invalidate_caches()


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Where packages are found, with the package of the manual installed."""
    site = tmp_path / "site"
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())
    (module,) = project["tool"]["setuptools"]["py-modules"]
    entries = project["project"]["entry-points"]["selex.methods"]
    install(site, entries, **{module: (EXAMPLE / f"{module}.py").read_text()})
    monkeypatch.syspath_prepend(site)
    yield site
    for name in (module, "broken", "other"):
        sys.modules.pop(name, None)


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SELEX_CACHE", str(tmp_path / "cache"))
    digit_photos(tmp_path / "photos")
    return tmp_path


def test_the_manual_shows_the_package():
    page = (ROOT / "docs" / "methods.md").read_text()
    (shown,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert shown == (EXAMPLE / "selex_prototypes.py").read_text()
    (toml,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert toml in (EXAMPLE / "pyproject.toml").read_text()


def test_it_is_found_by_its_name_and_ours_keep_theirs(site):
    found = find_method("prototypes")
    assert found is import_module("selex_prototypes").Prototypes
    assert issubclass(found, Method)
    install(site, {"gcd": "selex_prototypes:Prototypes", "prototypes": "selex_prototypes:Prototypes"})
    assert find_method("gcd") is METHODS["gcd"]
    with pytest.raises(
        InputError, match="did you mean 'prototypes'\\? there are: frozen, gcd, simgcd, selex, gcd, proto"
    ):
        find_method("prototype")


def test_it_trains_resumes_and_sorts(site, place, monkeypatch):
    config = Config.of(str(place / "photos"), **SETTINGS)
    whole = discover(config, place / "whole", store=place / "store")
    epochs = [entry for entry in whole.metrics if entry["step"] == "epoch"]
    assert [entry["epoch"] for entry in epochs] == [0, 1, 2]
    assert all(entry["near"] > 0 and entry["contrast"] > 0 for entry in epochs)
    assert all(entry["loss"] == pytest.approx(entry["contrast"] + 0.35 * entry["near"]) for entry in epochs)

    plain, calls = Steps.step, []

    def stopped(self, batch):
        calls.append(batch)
        if len(calls) == 5:  # of three an epoch
            raise KeyboardInterrupt
        return plain(self, batch)

    monkeypatch.setattr(Steps, "step", stopped)
    with pytest.raises(KeyboardInterrupt):
        discover(config, place / "stopped", store=place / "store")
    monkeypatch.setattr(Steps, "step", plain)
    resumed = discover(config, place / "stopped", store=place / "store")
    assert len([entry for entry in resumed.metrics if entry["step"] == "epoch"]) == 3
    first, again = (contents(place / name / "model") for name in ("whole", "stopped"))
    assert first == again

    for name in ("own_method-1.0.dist-info/entry_points.txt", "selex_prototypes.py"):
        (site / name).unlink()
    assert Run.open(place / "whole").config.train.method == "prototypes"  # without the package too
    found = load(place / "whole").predict(place / "photos", store=place / "store")
    assert len(found["file"]) == 60
    with pytest.raises(InputError, match="no method 'prototypes'"):
        discover(config.change(seed=1), place / "other", store=place / "store")
    assert not (place / "other").exists()


def test_a_command_that_ctrl_c_stopped_goes_on_to_the_same_network(site, place):
    """In processes of their own, which find the package as they find any other."""
    command = [sys.executable, "-m", "selex", "discover", "photos", "--method", "prototypes", "--backbone", "tiny-vit"]
    command += ["--categories", "5", "--epochs", "6", "--set", "train.batch=16", "--device", "cpu", "--out"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(site), str(ROOT / "src")])}
    how = {"cwd": place, "env": environment, "text": True, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    assert subprocess.run([*command, "whole"], **how).returncode == 0
    with subprocess.Popen([*command, "stopped"], **how) as stopped:
        while not any((place / "stopped" / ".work").glob("checkpoint-*.pt")):
            assert stopped.poll() is None
            time.sleep(0.01)
        stopped.send_signal(signal.SIGINT)
        _, said = stopped.communicate(timeout=120)
    assert (stopped.returncode, said.splitlines()[-1].split(";")[0]) == (130, "stopped")
    assert not (place / "stopped" / "model" / "model.json").exists()
    assert subprocess.run([*command, "stopped"], **how).returncode == 0
    assert contents(place / "stopped" / "model") == contents(place / "whole" / "model")
    epochs = [entry["epoch"] for entry in Run.open(place / "stopped").metrics if entry["step"] == "epoch"]
    assert epochs == list(range(6))


def test_it_is_a_method_of_the_command_line_and_in_the_tables_of_the_bench(site, place, capsys):
    rows = [
        f"{path.relative_to(place)},{row % 5},{int(row % 5 < 3)}"
        for row, path in enumerate(sorted((place / "photos").rglob("*.png")))
    ]
    (place / "labels.csv").write_text("\n".join(["file,class,known", *rows]) + "\n")
    small = ["--backbone", "tiny-vit", "--epochs", "1", "--set", "train.batch=16", "--device", "cpu"]
    command = ["bench", "run", "--dataset", "labels.csv", "--method", "prototypes", "--seeds", "1", *small]
    app(command, standalone_mode=False)
    capsys.readouterr()
    app(["bench", "table", "results"], standalone_mode=False)
    assert "| prototypes | tiny-vit | 1 | 1 |" in capsys.readouterr().out
    app(
        ["discover", "photos", "--method", "prototypes", "--categories", "5", "--out", "run", *small],
        standalone_mode=False,
    )
    capsys.readouterr()
    app(["info", "run"], standalone_mode=False)
    assert "method prototypes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("nowhere:Prototypes", r"method mine: nowhere:Prototypes cannot be loaded \(No module named 'nowhere'\)"),
        ("broken:Mine", r"method mine: broken:Mine cannot be loaded \(oh dear\)"),
        ("other:NoMethod", "method mine: other:NoMethod is not a subclass of selex.training.methods.Method"),
        ("other:number", "method mine: other:number is not a subclass of"),
        ("selex.training.methods:Method", "method mine: selex.training.methods:Method has no encode and losses"),
    ],
)
def test_a_package_that_is_wrong_is_one_line(site, place, value, message):
    install(site, {"mine": value}, broken="raise RuntimeError('oh dear')\n", other="number = 3\nclass NoMethod: pass\n")
    with pytest.raises(InputError, match=message):
        discover(Config.of(str(place / "photos"), **{**SETTINGS, "method": "mine"}), place / "run")
    assert not (place / "run").exists()


def test_a_method_that_classifies_is_not_refined(site, place):
    install(site, {"mine": "other:Mine"}, other="from selex.training.methods import SimGCD\nclass Mine(SimGCD): pass\n")
    config = Config.of(str(place / "photos"), **{**SETTINGS, "method": "mine", "refine": "proportional"})
    with pytest.raises(
        InputError, match=r"cluster\.refine proportional: mine is a classifier, with no clusters to refine"
    ):
        discover(config, place / "run")
