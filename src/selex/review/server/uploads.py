"""Images that are sent to a server: how that is described, how large one may be, and how many bytes at a time."""

from __future__ import annotations

from typing import Any

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from selex.data.decode import FORMATS
from selex.review.server.guard import Bodies

LARGEST = 32 << 20
ROOM = 256 << 20
"""Bytes of all requests that are being answered, at most."""

IMAGES = Bodies(LARGEST, ("image/", "application/octet-stream"))

_FILE = {"schema": {"type": "string", "format": "binary"}}
_KINDS = [f"image/{name.lower()}" for name in FORMATS if name != "DIB"] + ["application/octet-stream"]
ONE_IMAGE: dict[str, Any] = {"requestBody": {"required": True, "content": dict.fromkeys(_KINDS, _FILE)}}
"""What OpenAPI says of a request whose body is an image."""


class Room:
    """Takes no more bytes at a time than there is room for; `Guard` has seen to it that their number is known."""

    def __init__(self, app: ASGIApp, most: int = ROOM) -> None:
        self.app, self.most, self.taken = app, most, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, or say that there is no room for it now."""
        size = int(Headers(scope=scope).get("content-length", 0)) if scope.get("method") == "POST" else 0
        if self.taken + size > self.most:
            busy = JSONResponse({"detail": "too much at once: try again in a second"}, 503, {"retry-after": "1"})
            await busy(scope, receive, send)
            return
        self.taken += size
        try:
            await self.app(scope, receive, send)
        finally:
            self.taken -= size
