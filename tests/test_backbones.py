from __future__ import annotations

import pytest
import timm
import torch
from torch.nn.functional import interpolate

import layouts_for_tests as layouts
import lite1_reference
from selex.errors import InputError
from selex.models import BACKBONES, default_backbone, load_backbone
from selex.models.convert import flat_tensors, network_state, resize_positions, vit_state
from selex.models.weights import find_weights, read_checkpoint

IMAGES = torch.randint(0, 256, (2, 3, 224, 224), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
STD = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)

DINO = {"patch": 16}
DINOV2 = {"patch": 14, "layer_scale": True}
REGISTERS = {"patch": 14, "layer_scale": True, "registers": 4}
GATED = {"patch": 14, "layer_scale": True, "gated": True}

# name: (what network, its weights turned into a checkpoint, file name)
LAYOUTS = {
    "timm": (DINO, dict, "a.pth"),
    "timm safetensors": (DINOV2, dict, "a.safetensors"),
    "timm registers": (REGISTERS, dict, "a.safetensors"),
    "timm with classifier": (DINO, lambda s: {**s, "head.weight": torch.ones(5, 128)}, "a.pt"),
    "dino released": (DINO, dict, "a.pth"),
    "dino training": (DINO, layouts.training_checkpoint, "a.pth"),
    "dino teacher only": (DINO, lambda s: {"teacher": layouts.prefixed(s, "backbone.")}, "a.pth"),
    "dino student only": (DINO, lambda s: {"student": layouts.prefixed(s, "module.backbone.")}, "a.pth"),
    "dinov2 released": (DINOV2, layouts.official_dinov2, "a.pth"),
    "dinov2 registers": (REGISTERS, layouts.official_dinov2, "a.pth"),
    "dinov2 registers safetensors": (REGISTERS, layouts.official_dinov2, "a.safetensors"),
    "dinov2 gated": (GATED, layouts.official_dinov2, "a.pth"),
    "dinov2 training in chunks": (
        REGISTERS,
        lambda s: {"teacher": layouts.prefixed(layouts.in_chunks(layouts.official_dinov2(s)), "backbone.")},
        "a.pth",
    ),
    "wrapped": (DINOV2, lambda s: {"state_dict": layouts.prefixed(s, "module.")}, "a.pth"),
    "half precision": (DINO, lambda s: {name: tensor.half() for name, tensor in s.items()}, "a.pth"),
    "hugging face dino": (DINO, lambda s: layouts.prefixed(layouts.hugging_face(s), "vit."), "a.safetensors"),
    "hugging face dinov2": (DINOV2, lambda s: layouts.hugging_face(layouts.official_dinov2(s)), "a.safetensors"),
    "hugging face registers": (REGISTERS, lambda s: layouts.hugging_face(layouts.official_dinov2(s)), "a.pth"),
    "hugging face gated": (GATED, lambda s: layouts.hugging_face(layouts.official_dinov2(s)), "a.pth"),
    "separate projections": (DINO, lambda s: layouts.split_qkv(s, "attn.q_proj", "attn.k_proj", "attn.v_proj"), "a.pt"),
}


def by_hand(network, images=IMAGES):
    """What a plain use of the network gives: pixels to 0…1, ImageNet mean and std, forward."""
    with torch.no_grad():
        return network((images / 255 - MEAN) / STD)


def features(backbone, images=IMAGES):
    with torch.no_grad():
        return backbone(images)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_features_of_the_original(layout, tmp_path):
    kind, convert, file = LAYOUTS[layout]
    network = layouts.small_vit(**kind)
    path = layouts.write(tmp_path / file, convert(network.state_dict()))
    backbone = load_backbone(f"file:{path}")
    tolerance = 2e-2 if layout == "half precision" else 1e-4
    torch.testing.assert_close(features(backbone), by_hand(network), rtol=tolerance, atol=tolerance)
    assert (backbone.dim, backbone.crop, len(backbone.blocks)) == (128, 224, 3)
    assert not backbone.training


@pytest.mark.parametrize("kind", [DINOV2, REGISTERS])
def test_positions_of_larger_images_are_resized(kind, tmp_path):
    large = layouts.small_vit(**kind, image=518)
    path = layouts.write(tmp_path / "a.pth", layouts.official_dinov2(large.state_dict()))
    state = load_backbone(f"file:{path}").network.state_dict()
    extra = 0 if "registers" in kind else 1
    positions = large.pos_embed.detach()
    square = positions[:, extra:].reshape(1, 37, 37, 128).permute(0, 3, 1, 2)
    if extra:
        expected = interpolate(square, scale_factor=(16.1 / 37, 16.1 / 37), mode="bicubic")
    else:
        expected = interpolate(square, size=(16, 16), mode="bicubic", antialias=True)
    torch.testing.assert_close(state["pos_embed"][:, extra:], expected.permute(0, 2, 3, 1).reshape(1, 256, 128))
    torch.testing.assert_close(state["pos_embed"][:, :extra], positions[:, :extra])


def test_resizing_a_flat_position_embedding_leaves_it_flat():
    state = resize_positions({"pos_embed": torch.full((1, 1 + 37 * 37, 4), 0.3)}, 16)
    torch.testing.assert_close(state["pos_embed"], torch.full((1, 257, 4), 0.3))


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("layout", ["timm", "official", "hugging face"])
def test_dinov3_layouts(biased, layout, tmp_path):
    arch = "vit_small_patch16_dinov3" + "_qkvb" * biased
    network = timm.create_model(arch, num_classes=0, img_size=224, global_pool="token").eval()
    layouts.shake(network)
    path = layouts.write(tmp_path / "a.pth", dinov3_checkpoint(network.state_dict(), layout))
    for name, weights in ((f"file:{path}", None), ("dinov3-vits16", path)):
        backbone = load_backbone(name, weights=weights)
        torch.testing.assert_close(features(backbone), by_hand(network), rtol=1e-4, atol=1e-4)
        assert (backbone.dim, len(backbone.blocks)) == (384, 12)


def dinov3_checkpoint(state, layout):
    """Official: `storage_tokens`, `ls1.gamma`, one bias whose key part is masked (here: nonsense), rope periods."""
    if layout == "timm":
        return state
    out = {"mask_token": torch.zeros(1, 384), "rope_embed.periods": torch.ones(16)}
    for name, tensor in state.items():
        if name.endswith("q_bias"):
            value = state[name.replace("q_bias", "v_bias")]
            out[name.replace("q_bias", "qkv.bias")] = torch.cat([tensor, torch.full_like(tensor, 9.0), value])
        elif not name.endswith("v_bias"):
            out[name] = tensor
    official = layouts.renamed(out, [("^reg_token$", "storage_tokens"), (r"\.gamma_([12])$", r".ls\1.gamma")])
    if layout == "official":
        masks = {f"blocks.{i}.attn.qkv.bias_mask": torch.ones(1152) for i in range(12)}
        zeros = {f"blocks.{i}.attn.qkv.bias": torch.zeros(1152) for i in range(12)}
        return {**zeros, **masks, **official}
    split = layouts.split_qkv(official, "attention.q_proj", "attention.k_proj", "attention.v_proj")
    swaps = [
        ("^(cls_token|mask_token)$", r"embeddings.\1"),
        ("^storage_tokens$", "embeddings.register_tokens"),
        (r"^patch_embed\.proj\.", "embeddings.patch_embeddings."),
        (r"^blocks\.", "layer."),
        (r"\.attn\.proj\.", ".attention.o_proj."),
        (r"\.ls([12])\.gamma", r".layer_scale\1.lambda1"),
        (r"\.mlp\.fc1\.", ".mlp.up_proj."),
        (r"\.mlp\.fc2\.", ".mlp.down_proj."),
    ]
    return {n: t for n, t in layouts.renamed(split, swaps).items() if not n.endswith("k_proj.bias")}


def test_lite1_against_a_forward_pass_written_out(tmp_path):
    state = lite1_reference.random_state()
    path = layouts.write(tmp_path / "lite1.pth", state)
    for name, weights in (("efficientnet-lite1", path), (f"file:{path}", None)):
        check_lite1(load_backbone(name, weights=weights), state)


def test_lite1_of_the_package_against_a_forward_pass_written_out():
    try:
        file = find_weights("efficientnet-lite1", BACKBONES["efficientnet-lite1"].sources)
    except InputError as reason:
        pytest.skip(str(reason))
    check_lite1(load_backbone("efficientnet-lite1"), read_checkpoint(file.path))


def check_lite1(backbone, state):
    images = torch.randint(0, 256, (2, 3, 240, 240), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    images[:, :, 60:180, 30:200] //= 3
    expected = lite1_reference.forward(state, images)
    assert expected.std() > 0.01
    torch.testing.assert_close(features(backbone, images), expected, rtol=1e-3, atol=1e-4)
    assert (backbone.dim, backbone.crop) == (1280, 240)
    assert [len(stage) for stage in backbone.blocks] == [1, 3, 3, 4, 4, 5, 1]


@pytest.mark.parametrize("name", [name for name, spec in BACKBONES.items() if "vits" in name])
def test_small_named_backbones_are_what_the_table_says(name, tmp_path):
    spec = BACKBONES[name]
    network = timm.create_model(spec.arch, num_classes=0, img_size=spec.crop, global_pool="token").eval()
    path = layouts.write(tmp_path / "a.safetensors", network.state_dict())
    backbone = load_backbone(name, weights=path)
    assert (backbone.name, backbone.dim, backbone.crop, len(backbone.blocks)) == (name, spec.dim, 224, 12)
    assert backbone.network.patch_embed.patch_size == (spec.patch, spec.patch)
    torch.testing.assert_close(features(backbone), by_hand(network), rtol=1e-4, atol=1e-4)


def test_float_and_uint8_images_give_the_same(tmp_path):
    backbone = load_backbone(f"file:{layouts.write(tmp_path / 'a.pth', layouts.small_vit().state_dict())}")
    torch.testing.assert_close(features(backbone, IMAGES.float()), features(backbone))


def test_bfloat16_is_close_and_leaves_the_original_alone(tmp_path):
    backbone = load_backbone(f"file:{layouts.write(tmp_path / 'a.pth', layouts.small_vit().state_dict())}")
    before = backbone.fingerprint()
    with backbone.in_bfloat16():
        half = features(backbone)
    assert half.dtype == torch.bfloat16
    assert backbone.fingerprint() == before
    assert torch.nn.functional.cosine_similarity(half.float(), features(backbone)).min() > 0.99


def test_pixels_are_block_means_less_their_mean():
    feature = features(load_backbone("pixels"))
    scaled = IMAGES.float() / 127.5 - 1
    mean = scaled.mean((1, 2, 3))
    torch.testing.assert_close(feature[1, 0], scaled[1, 0, :14, :14].mean() - mean[1])
    torch.testing.assert_close(feature[0, -1], scaled[0, 2, -14:, -14:].mean() - mean[0])
    assert feature.shape == (2, 768)
    assert load_backbone("pixels").blocks == []


@pytest.mark.parametrize(("arch", "dim", "blocks"), [("resnet10t", 512, 6), ("vit_tiny_patch16_224", 192, 12)])
def test_timm_by_name_with_given_weights(arch, dim, blocks, tmp_path):
    network = timm.create_model(arch, num_classes=7).eval()
    layouts.shake(network)
    checkpoint = {"state_dict": layouts.prefixed(network.state_dict(), "module.")}
    backbone = load_backbone(f"timm:{arch}", weights=layouts.write(tmp_path / "a.pth", checkpoint))
    network.reset_classifier(0)
    images = IMAGES[..., : backbone.crop, : backbone.crop]
    mean, std = (torch.tensor(network.pretrained_cfg[key]).view(3, 1, 1) for key in ("mean", "std"))
    with torch.no_grad():
        expected = network((images / 255 - mean) / std)
    torch.testing.assert_close(features(backbone, images), expected, rtol=1e-4, atol=1e-4)
    assert (backbone.dim, len(backbone.blocks)) == (dim, blocks)


def test_timm_network_for_larger_images_takes_224(tmp_path):
    network = timm.create_model("vit_tiny_patch16_384", num_classes=0)
    path = layouts.write(tmp_path / "a.safetensors", network.state_dict())
    backbone = load_backbone("timm:vit_tiny_patch16_384", weights=path)
    assert backbone.crop == 224
    assert features(backbone).shape == (2, 192)


def test_fingerprint_follows_the_weights(tmp_path):
    path = layouts.write(tmp_path / "a.pth", layouts.small_vit().state_dict())
    one, other = load_backbone(f"file:{path}"), load_backbone(f"file:{path}")
    assert one.fingerprint() == other.fingerprint()
    with torch.no_grad():
        other.network.norm.bias[3] += 1e-6
    assert one.fingerprint() != other.fingerprint()


def test_teacher_comes_before_student_and_optimiser_is_left_out():
    tensors = flat_tensors(layouts.training_checkpoint(layouts.small_vit().state_dict()))
    state = vit_state(tensors)
    assert set(state) == set(layouts.small_vit().state_dict())
    assert state["cls_token"].any()
    assert network_state(tensors, "no_such_tensor") is None


def test_default_backbone():
    assert default_backbone("cpu") == "efficientnet-lite1"
    assert default_backbone(torch.device("cuda", 0)) == "dinov2-vits14"


def one_line(error):
    message = str(error.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("dinov2-vits41", "did you mean 'dinov2-vits14'?"),
        ("zzz", "there are: efficientnet-lite1"),
        ("timm:no_such_network", "timm has no network 'no_such_network'"),
        ("file:nowhere.pth", "no weight file at nowhere.pth"),
    ],
)
def test_names_that_lead_nowhere(name, says):
    with pytest.raises(InputError) as error:
        load_backbone(name)
    assert says in one_line(error)


def test_weights_of_another_shape_are_one_clear_line(tmp_path):
    path = layouts.write(tmp_path / "a.pth", layouts.small_vit(14, layer_scale=True).state_dict())
    with pytest.raises(InputError) as error:
        load_backbone("dinov2-vits14", weights=path)
    assert "a.pth does not fit dinov2-vits14: cls_token is 1×1×128, expected 1×1×384" in one_line(error)
    with pytest.raises(InputError) as error:
        load_backbone("timm:vit_tiny_patch16_224", weights=path)
    assert "a.pth does not fit timm:vit_tiny_patch16_224" in one_line(error)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda s: s.pop("norm.bias"), "norm.bias is missing"),
        (lambda s: s.update(fc_norm=torch.zeros(2)), "it has fc_norm, which the network does not have"),
        (lambda s: s.pop("cls_token"), "cannot tell the architecture"),
        (lambda s: s.pop("blocks.0.mlp.fc1.weight"), "unknown layout"),
        (lambda s: s.pop("pos_embed"), "a DINOv3 of 128 dims"),
        (lambda s: s.clear(), "holds no weights"),
    ],
)
def test_incomplete_files(change, says, tmp_path):
    state = dict(layouts.small_vit().state_dict())
    change(state)
    with pytest.raises(InputError) as error:
        load_backbone(f"file:{layouts.write(tmp_path / 'a.pth', state)}")
    assert says in one_line(error)


@pytest.mark.parametrize("name", ["file", "dinov2-vits14"])
@pytest.mark.parametrize(
    "change",
    [
        lambda tensor: torch.zeros(()),
        lambda tensor: torch.zeros(0),
        lambda tensor: torch.zeros(*(2 * side for side in tensor.shape)),
        lambda tensor: torch.zeros(tensor.shape, dtype=torch.int8),
    ],
    ids=["numbers", "nothing", "wide", "integers"],
)
def test_weights_of_absurd_shapes_are_one_clear_line(change, name, tmp_path):
    state = {key: change(tensor) for key, tensor in layouts.small_vit(image=32).state_dict().items()}
    path = layouts.write(tmp_path / "a.pth", state)
    with pytest.raises(InputError) as error:
        load_backbone(*((f"file:{path}",) if name == "file" else (name, "cpu", path)))
    assert "a.pth" in one_line(error)


@pytest.mark.parametrize("name", ["pixels", "file:a.pth"])
def test_weights_where_none_are_taken(name):
    with pytest.raises(InputError, match="takes no weights of its own"):
        load_backbone(name, weights="b.pth")
