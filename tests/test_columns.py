"""Results of many rows: names are read from the row groups of the table when they are asked for."""

import hashlib
import json
import os
from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from review_runs import made_up_run
from selex.data.parquet import TextColumn, with_words
from selex.errors import InputError
from selex.review.core.metadata import folders_of
from selex.review.core.names import count_words, from_files, words_of
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
    numbers = b"".join(of.tobytes() for of in (found.category, found.labelled, found.confidence, found.runner_up))
    for last, gone in ((0, []), (1, []), (3, [3])):  # the last number counts where no name has it
        text = json.dumps([list(found.files), found.names, found.n_known, *gone])
        same = replace(found, last_number=last)
        assert same.digest == hashlib.sha256(text.encode() + numbers).hexdigest()
        assert same.digest == Results.unpack(same.pack(), "bytes").digest


def test_the_digest_does_not_depend_on_row_groups(column):
    path, names = column
    rows = np.zeros(len(names))
    one, other = (Results(files, ["a"], 1, rows, rows, rows, rows) for files in (names, TextColumn(path, path, "file")))
    assert one.digest == other.digest


ODD = [
    "/",
    "",
    "x.jpg",
    "/x.jpg",
    "a//b.jpg",
    "a/b/",
    "a\nb/c.jpg",
    "a/STRASSE.jpg",
    "a/Straße.jpg",
    "ä/\u212a.jpg",
    "K.jpg",
]


@pytest.mark.parametrize("block", [1, 4, 100])
def test_folders_and_words_are_those_of_plain_loops(monkeypatch, block):
    monkeypatch.setattr("selex.data.parquet.ROWS", block)  # some blocks are ASCII only, others are not
    folders, number = folders_of(ODD)
    assert [folders[one] for one in number] == [os.path.dirname(file) for file in ODD]
    assert folders == list(dict.fromkeys(map(os.path.dirname, ODD)))
    for words in ("strasse", "STRAẞE", "k", "\u212a", "Ä", "jpg", ".", "nothing", "a/b"):
        assert with_words(ODD, words).tolist() == [words.casefold() in file.casefold() for file in ODD]
    assert len(with_words([], "x")) == len(folders_of([])[1]) == 0


def test_of_many_names_some_stand_for_all(monkeypatch):
    files = [f"robin/{row}.jpg" for row in range(300)] + [f"tit/{row}.jpg" for row in range(700)]
    exact = Counter(word for file in files for word in words_of(file))
    assert count_words(files) == exact
    rows = np.arange(300)
    found = from_files(files, rows, exact)
    for limit in ("_MOST", "_SOME"):
        monkeypatch.setattr(f"selex.review.core.names.{limit}", 50)
    assert count_words(files) == exact, "an even sample of evenly spread names"
    assert from_files(files, rows, count_words(files)) == found
    assert [one.name for one in found] == ["robin"]
