"""Requests of this process over the supervisor's socket, many at a time on one connection, and large ones in
slices on another one, so that nobody waits until one of them is sent.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Sequence
from typing import cast

from schedulemesh.protocol.frames import (
    MAX_ANSWER,
    MAX_OPEN,
    MAX_REQUEST,
    Answered,
    Ask,
    FrameError,
    FrameReader,
    Packed,
    Withdraw,
    frame,
    frame_in_parts,
    from_supervisor,
    greeting,
)
from schedulemesh.protocol.large_bytes import sliced
from schedulemesh.protocol.local_sockets import SocketAddress, connect
from schedulemesh.protocol.msgpack_head import LARGE

#: Seconds that a supervisor may take to greet, and after which it is tried again where nobody did.
GREETING_S, AGAIN_S = 2.0, 0.5
#: Bytes that the supervisor has not taken yet, above which others ask over Ray: more than some of the largest
#: bodies of JSON together, so that one of them does not send everybody that way.
_MOST_UNTAKEN = 4 * 1024 * 1024
#: Requests that are answered later, above which further ones are asked over Ray: they would take the place
#: of those that are answered at once.
_MOST_WAITING = MAX_OPEN // 2
#: Large requests that wait to be sent, above which further ones are asked over Ray.
_MOST_LARGE = 4
#: Bytes of a message beside what it has as bytes.
_AROUND = 64


class SupervisorSocket:
    """The way over the socket, as long as there is one. ``address``: where it is; None: that is not known."""

    def __init__(self, address: SocketAddress | None = None) -> None:
        self.address = address
        self._way, self._way_of_large = _Way(_Connection), _Way(_LargeConnection)

    async def ask(
        self,
        request: Sequence[bytes],
        credential: bytes,
        caller: bytes,
        within_s: float,
        *,
        waits: bool = False,
    ) -> bytes | None:
        """The encoded answer to a request that is encoded in parts; None: it is to be asked over Ray, where a
        request that may have been carried out here is recognised by its id. ``caller``: see ``Ask``;
        ``waits``: see ``Call``. Raises TimeoutError where there is no answer ``within_s`` seconds.
        """
        size = sum(map(len, request))
        if size + len(credential) + len(caller) + _AROUND > MAX_REQUEST:
            return None
        way = self._way if size <= LARGE else self._way_of_large
        connection = await way.connection_to(self.address)
        if connection is None or not connection.has_room_for(waits=waits):
            return None
        return await connection.ask(request, credential, caller, within_s, waits=waits)

    def close(self) -> None:
        """End the connections."""
        self._way.close()
        self._way_of_large.close()


class _Way:
    """A connection that is made when it is needed, and made again where it has ended."""

    def __init__(self, kind: type[_Connection]) -> None:
        self._kind = kind
        self._connection: _Connection | None = None
        #: When the next connection may be tried, by the clock of the event loop.
        self._again_at = float("-inf")

    async def connection_to(self, address: SocketAddress | None) -> _Connection | None:
        """The connection; while one is being made, and for a moment after that failed, there is none."""
        if self._connection is not None and self._connection.is_open:
            return self._connection
        now = asyncio.get_running_loop().time()
        if address is None or now < self._again_at:
            return None
        self._again_at = now + GREETING_S
        self._connection = await _connection_to(address, self._kind)
        self._again_at = asyncio.get_running_loop().time() + AGAIN_S
        return self._connection

    def close(self) -> None:
        """End the connection."""
        if self._connection is not None:
            self._connection.close()


async def _connection_to(address: SocketAddress, kind: type[_Connection]) -> _Connection | None:
    """A connection whose supervisor has greeted; None: that of the address does not answer there."""
    loop = asyncio.get_running_loop()
    try:
        # It does not wait: where too many wait to be accepted, it is refused.
        connected = connect(address, GREETING_S)
        _, connection = await loop.create_connection(
            lambda: kind(address.scheduler), sock=connected
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
        self,
        request: Sequence[bytes],
        credential: bytes,
        caller: bytes,
        within_s: float,
        *,
        waits: bool,
    ) -> bytes | None:
        """See SupervisorSocket."""
        number, loop = next(self._numbers), asyncio.get_running_loop()
        answered: asyncio.Future[bytes | None] = loop.create_future()
        self._open[number] = answered
        # Cheaper than a task of its own, which asyncio.wait_for makes.
        limit = loop.call_later(within_s, _time_out, answered)
        self._waiting += waits
        self._send(number, request, credential, caller)
        try:
            return await answered
        finally:
            limit.cancel()
            self._waiting -= waits
            if self._open.pop(number, None) is not None and self.is_open:
                self._withdraw(number)

    def close(self) -> None:
        """End it."""
        self._transport.close()

    def _send(
        self, number: int, request: Sequence[bytes], credential: bytes, caller: bytes
    ) -> None:
        """Send a request."""
        ask = Ask(number, b"".join(request), credential, caller, handles=False)
        self._transport.write(frame(ask))

    def _withdraw(self, number: int) -> None:
        """Nobody waits for the answer to a request any more."""
        self._transport.write(frame(Withdraw(number)))

    def _take(self, packed: Packed) -> None:
        """Raises FrameError."""
        if not self.greeted.done():
            greeting(packed).check(self._scheduler)
            self.greeted.set_result(None)
            return
        message = from_supervisor(packed)
        answered = self._open.pop(message.number, None)
        if answered is not None and not answered.done():
            answered.set_result(message.data if isinstance(message, Answered) else None)


class _LargeConnection(_Connection):
    """One for large requests, which are sent one after the other, slice by slice."""

    def __init__(self, scheduler: str) -> None:
        super().__init__(scheduler)
        #: The frames of which nothing is sent yet, with the numbers of their requests.
        self._frames: deque[tuple[int, Sequence[bytes]]] = deque()
        self._writing: asyncio.Task[None] | None = None
        #: Set while the supervisor has taken all that was sent to it, or nothing more can be.
        self._taken = asyncio.Event()
        self._taken.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See _Connection."""
        super().connection_made(transport)
        self._transport.set_write_buffer_limits(high=0)

    def connection_lost(self, error: Exception | None) -> None:
        """See _Connection."""
        super().connection_lost(error)
        self._taken.set()

    def pause_writing(self) -> None:
        """Not all of what was sent is taken yet."""
        self._taken.clear()

    def resume_writing(self) -> None:
        """All that was sent is taken."""
        self._taken.set()

    def has_room_for(self, *, waits: bool) -> bool:
        """See _Connection."""
        return super().has_room_for(waits=waits) and len(self._frames) < _MOST_LARGE

    def _send(
        self, number: int, request: Sequence[bytes], credential: bytes, caller: bytes
    ) -> None:
        """See _Connection."""
        ask = Ask(number, b"", credential, caller, handles=False)
        self._add(number, frame_in_parts(ask, request))

    def _withdraw(self, number: int) -> None:
        """See _Connection. What is sent in part is sent to its end: the next frame begins after that."""
        unsent = next((entry for entry in self._frames if entry[0] == number), None)
        if unsent is None:
            self._add(number, (frame(Withdraw(number)),))
        else:
            self._frames.remove(unsent)

    def _add(self, number: int, parts: Sequence[bytes]) -> None:
        """Have a frame sent after those that are there."""
        self._frames.append((number, parts))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.ensure_future(self._write())

    async def _write(self) -> None:
        """Send all frames; others are served between two slices."""
        while self._frames:
            _, parts = self._frames.popleft()
            for part in sliced(parts):
                await self._taken.wait()
                if not self.is_open:
                    return
                self._transport.write(part)
                await asyncio.sleep(0)


def _time_out(answered: asyncio.Future[bytes | None]) -> None:
    """Nobody has answered in time."""
    if not answered.done():
        answered.set_exception(TimeoutError())
