"""Connections whose clients send or take nothing, or too slowly, are closed, so that others get through."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

#: Seconds in which the headers of a request have to arrive.
HEADERS_S = 10.0
#: Seconds for which a client may take nothing, or too little, of an answer.
STALLED_S = 30.0


class PatientProtocol(H11Protocol):
    """HTTP/1.1 with a time limit for the headers of each request, and for clients that do not take an answer.

    uvicorn itself limits only the pause between a response and the first byte of the next request.
    """

    _limit: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._set_limit()

    def data_received(self, data: bytes) -> None:
        """Take what arrived; where it does not complete the headers, the time limit holds."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._remove_limit()
        elif self._limit is None:
            self._set_limit()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._remove_limit()
        self.resume_writing()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """More of an answer is buffered than is right: give the client some time to take it."""
        super().pause_writing()
        # abort: close would wait until the client has taken what is buffered.
        self._stalled = self.loop.call_later(STALLED_S, self.transport.abort)

    def resume_writing(self) -> None:
        """The client has taken most of what was buffered, or has left."""
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
        super().resume_writing()

    def _set_limit(self) -> None:
        self._limit = self.loop.call_later(HEADERS_S, self.transport.close)

    def _remove_limit(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None
