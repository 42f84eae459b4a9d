"""Connections whose clients send nothing, or too slowly, are closed, so that others get through."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

#: Seconds in which the headers of a request have to arrive.
HEADERS_S = 10.0


class PatientProtocol(H11Protocol):
    """HTTP/1.1 with a time limit for the headers of each request.

    uvicorn itself limits only the pause between a response and the first byte of the next request.
    """

    _limit: asyncio.TimerHandle | None = None

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
        super().connection_lost(exc)

    def _set_limit(self) -> None:
        self._limit = self.loop.call_later(HEADERS_S, self.transport.close)

    def _remove_limit(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None
