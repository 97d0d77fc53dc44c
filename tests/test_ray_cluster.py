"""How a Ray cluster is started and its workers are set up, as far as this can be told without Ray."""

import os
import pickle
import socket
import sys
import tempfile
import threading
from types import SimpleNamespace

import pytest
import torch

from commands import digit_photos
from selex.config import Config
from selex.discovery import discover
from selex.errors import InputError
from selex.features import ray_cluster
from selex.features.ray_cluster import RayEngine, Worker, threads_each
from selex.features.ray_worker import DEATHS, Embedder, Way, _Deaths, decoded
from selex.features.sources import Tar, find_units
from selex.models.backbones import load_backbone


@pytest.fixture
def four_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("address", "workers", "threads"), [(None, 1, 4), (None, 2, 2), (None, 3, 1), (None, 8, 1), ("auto", 1, 1)]
)
def test_workers_of_a_ray_started_here_share_all_threads(four_threads, address, workers, threads):
    assert threads_each(RayEngine(address, workers), workers) == threads


@pytest.fixture
def in_an_actor(monkeypatch):
    here = SimpleNamespace(get_actor_id=lambda: "none", was_current_actor_reconstructed=False)
    ray = SimpleNamespace(get=lambda given: given, get_runtime_context=lambda: here)
    monkeypatch.setitem(sys.modules, "ray", ray)


def test_workers_take_the_threads_they_are_given(four_threads, in_an_actor):
    Worker(3)
    assert torch.get_num_threads() == 3
    Embedder(Way(load_backbone("tiny-vit"), None, 32, 1, "cpu", threads=2), "")
    assert torch.get_num_threads() == 2


def test_what_a_task_decodes_is_embedded_as_what_an_actor_decodes_itself(four_threads, in_an_actor, tmp_path):
    digit_photos(tmp_path / "photos", per_digit=4, n_known=2, digits=3)
    (tmp_path / "photos" / "broken.png").write_bytes(b"no image")
    embedder = Embedder(Way(load_backbone("tiny-vit"), None, 32, 1, "cpu"), str(tmp_path))
    for unit in (*find_units([str(tmp_path / "photos")])[1], Tar(str(tmp_path / "none.tar"), "")):
        row = {"number": 7, "work": pickle.dumps((unit, [], 32, False))}
        own = list(embedder(row))
        assert own == [made for piece in decoded(row) for made in embedder(piece)]
        assert [(made["number"], made["piece"], made["last"]) for made in own] == [(7, -bool(own[0]["error"]), True)]
        assert bool(own[0]["error"]) == isinstance(unit, Tar)


@pytest.mark.parametrize(("device", "most"), [("cpu", 4), ("cuda", 3)])
def test_only_for_gpus_a_core_is_left_to_decode_with(device, most):
    has, on = {"CPU": 4.0, "GPU": 9.0}, torch.device(device)
    assert ray_cluster._workers(has, RayEngine(workers=most), on) == most
    with pytest.raises(InputError, match=f"^{most + 1} workers on {device} are too many: the cluster has 4 CPU and 9"):
        ray_cluster._workers(has, RayEngine(workers=most + 1), on)


@pytest.mark.parametrize("seen", [True, False], ids=["seen", "not seen"])
def test_deaths_of_a_worker_are_counted_in_the_folder_of_the_job_where_it_is_seen(seen, monkeypatch, tmp_path):
    job, node = tmp_path / "job", tmp_path / "node"
    (job if seen else node).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(node))
    here = SimpleNamespace(get_actor_id=lambda: "one", was_current_actor_reconstructed=True)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(get_runtime_context=lambda: here))
    for _ in range(DEATHS - 1):
        _Deaths(str(job))
    counted = (job if seen else node) / "selex-deaths-one"
    assert counted.stat().st_size == DEATHS - 1
    with pytest.raises(InputError, match=f"a worker was killed {DEATHS} times"):
        _Deaths(str(job))
    assert not counted.exists()


def test_only_a_ray_started_here_gathers_no_metrics(monkeypatch):
    for name in ray_cluster._STARTED:
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    ray = SimpleNamespace(init=lambda **how: None)
    ray_cluster._join(ray, "auto")
    assert "RAY_enable_metrics_collection" not in ray_cluster.os.environ
    monkeypatch.setenv("RAY_event_stats", "1")  # the user's own
    ray_cluster._join(ray, None)
    assert ray_cluster.os.environ["RAY_enable_metrics_collection"] == "0"
    assert ray_cluster.os.environ["RAY_event_stats"] == "1"


def test_what_ray_says_while_it_starts_is_not_heard(monkeypatch, capfd):
    monkeypatch.setattr(ray_cluster, "_STARTED", {})
    ray_cluster._join(SimpleNamespace(init=lambda **how: os.write(2, b"level 3\n")), None)
    os.write(2, b"ours\n")
    assert capfd.readouterr().err == "ours\n"


SLOW = "The current node timed out during startup. This could happen because some of the raylet failed.\nMore."


@pytest.mark.parametrize("method", ["frozen", "gcd"])
@pytest.mark.parametrize(
    ("address", "line"), [(None, "Ray does not start on this machine: "), ("auto", "no Ray cluster at auto: ")]
)
def test_a_cluster_that_does_not_start_in_time_is_one_line_and_nothing_is_left(
    method, address, line, monkeypatch, tmp_path
):
    def init(**how):
        raise Exception(SLOW)  # as Ray does

    ray = SimpleNamespace(init=init, is_initialized=lambda: False)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.data", SimpleNamespace())
    monkeypatch.setenv("SELEX_CACHE", str(tmp_path / "cache"))
    digit_photos(tmp_path / "photos", per_digit=2)
    config = Config.of(str(tmp_path / "photos")).change(backbone="tiny-vit", categories=5, method=method)
    with pytest.raises(InputError, match=f"^{line}{SLOW.splitlines()[0]}") as error:
        discover(config, tmp_path / "run", engine=RayEngine(address))
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


@pytest.fixture
def server(request):
    """Listens, and says this to everybody; with None it says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            there, _ = server.accept()
            there.recv(100)
            there.sendall(request.param)
            there.close()

        if request.param is not None:
            threading.Thread(target=answer).start()
        yield "{}:{}".format(*server.getsockname())


@pytest.mark.parametrize(
    ("server", "line"),
    [(None, "timed out"), (b"HTTP/1.1 400 Bad Request\r\n\r\n", "something else answers"), (b"", "something else")],
    indirect=["server"],
)
def test_an_address_where_something_else_listens(server, line, monkeypatch):
    monkeypatch.setattr(ray_cluster, "ANSWER", 0.2)
    monkeypatch.delenv("RAY_USE_TLS", raising=False)
    with pytest.raises(InputError, match=f"^no Ray cluster at {server}: {line}.*start one"):
        ray_cluster._join(SimpleNamespace(init=lambda **how: pytest.fail("joined")), server)
