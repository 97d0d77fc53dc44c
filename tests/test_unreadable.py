"""Files that are something else, or damaged before we got them: one line, never a traceback, never the network."""

import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import timm
from safetensors.numpy import save_file

from selex import InputError
from selex.data.features import load_features
from selex.data.labels import read_label_file
from selex.models import load_backbone


@pytest.mark.parametrize("backbone", ["efficientnet-lite1", "timm:vit_tiny_patch16_224", "file:"])
@pytest.mark.parametrize("kind", ["text", "empty", "no tensors", "odd"])
def test_weights_that_are_none(tmp_path, monkeypatch, backbone, kind):
    path = tmp_path / "net.safetensors"
    if kind in ("text", "empty"):
        path.write_text("root:x:0:0:root" * (kind == "text"))
    else:
        save_file({"cls_token": np.zeros(3, np.float32)} if kind == "odd" else {}, path)
    monkeypatch.setattr(timm.models._builder, "load_state_dict_from_hf", lambda *_, **__: pytest.fail("the hub"))
    given = (f"file:{path}", None) if backbone == "file:" else (backbone, path)
    with pytest.raises(InputError, match=r"net\.safetensors"):
        load_backbone(given[0], weights=given[1])


def test_a_text_file_as_weights():
    with pytest.raises(InputError, match="/etc/passwd"):
        load_backbone("efficientnet-lite1", weights="/etc/passwd")


@pytest.mark.parametrize("name", ["timm:local-dir:/etc", "timm:hf-hub:somebody/net"])
def test_a_place_is_no_network_of_timm(name):
    with pytest.raises(InputError, match="give the name of one of timm's networks, not a path"):
        load_backbone(name)


def flagged(path, flag):
    """The archive with a flag set for all its members, in both places where it stands."""
    data = bytearray(path.read_bytes())
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = data.find(mark)
        while at >= 0:
            data[at + offset] |= flag
            at = data.find(mark, at + 4)
    path.write_bytes(data)


@pytest.mark.parametrize("kind", ["encrypted", "objects", "huge"])
def test_an_archive_of_features_that_cannot_be_read(tmp_path, kind):
    path = tmp_path / "features.npz"
    np.savez(path, features=np.array([{}], dtype=object) if kind == "objects" else np.zeros((4, 2)))
    if kind == "encrypted":
        flagged(path, 1)
    if kind == "huge":
        with zipfile.ZipFile(path, "w") as archive, archive.open("features.npy", "w") as file:
            np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": (1 << 46, 2)})
    with pytest.raises(InputError, match=r"features\.npz"):
        load_features(path)


def test_a_table_of_ten_billion_rows_of_nothing(tmp_path):
    with (tmp_path / "features.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": (10**10, 0)})
    with pytest.raises(InputError, match=r"features\.npy: features are empty: 10000000000 rows × 0 dimensions"):
        load_features(tmp_path / "features.npy")


def test_labels_that_are_no_text(tmp_path):
    names = pa.array([b"a.jpg", b"b.jpg"])
    labels = pa.Array.from_buffers(pa.string(), 2, pa.array([b"caf\xe9", b"cat"]).buffers())
    parquet.write_table(pa.table({"file_name": names.cast(pa.string()), "label": labels}), tmp_path / "labels.parquet")
    with pytest.raises(InputError, match=r"labels\.parquet: not a readable parquet file"):
        read_label_file(str(tmp_path / "labels.parquet"))
