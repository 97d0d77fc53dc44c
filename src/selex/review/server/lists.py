"""Lists as pages show them: a part at a time, in the order that people count in."""

from __future__ import annotations

import os
import re
from typing import Any

import numpy as np

from selex.review.core.decisions import Refused
from selex.run import Run

Array = np.ndarray[Any, Any]


class Gone(Refused):
    """There is no such category or image."""


def gone_photos(run: Run, files: list[str]) -> str | None:
    """What to say if photos are not where they were, or are not shown; a sample is looked for."""
    sample, root = run.image_paths(files[:: max(1, len(files) // 200)]), run.root
    gone = sum(not os.path.exists(path) for path in sample)
    if not gone:
        return None
    if "" in sample:
        return f"The run was not made here: grey squares stand for images that are not below {root}."
    part = "The photos are" if gone == len(sample) else "Some photos are"
    return f"{part} not where they were when the run was made ({root}): grey squares stand for them."


def one_page(items: Array, page: int, size: int) -> tuple[int, int, Array]:
    """The page's number within bounds, how many there are, and what is on it."""
    pages = max(1, -(-len(items) // size))
    page = min(max(page, 1), pages)
    return page, pages, items[(page - 1) * size : page * size]


def natural(name: str) -> list[tuple[int, str]]:
    """Sorts novel-2 before novel-10. Numbers stay text: Python refuses to read very long ones."""
    parts = re.split(r"([0-9]+)", name.casefold())
    return [(len(digits), digits) if (digits := part.lstrip("0")).isdecimal() else (0, part) for part in parts]
