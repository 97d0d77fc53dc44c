"""Exports from the page: the categories as they stand, into a place of the server's choice."""

from __future__ import annotations

import os
from pathlib import Path

from selex.data.names import spell
from selex.errors import InputError
from selex.export import FORMATS, export
from selex.folders import own_folder
from selex.review.core.decisions import Refused
from selex.review.core.outcome import corrected
from selex.review.core.session import Review
from selex.review.core.state import JUNK
from selex.review.server.schema import Written

FOLDER = "exports"
_ENDINGS = {"csv": ".csv", "parquet": ".parquet"}


def write_export(review: Review, to: str) -> Written:
    """Write the state in one of the formats of `selex export`, beside earlier exports."""
    folder = review.run.folder / FOLDER
    try:
        own_folder(folder)
    except OSError as error:
        raise InputError(f"{folder}: cannot be made ({error.strerror})") from None
    with review.steady():
        if (review.state.mark == JUNK).all():
            raise Refused("every image is marked as junk: there is nothing to export")
        table, run, version = corrected(review.run, review.state), review.run, review.version
    done = export(run, to, _new(folder, f"{to}-{version}", _ENDINGS.get(to, "")), table=table)
    path, advice = spell(str(done.out.absolute())), spell(done.advice)
    return Written(path=path, images=done.images, categories=done.categories, advice=advice)


def _new(folder: Path, stem: str, ending: str) -> Path:
    """A name that nothing has yet."""
    assert stem.rpartition("-")[0] in FORMATS
    path, number = folder / f"{stem}{ending}", 1
    while os.path.lexists(path):
        number += 1
        path = folder / f"{stem}-{number}{ending}"
    return path
