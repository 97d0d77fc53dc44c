"""Where a backbone looks: networks that take images to maps (n, g · g) of how much each place counts in the feature."""

from __future__ import annotations

from typing import Any

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from selex.errors import InputError
from selex.models.backbones import Backbone
from selex.models.trunk import VitStem, only_class_token


class Attention(nn.Module):
    """How much the class token attends to each patch in the last block of a vision transformer, mean over heads."""

    def __init__(self, network: VisionTransformer) -> None:
        super().__init__()
        self.stem = VitStem(network, len(network.blocks) - 1)
        self.block: Any = network.blocks[-1]
        self.prefix = network.num_prefix_tokens

    def forward(self, images: Tensor) -> Tensor:
        """Maps of scaled images."""
        tokens = self.block.norm1(self.stem(images))
        attention = self.block.attn
        n, t = tokens.shape[:2]
        query, key, _ = attention.qkv(tokens).view(n, t, 3, attention.num_heads, -1).transpose(1, 3).unbind(2)
        query, key = attention.q_norm(query[:, :, :1]), attention.k_norm(key)
        shares: Tensor = (query @ key.transpose(-1, -2) * attention.scale).float().softmax(-1)
        return shares.mean(1)[:, 0, self.prefix :]


class Response(nn.Module):
    """How strongly a convolutional network's last maps respond at each place, beyond their mean; squared."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network: Any = network

    def forward(self, images: Tensor) -> Tensor:
        """Maps of scaled images."""
        strength: Tensor = self.network.forward_features(images).float().norm(dim=1).flatten(1)
        return (strength - strength.mean(1, keepdim=True)).clamp(min=0).square()


def saliency(backbone: Backbone) -> Backbone:
    """A backbone whose feature is the map of where the given one looks; they share their weights."""
    network = _look(backbone)
    with torch.no_grad():
        dim = network(backbone.mean.new_zeros(1, 3, backbone.crop, backbone.crop)).shape[1]
    mean, std = (tuple(tensor.flatten().tolist()) for tensor in (backbone.mean, backbone.std))
    name = f"saliency of {backbone.name}"
    eye = Backbone(name, network, dim=dim, crop=backbone.crop, mean=mean, std=std, weights=backbone.weights)
    return eye.to(backbone.mean.device).eval()


def _look(backbone: Backbone) -> nn.Module:
    network: Any = backbone.network
    if type(network) is VisionTransformer and backbone.weights is not None and only_class_token(network):
        return Attention(network)
    if backbone.layout is torch.channels_last and _has_maps(backbone):
        return Response(network)
    raise InputError(f"backbone {backbone.name} does not show where it looks; leave --attention-crop out")


@torch.no_grad()
def _has_maps(backbone: Backbone) -> bool:
    """Whether what the network pools are maps (n, d, g, g): some that convolve end with tokens, or several outputs."""
    network: Any = backbone.network
    if not hasattr(network, "forward_features"):
        return False
    maps = network.forward_features(backbone.mean.new_zeros(1, 3, backbone.crop, backbone.crop))
    return isinstance(maps, Tensor) and maps.ndim == 4 and maps.shape[2] == maps.shape[3]
