"""Tables of images from folders, CSV and parquet files and lists. No image is opened, so the files are empty."""

import os
import unicodedata
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from selex.data.features import Features, read_labels, read_row_labels
from selex.data.labels import encode, read_label_file
from selex.data.table import ImageTable, from_folder, from_list, read_table
from selex.errors import InputError, Note
from selex.types import UNLABELLED


def tree(root: Path, *files: str) -> Path:
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).touch()
    return root


def named(table: ImageTable) -> dict[str, str]:
    return dict(zip(table.files, table.label_names, strict=True))


def test_folder_gives_categories_by_first_level(tmp_path):
    files = ["cat/a.jpg", "cat/deep/er/b.PNG", "dog/c.webp", "loose.gif", "unlabelled/d.tiff", "Unlabeled/x/e.bmp"]
    table = read_table(tree(tmp_path, *files, "notes.txt", "empty folder/readme.md"))
    assert named(table) == {
        "Unlabeled/x/e.bmp": "",
        "cat/a.jpg": "cat",
        "cat/deep/er/b.PNG": "cat",
        "dog/c.webp": "dog",
        "loose.gif": "",
        "unlabelled/d.tiff": "",
    }
    assert table.files == sorted(files)
    assert table.categories == ["cat", "dog"]
    assert table.labels.tolist() == [UNLABELLED, 0, 0, 1, UNLABELLED, UNLABELLED]
    assert table.labelled.tolist() == [False, True, True, True, False, False]
    assert table.n_known == 2
    assert table.source(1) == str(tmp_path / "cat/a.jpg")


def test_folder_leaves_out_hidden_files_and_folders(tmp_path):
    tree(tmp_path, "a.jpg", ".b.jpg", ".hidden/c.jpg", "cat/._d.jpg")
    assert read_table(tmp_path).files == ["a.jpg"]


def test_folder_lists_pictures_we_cannot_read(tmp_path):
    assert read_table(tree(tmp_path, "a.svg", "b.heic", "c.jpg", "d.pdf")).files == ["a.svg", "b.heic", "c.jpg"]


def test_folder_with_symlink_loops_lists_every_image_once(tmp_path):
    tree(tmp_path / "photos", "zebra/a.jpg", "zebra/deep/b.jpg")
    tree(tmp_path / "elsewhere", "c.jpg")
    (tmp_path / "photos/zebra/deep/up").symlink_to(tmp_path / "photos")
    (tmp_path / "photos/again").symlink_to(tmp_path / "photos/zebra")
    (tmp_path / "photos/cat").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere/back").symlink_to(tmp_path / "photos")
    (tmp_path / "photos/self.jpg").symlink_to(tmp_path / "photos/self.jpg")
    table = read_table(tmp_path / "photos")
    assert named(table) == {"cat/c.jpg": "cat", "self.jpg": "", "zebra/a.jpg": "zebra", "zebra/deep/b.jpg": "zebra"}


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("column", ["file_name", "file"])
def test_what_our_tables_call_a_file_is_read_too(tmp_path, column, kind):
    frame = pd.DataFrame({column: ["a.jpg", "b.jpg"], "label": ["cat", ""]})
    path = tmp_path / f"labels.{kind}"
    frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path)
    found = read_label_file(str(path))
    assert (found.names, found.labels) == (["a.jpg", "b.jpg"], ["cat", ""])


def test_folder_and_file_names_in_any_script(tmp_path):
    files = ["猫/写真 1.jpg", "кот/🐈.png", 'it\'s "quoted"/new\nline.jpg', "a,b/c;d.jpg"]
    assert set(read_table(tree(tmp_path, *files)).files) == set(files)


def test_names_that_are_no_text_can_be_saved_and_opened(tmp_path):
    with open(os.fsencode(tmp_path) + b"/caf\xe9.jpg", "wb"):
        pass
    for table in (read_table(tmp_path), from_list([tmp_path / name for name in os.listdir(tmp_path)])):
        assert table.files[0].endswith("caf\\xe9.jpg")
        table.files[0].encode()
        assert os.path.exists(table.source(0))


def test_labels_match_names_written_with_other_accents(tmp_path):
    name = "café.jpg"
    tree(tmp_path / "photos", unicodedata.normalize("NFD", name))
    labels = tmp_path / "labels.csv"
    labels.write_text(f"file_name,label\n{unicodedata.normalize('NFC', name)},cup\n", encoding="utf-8")
    assert read_table(tmp_path / "photos", labels).label_names == ["cup"]


def test_folder_missing_or_without_images(tmp_path):
    tree(tmp_path, "x/a.txt")
    for folder, message in {"nowhere": "no such file or folder", "x": "no images", "": "no images"}.items():
        with pytest.raises(InputError, match=message):
            read_table(tmp_path / folder)


def test_folder_we_may_not_list(tmp_path):
    tree(tmp_path, "cat/a.jpg").joinpath("cat").chmod(0)
    try:
        if os.access(tmp_path / "cat", os.R_OK):
            pytest.skip("this user may read everything")
        with pytest.raises(InputError, match="cannot list"):
            read_table(tmp_path)
    finally:
        (tmp_path / "cat").chmod(0o755)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_file_with_names_and_labels(tmp_path, suffix):
    tree(tmp_path, "z.jpg", "in/a.jpg", "b.jpg")
    frame = pd.DataFrame({"label": ["dog", None, "cat"], "file_name": ["z.jpg", "in/a.jpg", "b.jpg"], "extra": 1})
    path = tmp_path / f"table.{suffix}"
    getattr(frame, f"to_{suffix}")(path, index=False)
    table = read_table(path)
    assert named(table) == {"z.jpg": "dog", "in/a.jpg": "", "b.jpg": "cat"}
    assert table.files == ["z.jpg", "in/a.jpg", "b.jpg"]
    assert table.source(1) == str(tmp_path / "in/a.jpg")


def test_file_relative_to_a_given_root_or_absolute(tmp_path):
    tree(tmp_path / "photos", "a.jpg", "b.jpg")
    (tmp_path / "t.csv").write_text(f"file_name,label\na.jpg,cat\n{tmp_path}/photos/b.jpg,\n")
    table = read_table(tmp_path / "t.csv", root=tmp_path / "photos")
    assert [table.source(row) for row in range(2)] == [f"{tmp_path}/photos/a.jpg", f"{tmp_path}/photos/b.jpg"]


@pytest.mark.parametrize(
    "text",
    ["\ufefffile_name;label\r\na.jpg;cat\r\n", "label\tfile_name\ncat\ta.jpg\n", 'label,file_name\n\ncat,"a.jpg"'],
)
def test_csv_as_spreadsheets_write_it(tmp_path, text):
    tree(tmp_path, "a.jpg").joinpath("t.csv").write_bytes(text.encode())
    assert named(read_table(tmp_path / "t.csv")) == {"a.jpg": "cat"}


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_metadata_in_the_folder_replaces_its_labels(tmp_path, suffix):
    tree(tmp_path, "2023/a.jpg", "2024/b.jpg", "2024/c.jpg")
    frame = pd.DataFrame({"file_name": ["2024/c.jpg", "2023/a.jpg"], "label": ["cat", ""]})
    getattr(frame, f"to_{suffix}")(tmp_path / f"metadata.{suffix}", index=False)
    assert named(read_table(tmp_path)) == {"2023/a.jpg": "", "2024/b.jpg": "", "2024/c.jpg": "cat"}


def test_metadata_without_labels_leaves_the_sub_folders(tmp_path):
    tree(tmp_path, "cat/a.jpg").joinpath("metadata.csv").write_text("file_name,caption\ncat/a.jpg,hello\n")
    with pytest.warns(Note, match="no column 'label'"):
        assert named(read_table(tmp_path)) == {"cat/a.jpg": "cat"}


def test_labels_file_replaces_what_the_folder_says(tmp_path):
    tree(tmp_path / "photos", "cat/a.jpg", "cat/b.jpg", "c.jpg", "d.jpg")
    labels = tmp_path / "labels.csv"
    labels.write_text(f"file_name,label\n./c.jpg,tiger\nphotos/d.jpg,lion\n{tmp_path}/photos/cat/a.jpg,-1\n")
    table = read_table(tmp_path / "photos", labels)
    assert named(table) == {"c.jpg": "tiger", "cat/a.jpg": "", "cat/b.jpg": "", "d.jpg": "lion"}
    assert table.categories == ["lion", "tiger"]


def test_labels_of_features_may_have_semicolons_too(tmp_path):
    (tmp_path / "labels.csv").write_text("row;label\n1;big, grey cat\n")
    features = Features(np.zeros((2, 3)), ["0", "1"], "row")
    assert read_labels(tmp_path / "labels.csv", features) == ["", "big, grey cat"]


@pytest.mark.parametrize(
    "named", [{"row": [1, 0]}, {"file": ["b.jpg", "a.jpg"]}, {"file_name": ["b.jpg", "a.jpg"]}], ids=str
)
@pytest.mark.parametrize("label", ["label", "category", "class"])
def test_labels_of_features_may_be_in_a_parquet_file_too(tmp_path, named, label):
    pd.DataFrame({**named, label: ["cat", None]}).to_parquet(tmp_path / "labels.parquet")
    features = Features(np.zeros((2, 3)), ["a.jpg", "b.jpg"], "file")
    assert read_labels(tmp_path / "labels.parquet", features) == ["", "cat"]
    if "row" in named:
        assert read_row_labels(tmp_path / "labels.parquet", 2) == {1: "cat"}
    with pytest.raises(InputError, match=r"no\.parquet: no such file"):
        read_labels(tmp_path / "no.parquet", features)


MISTAKES = {
    "labels.csv, line 3: no such image: no.jpg (and 1 more)": "file_name,label\na.jpg,x\nno.jpg,y\nnor.jpg,y\n",
    "labels.csv, line 3: file_name './a.jpg' appears twice, first in line 2": "file_name,label\na.jpg,x\n./a.jpg,z\n",
    "labels.csv, line 2: file_name is empty": "file_name,label\n,x\n",
    "labels.csv, line 3: has 3 columns, the first line has 2": "file_name,label\na.jpg,x\nb.jpg,y,z\n",
    "labels.csv: has no column 'label'; its columns are file_name, class": "file_name,class\na.jpg,x\n",
    "labels.csv: has no column 'file_name' or 'file'; its columns are image, label": "image,label\na.jpg,x\n",
    "labels.csv: is empty; its first line must name the columns": "",
}


@pytest.mark.parametrize("message", MISTAKES)
@pytest.mark.parametrize("as_source", [True, False])
def test_mistakes_in_label_files_are_one_line(tmp_path, monkeypatch, message, as_source):
    monkeypatch.chdir(tree(tmp_path, "a.jpg", "b.jpg"))
    Path("labels.csv").write_text(MISTAKES[message])
    with pytest.raises(InputError) as caught:
        read_table("labels.csv") if as_source else read_table(".", "labels.csv")
    assert str(caught.value) == message


def test_of_two_columns_with_one_name_the_first_counts(tmp_path):
    (tmp_path / "labels.csv").write_text("file,label,label\na.jpg,cat,dog\n")
    assert list(read_label_file(str(tmp_path / "labels.csv"), ["file"]).labels) == ["cat"]


def test_duplicate_row_in_parquet(tmp_path):
    tree(tmp_path, "a.jpg")
    pd.DataFrame({"file_name": ["a.jpg", "a.jpg"], "label": [1, 2]}).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(InputError, match=r"t\.parquet, row 2: file_name 'a\.jpg' appears twice, first in row 1"):
        read_table(tmp_path / "t.parquet")


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
@pytest.mark.parametrize("content", [b"\xff\xfe\x00f\x00i", b"file_name,label\n\xe9.jpg,x\n"])
def test_label_file_that_is_something_else(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match="not a readable"):
        read_table(tmp_path / name)


def test_sources_that_are_something_else(tmp_path):
    tree(tmp_path, "notes.txt", "a.jpg").joinpath("none.csv").write_text("file_name,label\n")
    for source, message in {"notes.txt": "neither a folder", "none.csv": "no image is named"}.items():
        with pytest.raises(InputError, match=message):
            read_table(tmp_path / source)
    with pytest.raises(InputError, match="no such file"):
        read_table(tmp_path, tmp_path / "no labels.csv")
    with pytest.raises(InputError, match="no such folder"):
        from_folder(tmp_path / "nowhere")


def test_list_of_paths_and_images(tmp_path):
    tree(tmp_path, "a.jpg")
    image = Image.new("RGB", (4, 3))
    table = read_table([tmp_path / "a.jpg", image], ["cat", None])
    assert named(table) == {str(tmp_path / "a.jpg"): "cat", "image-000001": ""}
    assert table.source(1) is image
    assert read_table(tmp_path / "a.jpg").files == [str(tmp_path / "a.jpg")]
    assert read_table(table) is table


def test_labels_of_a_list_of_any_type():
    images = [Image.new("L", (2, 2))] * 6
    table = read_table(images, [7, -1, float("nan"), "", np.int64(7), 10])
    assert table.label_names == ["7", "", "", "", "7", "10"]
    with pytest.raises(InputError, match="1 labels for 6 images"):
        read_table(images, ["a"])


def test_mistakes_in_lists(tmp_path):
    tree(tmp_path, "a.jpg")
    for images, message in [
        ([], "empty"),
        ([tmp_path / "no.jpg", tmp_path / "nor.jpg"], r"no such image: .*no\.jpg \(and 1 more\)"),
        ([tmp_path / "a.jpg", tmp_path / "." / "a.jpg"], "in the list twice, at 0 and 1"),
        ([3], "item 0 of the list is neither a path nor a PIL image but int"),
    ]:
        with pytest.raises(InputError, match=message):
            read_table(images)


def test_take_keeps_labels_and_forgets_lost_categories(tmp_path):
    image = Image.new("L", (2, 2))
    table = read_table([image] * 5, ["c", "a", None, "b", "c"])
    part = table.take([4, 2, 1])
    assert part.files == ["image-000004", "image-000002", "image-000001"]
    assert part.label_names == ["c", "", "a"]
    assert part.categories == ["a", "c"]
    assert part.source(2) is image


def test_labels_file_with_a_table_from_a_file(tmp_path):
    tree(tmp_path, "a.jpg", "b.jpg")
    (tmp_path / "all.csv").write_text("file_name,label\nb.jpg,\na.jpg,dog\n")
    (tmp_path / "labels.csv").write_text("file_name,label\nb.jpg,cat\n")
    assert named(read_table(tmp_path / "all.csv", tmp_path / "labels.csv")) == {
        "b.jpg": "cat",
        "a.jpg": "",
    }


@given(st.lists(st.text(max_size=3)))
def test_encoded_labels_decode_to_their_names(names):
    labels, categories = encode(names)
    assert [categories[label] if label >= 0 else "" for label in labels] == names
    assert categories == sorted(set(names) - {""})
