"""A backbone taken apart is the same network, and training changes only what it shall."""

import copy

import pytest
import timm
import torch
from timm.layers.mlp import SwiGLUPacked
from timm.models.vision_transformer import ParallelScalingBlock, ResPostBlock, VisionTransformer
from torch import nn

from layouts_for_tests import shake
from selex.config import PAPER
from selex.errors import InputError
from selex.models.convert import resize_positions
from selex.models.network import Backbone
from selex.models.trunk import check_view_size, class_token, load_trained, split_backbone, trained_weights
from selex.training.methods import METHODS, Task
from training_for_tests import TRAINED, batch, digit_data, fit, small, weights


def vit(**settings):
    about = {"img_size": 28, "patch_size": 7, "embed_dim": 64, "depth": 3, "num_heads": 2, "num_classes": 0}
    return VisionTransformer(**{**about, "global_pool": "token", **settings})


def efficientnet():
    return timm.create_model("tf_efficientnet_lite0", num_classes=0)


NETWORKS = {
    "plain": vit,
    "registers": lambda: vit(reg_tokens=4, no_embed_class=True),
    "layer scale": lambda: vit(init_values=0.1),
    "query and key norms": lambda: vit(qk_norm=True, scale_attn_norm=True),
    "gated": lambda: vit(mlp_layer=SwiGLUPacked, act_layer=nn.SiLU),
    "no biases": lambda: vit(qkv_bias=False),
    "norm before": lambda: vit(pre_norm=True),
    "any size": lambda: vit(dynamic_img_size=True),
    "mean of tokens": lambda: vit(global_pool="avg"),
    "attention pooling": lambda: vit(global_pool="map"),
    "parallel blocks": lambda: vit(block_fn=ParallelScalingBlock),
    "norms behind": lambda: vit(block_fn=ResPostBlock),
    "distilled": lambda: timm.create_model("deit_tiny_distilled_patch16_224", num_classes=0, img_size=32, depth=3),
    "efficientnet": efficientnet,
    "resnet": lambda: timm.create_model("resnet10t", num_classes=0),
    "swin": lambda: timm.create_model(
        "swin_tiny_patch4_window7_224", num_classes=0, img_size=56, embed_dim=24, depths=(1, 1, 2)
    ),
}
CROPS = {"distilled": 32, "efficientnet": 32, "resnet": 32, "swin": 56}


def backbone(name, seed=0):
    torch.manual_seed(seed)
    network = NETWORKS[name]()
    shake(network)
    for module in network.modules():  # statistics of some data, not of none
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    size = (128.0,) * 3
    made = Backbone(
        name, network, dim=network.num_features, crop=CROPS.get(name, 28), mean=size, std=size, weights=None
    )
    return made.eval()


def images(crop, n=2):
    return torch.randint(0, 256, (n, 3, crop, crop), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("trained", [1, 2, "all", None])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_halves_are_the_backbone(name, trained):
    whole = backbone(name)
    x = images(whole.crop)
    with torch.no_grad():
        expected = whole(x)
    count = len(whole.blocks) if trained == "all" else trained
    trunk, tail = split_backbone(whole, count)
    states = trunk(x)
    assert not states.requires_grad
    found = tail(states)
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))
    found.square().sum().backward()
    reached = {name for name, tensor in whole.network.named_parameters() if tensor.grad is not None}
    assert reached == set(trained_weights(whole))
    assert all(not tensor.requires_grad for tensor in trunk.parameters()) or trained is None


@pytest.mark.parametrize("name", ["plain", "registers", "efficientnet", "resnet", "swin"])
def test_only_the_last_blocks_are_trained(name):
    whole = backbone(name)
    split_backbone(whole, 1)
    last = {id(tensor) for tensor in whole.blocks[-1].parameters()}
    for tensor in whole.parameters():
        assert tensor.requires_grad == (id(tensor) in last)


def test_states_of_a_taken_apart_network_are_not_images():
    for name, halved in (("plain", True), ("efficientnet", True), ("distilled", False), ("resnet", False)):
        whole = backbone(name)
        x = images(whole.crop)
        assert (split_backbone(whole, 1)[0](x).shape != x.shape) == halved, name


def test_no_block_is_trained_but_what_follows_is_there():
    whole = backbone("plain")
    trunk, tail = split_backbone(whole, 0)
    x = images(whole.crop)
    torch.testing.assert_close(tail(trunk(x)), whole(x), rtol=1e-4, atol=1e-5)
    assert not any(parameter.requires_grad for parameter in whole.parameters())


def test_what_cannot_be_trained():
    with pytest.raises(InputError, match="trained_blocks must be from 0 to the 3 of plain"):
        split_backbone(backbone("plain"), 4)
    pixels = Backbone("pixels", nn.Flatten(), dim=2352, crop=28, mean=(0,) * 3, std=(1,) * 3, weights=None)
    with pytest.raises(InputError, match="backbone pixels has nothing to train"):
        split_backbone(pixels, None)


@pytest.mark.parametrize("name", ["plain", "layer scale", "query and key norms", "gated", "no biases", "registers"])
def test_the_class_token_alone(name):
    """Against the whole block, in float64, values and gradients."""
    block = backbone(name).network.blocks[-1].double()
    x = torch.randn(3, 17, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).requires_grad_()
    expected, found = block(x)[:, 0], class_token(block, x)
    assert torch.allclose(found, expected, rtol=1e-12, atol=1e-12)
    inputs = [x, *block.parameters()]
    for a, b in zip(
        torch.autograd.grad(expected.sin().sum(), inputs), torch.autograd.grad(found.sin().sum(), inputs), strict=True
    ):
        assert torch.allclose(a, b, rtol=1e-10, atol=1e-12)


def test_trained_weights_go_into_a_backbone_as_it_came():
    trained, fresh = backbone("plain"), backbone("plain")
    split_backbone(trained, 2)
    for block in trained.blocks[-2:]:
        shake(block)
    assert trained.fingerprint() != fresh.fingerprint()
    load_trained(fresh, trained_weights(trained))
    assert trained.fingerprint() == fresh.fingerprint()


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return digit_data(tmp_path_factory.mktemp("digits"))


@pytest.mark.parametrize("name", ["plain", "efficientnet", "resnet"])
def test_training_leaves_frozen_weights_and_statistics_alone(name, data):
    whole = backbone(name)
    data = data.__class__(data.images, data.labels, data.files, whole.crop)
    before = copy.deepcopy(whole.network.state_dict())
    method = small("gcd", whole, epochs=1, trained_blocks=1)
    fit(method, data)
    changed = {key for key, tensor in whole.network.state_dict().items() if not torch.equal(tensor, before[key])}
    assert changed
    assert changed <= set(trained_weights(whole))


@pytest.mark.parametrize("name", TRAINED)
def test_gradients_reach_the_unfrozen_blocks_and_the_head(name, data):
    whole = backbone("plain")
    method = small(name, whole, trained_blocks=2)
    method.prepare(0, lambda: torch.randn(60, 64), torch.as_tensor(data.labels), 0)
    method(batch(data, method))["loss"].backward()
    wanted = {id(tensor) for block in whole.blocks[-2:] for tensor in block.parameters()}
    wanted |= {id(tensor) for tensor in method.head.parameters()}
    reached = {id(t) for t in (*whole.parameters(), *method.parameters()) if t.grad is not None and t.grad.any()}
    assert reached <= wanted
    missed = [key for key, tensor in method.named_parameters() if id(tensor) in wanted - reached]
    # a bias of the keys moves all scores of a query alike: no gradient but rounding
    assert not missed
    assert set(weights(method)) >= {key for key, tensor in method.named_parameters() if id(tensor) in wanted}


@pytest.mark.parametrize("name", ["gcd", "selex"])
def test_parameters_of_the_paper(name):
    """ViT-B/16, the last two blocks and the head: 37.25 M."""
    with torch.device("meta"):
        network = timm.create_model("vit_base_patch16_224", num_classes=0)
        size = (128.0,) * 3
        whole = Backbone("dino-vitb16", network, dim=768, crop=224, mean=size, std=size, weights=None)
    method = METHODS[name](whole, Task(200, 100), PAPER.train)
    assert f"{method.n_trained / 1e6:.2f} M" == "37.25 M"


@pytest.mark.parametrize("name", ["plain", "registers", "efficientnet", "any size"])
def test_smaller_views_go_through_the_network_that_was_made_for_their_size(name):
    large = backbone(name)
    smaller = images(21 if large.crop == 28 else 24)
    trunk, tail = split_backbone(large, 1)
    before = trunk(images(large.crop))
    with torch.no_grad():
        found = tail(trunk.resized(smaller.shape[-1])(smaller))
    if name in ("plain", "registers"):
        network = vit(img_size=21, **({"reg_tokens": 4, "no_embed_class": True} if name == "registers" else {}))
        network.load_state_dict(resize_positions(large.network.state_dict(), 3))
    else:
        network = large.network
    scaled = (smaller.float() - 128) / 128
    with torch.no_grad():
        expected = network.eval()(scaled)
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))
    assert torch.equal(trunk(images(large.crop)), before)  # which is as it was


def test_a_network_is_trained_with_smaller_views_than_are_clustered(tmp_path):
    data = digit_data(tmp_path)
    sizes = []
    method = small("selex", backbone("plain"), view_size=21)
    method.tail.register_forward_pre_hook(lambda _, states: sizes.append(states[0].shape[1]))
    before = {name: tensor.clone() for name, tensor in weights(method).items()}
    fit(method, data)
    assert set(sizes) == {1 + 3 * 3, 1 + 4 * 4}  # a step's views, and the centre crops that pseudo-labels come from
    assert any(not torch.equal(tensor, before[name]) for name, tensor in weights(method).items())


@pytest.mark.parametrize(
    ("name", "size", "blocks", "message"),
    [
        ("plain", 20, 1, "has patches of 7 pixels; the nearest size is 21"),
        ("plain", 21, None, "is trained with images of 28 pixels only"),
        ("swin", 28, 1, "is trained with images of 56 pixels only"),
    ],
)
def test_views_of_a_size_that_cannot_be_are_refused(name, size, blocks, message):
    made = backbone(name)
    made.weights = object()  # as if it came from a file
    with pytest.raises(InputError, match=message):
        check_view_size(made, size, blocks)
    check_view_size(made, made.crop, blocks)
    check_view_size(made, None, blocks)
