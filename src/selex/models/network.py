"""`Backbone`: pixels 0…255 in, one feature per image out; and the two small networks that need no weights.

n images, d dims of the feature.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, gelu

from selex.errors import InputError
from selex.models.weights import WeightFile

if TYPE_CHECKING:  # timm takes seconds to import: only those who need one of its networks wait for it
    from timm.models.vision_transformer import VisionTransformer

Triple = tuple[float, float, float]


class Backbone(nn.Module):
    """A network that takes images (n, 3, crop, crop), uint8 or float in 0…255, to features (n, dim), not normalised.

    `blocks` are its transformer blocks or stages, first to last: what training freezes and trains.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        name: str,
        network: nn.Module,
        *,
        dim: int,
        crop: int,
        mean: Triple,
        std: Triple,
        weights: WeightFile | None = None,
    ) -> None:
        super().__init__()
        self.name, self.dim, self.crop, self.weights = name, dim, crop, weights
        self.precision = torch.float32  # of what the network is given; its weights must be of the same
        # Convolutions are several times faster in this layout on CPU.
        self.layout = torch.channels_last if _is_convnet(network) else torch.contiguous_format
        self.network = network.to(memory_format=self.layout)  # type: ignore[call-overload]
        self.register_buffer("mean", torch.tensor(mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, 3, 1, 1), persistent=False)

    @property
    def blocks(self) -> list[nn.Module]:
        """Transformer blocks, or stages of a convolutional network, first to last."""
        for name in ("blocks", "stages", "layers"):
            parts = getattr(self.network, name, None)
            if isinstance(parts, nn.Sequential | nn.ModuleList):
                return list(parts)
        return [part for part in self.network.children() if any(True for _ in part.parameters())]

    def forward(self, images: Tensor) -> Tensor:
        """Features (n, dim) of images (n, 3, crop, crop) with values in 0…255."""
        scaled = ((images.to(self.mean.dtype) - self.mean) / self.std).to(self.precision)
        return self.network(scaled.contiguous(memory_format=self.layout))

    @contextmanager
    def in_bfloat16(self) -> Iterator[None]:
        """While this lasts the network works in bfloat16 throughout, which saves autocast's conversions."""
        tensors = [t for t in (*self.network.parameters(), *self.network.buffers()) if t.is_floating_point()]
        exact = [tensor.data for tensor in tensors]
        try:
            self.precision = torch.bfloat16
            for tensor in tensors:
                tensor.data = tensor.data.bfloat16()
            yield
        finally:
            self.precision = torch.float32
            for tensor, data in zip(tensors, exact, strict=True):
                tensor.data = data

    def fingerprint(self) -> str:
        """Digest of the name, the input and every weight as it is now: features of equal backbones are equal."""
        digest = hashlib.sha256(f"{self.name} {self.crop} {self.mean.tolist()} {self.std.tolist()}".encode())
        for name, tensor in self.network.state_dict().items():
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
        return digest.hexdigest()


class Pixels(nn.Module):
    """The image itself: averaged down to 16 × 16, flattened, less its own mean. For tiny images; nothing is learned."""

    def forward(self, images: Tensor) -> Tensor:
        """Flat images (n, 3 · 16 · 16); without their mean, so that a light or dark ground does not drown the rest."""
        flat = adaptive_avg_pool2d(images, 16).flatten(1)
        return flat - flat.mean(1, keepdim=True)


DIM, DEPTH, HEADS, PATCH = 96, 2, 3, 4
GLIMPSE = 14
"""Side of the coarse image that the class token starts from."""


class TinyStem(nn.Module):
    """Images to tokens (n, 1 + patches, dim), the class token first.

    Patches of 4 × 4 pixels are made by two strided convolutions: with them a transformer learns under plain SGD. The
    class token is a glimpse of the whole image, a random projection of its coarse pixels. A network that knows nothing
    would first have to learn what plain pixels show, which images look alike; this one starts from there.
    """

    def __init__(self, dim: int, patches: int) -> None:
        super().__init__()
        self.num_patches = patches
        sizes = ((3, 32, 3, 2, 1), (32, 64, 3, 2, 1), (64, dim, 1, 1, 0))
        self.layers = nn.ModuleList(nn.Conv2d(i, o, size, step, pad) for i, o, size, step, pad in sizes)
        for layer in self.layers:
            nn.init.kaiming_normal_(layer.weight)  # type: ignore[arg-type]
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
        self.glimpse = nn.Linear(GLIMPSE**2, dim, bias=False)
        nn.init.normal_(self.glimpse.weight, std=3 / GLIMPSE)

    def forward(self, images: Tensor) -> Tensor:
        """Tokens of images, less each image's own mean: a light or dark ground says nothing."""
        x = images - images.mean((1, 2, 3), keepdim=True)
        first: Tensor = self.glimpse(adaptive_avg_pool2d(x.mean(1), GLIMPSE).flatten(1))
        for layer in self.layers[:-1]:
            x = gelu(layer(x))
        return torch.cat([first[:, None], self.layers[-1](x).flatten(2).transpose(1, 2)], 1)


def tiny_vit(crop: int) -> VisionTransformer:
    """The network, always with the same first weights."""
    from timm.models.vision_transformer import VisionTransformer

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = VisionTransformer(
            img_size=crop,
            patch_size=PATCH,
            embed_dim=DIM,
            depth=DEPTH,
            num_heads=HEADS,
            mlp_ratio=2,
            init_values=0.1,  # blocks start as small corrections
            num_classes=0,
            global_pool="token",
        )
        for module in network.blocks.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
        network.patch_embed, network.cls_token = TinyStem(DIM, (crop // PATCH) ** 2), None
    return network


def _is_convnet(network: nn.Module) -> bool:
    """Whether it convolves more than its patches."""
    return sum(isinstance(module, nn.Conv2d) for module in network.modules()) > 2


def check_patches(setting: str, size: int, name: str, patch: int) -> None:
    """Refuse a size that is not a whole number of a backbone's patches."""
    if size % patch:
        near = max(1, round(size / patch)) * patch
        raise InputError(f"{setting} {size}: {name} has patches of {patch} pixels; the nearest size is {near}")
