"""All cases, in the order of the table."""

from chaos import disk, power, review, weights, damage, strangers, images, readers, web, together, place, soak  # noqa: F401, I001
from chaos.cases import CASES

_LONG = {
    "killed at a write": ("discover again", "export copies", "export csv", "predict", "cluster"),
    "power cut": ("discover again", "export folders", "export copies", "predict", "report", "cluster", "recluster"),
    "disk": ("disk turns read-only (EROFS)",),
    "tables": ("photos, parquet", "features, npz", "clusters", "truth", "metrics.jsonl", "results of a benchmark"),
    "images": ("100 megapixels, memory of one",),
    "two at once": ("two review pages",),
}
"""Too much like others, or too long, for the short form."""

SHORT = [case for case in CASES if case.name not in _LONG.get(case.area, ())]
