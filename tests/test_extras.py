"""What works without `selex[review]`, `selex[train]` and `selex[cluster]`, and what says that it needs them."""

import json
import subprocess
import sys

from commands import digit_photos

REVIEW, TRAIN, CLUSTER = ("fastapi", "starlette", "uvicorn"), ("lightning", "lightning_fabric"), ("ray",)
WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in {missing!r}:
            raise ModuleNotFoundError(f'No module named {{name!r}}', name=name)
sys.meta_path.insert(0, Missing())
"""
ESTIMATOR = """
import numpy as np
from selex import HierarchicalKMeans
features = np.random.default_rng(0).normal(size=(40, 3))
HierarchicalKMeans(n_clusters=4, random_state=0).fit(features, [0, 1] * 5 + [-1] * 30).predict(features)
"""
COMMANDS = """
import json
from selex.__main__ import main
for words in json.loads(sys.argv[1]):
    sys.argv = ['selex', *words.split()]
    try:
        main()
    except SystemExit as end:
        print('exit code', end.code or 0, file=sys.stderr)
"""


def python(program, *words, missing, cwd):
    """What a program says on standard error where these packages are not installed."""
    code = WITHOUT.format(missing=missing) + program
    done = subprocess.run([sys.executable, "-c", code, *words], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()


def test_estimators_need_neither_server_nor_networks_nor_trainer(tmp_path):
    missing = (*REVIEW, *TRAIN, "timm", "torchvision", "matplotlib", "jinja2")
    assert python(ESTIMATOR, missing=missing, cwd=tmp_path) == []


def test_without_extras_photos_are_sorted_shown_and_exported_and_the_rest_is_one_line(tmp_path):
    for folder in ("photos", "new-photos"):
        digit_photos(tmp_path / folder)
    whole = [
        "discover photos --backbone pixels --categories 5 --store store --out run",
        "report run",
        "export run --to folders --out sorted",
        "predict run new-photos --store store --out predictions.csv",
    ]
    training = "error: training needs lightning, which is not installed: pip install 'selex[train]'"
    no_ray = "error: --engine ray needs ray, which is not installed: pip install 'selex[cluster]'"
    refused = {
        "review run": "error: the review page needs uvicorn, which is not installed: pip install 'selex[review]'",
        "serve run": "error: the server needs fastapi, which is not installed: pip install 'selex[review]'",
        "discover photos --preset best --backbone tiny-vit --categories 5 --out other": training,
        "demo --out demonstration": training,
        "discover photos --backbone tiny-vit --engine ray --out other": no_ray,
        "predict run new-photos --engine ray --out other.csv": no_ray,
    }
    said = python(COMMANDS, json.dumps([*whole, *refused]), missing=REVIEW + TRAIN + CLUSTER, cwd=tmp_path)
    lines = [line for line in said if line.startswith(("error", "exit code"))]
    assert lines[: len(whole)] == ["exit code 0"] * len(whole), said
    assert lines[len(whole) :] == [line for error in refused.values() for line in (error, "exit code 2")]
    made = {path.name for path in tmp_path.iterdir()}
    assert made == {"new-photos", "photos", "predictions.csv", "run", "sorted", "store"}
    assert (tmp_path / "run" / "report.html").is_file()
