"""What photos can be filtered by: folder, the day they were taken, columns of one's own table."""

from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from commands import refused
from review_runs import made_up_run
from selex.errors import InputError
from selex.review.core.metadata import CAMERA, Metadata, Where, taken
from selex.review.core.session import Review
from selex.review.server.lists import Lists
from selex.runs.run import ImagePaths

FILES = ["a/one.jpg", "a/b/two.jpg", "a/b/three.jpg", "c/four.jpg", "five.jpg"]
TAKEN = ["2024:05:01 10:00:00", "2024:05:31 23:59:59", None, "2025:01:02 00:00:00", "no day"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dated")
    for file, day in zip(FILES, TAKEN, strict=True):
        path, exif = folder / "photos" / file, Image.Exif()
        path.parent.mkdir(parents=True, exist_ok=True)
        if day:
            exif.get_ifd(0x8769)[0x9003] = day
        Image.new("RGB", (8, 8)).save(path, exif=exif)
    return made_up_run(folder / "run", folder / "photos", FILES, [0, 0, 1, 1, 2], 0, ["novel-1", "novel-2", "novel-3"])


def paths(run, files):
    return ImagePaths(files, run.places())


def kept(metadata, **asked):
    return [FILES[row] for row in metadata.keep(np.arange(len(FILES)), Where(**asked))]


def test_folders_count_what_is_below_them(run):
    metadata = Metadata(run, paths(run, FILES))
    assert metadata.folders == {"a": 3, "a/b": 2, "c": 1}
    assert kept(metadata, folder="a") == FILES[:3]
    assert kept(metadata, folder="a/b") == FILES[1:3]
    assert kept(metadata, folder="a/") == [], "it is no folder of that name"
    assert Metadata(run, paths(run, ["x/1.jpg", "x/2.jpg"])).folders == {}, "one folder is nothing to choose from"


def test_days_are_those_of_the_exif(run):
    assert [taken(path)[0] for path in run.image_paths(FILES)] == [
        "2024-05-01",
        "2024-05-31",
        None,
        "2025-01-02",
        None,
    ]
    assert taken("nowhere.jpg") == (None, "")
    metadata = Metadata(run, paths(run, FILES))
    assert kept(metadata, since="2024-05-31") == [FILES[1], FILES[3]]
    assert kept(metadata, until="2024-05-31") == FILES[:2]
    assert kept(metadata, since="2024-05-02", until="2024-12-31", folder="a/b") == [FILES[1]]


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_columns_of_a_table_are_joined_by_file(run, tmp_path, kind):
    columns = {
        "file_name": ["c/four.jpg", str(run.root / "a/one.jpg"), "gone.jpg", "a/b/two.jpg"],
        "camera": ["north", "south", "east", "north"],
        "same": ["x"] * 4,
        "label": ["u", "v", "w", "x"],
    }
    path = tmp_path / f"table.{kind}"
    if kind == "csv":
        path.write_text("\n".join(",".join(line) for line in [list(columns), *zip(*columns.values(), strict=True)]))
    else:
        pq.write_table(pa.table(columns), path)
    metadata = Metadata(run, paths(run, FILES), str(path))
    assert metadata.values == {"camera": {"": 2, "north": 2, "south": 1}, "same": {"": 2, "x": 3}}
    assert kept(metadata, columns=("camera=north",)) == [FILES[1], FILES[3]]
    assert kept(metadata, columns=("camera=",)) == [FILES[2], FILES[4]]
    assert kept(metadata, columns=("camera=north", "same=x"), folder="c") == [FILES[3]], "all must hold"
    assert kept(metadata, columns=("camera=south", "same=")) == []
    assert kept(metadata, columns=("none of it=north",)) == []


def test_numbers_are_offered_by_size(run, tmp_path):
    table = tmp_path / "table.csv"
    cells = zip(FILES[:4], (10, 9, 100, 9), ("10", "9", "x", "9"), strict=True)
    lines = (f"{file},{station},{site}" for file, station, site in cells)
    table.write_text("\n".join(["file_name,station,site", *lines]))
    values = Metadata(run, paths(run, FILES), str(table)).values
    assert {name: list(counts) for name, counts in values.items()} == {
        "station": ["", "9", "10", "100"],
        "site": ["", "10", "9", "x"],
    }


def test_the_camera_of_the_exif_is_a_column(tmp_path):
    for number, camera in enumerate(["Cam 1\0", "Cam 2", None, "Cam 1"]):
        exif = Image.Exif()
        if camera:
            exif[0x0110] = camera
        (tmp_path / "photos").mkdir(exist_ok=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "photos" / f"{number}.jpg", exif=exif)
    files = [f"{number}.jpg" for number in range(4)]
    run = made_up_run(tmp_path / "run", tmp_path / "photos", files, [0, 0, 1, 1], 0, ["novel-1", "novel-2"])
    metadata = Metadata(run, paths(run, files))
    assert metadata.values == {}, "nothing is read before it is asked for"
    assert metadata.keep(np.arange(4), Where(columns=("camera (EXIF)=Cam 1",))).tolist() == [0, 3]
    assert metadata.values == {"camera (EXIF)": {"": 1, "Cam 1": 2, "Cam 2": 1}}


def test_cameras_that_are_read_while_values_are_counted_are_not_lost(run, tmp_path, monkeypatch):
    (tmp_path / "table.csv").write_text("file_name,station\n" + "".join(f"{file},{file[0]}\n" for file in FILES))
    metadata = Metadata(run, paths(run, FILES), str(tmp_path / "table.csv"))

    class Counted(Counter):
        def items(self):
            metadata._add(CAMERA, ["Cam 1", "Cam 2", "", "", ""])  # as another thread does
            return super().items()

    monkeypatch.setattr("selex.review.core.metadata.Counter", Counted)
    assert set(metadata.values) == {"station"}
    assert metadata.values[CAMERA] == {"": 3, "Cam 1": 1, "Cam 2": 1}
    assert metadata.values is metadata.values, "counted once"


def test_a_table_that_cannot_be_joined_is_refused(run, tmp_path):
    (tmp_path / "table.csv").write_text("image,camera\n1,2\n")
    with pytest.raises(InputError, match="no column 'file_name'"):
        Metadata(run, paths(run, FILES), str(tmp_path / "table.csv"))
    for table, message in (("none.csv", "none.csv: no such file"), ("table.csv", "no column 'file_name'")):
        refused(message, "review", run.folder, "--no-browser", "--port", "0", "--table", table, cwd=tmp_path)
    assert not (run.folder / "review.sqlite").exists()


def test_no_answer_mixes_two_rounds_where_the_table_is_gone(run, tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("file_name,camera\na/one.jpg,north\nc/four.jpg,south\n")
    lists = Lists(Review(run.folder), str(path))
    lists._round = -1  # results are new
    path.unlink()
    for _ in range(2):
        with pytest.raises(InputError, match="no such file"), lists.now():
            pass
    path.write_text("file_name,camera\na/one.jpg,west\nc/four.jpg,south\n")
    with lists.now():
        assert set(lists.metadata.values["camera"]) == {"", "west", "south"}
