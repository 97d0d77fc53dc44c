"""A small vision transformer for images of 8 to 64 pixels, to be trained from scratch on a CPU."""

from __future__ import annotations

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, gelu

DIM, DEPTH, HEADS, PATCH = 96, 2, 3, 4
GLIMPSE = 14
"""Side of the coarse image that the class token starts from."""


class TinyViT(VisionTransformer):
    """A vision transformer whose class token starts as a glimpse of the whole image.

    A network that knows nothing would have to learn first what plain pixels show: which images look alike. Here the
    first feature is a random projection of coarse pixels, as good as they are, and the blocks refine it.
    """

    def __init__(self, crop: int) -> None:
        super().__init__(
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
        self.patch_embed = Stem(DIM, (crop // PATCH) ** 2)
        self.glimpse = nn.Linear(GLIMPSE**2, DIM, bias=False)
        nn.init.normal_(self.glimpse.weight, std=3 / GLIMPSE)
        for module in self.blocks.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)

    def forward_features(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """Tokens (n, 1 + patches, dim) of images, less each image's own mean: a light or dark ground says nothing."""
        x = x - x.mean((1, 2, 3), keepdim=True)
        tokens = self._pos_embed(self.patch_embed(x))
        coarse = adaptive_avg_pool2d(x.mean(1), GLIMPSE).flatten(1)
        first = tokens[:, :1] + self.glimpse(coarse)[:, None]
        refined: Tensor = self.norm(self.blocks(torch.cat([first, tokens[:, 1:]], 1)))
        return refined


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

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (n, patches, dim)."""
        for layer in self.layers[:-1]:
            x = gelu(layer(x))
        tokens: Tensor = self.layers[-1](x)
        return tokens.flatten(2).transpose(1, 2)


def tiny_vit(crop: int) -> TinyViT:
    """The network, always with the same first weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return TinyViT(crop)
