"""BatchNorm folded into the convolution before it: the same function of an image with half the passes over memory."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, TypeVar

from timm.models._efficientnet_blocks import DepthwiseSeparableConv, InvertedResidual
from timm.models.efficientnet import EfficientNet
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

# Which of a module's convolutions run straight into which of its norms.
PAIRS: dict[type[nn.Module], tuple[tuple[str, str], ...]] = {
    EfficientNet: (("conv_stem", "bn1"), ("conv_head", "bn2")),
    DepthwiseSeparableConv: (("conv_dw", "bn1"), ("conv_pw", "bn2")),
    InvertedResidual: (("conv_pw", "bn1"), ("conv_dw", "bn2"), ("conv_pwl", "bn3")),
}

M = TypeVar("M", bound=nn.Module)


def folded(network: M) -> M:
    """A copy of a network in evaluation mode with its norms folded; the network itself where there are none to fold."""
    if not any(type(module) in PAIRS for module in network.modules()):
        return network
    copy = deepcopy(network)
    for module in list(copy.modules()):
        for conv, norm in PAIRS.get(type(module), ()):
            _fold(module, conv, norm)
    return copy


def _fold(module: nn.Module, conv_name: str, norm_name: str) -> None:
    conv: Any = getattr(module, conv_name)
    norm: Any = getattr(module, norm_name)
    setattr(module, conv_name, fuse_conv_bn_eval(conv, norm))
    setattr(module, norm_name, norm.act)  # timm's norms are followed by their activation
