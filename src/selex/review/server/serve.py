"""The server of the review page on this machine, and how long and how many connections it has."""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
import socket
import threading
import warnings
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from selex.errors import InputError
from selex.review.core.metadata import read_named
from selex.review.core.session import Review
from selex.review.server.app import create_app
from selex.review.server.guard import Door

MOST = 256  # below the 1,024 open files that a process usually may have
SECONDS = 30.0  # for a whole request to come, and for an answer to be taken


class Connection(H11Protocol):
    """A connection that does not wait for ever for the other side, as uvicorn's own does within a request."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Note the time, and make room if there are too many."""
        super().connection_made(transport)
        self.since = self.loop.time()
        self._coming: asyncio.TimerHandle | None = None
        self._going: asyncio.TimerHandle | None = None
        self._watch()
        self._make_room()

    def data_received(self, data: bytes) -> None:
        """Part of a request; the time for it begins with the first byte and ends with the last one."""
        super().data_received(data)
        self._watch()

    def pause_writing(self) -> None:
        """The answer is not taken as fast as it is made: not for ever."""
        super().pause_writing()
        self._going = self.loop.call_later(SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """It is taken again."""
        super().resume_writing()
        _cancel(self._going)
        self._going = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more."""
        for timer in (self._coming, self._going):
            _cancel(timer)
        self._coming = self._going = None
        super().connection_lost(exc)

    @property
    def answering(self) -> bool:
        """Whether a whole request has come and its answer is not complete."""
        return self.cycle is not None and not (self.cycle.more_body or self.cycle.response_complete)

    def _watch(self) -> None:
        if self.answering or self.transport.is_closing():
            _cancel(self._coming)
            self._coming = None
        elif self._coming is None:
            self._coming = self.loop.call_later(SECONDS, self.transport.abort)

    def _make_room(self) -> None:
        """Of too many close the one that has been there longest without a request to answer: this one if all have."""
        others = [other for other in cast("set[Connection]", self.connections) if not other.transport.is_closing()]
        if len(others) > MOST:
            min((other for other in others if not other.answering), key=lambda other: other.since).transport.abort()


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


LOOPBACK = "127.0.0.1"
BACKLOG = 128
STOPPED = "categories are as they were, and finished images, features and epochs are kept"


def serve(
    folder: Path,
    *,
    host: str = LOOPBACK,
    port: int = 8760,
    browser: bool = True,
    table: Path | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> None:
    """Serve the review page of a run until Ctrl-C.

    Args:
        folder: a finished run.
        host: where to listen; anything but this machine itself needs a token, which the address shown has.
        port: 0 takes any that is free.
        browser: open the page in the browser.
        table: a CSV or parquet file with the column `file_name` and others to filter photos by.
        tell: called with what a person should know.
    """
    if table:
        read_named(str(table))  # before anything is made in the run folder
    review = Review(folder)
    listener = listen(host, port)
    with listener:
        port = listener.getsockname()[1]
        door = door_for(host, port)
        app = create_app(review, door, str(table) if table else None)
        address = address_of(host, door)
        tell(f"review: {address}")
        tell("Every decision is saved at once in the run folder. Ctrl-C ends the server.")
        if note := app.state.views.standing().note:
            tell(f"note: {note}")
        server = server_of(app)
        if browser:
            threading.Timer(0.5, webbrowser.open, (address,)).start()
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", module=r"PIL\.")  # of odd metadata and large images
                server.run(sockets=[listener])
        except KeyboardInterrupt:  # uvicorn raises it again once it has ended in good order
            pass
        finally:
            stopped = app.state.job.stop()
            app.state.views.eye.close()
            review.ledger.close()
        if stopped:
            tell(f"Reclustering was stopped: {STOPPED}. `selex recluster {folder}` resumes from there.")
        tell("The server has ended. Every decision is saved.")


def server_of(app: ASGIApp) -> uvicorn.Server:
    """What answers requests: plain HTTP, with connections that cannot be held open for nothing."""
    settings: dict[str, Any] = {"log_level": "warning", "access_log": False, "lifespan": "off", "ws": "none"}
    # so many are let in before any is looked at: with more, open files could run out
    return uvicorn.Server(uvicorn.Config(app, http=Connection, backlog=BACKLOG, **settings))


def listen(host: str, port: int) -> socket.socket:
    """A socket that waits for connections; port 0 is any that is free."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # with the protocol given, asyncio sends answers at once; without it each waits 40 ms for company
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:  # the latter for what cannot be a name, such as one with two dots
        raise InputError(f"--host {host}: {getattr(error, 'strerror', 'not a host name')}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise InputError(f"port {port} of {host} cannot be used ({error.strerror}); try another --port") from None
    return listener


def door_for(host: str, port: int) -> Door:
    """Open to this machine; open to others only for those who have the token."""
    if _is_loopback(host):
        return Door(port)
    names = Door(port).names | {host.lower(), socket.gethostname().lower()}
    return Door(port, names, secrets.token_urlsafe(24))


def address_of(host: str, door: Door) -> str:
    """What to open in a browser: with the token, where one is needed."""
    return f"http://{_shown(host)}:{door.port}/" + (f"?token={door.token}" if door.token else "")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _shown(host: str) -> str:
    """The host as it goes into an address."""
    if host in ("0.0.0.0", "::", ""):
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host
