"""One benchmark run as a JSON file: what was asked, what came out, and how long it took."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from selex.errors import InputError
from selex.io import atomic_path, first_line, reported
from selex.types import Scores

FORMAT = 1
"""Files of another format are refused."""

VERSIONS = ("v2", "v1")
"""Ways to match clusters to categories; see `split_accuracy`."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """One run. Accuracies are fractions; nan (null in the file) where no row is scored."""

    format: int = FORMAT
    dataset: str
    method: str  # `selex`, `gcd`, `simgcd`, `frozen`, `kmeans` or the name of one's own
    variant: str  # `paper`, `published` or another short name for a set of settings
    suite: str  # `main` or the ablation that the run belongs to
    row: str  # which row of the suite it is; "" in the main one
    backbone: str
    seed: int
    epochs: int
    n_categories: int  # how many were looked for
    estimated: Mapping[str, int] | None = None  # `n_clusters`, `low` and `high` where that number was estimated
    config: Mapping[str, Any]  # all settings
    versions: Mapping[str, str]  # of `selex`, `torch`, ..., and `code`, a digest of the code that results depend on
    commit: str | None = None  # of that code; None where it does not lie in a git checkout
    clean: bool | None = None  # whether the code was as committed
    device: str
    seconds: Mapping[str, float]  # `total`, `epoch` (the median), `embed`, `cluster`
    memory_gb: float | None = None  # peak memory of the device
    parameters: int | None = None  # how many are trained
    flops: float | None = None  # of one image, forward and backward
    transductive: Mapping[str, Scores]  # `v2` and `v1` scores of the unlabelled training rows
    inductive: Mapping[str, Scores] | None = None  # the same of test rows
    curve: Sequence[Mapping[str, float]] = ()  # `epoch`, `all`, `known`, `novel` and `loss` by epoch
    command: str = ""  # how to run it again
    file: str = field(default="", compare=False)  # where it was read from; not part of the file

    def __post_init__(self) -> None:
        object.__setattr__(self, "curve", tuple(self.curve))

    @property
    def file_name(self) -> str:
        """A name that says what the run is; two runs that differ in nothing else than their settings share it."""
        parts = [self.dataset, self.method, self.variant, self.suite, self.row, self.backbone]
        slugs = [re.sub(r"[^a-z0-9.]+", "-", part.lower()).strip("-.") for part in parts]
        return "-".join([*filter(None, slugs), f"e{self.epochs}", f"s{self.seed}"]) + ".json"

    def to_json(self) -> dict[str, Any]:
        """Plain values for a JSON file."""
        values = asdict(self)
        del values["file"]
        return {key: _plain(value) for key, value in values.items()}

    @classmethod
    def from_json(cls, values: Any) -> Result:
        """A result from such values; what is missing, unknown or impossible is an `InputError`."""
        if not isinstance(values, dict) or "format" not in values:
            raise InputError("is not a result of selex bench run; move it elsewhere")
        if values["format"] != FORMAT:
            raise InputError(f"is of format {values['format']}; this version of selex reads format {FORMAT}")
        _check_names(values)
        scores = {key: _read_scores(key, values[key]) for key in ("transductive", "inductive") if values.get(key)}
        if "transductive" not in scores:
            raise InputError("has no transductive accuracies")
        curve = [{key: _number(value) for key, value in point.items()} for point in values.get("curve", [])]
        return cls(**{**values, **scores, "curve": curve})

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the file into a folder, whole or not at all; returns its path."""
        path = Path(folder) / self.file_name
        with reported(f"{path.parent}: cannot be created"):
            path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.to_json(), indent=1, allow_nan=False)
        with atomic_path(path) as partial:
            partial.write_text(text + "\n", encoding="utf-8")
        return path

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Result:
        """Read a file."""
        file = os.fspath(path)
        try:
            return replace(cls.from_json(json.loads(Path(path).read_text(encoding="utf-8"))), file=file)
        except OSError as error:
            raise InputError(f"{file}: cannot be read ({error.strerror})") from None
        except InputError as error:
            raise InputError(f"{file}: {error}") from None
        except (TypeError, ValueError, AttributeError) as error:
            raise InputError(f"{file}: is damaged ({first_line(error)}); remove it and run it again") from None


RESULTS = "folder of benchmark results"
"""What `--out` of `selex bench run` is taken as."""


def read_results(folder: str | os.PathLike[str], mixed: bool = False) -> list[Result]:
    """Every result below a folder, in the order of file names; `mixed` allows results of several versions of selex."""
    if not Path(folder).is_dir():
        raise InputError(f"{os.fspath(folder)}: no such folder")
    # hidden files are such as are being written
    paths = [path for path in sorted(Path(folder).rglob("*.json")) if not path.name.startswith(".")]
    if not paths:
        raise InputError(f"{os.fspath(folder)}: holds no results; make some with selex bench run")
    results = [Result.load(path) for path in paths]
    if not mixed:
        check_versions(results)
    return results


def check_versions(results: Sequence[Result]) -> None:
    """Refuse results of several versions of selex: their numbers do not belong into one table."""
    first = {code_version(result): result.file for result in reversed(results)}
    if len(first) > 1:
        found = ", ".join(f"{version} ({Path(file).name})" for version, file in sorted(first.items()))
        raise InputError(f"results of several versions of selex: {found}; keep them apart, or add --mixed-versions")


def code_version(result: Result) -> str:
    """The version, and the digest of the code where the result names it."""
    named = (result.versions.get(part) for part in ("selex", "code"))
    return " ".join(filter(None, named)) or "unknown"


def provenance(result: Result) -> str:
    """The vintage, and the commit where the result names it."""
    if result.commit is None:
        return code_version(result)
    return f"{code_version(result)} (commit {result.commit[:12]}{'' if result.clean else ', with changes'})"


def _check_names(values: dict[str, Any]) -> None:
    known = {entry.name for entry in fields(Result)} - {"file"}
    needed = {entry.name for entry in fields(Result) if entry.default is MISSING}
    for problem, names in (("lacks", needed - set(values)), ("has an unknown entry", set(values) - known)):
        if names:
            raise InputError(f"{problem} {min(names)!r}; it is damaged, or of another version of selex")
    for name in ("seed", "epochs", "n_categories"):
        if not isinstance(values[name], int):
            raise InputError(f"{name} is {values[name]!r}, not a whole number")


def _read_scores(part: str, values: Mapping[str, Any]) -> dict[str, Scores]:
    scores = {version: Scores(*map(_number, values[version])) for version in VERSIONS if version in values}
    if "v2" not in scores:
        raise InputError(f"has no v2 accuracies among the {part} ones")
    wrong = [value for triple in scores.values() for value in triple if not (math.isnan(value) or 0 <= value <= 1)]
    if wrong:
        raise InputError(f"an accuracy of the {part} ones is {wrong[0]}; accuracies are fractions from 0 to 1")
    return scores


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _plain(value: Any) -> Any:
    """The same for JSON, which knows neither nan and infinity nor tuples nor numbers of numpy and torch."""
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value
