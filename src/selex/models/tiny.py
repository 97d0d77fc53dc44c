"""A small vision transformer for images of 8 to 64 pixels, to be trained from scratch on a CPU."""

from __future__ import annotations

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

DIM, DEPTH, HEADS, PATCH = 96, 2, 3, 4


class Stem(nn.Module):
    """Patches of 4 × 4 pixels by two strided convolutions: with them a transformer learns under plain SGD."""

    def __init__(self, dim: int, patches: int) -> None:
        super().__init__()
        self.num_patches = patches
        sizes = ((3, 32, 3, 2, 1), (32, 64, 3, 2, 1), (64, dim, 1, 1, 0))
        self.layers = nn.ModuleList(nn.Conv2d(i, o, size, step, pad) for i, o, size, step, pad in sizes)
        for layer in self.layers:
            nn.init.kaiming_normal_(layer.weight)  # type: ignore[arg-type]
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]

    def forward(self, images: Tensor) -> Tensor:
        """Tokens (n, patches, dim) of images, less each image's own mean: a light or dark ground says nothing."""
        x = images - images.mean((1, 2, 3), keepdim=True)
        for layer in self.layers[:-1]:
            x = nn.functional.gelu(layer(x))
        tokens: Tensor = self.layers[-1](x)
        return tokens.flatten(2).transpose(1, 2)


def tiny_vit(crop: int) -> VisionTransformer:
    """The network, always with the same first weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = VisionTransformer(
            img_size=crop,
            patch_size=PATCH,
            embed_dim=DIM,
            depth=DEPTH,
            num_heads=HEADS,
            mlp_ratio=2,
            num_classes=0,
            global_pool="token",
        )
        for module in network.blocks.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
        nn.init.normal_(network.pos_embed, std=0.3)  # type: ignore[arg-type]
        network.patch_embed = Stem(DIM, (crop // PATCH) ** 2)
    return network
