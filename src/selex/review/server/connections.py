"""Connections of the server: one that waits too long is closed, and there are never too many for one more."""

from __future__ import annotations

import asyncio
from typing import cast

from uvicorn.protocols.http.h11_impl import H11Protocol

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
