"""A module imports only from above its own line: the tables of docs/architecture.md, kept true."""

import ast
import re
from pathlib import Path

import selex
from selex.review.server.pages import _SCRIPTS

ROOT = Path(selex.__file__).parent
PAGE = Path(__file__).parent.parent / "docs" / "architecture.md"
ORDER = re.findall(r"^\| `([\w/]+\.py)` \|", PAGE.read_text(), re.MULTILINE)


def file_of(module, name=""):
    """The file that `from module import name` reads: the name's own if it is a module, else the module's."""
    parts = module.split(".")[1:]
    for path in (ROOT.joinpath(*parts, f"{name}.py"), ROOT.joinpath(*parts).with_suffix(".py")):
        if path.is_file():
            return path
    return ROOT.joinpath(*parts, "__init__.py")


def imported(path):
    """The files that a module imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "selex":
            yield from {file_of(node.module, name.name) for name in node.names}
        elif isinstance(node, ast.Import):
            yield from (file_of(name.name) for name in node.names if name.name.startswith("selex."))


def place(path):
    """The line of a file; a package's is that of its last module."""
    name = path.relative_to(ROOT).as_posix()
    if path.name != "__init__.py":
        return ORDER.index(name)
    folder = name.removesuffix("__init__.py")
    return max(line for line, other in enumerate(ORDER) if other.startswith(folder))


def modules():
    return [path for path in ROOT.rglob("*.py") if path.name != "__init__.py"]


def test_every_module_has_one_line():
    assert sorted(path.relative_to(ROOT).as_posix() for path in modules()) == sorted(ORDER)


def test_imports_go_upwards_only():
    package = ROOT / "__init__.py"  # its version is asked for anywhere, its names are imported when first used
    wrong = [
        f"{path.relative_to(ROOT)} imports {other.relative_to(ROOT)}"
        for path in modules()
        for other in imported(path)
        if other != package and place(other) >= place(path)
    ]
    assert not wrong


def test_scripts_of_the_review_page_import_only_from_those_before():
    """Their order is that of the server's list, from what all of them share to the one that starts a page."""
    folder = ROOT / "review" / "server" / "static"
    assert sorted(path.stem for path in folder.glob("*.js")) == sorted(_SCRIPTS)
    for number, name in enumerate(_SCRIPTS):
        imported = re.findall(r'from "\./(\w+)\.js"', (folder / f"{name}.js").read_text())
        assert set(imported) <= set(_SCRIPTS[:number]), name


def test_public_names_exist_and_are_listed_once():
    assert sorted(selex.__all__) == sorted(name for names in selex._HOMES.values() for name in names)
    for name in selex.__all__:
        assert getattr(selex, name) is not None
    assert set(dir(selex)) == {*selex.__all__, "__version__"}
