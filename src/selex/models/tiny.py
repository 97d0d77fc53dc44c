"""A small vision transformer for images of 8 to 64 pixels, to be trained from scratch on a CPU."""

from __future__ import annotations

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, gelu

DIM, DEPTH, HEADS, PATCH = 96, 2, 3, 4
GLIMPSE = 14
"""Side of the coarse image that the class token starts from."""


class Stem(nn.Module):
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
        network.patch_embed, network.cls_token = Stem(DIM, (crop // PATCH) ** 2), None
    return network
