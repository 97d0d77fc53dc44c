"""Start the server of the review page on this machine."""

from __future__ import annotations

import ipaddress
import secrets
import socket
import threading
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from selex.errors import InputError
from selex.review.core.session import Review
from selex.review.server.app import create_app
from selex.review.server.connections import Connection
from selex.review.server.guard import Door

LOOPBACK = "127.0.0.1"
BACKLOG = 128


def serve(
    folder: Path,
    *,
    host: str = LOOPBACK,
    port: int = 8760,
    browser: bool = True,
    tell: Callable[[str], None] = lambda line: None,
) -> None:
    """Serve the review page of a run until Ctrl-C.

    Args:
        folder: a finished run.
        host: where to listen; anything but this machine itself needs a token, which the address shown has.
        port: 0 takes any that is free.
        browser: open the page in the browser.
        tell: called with what a person should know.
    """
    review = Review(folder)
    listener = _listen(host, port)
    with listener:
        port = listener.getsockname()[1]
        door = _door(host, port)
        app = create_app(review, door)
        address = f"http://{_shown(host)}:{port}/" + (f"?token={door.token}" if door.token else "")
        tell(f"review: {address}")
        tell("Every decision is saved at once in the run folder. Ctrl-C ends the server.")
        if note := app.state.views.note:
            tell(f"note: {note}")
        server = server_of(app)
        if browser:
            threading.Timer(0.5, webbrowser.open, (address,)).start()
        try:
            server.run(sockets=[listener])
        except KeyboardInterrupt:  # uvicorn raises it again once it has ended in good order
            pass
        finally:
            app.state.job.stop()
            review.ledger.close()


def server_of(app: ASGIApp) -> uvicorn.Server:
    """What answers requests: plain HTTP, with connections that cannot be held open for nothing."""
    settings: dict[str, Any] = {"log_level": "warning", "access_log": False, "lifespan": "off", "ws": "none"}
    # so many are let in before any is looked at: with more, open files could run out
    return uvicorn.Server(uvicorn.Config(app, http=Connection, backlog=BACKLOG, **settings))


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # with the protocol given, asyncio sends answers at once; without it each waits 40 ms for company
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:  # the latter for what cannot be a name, such as one with two dots
        raise InputError(f"--host {host}: {getattr(error, 'strerror', 'not the name of a machine')}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise InputError(f"port {port} of {host} cannot be used ({error.strerror}); try another --port") from None
    return listener


def _door(host: str, port: int) -> Door:
    """Open to this machine; open to others only for those who have the token."""
    if _is_loopback(host):
        return Door(port)
    names = Door(port).names | {host.lower(), socket.gethostname().lower()}
    return Door(port, names, secrets.token_urlsafe(24))


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
