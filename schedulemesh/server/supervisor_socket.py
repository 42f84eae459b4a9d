"""Requests of this process over the supervisor's socket, many at a time on one connection."""

from __future__ import annotations

import asyncio
import itertools
from typing import cast

from schedulemesh.protocol.frames import (
    MAX_ANSWER,
    MAX_OPEN,
    MAX_REQUEST,
    Answered,
    Ask,
    FrameError,
    FrameReader,
    Withdraw,
    frame,
    from_supervisor,
    greeting,
)
from schedulemesh.protocol.local_sockets import SocketAddress, connect

#: Seconds that a supervisor may take to greet, and after which it is tried again where nobody did.
GREETING_S, AGAIN_S = 2.0, 0.5
#: Bytes that the supervisor has not taken yet, above which others ask over Ray: more than some of the largest
#: bodies of JSON together, so that one of them does not send everybody that way.
_MOST_UNTAKEN = 4 * 1024 * 1024
#: Requests that are answered later, above which further ones are asked over Ray: they would take the place
#: of those that are answered at once.
_MOST_WAITING = MAX_OPEN // 2
#: Bytes of a message beside what it has as bytes.
_AROUND = 64


class SupervisorSocket:
    """The way over the socket, as long as there is one. ``address``: where it is; None: that is not known."""

    def __init__(self, address: SocketAddress | None = None) -> None:
        self.address = address
        self._connection: _Connection | None = None
        #: When the next connection may be tried, by the clock of the event loop.
        self._again_at = float("-inf")

    async def ask(
        self,
        data: bytes,
        credential: bytes,
        caller: bytes,
        within_s: float,
        *,
        waits: bool = False,
    ) -> bytes | None:
        """The encoded answer to an encoded request; None: it is to be asked over Ray, where a request that
        may have been carried out here is recognised by its id. ``caller``: see ``Ask``; ``waits``: see
        ``Call``. Raises TimeoutError where there is no answer ``within_s`` seconds.
        """
        if len(data) + len(credential) + len(caller) + _AROUND > MAX_REQUEST:
            return None
        connection = await self._connected()
        if connection is None or not connection.has_room_for(waits=waits):
            return None
        return await connection.ask(data, credential, caller, within_s, waits=waits)

    def close(self) -> None:
        """End the connection."""
        if self._connection is not None:
            self._connection.close()

    async def _connected(self) -> _Connection | None:
        """The connection; while one is being made, and for a moment after that failed, there is none."""
        if self._connection is not None and self._connection.is_open:
            return self._connection
        now = asyncio.get_running_loop().time()
        if self.address is None or now < self._again_at:
            return None
        self._again_at = now + GREETING_S
        self._connection = await _connection_to(self.address)
        self._again_at = asyncio.get_running_loop().time() + AGAIN_S
        return self._connection


async def _connection_to(address: SocketAddress) -> _Connection | None:
    """A connection whose supervisor has greeted; None: that of the address does not answer there."""
    loop = asyncio.get_running_loop()
    try:
        # It does not wait: where too many wait to be accepted, it is refused.
        connected = connect(address, GREETING_S)
        _, connection = await loop.create_connection(
            lambda: _Connection(address.scheduler), sock=connected
        )
    except OSError:
        return None
    try:
        await asyncio.wait_for(connection.greeted, GREETING_S)
    except (asyncio.TimeoutError, TimeoutError, FrameError, ConnectionError):
        connection.close()
        return None
    return connection


class _Connection(asyncio.Protocol):
    """A connection to the socket of this scheduler's supervisor."""

    def __init__(self, scheduler: str) -> None:
        self._scheduler = scheduler
        self._reader = FrameReader(MAX_ANSWER)
        self._numbers = itertools.count()
        #: The requests that are not answered yet, by number.
        self._open: dict[int, asyncio.Future[bytes | None]] = {}
        #: How many of them are answered later.
        self._waiting = 0
        #: Whether the supervisor takes what is sent to it.
        self._takes = True
        #: Done when the supervisor has greeted.
        self.greeted: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the greeting."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_MOST_UNTAKEN)

    def data_received(self, data: bytes) -> None:
        """Take what has arrived."""
        self._reader.feed(data)
        try:
            while (packed := self._reader.next()) is not None:
                self._take(packed)
        except FrameError as error:
            if not self.greeted.done():
                self.greeted.set_exception(error)
            self._transport.abort()

    def connection_lost(self, _error: Exception | None) -> None:
        """Have what is not answered be asked over Ray."""
        if not self.greeted.done():
            self.greeted.set_exception(ConnectionResetError("the supervisor has not greeted"))
        for answered in self._open.values():
            if not answered.done():
                answered.set_result(None)
        self._open.clear()

    def pause_writing(self) -> None:
        """The supervisor takes too little of what is sent to it."""
        self._takes = False

    def resume_writing(self) -> None:
        """The supervisor has taken most of it."""
        self._takes = True

    @property
    def is_open(self) -> bool:
        """Whether it has not ended."""
        return not self._transport.is_closing()

    def has_room_for(self, *, waits: bool) -> bool:
        """Whether it takes a further request, and still a withdrawal after that."""
        if waits and self._waiting >= _MOST_WAITING:
            return False
        return self._takes and len(self._open) < MAX_OPEN - 1

    async def ask(
        self, data: bytes, credential: bytes, caller: bytes, within_s: float, *, waits: bool
    ) -> bytes | None:
        """See SupervisorSocket."""
        number, loop = next(self._numbers), asyncio.get_running_loop()
        answered: asyncio.Future[bytes | None] = loop.create_future()
        self._open[number] = answered
        # Cheaper than a task of its own, which asyncio.wait_for makes.
        limit = loop.call_later(within_s, _time_out, answered)
        self._waiting += waits
        self._transport.write(frame(Ask(number, data, credential, caller, handles=False)))
        try:
            return await answered
        finally:
            limit.cancel()
            self._waiting -= waits
            if self._open.pop(number, None) is not None and self.is_open:
                self._transport.write(frame(Withdraw(number)))

    def close(self) -> None:
        """End it."""
        self._transport.close()

    def _take(self, packed: bytes) -> None:
        """Raises FrameError."""
        if not self.greeted.done():
            greeting(packed).check(self._scheduler)
            self.greeted.set_result(None)
            return
        message = from_supervisor(packed)
        answered = self._open.pop(message.number, None)
        if answered is not None and not answered.done():
            answered.set_result(message.data if isinstance(message, Answered) else None)


def _time_out(answered: asyncio.Future[bytes | None]) -> None:
    """Nobody has answered in time."""
    if not answered.done():
        answered.set_exception(TimeoutError())
