"""How a Ray cluster is started and its workers are set up, as far as this can be told without Ray."""

import sys
from types import SimpleNamespace

import pytest
import torch

from selex.features import ray_cluster
from selex.features.ray_cluster import RayEngine, Worker, threads_each
from selex.features.ray_embed import Way, _Embedder
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


def test_workers_take_the_threads_they_are_given(four_threads, monkeypatch):
    Worker(3)
    assert torch.get_num_threads() == 3
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(get=lambda given: given))
    _Embedder(Way(load_backbone("tiny-vit"), None, 32, 1, "cpu", threads=2))
    assert torch.get_num_threads() == 2


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
