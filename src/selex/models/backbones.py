"""Backbones by name: a network of timm's filled with weights, whoever published them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from selex.config import Config
from selex.errors import InputError, unknown
from selex.io import first_line, reported
from selex.models.convert import State, flat_tensors, lite1_state, network_state, resize_positions, vit_state
from selex.models.network import Backbone, Pixels, check_patches, tiny_vit
from selex.models.registry import BACKBONES, IMAGENET_MEAN, IMAGENET_STD, HubFile, Source, Spec, UrlFile
from selex.models.weights import WeightFile, find_weights, given_file, read_checkpoint

CROP = 224
STORED = 256
"""Shorter side of a stored image: no crop can be larger."""
HEAD_WIDTH = 64
"""Dims of one attention head in every DINO: the number of heads cannot be read off the weights."""


def default_backbone(device: str | torch.device = "cpu") -> str:
    """The backbone for who names none: one a laptop can run, or a real DINOv2 on a GPU."""
    return "efficientnet-lite1" if torch.device(device).type == "cpu" else "dinov2-vits14"


def load_backbone(
    name: str, device: str | torch.device = "cpu", weights: str | Path | None = None, crop: int | None = None
) -> Backbone:
    """A pretrained backbone by name, `timm:NAME` or `file:PATH`, in evaluation mode on `device`.

    `weights` is a file to use in place of the one that is looked for, `crop` the input size in pixels, instead of
    the one it was made for.
    """
    kind, colon, rest = name.partition(":")
    if weights is not None and kind in ("pixels", "tiny-vit", "file"):
        raise InputError(f"backbone {name} takes no weights of its own")
    if colon and kind in _LOADERS:
        backbone = _LOADERS[kind](name, rest, weights)
    elif name in BACKBONES:
        backbone = _named(_looking_at(BACKBONES[name], crop), weights)
    else:
        raise unknown("backbone", name, [*BACKBONES, "timm:NAME", "file:PATH"])
    if crop not in (None, backbone.crop):
        raise InputError(f"backbone {name} always uses images of {backbone.crop} pixels; leave features.crop out")
    return backbone.to(device).eval()


def load_backbone_for(config: Config, device: str | torch.device) -> tuple[Backbone, Config]:
    """The backbone of a config, and the config with what follows from it: pixels it looks at, size of stored images."""
    asked = config.features
    name = asked.backbone or default_backbone(device)
    backbone = load_backbone(name, device, asked.weights, asked.crop)
    size = config.data.size or _stored_size(backbone)
    if size < backbone.crop:
        raise InputError(f"size {size} is less than the {backbone.crop} pixels that {backbone.name} needs")
    return backbone, config.change(backbone=name, crop=backbone.crop, size=size)


def _stored_size(backbone: Backbone) -> int:
    """Shorter side at which images are stored: 256 for a crop of 224 as in the paper, and in proportion."""
    if not any(True for _ in backbone.parameters()):
        return backbone.crop  # pixels are compared as they are
    return 256 if 224 <= backbone.crop <= 256 else round(backbone.crop * 8 / 7)


def _looking_at(spec: Spec, crop: int | None) -> Spec:
    """The same backbone for another crop: a transformer needs whole patches, a convolutional network takes any."""
    if crop is None or not spec.arch:
        return spec
    check_patches("features.crop", crop, spec.name, spec.patch or 1)
    return replace(spec, crop=crop)


def _named(spec: Spec, weights: str | Path | None) -> Backbone:
    if not spec.arch:
        return _backbone(spec, Pixels())
    if spec.arch == "tiny":
        return _backbone(spec, tiny_vit(spec.crop))
    file = given_file(weights) if weights is not None else find_weights(spec.name, spec.sources)
    return _fill(spec, _read(file), file)


def _backbone(spec: Spec, network: nn.Module, weights: WeightFile | None = None) -> Backbone:
    return Backbone(spec.name, network, dim=spec.dim, crop=spec.crop, mean=spec.mean, std=spec.std, weights=weights)


def _read(file: WeightFile) -> State:
    """A file's weights under timm's names."""
    tensors = _tensors(file)
    with _known_layout(file, "its weights"):
        return lite1_state(tensors) or vit_state(tensors) or tensors


def _known_layout(file: WeightFile, what: str) -> AbstractContextManager[None]:
    """Whatever arithmetic with shapes that nobody expected comes to, it is the file's fault."""
    kinds = (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError)
    return reported(f"{file.path}: {what} have an unknown layout", *kinds)


def _tensors(file: WeightFile) -> State:
    """All tensors of a file; without any, timm would look elsewhere."""
    tensors = flat_tensors(read_checkpoint(file.path))
    if not tensors:
        raise InputError(f"{file.path} holds no weights")
    return tensors


def _fill(spec: Spec, state: State, file: WeightFile) -> Backbone:
    """The network of `spec` with the weights `state`."""
    import timm

    if spec.feature == "cls":
        # timm has DINOv3 with and without biases for query and value under two names.
        arch = spec.arch + "_qkvb" * ("blocks.0.attn.q_bias" in state)
        network = timm.create_model(arch, num_classes=0, img_size=spec.crop, global_pool="token")
    else:
        network = timm.create_model(spec.arch, num_classes=0)
    _load(network, state, spec.crop, spec.name, file)
    return _backbone(spec, network, file)


def _load(network: nn.Module, state: State, crop: int, name: str, file: WeightFile) -> None:
    if "patch_embed.proj.weight" in state:
        with _known_layout(file, "its patch and position embeddings"):
            state = resize_positions(state, crop // state["patch_embed.proj.weight"].shape[-1])
    if misfit := _misfit(network.state_dict(), state):
        raise InputError(f"{file.path} does not fit {name}: {misfit}")
    network.load_state_dict(state)


def _misfit(wanted: State, given: State) -> str:
    """The first thing that keeps weights from fitting a network, in words; empty if they fit."""
    for name, tensor in wanted.items():
        if name not in given:
            return f"{name} is missing"
        if given[name].shape != tensor.shape:
            return f"{name} is {_shape(given[name])}, expected {_shape(tensor)}"
        if given[name].is_floating_point() != tensor.is_floating_point():
            return f"{name} is of {given[name].dtype}, expected {tensor.dtype}"
    extra = [name for name in given if name not in wanted]
    return f"it has {extra[0]}, which the network does not have" if extra else ""


def _shape(tensor: torch.Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "a number"


def _from_file(name: str, path: str, _: str | Path | None) -> Backbone:
    """A backbone whose architecture is read off its weights: any ViT of the DINO family, EfficientNet-Lite1."""
    file = given_file(path)
    state = _read(file)
    if "conv_stem.weight" in state:
        return _fill(replace(BACKBONES["efficientnet-lite1"], name=name), state, file)
    if "cls_token" not in state or "patch_embed.proj.weight" not in state:
        raise InputError(
            f"{path}: cannot tell the architecture from the weights; use timm:NAME and give them as weights"
        )
    if state["cls_token"].ndim != 3 or state["patch_embed.proj.weight"].ndim != 4:
        raise InputError(f"{path}: its class token or patch embedding has an unknown shape")
    dim, patch = state["cls_token"].shape[-1], state["patch_embed.proj.weight"].shape[-1]
    if "pos_embed" not in state:
        return _fill(replace(_dinov3_of(dim, path), name=name), state, file)
    if "blocks.0.mlp.fc1.weight" not in state or "blocks.0.mlp.fc2.weight" not in state:
        raise InputError(f"{path}: its transformer blocks have an unknown layout")
    with _known_layout(file, "its transformer blocks"):
        network = _vit_like(state, dim, patch)
    _load(network, state, CROP, name, file)
    return Backbone(name, network, dim=dim, crop=CROP, mean=IMAGENET_MEAN, std=IMAGENET_STD, weights=file)


def _dinov3_of(dim: int, path: str) -> Spec:
    if spec := next((one for one in BACKBONES.values() if "dinov3" in one.arch and one.dim == dim), None):
        return spec
    raise InputError(
        f"{path}: a DINOv3 of {dim} dims is not among the known ones; use timm:NAME and give it as weights"
    )


def _vit_like(state: State, dim: int, patch: int) -> nn.Module:
    """A vision transformer of the shape its weights have."""
    from timm.layers.mlp import SwiGLUPacked
    from timm.models.vision_transformer import VisionTransformer

    blocks = {int(key.split(".")[1]) for key in state if key.startswith("blocks.")}
    if len(blocks) != max(blocks) + 1:
        raise ValueError("some are missing")
    hidden, inner = len(state["blocks.0.mlp.fc1.weight"]), state["blocks.0.mlp.fc2.weight"].shape[1]
    gated: dict[str, Any] = {"mlp_layer": SwiGLUPacked, "act_layer": nn.SiLU} if hidden == 2 * inner else {}
    registers = state["reg_token"].shape[1] if "reg_token" in state else 0
    return VisionTransformer(
        img_size=CROP,
        patch_size=patch,
        embed_dim=dim,
        depth=max(blocks) + 1,
        num_heads=max(1, dim // HEAD_WIDTH),
        mlp_ratio=(hidden + 0.5) / dim,  # timm rounds the product down
        qkv_bias="blocks.0.attn.qkv.bias" in state,
        init_values=1.0 if "blocks.0.ls1.gamma" in state else None,
        reg_tokens=registers,
        no_embed_class=registers > 0,
        num_classes=0,
        global_pool="token",
        **gated,
    )


def _from_timm(name: str, arch: str, weights: str | Path | None) -> Backbone:
    """Any of timm's networks, with the feature timm itself pools."""
    import timm

    if ":" in arch or "/" in arch:  # timm would look there for a network
        raise InputError(f"timm:{arch}: give the name of one of timm's networks, not a path")
    try:
        bare: Any = timm.create_model(arch, num_classes=0)
    except (RuntimeError, ValueError) as error:
        raise InputError(f"timm has no network {arch!r}: {first_line(error)}") from error
    about: dict[str, Any] = bare.pretrained_cfg
    file = given_file(weights) if weights is not None else find_weights(name, _timm_sources(about))
    tensors = _tensors(file)
    state = network_state(tensors, next(iter(bare.state_dict()))) or tensors
    crop, size = _timm_crop(about)
    network = _timm_network(name, arch, state, about, size, file)
    mean, std = (tuple(255.0 * value for value in about[key]) for key in ("mean", "std"))
    dim = int(getattr(network, "head_hidden_size", network.num_features))
    return Backbone(name, network, dim=dim, crop=crop, mean=mean, std=std, weights=file)


def _timm_sources(about: dict[str, Any]) -> list[Source]:
    sources: list[Source] = []
    if hub := about.get("hf_hub_id"):
        sources.append(HubFile(hub))
    if (url := about.get("url") or "").endswith((".pth", ".pt", ".safetensors")):
        sources.append(UrlFile(url))
    return sources


def _timm_crop(about: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """The crop a network takes, and what it must be told for that: its native size, or 224 if that is too large."""
    native = int(about["input_size"][-1])
    if native <= STORED:
        return native, {}
    return CROP, {"img_size": CROP} if about.get("fixed_input_size") else {}


def _timm_network(
    name: str, arch: str, state: State, about: dict[str, Any], size: dict[str, Any], file: WeightFile
) -> Any:
    """A network that timm fills itself; the classifier gets the size it has in the file, so that all must fit."""
    import timm

    classifier = about.get("classifier")
    first = classifier[0] if isinstance(classifier, tuple) else classifier
    classes = len(state.get(f"{first}.weight", ()))
    overlay = {"state_dict": dict(state), "num_classes": classes, "label_offset": 0}
    try:
        network: Any = timm.create_model(
            arch, pretrained=True, pretrained_cfg_overlay=overlay, num_classes=classes, **size
        )
    except (RuntimeError, KeyError, IndexError, TypeError, ValueError, AttributeError, AssertionError) as error:
        raise InputError(f"{file.path} does not fit {name}: {' '.join(str(error).split())[:200]}") from error
    network.reset_classifier(0)
    return network


_LOADERS: dict[str, Callable[[str, str, str | Path | None], Backbone]] = {"file": _from_file, "timm": _from_timm}
