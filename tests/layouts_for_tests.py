"""Small vision transformers with random weights, and their weights in every layout we read."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import torch
from safetensors.torch import save_file
from timm.layers.mlp import SwiGLUPacked
from timm.models.vision_transformer import VisionTransformer
from torch import nn

State = dict[str, torch.Tensor]


def small_vit(patch=16, *, registers=0, layer_scale=False, gated=False, image=224, seed=0):
    torch.manual_seed(seed)
    network = VisionTransformer(
        img_size=image,
        patch_size=patch,
        embed_dim=128,
        depth=3,
        num_heads=2,
        init_values=1.0 if layer_scale else None,
        reg_tokens=registers,
        no_embed_class=registers > 0,
        num_classes=0,
        global_pool="token",
        **({"mlp_layer": SwiGLUPacked, "act_layer": nn.SiLU} if gated else {}),
    ).eval()
    shake(network)
    return network


def shake(network):
    """Every weight random, biases and scales too: nothing may be left at a value that hides a mix-up."""
    for parameter in network.parameters():
        parameter.data.add_(0.05 * torch.randn_like(parameter))


def official_dinov2(state: State) -> State:
    """Timm's names to the official ones: registers by another name, the class token's position kept apart."""
    state = {"mask_token": torch.zeros(1, 128), **state}
    if "reg_token" in state:
        state["register_tokens"] = state.pop("reg_token")
        position = torch.randn_like(state["cls_token"])
        state["cls_token"] = state["cls_token"] - position
        state["pos_embed"] = torch.cat([position, state["pos_embed"]], dim=1)
    swap = [(".mlp.fc1.", ".mlp.w12."), (".mlp.fc2.", ".mlp.w3.")] if is_gated(state) else []
    return renamed(state, swap)


def is_gated(state: State) -> bool:
    return len(state["blocks.0.mlp.fc1.weight"]) == 2 * state["blocks.0.mlp.fc2.weight"].shape[1]


def renamed(state: State, swaps) -> State:
    out = {}
    for name, tensor in state.items():
        for old, new in swaps:
            name = re.sub(old, new, name)
        out[name] = tensor
    return out


def in_chunks(state: State) -> State:
    """The official training checkpoint's blocks: two chunks, numbered through."""
    return renamed(state, [(r"^blocks\.([01])\.", r"blocks.0.\1."), (r"^blocks\.2\.", "blocks.1.2.")])


def hugging_face(state: State) -> State:
    state = split_qkv(state, "attention.attention.query", "attention.attention.key", "attention.attention.value")
    swaps = [
        (r"^(cls_token|mask_token|register_tokens)$", r"embeddings.\1"),
        ("^pos_embed$", "embeddings.position_embeddings"),
        (r"^patch_embed\.proj\.", "embeddings.patch_embeddings.projection."),
        (r"^norm\.", "layernorm."),
        (r"^blocks\.", "encoder.layer."),
        (r"\.attn\.proj\.", ".attention.output.dense."),
    ]
    if any(name.endswith("ls1.gamma") for name in state):  # DINOv2's names
        swaps += [(r"\.ls([12])\.gamma", r".layer_scale\1.lambda1")]
        swaps += [(r"\.mlp\.w12\.", ".mlp.weights_in."), (r"\.mlp\.w3\.", ".mlp.weights_out.")]
    else:  # DINO's
        swaps += [(r"\.norm1\.", ".layernorm_before."), (r"\.norm2\.", ".layernorm_after.")]
        swaps += [(r"\.mlp\.fc1\.", ".intermediate.dense."), (r"\.mlp\.fc2\.", ".output.dense.")]
    return renamed(state, swaps)


def split_qkv(state: State, query: str, key: str, value: str) -> State:
    out = {}
    for name, tensor in state.items():
        if match := re.fullmatch(r"(blocks\.\d+\.)attn\.qkv\.(weight|bias)", name):
            for part, third in zip((query, key, value), tensor.chunk(3), strict=True):
                out[f"{match[1]}{part}.{match[2]}"] = third.contiguous()
        else:
            out[name] = tensor
    return out


def training_checkpoint(state: State) -> dict[str, object]:
    """Teacher, student, optimiser and command line in one file, as official training writes it."""
    wrong = {f"module.backbone.{name}": torch.zeros_like(tensor) for name, tensor in state.items()}
    head = {"head.mlp.0.weight": torch.zeros(8, 128), "head.last_layer.weight_g": torch.ones(4, 1)}
    return {
        "student": wrong,
        "teacher": {**{f"backbone.{name}": tensor for name, tensor in state.items()}, **head},
        "optimizer": {"state": {0: {"momentum_buffer": torch.zeros(3)}}, "param_groups": [{"lr": 0.1}]},
        "epoch": 3,
        "args": argparse.Namespace(arch="vit_small", lr=0.1),
    }


def prefixed(state: State, prefix: str) -> State:
    return {prefix + name: tensor for name, tensor in state.items()}


def write(path: Path, checkpoint) -> Path:
    if path.suffix == ".safetensors":
        save_file({name: tensor.contiguous() for name, tensor in checkpoint.items()}, path)
    else:
        torch.save(checkpoint, path)
    return path
