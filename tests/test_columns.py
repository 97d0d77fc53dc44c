"""Results of many rows: names are read from the row groups of the table when they are asked for."""

import hashlib
import json

import pyarrow as pa
import pytest
from pyarrow import parquet

from review_runs import made_up_run
from selex.data.parquet import TextColumn
from selex.errors import InputError
from selex.runs.results import Results


@pytest.fixture
def column(tmp_path):
    """Names in a parquet file of five row groups, one of them without rows."""
    names = [f"folder {row % 3}/ä {row}.jpg" for row in range(100)]
    with parquet.ParquetWriter(tmp_path / "t.parquet", pa.schema([("file", pa.string())])) as writer:
        for part in (slice(0, 30), slice(30, 31), slice(31, 31), slice(31, 90), slice(90, 100)):
            writer.write_table(pa.table({"file": pa.array(names[part], pa.string())}))
    return tmp_path / "t.parquet", names


def test_a_column_is_read_a_row_group_at_a_time(column, monkeypatch):
    path, names = column
    lazy, read = TextColumn(path, path, "file"), []
    whole = parquet.ParquetFile.read_row_group
    monkeypatch.setattr(
        parquet.ParquetFile, "read_row_group", lambda self, *given: (read.append(given[0]), whole(self, *given))[1]
    )
    assert (lazy[95], lazy[-1], lazy[30]) == (names[95], names[99], names[30])
    assert sorted(set(read)) == [1, max(read)]  # of the five, two
    assert len(read) == 2  # and each once
    assert list(lazy) == list(TextColumn(path.read_bytes(), "bytes", "file")) == names
    assert lazy[80:20:-7] == names[80:20:-7]
    for part in (slice(0, 100), slice(29, 32), slice(31, 31), slice(95, 300), slice(-5, None), slice(50, 20)):
        assert lazy[part] == names[part]
    with pytest.raises(IndexError):
        lazy[100]


def test_a_column_is_of_the_file_that_was_there(column):
    path, names = column
    lazy = TextColumn(path, path, "file")
    parquet.write_table(pa.table({"file": ["other"] * 100}), path.with_name("new"))
    path.with_name("new").replace(path)
    assert list(lazy) == names
    path.write_bytes(b"no table")
    with pytest.raises(InputError, match=r"t.parquet: not a readable parquet file"):
        TextColumn(path, path, "file")


def test_results_have_the_digest_of_one_json_text(tmp_path):
    found = Results.read(
        made_up_run(tmp_path / "run", tmp_path / "no", ["a/ä.jpg", 'b "2".jpg'], [0, 1], 1, ["a", "novel-1"])
    )
    digest = hashlib.sha256(json.dumps([list(found.files), found.names, found.n_known]).encode())
    for numbers in (found.category, found.labelled, found.confidence, found.runner_up):
        digest.update(numbers.tobytes())
    assert found.digest == digest.hexdigest() == Results.unpack(found.pack(), "bytes").digest
