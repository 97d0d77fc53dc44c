"""Hypothesis makes tables, JSON and options; whatever it thinks of, a command works or says one line."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from chaos import lab as worlds
from chaos.cases import Plan, Tries, case
from chaos.lab import PIXELS, Lab
from chaos.strangers import STAY, all_options, typed
from chaos.strangers import world as every_command
from selex.checksums import stamped_line

NASTY = (
    *(
        "",
        " ",
        "-1",
        "0",
        "nan",
        "inf",
        "1e308",
        "9" * 5000,
        "=1+1",
        "../../x",
        "/etc/passwd",
        "\x00",
        "a\nb",
        "'\"",
        "é",
    ),
    *("e\u0301", "\ud800", "\udce9", "x" * 300, "true", "None", "[]", "{}", "photos", "run", "unlabelled", "novel-1"),
)
cells = st.sampled_from(NASTY) | st.text(max_size=12)
texts = st.sampled_from(NASTY) | st.integers().map(str) | st.floats().map(str) | st.text(max_size=6)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(NASTY) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


@st.composite
def csv_text(draw: Any, *columns: str) -> bytes:
    """A table with our columns, or nearly: cells of all kinds, lines of all lengths, bytes that are no text."""
    header = draw(st.permutations([*columns, *draw(st.lists(cells, max_size=2))]))
    ours = (
        st.sampled_from([f"unlabelled/{number:04d}.png" for number in (3, 4, 5)]) | st.integers(0, 40).map(str) | cells
    )
    lines = [header, *draw(st.lists(st.lists(ours, min_size=1, max_size=4), max_size=6))]
    text = "\n".join(draw(st.sampled_from([",", ",", ",", ";", "\t"])).join(line) for line in lines)
    data = text.encode("utf-8", "surrogatepass")
    return draw(st.sampled_from([data, data, b"\xef\xbb\xbf" + data, data + b"\xff\xfe", data[: len(data) // 2], b""]))


@st.composite
def parquet_table(draw: Any, *columns: str) -> bytes:
    kinds = [st.text(max_size=9), st.binary(max_size=9), st.integers(-5, 5), st.floats(), st.none(), st.booleans()]
    rows = draw(st.integers(0, 5))
    names = draw(st.permutations([*columns, "extra"]))[: draw(st.integers(1, len(columns) + 1))]
    columns_of = {name: draw(st.lists(draw(st.sampled_from(kinds)), min_size=rows, max_size=rows)) for name in names}
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.table(columns_of), sink)
    return sink.getvalue().to_pybytes()


@st.composite
def array_file(draw: Any) -> bytes:
    """A `.npy` of any kind and shape, some of them not numbers, some with a header that lies."""
    import io

    kind = draw(st.sampled_from(["<f4", "<f8", "<i8", "<u1", "<c8", "S3", "<U2", "bool", "<M8[s]", "<f2"]))
    shape = draw(st.sampled_from([(), (0,), (9,), (0, 4), (4, 0), (6, 3), (40, 2), (2, 2, 2), (1, 1)]))
    file = io.BytesIO()
    np.save(file, np.zeros(shape, kind) if draw(st.booleans()) else np.full(shape, 1, "<f4") * math.nan)
    data = file.getvalue()
    return draw(
        st.sampled_from([data, data, data[:-1], data.replace(b"'shape': (", b"'shape': (9999999999,"), data[:20], b""])
    )


@st.composite
def toml(draw: Any) -> bytes:
    """Settings, some of them ours, with values that nobody meant."""
    lines = [f"[{draw(st.sampled_from(['cluster', 'features', 'train', 'data', 'other']))}]"]
    keys = st.sampled_from(["categories", "restarts", "whiten", "refine", "views", "crop", "epochs", "size", "levels"])
    for key in draw(st.lists(keys, max_size=3)):
        value = draw(
            st.sampled_from(["0", "-1", "1e999", "nan", '"x"', "[1]", "{a=1}", "true", "9" * 5000, "1979-05-27"])
        )
        lines.append(f"{key} = {value}")
    data = "\n".join(lines).encode()
    return draw(st.sampled_from([data, data, data, data[:-1], b"\xff" + data]))


@st.composite
def changed_json(draw: Any, text: str) -> bytes:
    """A JSON file of ours with one value replaced or left out, or something else altogether."""
    record = json.loads(text)
    places = list(_places(record))
    *parents, last = draw(st.sampled_from(places))
    inner = record
    for key in parents:
        inner = inner[key]
    if draw(st.booleans()):
        inner[last] = draw(values)
    else:
        del inner[last]
    data = json.dumps(draw(st.sampled_from([record, record, record, record, [record], None])))
    return data.encode("utf-8", "surrogatepass")


def _places(value: Any, above: tuple[Any, ...] = ()) -> Any:
    keys = value.keys() if isinstance(value, dict) else range(min(len(value), 3)) if isinstance(value, list) else ()
    for key in keys:
        yield (*above, key)
        yield from _places(value[key], (*above, key))


def ours(name: str) -> Callable[[Path], st.SearchStrategy[bytes]]:
    """A JSON file of the run, changed."""
    return lambda home: changed_json((home / "run" / name).read_text())


def always(strategy: st.SearchStrategy[bytes]) -> Callable[[Path], st.SearchStrategy[bytes]]:
    """Made without looking at a run."""
    return lambda home: strategy


any_json = values.map(lambda value: json.dumps(value).encode())
_KEYS = ("time", "epoch", "loss", "refine", "store", "count", "seconds", "lr", "changed")
log_lines = st.lists(
    st.tuples(st.sampled_from(("cluster", "epoch", "decode")), st.dictionaries(st.sampled_from(_KEYS), values)),
    max_size=4,
).map(lambda entries: "".join(stamped_line({"step": step, **entry}) for step, entry in entries).encode())
_DISCOVER = (*PIXELS, "--categories", "4", "--out", "found")
_CLUSTER = ("--categories", "2", "--out", "found.csv")
_REPORT = ("report", "run", "--out", "found.html")
_PREDICT = ("predict", "run", "new", "--device", "cpu", "--out", "found.csv")
_BENCH = (*("bench", "run", "--root", "photos", "--method", "frozen", "--backbone", "pixels", "--seeds", "1"),
          *("--device", "cpu", "--out", "found"))  # fmt: skip
_PHOTOS, _LABELS = ("discover", "photos"), ("--labels", "given.csv")
READERS: dict[str, tuple[str, Callable[[Path], st.SearchStrategy[bytes]], tuple[str, ...]]] = {
    "photos, CSV": ("photos/t.csv", always(csv_text("file_name", "label")), ("discover", "photos/t.csv", *_DISCOVER)),
    "photos, parquet": ("photos/t.parquet", always(parquet_table("file_name", "label")),
                        ("discover", "photos/t.parquet", *_DISCOVER)),
    "labels": ("given.csv", always(csv_text("file_name", "label")), (*_PHOTOS, *_LABELS, *_DISCOVER)),
    "features, npy": ("given.npy", always(array_file()), ("cluster", "given.npy", *_CLUSTER)),
    "features, npz": ("given.npz", always(array_file()), ("estimate", "given.npz", "--out", "found.png")),
    "labels of rows": ("given.csv", always(csv_text("row", "label")), ("cluster", "features.npz", *_LABELS, *_CLUSTER)),
    "settings": ("given.toml", always(toml()), (*_PHOTOS, *_DISCOVER, "--config", "given.toml")),
    "clusters": ("given.csv", always(csv_text("row", "cluster")), ("evaluate", "given.csv")),
    "truth": ("given.csv", always(csv_text("file", "label")), (*_REPORT, "--truth", "given.csv")),
    "config.json": ("run/config.json", ours("config.json"), ("info", "run")),
    "hierarchy.json": ("run/hierarchy.json", ours("hierarchy.json"), _REPORT),
    "model.json": ("run/model/model.json", ours("model/model.json"), _PREDICT),
    "metrics.jsonl": ("run/metrics.jsonl", always(any_json | log_lines), _REPORT),
    "results of a benchmark": ("results/given.json", always(any_json), ("bench", "table", "results")),
    "a dataset's table": ("given.csv", always(csv_text("file", "class", "known")), (*_BENCH, "--dataset", "given.csv")),
}  # fmt: skip
"""What is read, where, what it is made of, and the command that reads it."""


_LEAST = 2


def examples(plan: Plan, strategy: st.SearchStrategy[Any], count: int, use: Callable[[Any], None],
             found: list[str]) -> None:  # fmt: skip
    """Have Hypothesis think of so many, or as many as there is time for; a case has found something of two at least."""
    quiet = settings(database=None, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))

    @settings(quiet, max_examples=count, phases=[Phase.generate])
    @given(strategy)
    def each(example: Any) -> None:
        if len(found) < _LEAST or not plan.late:
            use(example)

    each()


@case("tables", *READERS)
def tables(lab: Lab, plan: Plan, name: str) -> Tries:
    place, made, words = READERS[name]
    found: list[str] = []
    lab.restore(worlds.run)
    strategy = made(lab.home)

    def read(data: bytes) -> None:
        lab.restore(worlds.run)
        (lab.home / place).parent.mkdir(exist_ok=True)
        (lab.home / place).write_bytes(data)
        trouble = lab.selex(*words).trouble
        found.append(trouble and f"{name}: {trouble}; given {data[:300]!r}")

    examples(plan, strategy, plan.count(40, few=1), read, found)
    yield from found


@case("options", "every setting, by --set")
def every_setting(lab: Lab, plan: Plan) -> Tries:
    """Of a run that is not trained; those of training are read all the same."""
    found: list[str] = []
    for key in plan.some(keys_of(lab), few=4):

        def set_it(text: str, key: str = key) -> None:
            lab.restore(worlds.photos)
            done = lab.selex("discover", "photos", *_DISCOVER, "--set", f"{key}={text}".encode("utf-8", "replace"))
            found.append(done.trouble and f"--set {key}={text[:100]!r}: {done.trouble}")

        examples(plan, texts.filter(lambda text: "\x00" not in text), plan.count(6, few=1), set_it, found)
    yield from found


def keys_of(lab: Lab) -> list[str]:
    """The names of all settings, as `selex config` prints them."""
    tomllib = __import__("tomllib" if sys.version_info >= (3, 11) else "tomli")

    lab.restore(worlds.photos)
    read = tomllib.loads(lab.must("config").out)
    inner = [f"{group}.{key}" for group, values in read.items() if isinstance(values, dict) for key in values]
    return [*(key for key, value in read.items() if not isinstance(value, dict)), *inner]


@case("options", "every option of every command")
def options(lab: Lab, plan: Plan) -> Tries:
    """Each with values that nobody meant."""
    found: list[str] = []
    stay = STAY | {"demo"}  # which are ended after a while
    given_options = [(command, param) for command, param in all_options() if param.opts[0] != "--no-browser"]
    for command, param in plan.some(given_options, few=6):

        def type_it(text: str, command: str = command, param: Any = param) -> None:
            lab.restore(every_command)
            word = text.encode("utf-8", "surrogateescape" if "\ud800" not in text else "replace").replace(b"\x00", b"")
            words = typed(command, param, *([] if param.is_flag else [word]))
            child = lab.start(*words)
            done = child.wait(6 if command in stay else 60)
            trouble = "" if done.code == 124 and command in stay else done.trouble
            found.append(trouble and f"selex {' '.join(map(repr, words))[:300]}: {trouble}")

        examples(plan, texts, 1 if plan.short or param.is_flag else plan.count(4, few=1), type_it, found)
    yield from found
