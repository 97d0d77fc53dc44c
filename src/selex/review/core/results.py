"""What a run found, as arrays in row order: the ground that decisions stand on."""

from __future__ import annotations

import hashlib
import io
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

from selex.errors import InputError
from selex.io import first_line
from selex.run import Run

Array = np.ndarray[Any, Any]
_COLUMNS = ("file", "cluster", "category", "known", "labelled", "confidence", "runner_up")


@dataclass(frozen=True, eq=False)
class Results:
    """The clusters table of a run.

    Attributes:
        digest: of the file it was read from; other results, another digest.
        files: name of every row's image.
        names: name of every category; the first `n_known` are the known ones.
        n_known: how many categories are known.
        category: category of every row.
        labelled: rows whose label was given.
        confidence: how sure the category of a row is.
        runner_up: the next best category of a row, -1 where there is none.
    """

    digest: str
    files: list[str]
    names: list[str]
    n_known: int
    category: Array
    labelled: Array
    confidence: Array
    runner_up: Array

    def __len__(self) -> int:
        return len(self.files)

    @classmethod
    def read(cls, run: Run) -> Results:
        """The results of a finished run."""
        tree = run.hierarchy  # refuses a run without results
        path = run.folder / "clusters.parquet"
        try:
            data = path.read_bytes()
            table = parquet.read_table(io.BytesIO(data), columns=list(_COLUMNS))
        except (OSError, pa.ArrowException) as error:
            raise InputError(f"{path}: cannot be read ({first_line(error)})") from None
        return cls._of(hashlib.sha256(data).hexdigest(), table, tree["names"], tree["levels"][0]["n_known"])

    def pack(self) -> bytes:
        """The same as bytes, to be kept beside decisions: those mean nothing without it."""
        numbers = {"category": self.category, "labelled": self.labelled, "confidence": self.confidence}
        table = pa.table({"file": self.files, **numbers, "runner_up": self.runner_up})
        about = {"names": json.dumps(self.names), "n_known": str(self.n_known)}
        out = io.BytesIO()
        parquet.write_table(table.replace_schema_metadata(about), out, compression="zstd")
        return out.getvalue()

    @classmethod
    def unpack(cls, digest: str, data: bytes) -> Results:
        """What `pack` packed."""
        table = parquet.read_table(io.BytesIO(data))
        about = table.schema.metadata
        numbers = [table[name].to_numpy() for name in ("category", "labelled", "confidence", "runner_up")]
        return cls(digest, table["file"].to_pylist(), json.loads(about[b"names"]), int(about[b"n_known"]), *numbers)

    @classmethod
    def _of(cls, digest: str, table: pa.Table, names: list[str], n_known: int) -> Results:
        number = {name: position for position, name in enumerate(names)}
        return cls(
            digest,
            table["file"].to_pylist(),
            names,
            n_known,
            table["cluster"].to_numpy().astype(np.int32),
            table["labelled"].to_numpy().astype(bool),
            table["confidence"].to_numpy().astype(np.float32),
            np.array([number.get(name, -1) for name in table["runner_up"].to_pylist()], dtype=np.int32),
        )
