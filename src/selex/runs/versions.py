"""What made a result: the versions of this package and its libraries, a digest of its code, the commit it lies at."""

from __future__ import annotations

import ast
import hashlib
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from selex import __version__

_PACKAGE = Path(__file__).parent.parent
_LIBRARIES = ("torch", "timm", "numpy", "scikit-learn")
_ROOMS = ("config", "cluster", "losses", "data", "models", "features", "training", "bench/datasets")
_FILES = (
    "discovery.py",
    "discovery_steps.py",
    "discovery_training.py",
    "metrics.py",
    "types.py",
    "runs/earlier.py",
    "bench/runner.py",
)


def versions(code: str | None = None) -> dict[str, str]:
    """Versions of this package and its `code`, of what its results depend on, and of Python."""
    found = {library: found for library in _LIBRARIES if (found := _version(library))}
    return {"selex": __version__, "code": code or code_digest(), **found, "python": platform.python_version()}


def versions_after(before: Mapping[str, str]) -> dict[str, str]:
    """The same after those of an earlier result, which save a second if the files are the same to the last letter."""
    source, had = source_digest(), before if isinstance(before, dict) else {}
    same = had.get("source") == source and re.fullmatch("[0-9a-f]{12}", str(had.get("code")))
    return {**versions(had["code"] if same else None), "source": source}


@cache
def code_digest() -> str:
    """Changes with whatever may change a result: the code from images to categories, not that of pages and commands."""
    return digest_of(_files())


@cache
def source_digest() -> str:
    """Changes with every letter of that code, and of this file, which says how to take a digest of code."""
    digest = hashlib.sha256()
    for file in (*_files(), Path(__file__)):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(_PACKAGE).as_posix()} {len(content)} ".encode() + content)
    return digest.hexdigest()[:12]


def _files() -> list[Path]:
    """What makes results."""
    rooms = (file for room in _ROOMS for file in sorted((_PACKAGE / room).rglob("*.py")))
    return [*rooms, *(_PACKAGE / name for name in _FILES)]


def digest_of(files: Iterable[Path]) -> str:
    """A digest of what Python files do, the same on every Python.

    It leaves out comments, docstrings and layout, and in which file and in which order things are defined.
    """
    trees = (ast.parse(file.read_bytes()) for file in files)
    parts = {_code([part]) for tree in trees for statement in tree.body for part in _parts(statement)}
    return hashlib.sha256("\n".join(sorted(parts)).encode()).hexdigest()[:12]


@cache
def commit_of(folder: Path = _PACKAGE) -> tuple[str | None, bool | None]:
    """The commit of the git checkout that holds the code, and whether the code is as committed; None elsewhere."""
    if not _git(folder, "ls-files", "--", "__init__.py"):  # an installed copy may lie inside somebody's own checkout
        return None, None
    changes = _git(folder, "status", "--porcelain", "--", ".")
    return _git(folder, "rev-parse", "HEAD"), None if changes is None else not changes


def _git(folder: Path, *words: str) -> str | None:
    """What git says of a folder; None if it says no, or is not there."""
    command = ["git", "--no-optional-locks", "-C", str(folder), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _parts(statement: ast.stmt) -> list[ast.stmt]:
    """What a statement of a file does, in parts: an import of several names is one of each; types alone do nothing."""
    if isinstance(statement, ast.ImportFrom):
        return [ast.ImportFrom(statement.module, [name], statement.level) for name in statement.names]
    only_types = isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING"
    return [] if only_types else [statement]


def _code(node: Any) -> str:
    """A syntax tree as text, without what does nothing and without fields that only some Pythons have."""
    if isinstance(node, list):
        return ",".join([_code(entry) for entry in node if not _does_nothing(entry)])
    if not isinstance(node, ast.AST):
        return repr(node)
    values = [(name, getattr(node, name, None)) for name in node._fields if name != "ctx"]
    fields = [f"{name}={_code(value)}" for name, value in values if value is not None and value != []]
    return f"{type(node).__name__}({' '.join(fields)})"


def _does_nothing(node: Any) -> bool:
    """Whether it is a docstring, of a module or of a name above it, or says which file of ours defines a name."""
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").partition(".")[0] == "selex" and all(name.asname is None for name in node.names)
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None
