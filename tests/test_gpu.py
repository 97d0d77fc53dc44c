"""What is recorded, rounded or done beside other work on a GPU: only where there is one."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from conftest import half_labelled, pile
from selex import estimate_k
from selex.data.crops import AugmentConfig, CropParams, DeviceImages, TwoScaleImages
from selex.features.embed import embed
from selex.models import load_backbone
from selex.models.heads import ProjectionHead
from selex.training.checkpoint import Checkpoints
from selex.training.devices import start_fabric
from selex.training.loop import train
from selex.training.methods import Task
from training_for_tests import TRAINED, digit_data, seen_twice, small, weights

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return digit_data(tmp_path_factory.mktemp("data"))


class Stop(Exception):
    """In the middle of training."""


EVEN = Task(5, 3, whiten=0.5)
OPTIONS = [
    {},
    {"view_bank": 2},
    {"prototypes": 0.5, "random_crop": 0.6, "color_jitter": 0.4, "task": EVEN},
    {"targets": "radii", "task": EVEN},
    {"interval": 2},
]


def fit(name, data, folder=None, stop=None, **settings):
    checkpoints = Checkpoints(folder, {}, {}) if folder else None
    method = small(name, **{"epochs": 3, **settings})
    if stop is not None:
        calls, prepare = iter(range(10)), method.prepare

        def stopping(*given):
            if next(calls) == stop:
                raise Stop
            return prepare(*given)

        method.prepare = stopping
    history = train(method, data, 0, fabric=start_fabric("cuda"), checkpoints=checkpoints)
    return weights(method), history


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", TRAINED)
def test_stopped_and_resumed(data, tmp_path, name, options):
    whole, _ = fit(name, data, **options)
    with pytest.raises(Stop):
        fit(name, data, tmp_path, stop=2, **options)
    again, _ = fit(name, data, tmp_path, **options)
    assert all(torch.equal(whole[key], again[key]) for key in whole)


@pytest.mark.parametrize("name", TRAINED)
def test_recorded_steps_have_the_losses_of_plain_ones(data, monkeypatch, name):
    _, recorded = fit(name, data)
    monkeypatch.setattr("selex.training.steps.Steps._can_graph", lambda loop: False)
    _, plain = fit(name, data)
    for a, b in zip(recorded, plain, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-3)


def test_images_seen_twice(data):
    """Views are those of the host, whichever framing they are of, and a training on both goes as it does there."""
    both = seen_twice(data)
    there = TwoScaleImages(*(DeviceImages(images.store, "cuda") for images in both.images.scales))
    rows = torch.tensor([0, 7, 59, 7, 30, 31])
    place = CropParams.draw(6, AugmentConfig(attention=True), torch.Generator().manual_seed(0))
    assert 0 < place.close.sum() < 6
    assert torch.equal(there.crops(rows, place, 24).cpu(), both.images.crops(rows, place, 24))
    backbone = load_backbone("tiny-vit", "cuda")
    features = [embed(backbone, images, device="cuda") for images in (there, both.images)]
    assert (features[0] * features[1]).sum(1).min() > 0.999
    (one,), (other,) = (fit("selex", each, epochs=1)[1] for each in (both, replace(both, images=there)))
    assert one["loss"] == pytest.approx(other["loss"], rel=1e-3)


@pytest.mark.parametrize("options", [{}, {"view_bank": 2}], ids=str)
def test_images_seen_twice_and_gone_on_with(data, tmp_path, options):
    both = seen_twice(data)
    whole, _ = fit("selex", both, **options)
    with pytest.raises(Stop):
        fit("selex", both, tmp_path, stop=2, **options)
    again, _ = fit("selex", both, tmp_path, **options)
    assert all(torch.equal(whole[key], again[key]) for key in whole)


def test_inner_products_are_those_of_embeddings():
    head = ProjectionHead(64, 65_536).cuda()
    x = torch.randn(32, 64, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    z = head(x).double()
    sizes = [65_536 >> level for level in range(8)]
    expected = torch.stack([z[:, :size] @ z[:, :size].T for size in sizes])
    made = head.products(head.inner(x), sizes)
    assert made.double().sub(expected).abs().max() < 1e-4
    twice = head.products(head.inner(x).repeat(2, 1), sizes)
    assert torch.equal(twice[:, :32, 32:].diagonal(dim1=1, dim2=2), twice[:, :32, :32].diagonal(dim1=1, dim2=2))


def test_the_count_where_sizes_differ():
    x, truth = pile([60, 40, 30, 20, 20, 10, 300, 40, 30, 20, 20, 10], spread=0.8)
    rows, labels = x.astype(np.float32), half_labelled(truth, 6)
    found = estimate_k(torch.from_numpy(rows).cuda(), labels, rng=0)
    assert abs(found.n_clusters - estimate_k(rows, labels, rng=0).n_clusters) <= 1
