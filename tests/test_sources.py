"""Images in folders, tar shards, parquet and behind URLs: units that say what they hold, and read the same images."""

import io
import os
import tarfile

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from commands import selex
from selex.config import Config
from selex.data.table import ImageTable
from selex.discovery import discover
from selex.errors import InputError
from selex.features import sources
from selex.features.ray_cache import shards_in_use
from selex.features.ray_cluster import RayEngine
from selex.features.ray_embed import Embedded, embed_on_ray, way_name
from selex.features.sources import find_units, key_of
from selex.models import load_backbone


def jpeg(number):
    out = io.BytesIO()
    Image.fromarray(np.full((8, 8, 3), 10 * number, np.uint8)).save(out, "JPEG")
    return out.getvalue()


IMAGES = {f"{'cat' if number < 2 else 'unlabelled'}/{number}.jpg": jpeg(number) for number in range(5)}
LABELS = ["cat", "cat", "", "", ""]


def write_folder(folder):
    for name, content in IMAGES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def write_tar(path, images=IMAGES, labels=LABELS):
    with tarfile.open(path, "w") as archive:
        for (name, content), label in zip(images.items(), labels, strict=True):
            stem = name.rpartition(".")[0]
            for member, data in ((f"{stem}.json", b"{}"), (name, content), (f"{stem}.cls", label.encode())):
                if data:
                    about = tarfile.TarInfo(member)
                    about.size = len(data)
                    archive.addfile(about, io.BytesIO(data))


def write_parquet(path, struct):
    images = [{"bytes": content, "path": None} for content in IMAGES.values()] if struct else list(IMAGES.values())
    labels = [label or None for label in LABELS]
    pq.write_table(pa.table({"file_name": list(IMAGES), "image": images, "label": labels}), path, row_group_size=2)


def read(place):
    _, units = find_units([str(place)])
    return [image for unit in units for image in unit.read()]


def test_every_layout_holds_the_same_images_and_labels(tmp_path):
    write_folder(tmp_path / "folder")
    (tmp_path / "shards").mkdir()
    write_tar(tmp_path / "shards" / "a.tar")
    for struct in (True, False):
        write_parquet(tmp_path / f"{struct}.parquet", struct)
    memory = fsspec.filesystem("memory")
    for name, content in IMAGES.items():
        memory.pipe_file(f"/photos/{name}", content)
    memory.pipe_file("/photos/.hidden.jpg", b"")
    memory.put_file(str(tmp_path / "shards" / "a.tar"), "/more/a.tar")
    for place in ("folder", "shards", "shards/a.tar", "True.parquet", "False.parquet"):
        found = read(tmp_path / place)
        assert [(image.label, image.data) for image in found] == list(zip(LABELS, IMAGES.values(), strict=True)), place
    found = read("memory://photos")
    assert [(image.name, image.label, image.data) for image in found] == [
        (name, label, content) for (name, content), label in zip(IMAGES.items(), LABELS, strict=True)
    ]
    assert [image.name for image in read("memory://more")] == [f"a.tar/{name}" for name in IMAGES]


def test_no_image_in_a_shard_is_called_like_a_file_elsewhere(tmp_path):
    secret = tmp_path / "secret.jpg"
    secret.write_bytes(jpeg(1))
    shards = tmp_path / "shards"
    shards.mkdir()
    names = [str(secret), "../secret.jpg", "birds/../../secret.jpg", "birds/own.jpg"]
    images = dict.fromkeys(names, jpeg(2))
    write_tar(shards / "a.tar", images, [""] * len(names))
    pq.write_table(pa.table({"file_name": names, "image": list(images.values())}), tmp_path / "b.parquet")
    for place, root in ((shards, shards), (tmp_path / "b.parquet", tmp_path)):
        found = [image.name for image in read(place)]
        assert len(found) == len(names)
        assert not any(".." in name.split("/") or os.path.isabs(name) for name in found)
        assert secret not in [root / name for name in found]
        assert found[-1].endswith("birds/own.jpg")


def test_a_file_that_is_gone_has_a_reason(tmp_path):
    write_folder(tmp_path)
    _, (unit,) = find_units([str(tmp_path)])
    (tmp_path / "cat" / "1.jpg").unlink()
    assert [(image.data is None, image.reason) for image in unit.read()][:2] == [
        (False, ""),
        (True, "No such file or directory"),
    ]


def test_the_key_of_a_unit_changes_with_its_images(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "PIECE", 2)
    write_folder(tmp_path / "folder")
    write_tar(tmp_path / "a.tar")
    before = [[key_of(unit) for unit in find_units([str(tmp_path / name)])[1]] for name in ("folder", "a.tar")]
    assert len(set(before[0])) == 3
    (tmp_path / "folder" / "cat" / "1.jpg").write_bytes(jpeg(9) + b"longer")
    write_tar(tmp_path / "a.tar", dict(list(IMAGES.items())[:2]), LABELS[:2])
    after = [[key_of(unit) for unit in find_units([str(tmp_path / name)])[1]] for name in ("folder", "a.tar")]
    assert [old == new for old, new in zip(before[0], after[0], strict=True)] == [False, True, True]
    assert before[1] != after[1]


def test_what_is_not_there_is_one_line(tmp_path):
    (tmp_path / "bad.parquet").write_text("no")
    fsspec.filesystem("memory").mkdirs("/empty", exist_ok=True)
    for places, message in {
        ("memory://empty",): "no images and no .tar or .parquet shards",
        ("nothing://here",): "nothing://here: Protocol not known",
        (str(tmp_path / "none.tar"),): "none.tar: cannot be read",
        (str(tmp_path / "bad.parquet"),): "bad.parquet: cannot be read",
        (str(tmp_path), "memory://empty"): "cannot be combined",
    }.items():
        with pytest.raises(InputError, match=message):
            find_units(places)


def test_errors_of_somebody_elses_file_system_are_one_line(monkeypatch):
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/far/cat/0.jpg", jpeg(0))

    def refuse(*given, **how):
        raise RuntimeError("no credentials")

    _, (unit,) = find_units(["memory://far"])
    monkeypatch.setattr(type(memory), "cat_file", refuse)
    assert [(image.data, image.reason) for image in unit.read()] == [(None, "no credentials")]
    monkeypatch.setattr(type(memory), "find", refuse)
    with pytest.raises(InputError, match=r"^memory://far: cannot be listed: no credentials$"):
        find_units(["memory://far"])
    monkeypatch.setattr(type(memory), "info", refuse)
    with pytest.raises(InputError, match=r"a\.tar: cannot be read: no credentials$"):
        find_units(["memory://far/a.tar"])


def test_a_damaged_shard_is_named_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("SELEX_CACHE", str(tmp_path / "cache"))
    write_folder(tmp_path / "photos")
    backbone, (unit,) = load_backbone("pixels"), find_units([str(tmp_path / "photos")])[1]
    content, names = io.BytesIO(), np.array(list(IMAGES))
    features = np.ones((len(names), backbone.dim), np.float32)
    np.savez(content, features=features, names=names, labels=np.array(LABELS), reasons=np.array([""] * len(names)))
    with shards_in_use(way_name(backbone, 16, 1, "cpu"), [unit]) as shards:
        assert shards.keep(unit, 0, True, content.getvalue()) == len(names)
        (path,) = shards.paths(unit)
    given = (RayEngine(), backbone, [str(tmp_path / "photos")], None)
    how = {"size": 16, "views": 1, "device": "cpu"}
    assert len(embed_on_ray(*given, tmp_path / "a.npy", **how)) == len(names), "all of it is there: no cluster is asked"
    (tmp_path / "labels.csv").write_text("file_name,label\ncat/1.jpg,dog\n")
    told = embed_on_ray(*given[:3], str(tmp_path / "labels.csv"), tmp_path / "c.npy", **how)
    assert (told.made, told.table.label_names) == (0, ["", "dog", "", "", ""]), "labels change, features do not"
    path.write_bytes(content.getvalue()[:500])
    with pytest.raises(InputError, match=f"{path.name}: is damaged .*; remove it"):
        embed_on_ray(*given, tmp_path / "b.npy", **how)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("s3://bucket/photos",), "s3://bucket/photos: photos at a URL need --engine ray"),
        (("photos", "--engine", "dask"), "no engine 'dask'; there are: local, ray"),
        (("photos", "--workers", 2), "--address and --workers need --engine ray"),
        (("photos", "--spread"), "--spread needs --engine ray: its workers cluster"),
        (("photos", "--engine", "ray", "--workers", 0), "--workers must be at least 1, not 0"),
        (
            ("photos", "--engine", "ray", "--spread", "--method", "selex"),
            "--spread needs --method frozen: after training, features are clustered on this machine",
        ),
    ],
)
def test_options_that_do_not_go_together(tmp_path, options, line):
    write_folder(tmp_path / "photos")
    before = set(tmp_path.rglob("*"))
    done = selex("discover", *options, "--backbone", "pixels", cwd=tmp_path)
    assert (done.returncode, done.stderr.splitlines()) == (2, [f"error: {line}"])
    assert set(tmp_path.rglob("*")) == before


def test_what_a_cluster_cannot_do_is_refused(tmp_path, monkeypatch):
    write_folder(tmp_path / "photos")
    config = Config.of(str(tmp_path / "photos")).change(backbone="pixels")
    with pytest.raises(InputError, match="not from a list in Python"):
        discover(config, tmp_path / "run", photos=[str(tmp_path / "photos/cat/0.jpg")], engine=RayEngine())
    one = Embedded(ImageTable(["a.jpg"], np.array([-1]), []), [("b.jpg", "truncated")], 256, 1, [], "")
    monkeypatch.setattr("selex.discovery_steps.embed_on_ray", lambda *given, **how: one)
    with pytest.raises(InputError, match=r"^b\.jpg: truncated"):
        discover(config, tmp_path / "run", strict=True, engine=RayEngine())
    assert not (tmp_path / "run").exists()
