"""A module imports only from above its own line: the map of docs/architecture.md, kept true."""

import ast
from pathlib import Path

import selex

ROOT = Path(selex.__file__).parent
LAYERS = [
    "errors",
    "progress",
    "types",
    "config",
    "metrics",
    "cluster",
    "losses",
    "data",
    "models",
    "feature_file",
    "embed",
    "closer",
    "launch",
    "methods",
    "speed",
    "states",
    "checkpoint",
    "train",
    "run",
    "model",
    "fit",
    "discovery",
    "report",
    "review",
    "bench",
    "demo",
    "cli",
    "__main__",
]


def imported(path):
    """The layers that a module imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("selex."):
            yield node.module.split(".")[1]
        elif isinstance(node, ast.Import):
            yield from (name.name.split(".")[1] for name in node.names if name.name.startswith("selex."))


def test_imports_go_upwards_only():
    wrong = []
    for path in ROOT.rglob("*.py"):
        layer = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if layer != "__init__":
            allowed = LAYERS[: LAYERS.index(layer) + 1]
            wrong += [f"{path.relative_to(ROOT)} imports {name}" for name in imported(path) if name not in allowed]
    assert not wrong


def test_every_module_has_its_layer():
    found = {path.relative_to(ROOT).parts[0].removesuffix(".py") for path in ROOT.rglob("*.py")} - {"__init__"}
    assert found <= set(LAYERS)


def test_public_names_exist_and_are_listed_once():
    assert sorted(selex.__all__) == sorted(selex._HOMES)
    for name in selex.__all__:
        assert getattr(selex, name) is not None
    assert set(dir(selex)) == {*selex.__all__, "__version__"}
