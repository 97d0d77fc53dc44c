"""Files over the network: whole and with the digest they should have, or not there.

Wheels come from the indexes that pip or uv is told to use, through their simple pages; neither program is needed.
"""

from __future__ import annotations

import base64
import hashlib
import html
import os
import re
import ssl
import sys
import threading
from collections.abc import Iterator
from configparser import ConfigParser, Error
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError
from urllib.parse import unquote, urljoin, urlsplit
from urllib.request import Request, urlopen

from platformdirs import user_config_dir
from rich.console import Console
from rich.progress import wrap_file

from selex.checksums import Damaged
from selex.io import atomic_path, first_line

NOTED = ".sha256"
"""Ending of the file that keeps the digest of a fetched one, where none is pinned."""
PATIENCE = 4.0
"""Seconds a hub may take to answer before it counts as unreachable."""


class Unavailable(Exception):
    """The file cannot be had from this place now; the message says why."""


def download(url: str, target: Path, sha256: str | None = None) -> Path:
    """The file at an address, with a progress bar on standard error."""
    require_answer(url)
    try:
        with _opened(url) as answer:
            length = int(answer.headers.get("Content-Length") or 0)  # where it does not say, 0
            console = Console(stderr=True)
            with wrap_file(answer, length, description=target.name, console=console, transient=True) as stream:
                return save_stream(stream, target, sha256, length)
    except (OSError, HTTPException, Unavailable) as error:
        raise Unavailable(f"{_shown(url)}: {first_line(error)}") from error


def download_wheel(package: str, version: str, folder: Path) -> Path:
    """The wheel of a package, from the first index that has it."""
    reasons = [f"no index has a wheel of {package} {version}"]
    for index in package_indexes():
        try:
            for link in _links(f"{index.rstrip('/')}/{_normal(package)}/"):
                file = unquote(urlsplit(link).path.rpartition("/")[2])
                if file.endswith(".whl") and _normal(file).startswith(f"{_normal(package)}-{_normal(version)}-"):
                    return download(link, folder / file)
        except Unavailable as reason:
            reasons.append(str(reason))
    raise Unavailable("; ".join(reasons))


def package_indexes() -> list[str]:
    """Addresses of the package indexes that pip or uv is told to use; PyPI where neither is told anything."""
    say = os.environ.get
    first = say("UV_DEFAULT_INDEX") or say("UV_INDEX_URL") or _pip("index-url") or "https://pypi.org/simple"
    more = [say("UV_INDEX", ""), say("UV_EXTRA_INDEX_URL", ""), _pip("extra-index-url")]
    named = [first, *" ".join(more).split()]
    return [address.partition("=")[2] if re.match(r"[\w-]+=", address) else address for address in named]


def _pip(option: str) -> str:
    """What pip is told by a variable, or by the last of its files that says it."""
    if given := os.environ.get(f"PIP_{option.upper().replace('-', '_')}"):
        return given
    last = os.environ.get("PIP_CONFIG_FILE", "")
    if last == os.devnull:  # how pip is told to read none of its files
        return ""
    folders = ["/etc", user_config_dir("pip"), os.path.expanduser("~/.pip"), sys.prefix]
    said = ConfigParser(interpolation=None)
    with suppress(Error, OSError, UnicodeDecodeError):
        said.read([*(os.path.join(folder, "pip.conf") for folder in folders), last])
    return said.get("global", option, fallback="")


def _links(page: str) -> list[str]:
    """Addresses that a page of an index links to."""
    page += "index.html" if page.startswith("file:") else ""
    require_answer(page)
    try:
        with _opened(page) as answer:
            text = answer.read().decode(errors="replace")
    except (OSError, HTTPException) as error:
        raise Unavailable(f"{_shown(page)}: {first_line(error)}") from error
    return [urljoin(page, html.unescape(link)) for link in re.findall(r"""href\s*=\s*["']([^"']+)""", text)]


def _normal(name: str) -> str:
    """A name as indexes compare names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _shown(url: str) -> str:
    """An address without the password in it."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _opened(url: str, method: str = "GET", timeout: float = 30) -> Any:
    """What is at an address; a name and password in it are sent as such."""
    who = urlsplit(url).netloc.rpartition("@")[0]
    request = Request(_shown(url), headers={"User-Agent": "selex"}, method=method)
    if who:
        request.add_unredirected_header("Authorization", f"Basic {base64.b64encode(unquote(who).encode()).decode()}")
    trusted = ssl.create_default_context(cafile=_pip("cert") or None) if url.startswith("https:") else None
    try:
        return urlopen(request, context=trusted, timeout=timeout)
    except HTTPError as refusal:
        refusal.close()  # the page that comes with it is not read
        raise


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
        raise Unavailable(f"{_shown(address)} does not answer")


def _ask(address: str, seconds: float, answered: threading.Event) -> None:
    try:
        _opened(address, method="HEAD", timeout=seconds).close()
    except HTTPError:
        pass  # an answer all the same
    except (OSError, HTTPException):
        return
    answered.set()


def save_stream(stream: IO[bytes], target: Path, sha256: str | None, length: int = 0) -> Path:
    """Write a stream to `target`: all of it and with the pinned digest, or nothing at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    target.with_name(target.name + NOTED).unlink(missing_ok=True)  # it must not speak of another file
    with atomic_path(target) as part, part.open("wb") as out:
        for block in _blocks(stream):
            digest.update(block)
            out.write(block)
        if length and out.tell() != length:
            raise Unavailable(f"the download stopped after {out.tell()} of {length} bytes")
        check_digest(target, digest.hexdigest(), sha256)
    if sha256 is None:
        with atomic_path(target.with_name(target.name + NOTED)) as partial:
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
