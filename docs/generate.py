"""Write what comes from code and from results: references, benchmarks.md, results.md and reliability.md.

Of each page, what stands above its mark is written by hand and stays; what is below is made anew. Pages in
`benchmarks/`, one for each benchmark with results, are made as a whole.

python docs/generate.py            writes them
python docs/generate.py --check    writes nothing; exits with code 1 if a committed page is out of date
"""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path
from typing import Any

import typer

from selex.bench.paper import SUITES, Suite
from selex.bench.results import Result, read_results
from selex.bench.tables import make_tables, to_markdown
from selex.cli import app
from selex.config import GROUPS, PRESETS, Config, find_setting, settings_of
from selex.config.settings import as_toml, metavar
from selex.review.server.app import schema_of
from selex.serve import schema_of as serve_schema

DOCS = Path(__file__).parent
BENCH = DOCS.parent / "benchmarks"
RESULTS = BENCH / "results"
PAPER_RESULTS = RESULTS / "paper"
CHAOS = RESULTS / "reliability" / "chaos.json"
FIGURES = DOCS / "images" / "paper"
MARK = "<!-- Below this line docs/generate.py writes: change the code or the results, then run it again. -->"

BENCHMARKS = {
    "How fast it is": [
        "cluster_cpu",
        "cluster_gpu",
        "embed_gpu",
        "decode",
        "train_gpu",
        "view_bank_cpu",
        "stream_epoch",
        "growing",
        "review_server",
        "report_size",
        "busy",
    ],
    "How much memory it takes": ["discover_memory", "run_memory"],
    "Beyond one machine": [
        "scale_cpu",
        "scale_gpu",
        "scale_nccl",
        "scale_faiss",
        "scale_probes",
        "ray_overhead",
        "scale_cost",
    ],
    "How good the clusters are": [
        "minima",
        "digits",
        "demo_seeds",
        "whiten",
        "attention_crop",
        "refinement",
        "selection",
    ],
    "How many, how confident, and what fits nothing": [
        "estimate_k",
        "calibration",
        "out_of_distribution",
        "label_errors",
    ],
    "What a person's work is worth": ["decisions", "suggestions", "quality"],
    "Why training pays off, or not": ["ladder", "theory"],
}
"""Benchmarks by the question they answer."""

TRIED = {
    "killed at a write": "kills at a write",
    "killed at a random moment": "at a random moment",
    "disk": "disk failures",
    "power cut": "power cuts",
    "damage": "damaged files",
}
"""Areas of `make chaos` whose cases are drawn from many, and what their tries are."""

NO_CHAOS_TEXT = """No figures are stored yet: `make chaos` makes them."""

NO_RESULTS_TEXT = """No result is stored yet. Run the benchmark, put the files of the main suite into
`benchmarks/results/paper/comparison/`, those of runs repeated at a later commit into `again/` beside it, and those of
the others, with the runs of the main suite that their tables need, into `ablations/`, draw the figures and rewrite this
page:

```bash
selex bench plot benchmarks/results/paper/comparison --out docs/images/paper
selex bench plot benchmarks/results/paper/ablations --out docs/images/paper
python docs/generate.py
```"""


def cli_page() -> str:
    """Every command with its arguments, options, defaults and example."""
    root: Any = typer.main.get_command(app)
    sections = [_command(f"selex {name}", command) for name, command in all_commands(root).items()]
    return "\n\n".join([*sections, _command("selex", root)])


def settings_page() -> str:
    """Every setting by group, and what each preset changes."""
    groups = [f"## {group}\n\n{GROUPS[group].__doc__}\n\n{_table(_rows(group))}" for group in GROUPS]
    top = "## Randomness\n\n" + _table(_rows(""))
    return "\n\n".join([_table(_presets()), *groups, top])


def _rows(group: str) -> list[dict[str, str]]:
    home: Any = GROUPS[group] if group else Config
    return [
        {
            "setting": f"`{path}`",
            "value": " or ".join(f"`{value}`" for value in metavar(home, about).split("|")),
            "default": f"`{as_toml(about, about.default).rpartition(' = ')[2]}`",
            "meaning": f"{about.metadata['summary']} {about.metadata['more']}".strip(),
        }
        for path, about in settings_of(group)
    ]


def _presets() -> list[dict[str, str]]:
    changed = dict.fromkeys(name for preset in PRESETS.values() for name in preset)
    rows = []
    for name in changed:
        group, _ = find_setting(name)
        values = {preset: getattr(getattr(Config.of(preset=preset), group), name) for preset in PRESETS}
        rows.append({"setting": f"`{group}.{name}`", **{preset: f"`{value}`" for preset, value in values.items()}})
    return rows


def all_commands(group: Any, prefix: str = "") -> dict[str, Any]:
    """Every command by name, those of a group as `group command`."""
    found: dict[str, Any] = {}
    for name, command in group.commands.items():
        inner = all_commands(command, f"{prefix}{name} ") if hasattr(command, "commands") else {}
        found |= inner or {prefix + name: command}
    return found


def results_of() -> dict[str, dict[str, dict[str, Any]]]:
    """Every result file by the benchmark that made it, and by its name."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for path in sorted(RESULTS.glob("*.json")):
        record = json.loads(path.read_text())
        script = re.search(r"benchmarks/(\w+)\.py", record["command"])
        if not script:
            sys.exit(f"{path}: its command names no benchmark")
        found.setdefault(script[1], {})[path.stem] = record
    return found


def benchmarks_page() -> str:
    """What each benchmark measures, by the question that it answers, and where its results are."""
    made = results_of()
    groups = []
    for question, scripts in BENCHMARKS.items():
        rows = [
            {"benchmark": f"[`{script}`](benchmarks/{script}.md)", "what it measures": _summary(script)}
            for script in scripts
            if script in made
        ]
        groups += [f"## {question}\n\n{_table(rows)}"] if rows else []
    return "\n\n".join(groups) or "No result is stored yet."


def benchmark_page(script: str, records: dict[str, dict[str, Any]]) -> str:
    """What a benchmark measures, and every result file of it as a table, with the command that makes it again."""
    parts = [_benchmark(name, record) for name, record in records.items()]
    return "\n\n".join([f"# {script}", _docstring(script), *parts])


def _docstring(script: str) -> str:
    return ast.get_docstring(ast.parse((BENCH / f"{script}.py").read_text())) or ""


def _summary(script: str) -> str:
    return " ".join(_docstring(script).split("\n\n")[0].split())


def reliability_page() -> str:
    """What is promised, how it is tested, and what the last run of `make chaos` found."""
    if not CHAOS.exists():
        return NO_CHAOS_TEXT
    record = json.loads(CHAOS.read_text())
    facts = {key: value for key, value in record.items() if key not in ("results", "command")}
    machine = ", ".join(f"{key}: {' and '.join(str(value).splitlines())}" for key, value in facts.items())
    about = "Each row shows how many seconds it took and the commit it was run on."
    parts = [
        "## The latest figures",
        f"{machine}. {about}",
        _tried(record["results"]),
        f"```bash\n{record['command']}\n```",
        _table(record["results"]),
    ]
    return "\n\n".join(parts)


def _tried(rows: list[dict[str, Any]]) -> str:
    """How much of the whole suite the figures are."""
    tries = {area: sum(row["tries"] for row in rows if row["case"].startswith(area)) for area in TRIED}
    said = ", ".join(f"{tries[area]:,} {words}" for area, words in TRIED.items())
    run, lost = sum(row["tries"] > 0 for row in rows), sum(row["lost"] for row in rows)
    return (
        f"{run} of {len(rows)} cases were run; {lost:,} of {sum(row['tries'] for row in rows):,} tries were lost. "
        f"**These are samples**: {said}. Without `--minutes` the suite tries everything, which takes hours: every "
        "operation of every command, 20 random moments in each, 300 epochs, every file with every kind of damage."
    )


def results_page() -> str:
    """The tables of every suite that there are results for, and its figures."""
    if not any(PAPER_RESULTS.glob("**/*.json")):
        return NO_RESULTS_TEXT
    comparison, ablations = (read_results(PAPER_RESULTS / folder) for folder in ("comparison", "ablations"))
    suites = [about for about in SUITES.values() if any(result.suite == about.name for result in ablations)]
    others = [_suite(about, ablations) for about in suites if about.name != "main"]
    repeated = _repeated() if (PAPER_RESULTS / "again").exists() else []
    return "\n\n".join([_suite(SUITES["main"], comparison), *repeated, *others])


def _repeated() -> list[str]:
    """Runs of the comparison that were repeated at a later commit, in a table of their own."""
    return ["## Measured again", *map(to_markdown, make_tables(read_results(PAPER_RESULTS / "again"), "main"))]


def _suite(about: Suite, results: list[Result]) -> str:
    figures = ("radar", "epochs") if about.name == "main" else (about.name,)
    drawn = [f"![{name}](images/paper/{name}.png)" for name in figures if (FIGURES / f"{name}.png").exists()]
    return "\n\n".join([f"## {about.title}", *map(to_markdown, make_tables(results, about.name)), *drawn])


def api_page(schema: dict[str, Any]) -> str:
    """Every route of a server and every record that it speaks of."""
    about = schema["info"]["description"].partition("\n\n")[2].strip()
    routes = [
        _route(method, path, route) for path, methods in schema["paths"].items() for method, route in methods.items()
    ]
    records = {
        name: record for name, record in schema["components"]["schemas"].items() if "ValidationError" not in name
    }
    parts = [f"### {name}\n\n{record['description']}\n\n{_table(_fields(record))}" for name, record in records.items()]
    return "\n\n".join([about, "## Routes", *routes, "## Records", *parts])


def _route(method: str, path: str, route: dict[str, Any]) -> str:
    rows = [
        {"parameter": f"`{param['name']}`", "kind": _kind(param["schema"]), "default": _default(param["schema"])}
        for param in route.get("parameters", [])
    ]
    content = route.get("requestBody", {}).get("content", {})
    body = content.get("application/json", {}).get("schema")
    parts = [f"### {method.upper()} {path}", route["description"]]
    parts += [f"Takes {_kind(body)}."] if body else []
    parts += [f"Takes a file: {', '.join(f'`{kind}`' for kind in content)}."] if content and not body else []
    answers = {
        status: _kind(next(iter(about["content"].values()))["schema"]) for status, about in route["responses"].items()
    }
    errors = ", ".join(f"{status} {kind}" for status, kind in answers.items() if status != "200")
    parts += [f"Gives {answers['200']}; errors: {errors}."]
    return "\n\n".join([*parts, *([_table(rows)] if rows else [])])


def _fields(record: dict[str, Any]) -> list[dict[str, str]]:
    return [
        {
            "field": f"`{name}`",
            "kind": _kind(field),
            "default": _default(field),
            "meaning": field.get("description", ""),
        }
        for name, field in record["properties"].items()
    ]


def _default(field: dict[str, Any]) -> str:
    return f"`{json.dumps(field['default'])}`" if "default" in field else ""


def _kind(field: dict[str, Any]) -> str:
    """What values a field takes, in words."""
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in field:
        return " or ".join(map(_kind, field["anyOf"]))
    if "enum" in field:
        return " or ".join(f"`{value}`" for value in field["enum"])
    if field["type"] == "array":
        return (
            f"list of {_kind(field['items'])}" if "items" in field else " and ".join(map(_kind, field["prefixItems"]))
        )
    return str(field["type"])


def _command(name: str, command: Any) -> str:
    text, _, example = command.help.partition("Example:")
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    # those that are not exposed, for shell completion, differ from machine to machine
    options = [param for param in command.params if param.param_type_name == "option" and param.expose_value]
    usage = " ".join([name, *(param.metavar for param in arguments), *(["[OPTIONS]"] if options else [])])
    parts = [f"## {name}", text.strip(), f"```text\n{usage}\n```"]
    if arguments:
        parts.append(_table([{"argument": f"`{param.metavar}`", "meaning": param.help} for param in arguments]))
    if options:
        parts.append(_table([_option(param) for param in options]))
    if example.strip():
        parts.append(f"Example:\n\n```bash\n{example.strip().strip('`')}\n```")
    return "\n\n".join(parts)


def _option(param: Any) -> dict[str, str]:
    values = [] if param.is_flag else (param.metavar or "N").split("|")
    given = param.default is not None and not param.is_flag
    value = getattr(param.default, "value", param.default)  # of an enumeration
    default = "required" if param.required else f"`{value}`" if given else "off" if param.is_flag else "none"
    return {
        "option": ", ".join(f"`{option}`" for option in [*param.opts, *param.secondary_opts]),
        "value": " or ".join(f"`{value}`" for value in values),
        "default": default,
        "meaning": param.help,
    }


def _benchmark(name: str, record: dict[str, Any]) -> str:
    about = {key: value for key, value in record.items() if key not in ("results", "command")}
    machine = ", ".join(f"{key.replace('_', ' ')}: {_cell(value)}" for key, value in about.items())
    parts = [f"## {name}", machine, f"```bash\n{record['command']}\n```", _table(record["results"])]
    if (DOCS / "images" / f"{name}.png").exists():
        parts.append(f"![{name}](../images/{name}.png)")
    return "\n\n".join(parts)


def _table(rows: list[dict[str, Any]]) -> str:
    """A Markdown table; columns in the order in which they first appear. Points of a curve are for figures."""
    columns = list(dict.fromkeys(key for row in rows for key, value in row.items() if not _is_curve(value)))
    lines = [[column.replace("_", " ") for column in columns], ["---"] * len(columns)]
    lines += [[_cell(row.get(column)) for column in columns] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _is_curve(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def _cell(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_cell, value))
    whole = isinstance(value, int) and not isinstance(value, bool)
    text = "" if value is None else f"{value:,}" if whole else str(value)
    return text.replace("|", "\\|").replace("\n", " ")


PAGES = {
    DOCS / "reference" / "cli.md": cli_page,
    DOCS / "reference" / "settings.md": settings_page,
    DOCS / "benchmarks.md": benchmarks_page,
    DOCS / "results.md": results_page,
    DOCS / "reliability.md": reliability_page,
    DOCS / "reference" / "api.md": lambda: api_page(schema_of()),
    DOCS / "reference" / "serve.md": lambda: api_page(serve_schema()),
}
"""Pages whose lower part is written here."""


def page(path: Path) -> str:
    """A page as it should be."""
    by_hand, mark, _ = (path.read_text() if path.exists() else "").partition(MARK)
    if not mark:
        sys.exit(f"{path}: has no line {MARK}")
    return f"{by_hand}{MARK}\n\n{PAGES[path]()}\n"


def all_pages() -> dict[Path, str | None]:
    """Every page as it should be; None is one that should not be."""
    whole = {DOCS / "benchmarks" / f"{script}.md": benchmark_page(script, of) for script, of in results_of().items()}
    gone = dict.fromkeys(set((DOCS / "benchmarks").glob("*.md")) - set(whole))
    return {path: page(path) for path in PAGES} | {path: f"{made}\n" for path, made in whole.items()} | gone


if __name__ == "__main__":
    check = "--check" in sys.argv[1:]
    (DOCS / "benchmarks").mkdir(exist_ok=True)
    stale = {path: made for path, made in all_pages().items() if not path.exists() or made != path.read_text()}
    for path, made in stale.items():
        print(f"{'out of date' if check else 'wrote' if made else 'removed'}: {path.relative_to(DOCS.parent)}")
        if not check:
            path.write_text(made) if made else path.unlink()
    sys.exit(1 if stale and check else 0)
