"""What the project says of itself in several places is the same in all of them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import yaml

from selex import __version__

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pythons():
    """The versions of Python that the classifiers name, oldest first."""
    named = (re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", line) for line in PROJECT["classifiers"])
    return [match[1] for match in named if match]


def test_oldest_and_newest_python_are_those_that_are_tested():
    ends = [pythons()[0], pythons()[-1]]
    assert PROJECT["requires-python"] == f">={ends[0]}"
    assert f"PYTHONS = {' '.join(ends)}\n" in (ROOT / "Makefile").read_text()
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == ends


def test_workflows_and_hooks_call_what_there_is():
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M)
    jobs = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]
    called = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert called
    assert {line.removeprefix("make ") for line in called} <= set(targets)
    release = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]
    assert (ROOT / release["checks"]["uses"]).is_file()


def test_the_release_checks_the_tag_against_the_version(tmp_path):
    steps = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]["build"]["steps"]
    [check] = [step["run"] for step in steps if "GITHUB_REF_NAME" in step.get("run", "")]
    for tag, code in {f"v{__version__}": 0, "v99.0.0": 1}.items():
        done = subprocess.run(["bash", "-ec", check], cwd=ROOT, env={**os.environ, "GITHUB_REF_NAME": tag})
        assert done.returncode == code


def test_citation_has_the_version():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == __version__


def test_every_extra_is_in_all_but_those_that_few_need():
    extras = PROJECT["optional-dependencies"]
    few = {"cluster", "names"}  # Ray, and a text-image model: hundreds of megabytes
    assert few < set(extras)
    assert extras["all"] == [f"selex[{','.join(sorted(set(extras) - {'all'} - few))}]"]
