"""Who may talk to the server, and how much may be sent.

This machine's own page may, or whoever has the token; no web site behind their back.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from http.cookies import CookieError, SimpleCookie
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit

from anyio import CapacityLimiter
from anyio.lowlevel import RunVar
from anyio.to_thread import run_sync
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from selex.data.decode import FORMATS

LARGEST_BODY = 8 << 20
HEADERS = {
    "content-security-policy": "default-src 'none'; img-src 'self'; style-src 'self'; script-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


@dataclass(frozen=True)
class Door:
    """How the server can be reached: its port, the names it goes by, the token where one is needed."""

    port: int
    names: frozenset[str] = field(default_factory=lambda: frozenset({"127.0.0.1", "localhost", "::1"}))
    token: str | None = None

    def knows(self, host: str) -> bool:
        """Whether a Host header names this server. Addresses cannot be made to point here by somebody's DNS."""
        try:
            parts = urlsplit(f"//{host}")
            name, port = parts.hostname or "", parts.port or 80
        except ValueError:
            return False
        if parts.path or parts.query or parts.username or port != self.port:
            return False
        return name in self.names or (self.token is not None and _is_address(name))


@dataclass(frozen=True)
class Bodies:
    """What may be sent: at most so many bytes, called one of these kinds. `image/` stands for all of its kinds."""

    largest: int = LARGEST_BODY
    kinds: tuple[str, ...] = ("application/json",)

    @property
    def too_much(self) -> str:
        """What somebody is told who sends more."""
        return f"the body is too large: send at most {self.largest >> 20} MB"

    @property
    def called(self) -> str:
        """The kinds, for a person."""
        return " or ".join(f"{kind}…" if kind.endswith("/") else kind for kind in self.kinds)

    def takes(self, kind: str) -> bool:
        """Whether a Content-Type is one of the kinds."""
        name = kind.partition(";")[0].strip().lower()
        return any(name == taken or (taken.endswith("/") and name.startswith(taken)) for taken in self.kinds)


JSON = Bodies()
"""What may be sent where nothing else is said."""


class Guard:
    """Refuses a request before anything looks at it, and adds the headers that every answer has.

    `others` are paths to which something else than `bodies` may be sent.
    """

    def __init__(
        self,
        app: ASGIApp,
        door: Door,
        bodies: Bodies = JSON,
        others: Mapping[str, Bodies] | None = None,
    ) -> None:
        self.app, self.door, self.bodies, self.others = app, door, bodies, others or {}
        self.cookie = f"selex-review-{door.port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        bodies = self.others.get(scope["path"], self.bodies)
        body = _Body(scope, receive, send_safely, bodies.largest)
        answer = self._refusal(scope, bodies) or self._admission(scope)
        await (answer or self.app)(scope, body.receive, body.send)
        if body.too_large:
            await _refuse(413, bodies.too_much)(scope, body.receive, body.send_last)

    def _refusal(self, scope: Scope, bodies: Bodies) -> Response | None:
        headers, method = Headers(scope=scope), scope["method"]
        host = headers.get("host", "")
        if not self.door.knows(host):
            return _refuse(403, "this server has another host name (Host)")
        if "origin" in headers and headers["origin"] != f"http://{host}":
            return _refuse(403, "the request comes from another site (Origin)")
        site, mode = headers.get("sec-fetch-site", "none"), headers.get("sec-fetch-mode")
        if site not in ("none", "same-origin") and (method != "GET" or mode != "navigate"):
            return _refuse(403, "the request comes from another site (Sec-Fetch-Site)")
        if method not in ("GET", "HEAD", "POST"):
            return _refuse(405, "only GET and POST")
        if method == "POST":
            # A form of another site can send neither of these without the browser asking us first.
            if not bodies.takes(headers.get("content-type", "")):
                return _refuse(415, f"send the body with Content-Type: {bodies.called}")
            length = headers.get("content-length", "")
            if "transfer-encoding" in headers:  # counted as it comes
                return None
            if not length.isdecimal():
                return _refuse(411, "give the number of bytes (Content-Length)")
            if len(length) > len(str(bodies.largest)) or int(length) > bodies.largest:
                return _refuse(413, bodies.too_much)
        return None

    def _admission(self, scope: Scope) -> Response | None:
        """None for whoever has the token, where one is needed; a link with the token leaves it in a cookie."""
        if self.door.token is None:
            return None
        headers = Headers(scope=scope)
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if any(key == "token" and self._is_token(value) for key, value in query) and scope["method"] == "GET":
            rest = urlencode([pair for pair in query if pair[0] != "token"])
            path = "/" + scope["path"].lstrip("/")  # never //elsewhere
            answer = RedirectResponse(path + (f"?{rest}" if rest else ""), 303)
            answer.set_cookie(self.cookie, self.door.token, httponly=True, samesite="strict")
            return answer
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        if (scheme.lower() == "bearer" and self._is_token(bearer)) or self._is_token(self._cookie(headers)):
            return None
        return _refuse(401, "the token is missing: it is in the address that was printed at the start")

    def _is_token(self, text: str) -> bool:
        return hmac.compare_digest(text.encode(), (self.door.token or "").encode())

    def _cookie(self, headers: Headers) -> str:
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            return ""
        return found.value if found else ""


class _Body:
    """A body, counted as it comes: whatever was said about its length, no more than `largest` bytes are kept.

    What an answer leaves unread is read before the answer ends. Else the connection would be closed on somebody who is
    still sending, and has not read the answer.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, largest: int) -> None:
        self._receive, self._send, self._largest, self._bytes = receive, send, largest, 0
        # who waits for leave to send gets the answer instead, and sends nothing
        self._more = scope["method"] not in ("GET", "HEAD") and "expect" not in Headers(scope=scope)
        self.too_large = False

    async def receive(self) -> Message:
        """The next piece."""
        message = await self._next()
        self._bytes += len(message.get("body", b""))
        if self._bytes > self._largest:
            self.too_large = True
            raise HTTPException(413)  # ends what is reading it; the answer comes from `Guard`
        return message

    async def send(self, message: Message) -> None:
        """Part of an answer, unless there will be another one."""
        if not self.too_large:
            await self.send_last(message)

    async def send_last(self, message: Message) -> None:
        """Part of an answer, whose end waits for that of the body."""
        ends = message["type"] == "http.response.body" and not message.get("more_body")
        if ends and self._more:
            await self._send({**message, "more_body": True})
            while self._more:
                await self._next()
            message = {"type": "http.response.body"}
        await self._send(message)

    async def _next(self) -> Message:
        message = await self._receive()
        self._more = bool(message.get("more_body"))
        return message


def _refuse(status: int, reason: str) -> Response:
    return PlainTextResponse(f"refused: {reason}\n", status)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


LARGEST_IMAGE = 32 << 20
ROOM = 256 << 20
"""Bytes of all requests that are being answered, at most."""

IMAGES = Bodies(LARGEST_IMAGE, ("image/", "application/octet-stream"))

_FILE = {"schema": {"type": "string", "format": "binary"}}
_KINDS = [f"image/{name.lower()}" for name in FORMATS if name != "DIB"] + ["application/octet-stream"]
ONE_IMAGE: dict[str, Any] = {"requestBody": {"required": True, "content": dict.fromkeys(_KINDS, _FILE)}}
"""What OpenAPI says of a request whose body is an image."""


class Room:
    """Takes no more bytes at a time than there is room for; `Guard` has seen to it that none are more than is said."""

    def __init__(self, app: ASGIApp, most: int = ROOM) -> None:
        self.app, self.most, self.taken = app, most, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, or say that there is no room for it now."""
        size = _size(Headers(scope=scope)) if scope.get("method") == "POST" else 0
        if self.taken + size > self.most:
            busy = JSONResponse({"detail": "the server is busy: try again in a second"}, 503, {"retry-after": "1"})
            await busy(scope, receive, send)
            return
        self.taken += size
        try:
            await self.app(scope, receive, send)
        finally:
            self.taken -= size


def _size(headers: Headers) -> int:
    """How many bytes a body has at most: what comes in pieces may be as large as anything may."""
    return LARGEST_IMAGE if "transfer-encoding" in headers else int(headers.get("content-length", 0))


Found = TypeVar("Found")


class Threads:
    """So many threads at most for work that may wait; what comes when all are busy waits for one, and holds none.

    However much of that work there is, other requests are answered meanwhile.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._limiter: RunVar[CapacityLimiter] = RunVar(f"threads {id(self)}")  # of the loop that runs

    async def __call__(self, work: Callable[..., Found], *given: object) -> Found:
        """What the work comes to."""
        try:
            limiter = self._limiter.get()
        except LookupError:
            limiter = CapacityLimiter(self._most)
            self._limiter.set(limiter)
        return await run_sync(partial(work, *given), limiter=limiter)
