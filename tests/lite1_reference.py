"""EfficientNet-Lite1 written out as plain functions of the package's own parameters, and random ones in its layout."""

from __future__ import annotations

import torch
from torch.nn.functional import adaptive_avg_pool2d, conv2d, pad

# (kernel, stride, expansion, channels out, blocks): the paper's table for Lite1, B0's with depths × 1.1, the ends kept
STAGES = [
    (3, 1, 1, 16, 1),
    (3, 2, 6, 24, 3),
    (5, 2, 6, 40, 3),
    (3, 2, 6, 80, 4),
    (5, 1, 6, 112, 4),
    (5, 2, 6, 192, 5),
    (3, 1, 6, 320, 1),
]


def block_settings():
    """(kernel, stride, expansion, channels in, channels out) of each block in turn."""
    channels = 32
    for kernel, stride, expansion, out, blocks in STAGES:
        for i in range(blocks):
            yield kernel, stride if i == 0 else 1, expansion, channels, out
            channels = out


def forward(state, images):
    """Pooled feature (n, 1280) of images (n, 3, 240, 240) in 0…255."""
    x = (images.float() - 127) / 128
    x = relu6(norm(state, "_bn0", same_conv(x, state["_conv_stem.weight"], 2)))
    for i, (_, stride, expansion, _, _) in enumerate(block_settings()):
        x = block(state, f"_blocks.{i}", x, stride, expansion)
    x = relu6(norm(state, "_bn1", conv2d(x, state["_conv_head.weight"])))
    return adaptive_avg_pool2d(x, 1).flatten(1)


def block(state, name, x, stride, expansion):
    y = x
    if expansion > 1:
        y = relu6(norm(state, f"{name}._bn0", conv2d(y, state[f"{name}._expand_conv.weight"])))
    y = same_conv(y, state[f"{name}._depthwise_conv.weight"], stride, groups=y.shape[1])
    y = relu6(norm(state, f"{name}._bn1", y))
    y = norm(state, f"{name}._bn2", conv2d(y, state[f"{name}._project_conv.weight"]))
    return y + x if y.shape == x.shape and stride == 1 else y


def same_conv(x, weight, stride, groups=1):
    """TensorFlow's padding: as many outputs as inputs / stride, the odd zero row at the end."""
    kernel, size = weight.shape[-1], x.shape[-1]
    missing = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    before, after = missing // 2, missing - missing // 2
    return conv2d(pad(x, (before, after, before, after)), weight, stride=stride, groups=groups)


def norm(state, name, x):
    mean, variance, weight, bias = (
        state[f"{name}.{part}"].view(1, -1, 1, 1) for part in ("running_mean", "running_var", "weight", "bias")
    )
    return (x - mean) / torch.sqrt(variance + 1e-3) * weight + bias


def relu6(x):
    return x.clamp(0, 6)


def random_state(seed=0):
    """Random parameters under the package's names."""
    g = torch.Generator().manual_seed(seed)
    state = {"_conv_stem.weight": _kernel(g, 32, 3, 3), **_norm("_bn0", 32, g)}
    for i, (kernel, _, expansion, before, after) in enumerate(block_settings()):
        name, inner = f"_blocks.{i}", before * expansion
        if expansion > 1:
            state |= {f"{name}._expand_conv.weight": _kernel(g, inner, before, 1), **_norm(f"{name}._bn0", inner, g)}
        state |= {f"{name}._depthwise_conv.weight": _kernel(g, inner, 1, kernel), **_norm(f"{name}._bn1", inner, g)}
        state |= {f"{name}._project_conv.weight": _kernel(g, after, inner, 1), **_norm(f"{name}._bn2", after, g)}
    state |= {"_conv_head.weight": _kernel(g, 1280, 320, 1), **_norm("_bn1", 1280, g)}
    return state | {"_fc.weight": torch.zeros(1000, 1280), "_fc.bias": torch.zeros(1000)}


def _kernel(g, out, into, size):
    return torch.randn(out, into, size, size, generator=g) * (2 / (into * size * size)) ** 0.5


def _norm(name, channels, g):
    return {
        f"{name}.weight": 0.8 + 0.4 * torch.rand(channels, generator=g),
        f"{name}.bias": 0.2 * torch.randn(channels, generator=g),
        f"{name}.running_mean": 0.2 * torch.randn(channels, generator=g),
        f"{name}.running_var": 0.5 + torch.rand(channels, generator=g),
        f"{name}.num_batches_tracked": torch.tensor(0),
    }
