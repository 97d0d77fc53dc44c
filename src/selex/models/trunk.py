"""A backbone in two halves: the frozen trunk, which never changes, and the trained tail behind it.

n images, t tokens, d dims. What goes from trunk to tail are *states*: tokens of a vision transformer, maps of a network
with stages, scaled pixels where everything is trained or the network cannot be taken apart.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention
from torch.nn.utils.fusion import fuse_conv_bn_eval

from selex.errors import InputError
from selex.models.convert import resize_positions
from selex.models.network import Backbone, check_patches

if TYPE_CHECKING:  # timm takes seconds to import: only those who need one of its networks wait for it
    from timm.models.vision_transformer import Block, VisionTransformer


class Trunk(nn.Module):
    """Images (n, 3, crop, crop) with values in 0…255 to states, without gradient.

    On a GPU it is a copy of the frozen weights in bfloat16: they are never trained, so rounding them loses nothing.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, backbone: Backbone, stem: nn.Module) -> None:
        super().__init__()
        on_gpu = backbone.mean.is_cuda
        self.precision = torch.bfloat16 if on_gpu else torch.float32
        self.layout = backbone.layout
        self.register_buffer("mean", backbone.mean, persistent=False)
        self.register_buffer("std", backbone.std, persistent=False)
        self.stem = copy.deepcopy(stem).to(self.precision) if on_gpu else stem
        self.requires_grad_(False)

    def resized(self, size: int) -> Trunk:
        """The same trunk, with the same weights, for images of another size."""
        if not isinstance(self.stem, VitStem) or self.stem.network.dynamic_img_size:
            return self  # any size will do
        other = copy.copy(self)
        other._modules = {**self._modules, "stem": self.stem.resized(size)}
        return other

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """States of images."""
        scaled = ((images.to(torch.float32) - self.mean) / self.std).to(self.precision)
        return self.stem(scaled.contiguous(memory_format=self.layout))


def check_view_size(backbone: Backbone, size: int | None, trained_blocks: int | None) -> None:
    """Refuse views of a size that the backbone cannot be trained with."""
    if size in (None, backbone.crop):
        return
    if trained_blocks is None or backbone.weights is None or not _can_halve(backbone.network):
        raise InputError(f"train.view_size: {backbone.name} is trained with images of {backbone.crop} pixels only")
    network: Any = backbone.network
    patch = network.patch_embed.patch_size[0] if hasattr(network, "patch_embed") else 1
    check_patches("train.view_size", size, backbone.name, patch)


def split_backbone(backbone: Backbone, trained_blocks: int | None) -> tuple[Trunk, nn.Module]:
    """Trunk and tail of a backbone of which the last `trained_blocks` blocks are trained, or all of it if None.

    The tail takes states to features (n, d). It shares its weights with the backbone: training it trains the backbone.
    Only parameters of those blocks keep their gradient; embeddings, the last norm and what lies behind are frozen.
    """
    backbone.requires_grad_(False)
    if trained_blocks is None:
        backbone.network.requires_grad_(True)
    else:
        blocks = backbone.blocks
        if not 0 <= trained_blocks <= len(blocks):
            raise InputError(f"trained_blocks must be from 0 to the {len(blocks)} of {backbone.name}")
        for block in blocks[len(blocks) - trained_blocks :]:
            block.requires_grad_(True)
    backbone.eval()  # batch norm keeps its statistics: those of a batch of 128 are worse, and depend on the batch
    if trained_blocks != 0 and not any(parameter.requires_grad for parameter in backbone.parameters()):
        raise InputError(f"backbone {backbone.name} has nothing to train; choose another, or --method frozen")
    first = None if trained_blocks is None else len(backbone.blocks) - max(trained_blocks, 1)
    stem, tail = _halves(backbone.network, first)
    return Trunk(backbone, stem), tail


def trained_weights(backbone: Backbone) -> dict[str, Tensor]:
    """The tensors of a backbone that training changes, by name."""
    return {name: tensor.detach() for name, tensor in backbone.network.named_parameters() if tensor.requires_grad}


def load_trained(backbone: Backbone, trained: dict[str, Tensor]) -> None:
    """Put weights that `trained_weights` gave into a backbone."""
    parameters = dict(backbone.network.named_parameters())
    with torch.no_grad():
        for name, tensor in trained.items():
            parameters[name].copy_(tensor)


def _halves(network: Any, first: int | None) -> tuple[nn.Module, nn.Module]:
    """What comes before block `first`, and the rest of a network."""
    if first is None or not _can_halve(network):
        return nn.Identity(), _WholeNetwork(network)
    if hasattr(network, "patch_embed"):
        return VitStem(network, first), _VitRest(network, first)
    stem = nn.Sequential(network.conv_stem, network.bn1, *network.blocks[:first])
    return stem, nn.Sequential(*network.blocks[first:], network.conv_head, network.bn2, network.global_pool)


def _can_halve(network: Any) -> bool:
    from timm.models.efficientnet import EfficientNet
    from timm.models.vision_transformer import VisionTransformer

    return type(network) in (VisionTransformer, EfficientNet)  # what is derived from them may pool in another way


class _WholeNetwork(nn.Module):
    """A network that is trained as a whole, or that we cannot take apart: its states are scaled images."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, states: Tensor) -> Tensor:
        return self.network(states.float())


class VitStem(nn.Module):
    """Patches, positions and the first blocks of a vision transformer."""

    def __init__(self, network: VisionTransformer, first: int) -> None:
        super().__init__()
        self.network = copy.copy(network)  # shares the weights; only the list of blocks is another
        self.network._modules = {**network._modules, "blocks": network.blocks[:first]}

    def resized(self, size: int) -> VitStem:
        """The same stem for images of another size: positions are resized, all else is shared."""
        network = copy.copy(self.network)
        state = {name: tensor.detach() for name, tensor in network._parameters.items() if tensor is not None}
        state = resize_positions(state, size // network.patch_embed.patch_size[0])
        if "pos_embed" in state:
            positions = nn.Parameter(state["pos_embed"], requires_grad=False)
            network._parameters = {**network._parameters, "pos_embed": positions}
        other = copy.copy(self)
        other._modules = {"network": network}
        return other

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (n, t, d) of scaled images."""
        network = self.network
        patches = patches_of(network.patch_embed, x)
        x = network.norm_pre(network.patch_drop(network._pos_embed(patches)))
        return network.blocks(x)


def patches_of(embed: Any, x: Tensor) -> Tensor:
    """Embedded patches of images, as a matrix product: ten times as fast on a GPU as a convolution of such strides."""
    from timm.layers.patch_embed import PatchEmbed

    if type(embed) is not PatchEmbed or not embed.flatten or embed.dynamic_img_pad:
        return embed(x)
    height, width = embed.patch_size
    n, channels, rows, columns = x.shape[0], x.shape[1], x.shape[2] // height, x.shape[3] // width
    x = x.reshape(n, channels, rows, height, columns, width).permute(0, 2, 4, 1, 3, 5)
    x = x.reshape(n, rows * columns, channels * height * width)
    return embed.norm(linear(x, embed.proj.weight.flatten(1), embed.proj.bias))


class _VitRest(nn.Module):
    """The last blocks of a vision transformer, the last norm and the pooling."""

    def __init__(self, network: VisionTransformer, first: int) -> None:
        super().__init__()
        blocks: Any = network.blocks[first:]
        only_class = only_class_token(network)
        self.blocks = nn.Sequential(*blocks[:-1], ClassToken(blocks[-1]) if only_class else blocks[-1])
        self.norm, self.fc_norm = network.norm, network.fc_norm
        self.pool = nn.Identity() if only_class else network.pool

    def forward(self, x: Tensor) -> Tensor:
        return self.fc_norm(self.pool(self.norm(self.blocks(x))))


class ClassToken(nn.Module):
    """A transformer block of which the class token alone is wanted."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        """The class token (n, d) that the block makes of all tokens (n, t, d)."""
        return class_token(self.block, x)


def only_class_token(network: VisionTransformer) -> bool:
    """Whether the feature is the class token of blocks that we know: then the last one need not make the others."""
    from timm.layers.attention import Attention
    from timm.models.vision_transformer import Block

    last: Any = network.blocks[-1]
    plain = type(last) is Block and type(last.attn) is Attention and getattr(last.attn, "gate", None) is None
    return plain and network.global_pool == "token" and network.attn_pool is None


def class_token(block: Block, x: Tensor) -> Tensor:
    """What a transformer block makes of the first token (n, d): a sixth of the work of making all."""
    attention: Any = block.attn
    n, t = x.shape[:2]
    seen, heads = block.norm1(x), attention.num_heads
    width = attention.qkv.weight.shape[0] // 3
    query_bias, bias = (None, None) if attention.qkv.bias is None else attention.qkv.bias.split([width, 2 * width])
    query_weight, weight = attention.qkv.weight.split([width, 2 * width])
    query = linear(seen[:, :1], query_weight, query_bias).view(n, 1, heads, -1).transpose(1, 2)
    key, value = linear(seen, weight, bias).view(n, t, 2, heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
    mixed = scaled_dot_product_attention(attention.q_norm(query), attention.k_norm(key), value)
    mixed = attention.proj(attention.norm(mixed.transpose(1, 2).reshape(n, width)))
    first = x[:, 0] + block.ls1(mixed)
    return first + block.ls2(block.mlp(block.norm2(first)))


def _pairs() -> dict[type[nn.Module], tuple[tuple[str, str], ...]]:
    """Which of a module's convolutions run straight into which of its norms."""
    from timm.models._efficientnet_blocks import DepthwiseSeparableConv, InvertedResidual
    from timm.models.efficientnet import EfficientNet

    return {
        EfficientNet: (("conv_stem", "bn1"), ("conv_head", "bn2")),
        DepthwiseSeparableConv: (("conv_dw", "bn1"), ("conv_pw", "bn2")),
        InvertedResidual: (("conv_pw", "bn1"), ("conv_dw", "bn2"), ("conv_pwl", "bn3")),
    }


M = TypeVar("M", bound=nn.Module)


def fold_norms(network: M) -> M:
    """A copy of a network in evaluation mode with its norms folded; the network itself where there are none to fold."""
    pairs = _pairs() if any(isinstance(module, nn.BatchNorm2d) for module in network.modules()) else {}
    if not any(type(module) in pairs for module in network.modules()):
        return network
    twin = copy.deepcopy(network)
    for module in list(twin.modules()):
        for conv, norm in pairs.get(type(module), ()):
            before: Any = getattr(module, norm)
            setattr(module, conv, fuse_conv_bn_eval(getattr(module, conv), before))
            setattr(module, norm, before.act)  # timm's norms are followed by their activation
    return twin
