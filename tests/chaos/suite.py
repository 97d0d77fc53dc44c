"""All cases, in the order of the table."""

from chaos import disk, power, review, weights, damage, strangers, images, readers, web, together, place, soak  # noqa: F401, I001
from chaos.cases import CASES
from chaos.disk import COMMANDS

_LONG = {
    "killed at a write": ("discover again", "export copies", "export csv", "predict", "cluster"),
    "killed at a random moment": (*(name for name in COMMANDS if name not in ("discover", "export folders")),
                                  "--log-json", "discover --engine ray", "weights fetch"),
    "power cut": ("discover again", "export folders", "export copies", "predict", "report", "cluster", "recluster",
                  "names"),
    "disk": ("disk turns read-only (EROFS)",),
    "tables": ("photos, parquet", "features, npz", "clusters", "truth", "metrics.jsonl", "results of a benchmark"),
    "images": ("100 megapixels, memory of one",),
    "web": ("schemathesis, every route of serve", "smuggled and oversized bodies to serve"),
    "two at once": ("two review pages",),
}  # fmt: skip
"""Too much like others, or too long, for the short form."""

SHORT = [case for case in CASES if case.name not in _LONG.get(case.area, ())]
