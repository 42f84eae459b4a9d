"""The supervisor's Unix socket: requests of processes on its machine, served by its event loop.

A request is answered as one over Ray is, by the same coroutine. What cannot be answered here is left to Ray:
the client repeats it there, and its id makes that harmless. The same holds when a connection is lost, so a
connection may be closed at any time.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Union, cast

import msgspec

from schedulemesh.config.settings import PROTOCOL_VERSION
from schedulemesh.protocol.frames import (
    MAX_ANSWER,
    MAX_OPEN,
    MAX_REQUEST,
    Answered,
    AnyAsk,
    FrameError,
    FrameReader,
    Greeting,
    OverRay,
    Packed,
    Withdraw,
    frame,
    from_client,
)
from schedulemesh.protocol.local_sockets import ListeningSocket, SocketAddress, is_of_same_user

logger = logging.getLogger(__name__)

#: Answers a request: an encoded answer, with the Ray handles that belong to it as bytes, if any do.
Answer = Callable[[AnyAsk], Awaitable[Union[bytes, tuple[bytes, Sequence[Union[bytes, None]]]]]]

#: Bytes of the answers of a connection that are not counted among those of all.
_LARGE = 256 * 1024
#: Bytes of a message beside what it carries, and of a handle beside its own; both are fewer.
_AROUND = 64
#: Seconds between two looks for connections that are to be closed, and after an accept that failed.
_LOOK_S, _PAUSE_S = 1.0, 0.1


class SocketLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What connections may take of the supervisor."""

    #: Connections at a time. For a further one the one that has been idle for longest is closed.
    connections: int = 512
    #: Requests of a connection that are not answered yet; no more of it is read meanwhile.
    open_requests: int = MAX_OPEN
    #: Bytes of all frames that have arrived in part, and of all answers that are not taken yet.
    partial_bytes: int = 128 * 1024 * 1024
    untaken_bytes: int = 256 * 1024 * 1024
    #: Seconds for a frame to arrive whole, and for the client to take what was sent to it.
    frame_s: float = 10.0
    taken_s: float = 30.0
    #: Seconds without a request after which a connection is closed.
    idle_s: float = 600.0


class RequestSocket:
    """The socket of one supervisor, and its connections."""

    def __init__(
        self,
        folder: Path,
        name: str,
        scheduler: str,
        answer: Answer,
        limits: SocketLimits | None = None,
    ) -> None:
        self._folder, self._name = folder, name
        self.scheduler, self.answer = scheduler, answer
        self.limits = limits or SocketLimits()
        #: Where it listens; None: it does not, so that everybody uses Ray.
        self.address: SocketAddress | None = None
        #: The connections, the one that has been idle for longest first.
        self._connections: dict[_Connection, None] = {}
        #: The next look at their times; None: there are none.
        self._look: asyncio.TimerHandle | None = None

    async def serve(self) -> None:
        """Accept connections until this is cancelled. Returns at once where there can be no socket."""
        try:
            listening = ListeningSocket(self._folder, self._name)
        except OSError as error:
            logger.warning("requests use Ray only, because there can be no socket: %s", error)
            return
        self.address = SocketAddress(
            folder=str(self._folder), name=self._name, scheduler=self.scheduler
        )
        try:
            while True:
                await self._accept(listening.socket)
        finally:
            self.address = None
            listening.close()

    def close(self) -> None:
        """End all connections, once the answers that were given are sent."""
        for connection in tuple(self._connections):
            connection.close()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        await _connection_waits(listening)
        try:
            connected, _ = listening.accept()
        except BlockingIOError:  # who wanted to connect has gone
            return
        except OSError as error:
            logger.warning("a connection to the supervisor's socket was not accepted: %s", error)
            await asyncio.sleep(_PAUSE_S)
            return
        connected.setblocking(False)
        try:
            if is_of_same_user(connected) and self._has_room():
                await loop.connect_accepted_socket(lambda: _Connection(self), connected)
            else:
                connected.close()
        except OSError as error:  # of this connection alone: others are accepted
            logger.warning("a connection to the supervisor's socket failed: %s", error)
            connected.close()
        except asyncio.CancelledError:
            connected.close()
            raise

    def _has_room(self) -> bool:
        """Whether there is room for a further connection; one that is idle is closed for it."""
        if len(self._connections) < self.limits.connections:
            return True
        idle = next((each for each in self._connections if each.is_idle), None)
        if idle is not None:
            idle.abort()
        return idle is not None

    def note_use(self, connection: _Connection) -> None:
        """A connection was opened, or has had a request answered."""
        self._connections.pop(connection, None)
        self._connections[connection] = None
        if self._look is None:
            self._look = asyncio.get_running_loop().call_later(_LOOK_S, self._look_at_times)

    def note_lost(self, connection: _Connection) -> None:
        """A connection has ended."""
        self._connections.pop(connection, None)
        if not self._connections and self._look is not None:
            self._look.cancel()
            self._look = None

    def _look_at_times(self) -> None:
        """Close the connections that have exceeded a time limit."""
        loop = asyncio.get_running_loop()
        for connection in tuple(self._connections):
            if connection.exceeds_time(loop.time()):
                connection.abort()
        self._look = loop.call_later(_LOOK_S, self._look_at_times)

    @property
    def untaken_bytes(self) -> int:
        """The bytes of all answers that are not taken yet."""
        return sum(connection.untaken for connection in self._connections)

    @property
    def partial_bytes(self) -> int:
        """The bytes of all frames that have arrived in part."""
        return sum(connection.buffered for connection in self._connections)


async def _connection_waits(listening: socket.socket) -> None:
    """Return when somebody wants to connect. ``sock_accept`` would lose a connection that comes while it is
    cancelled.
    """
    loop = asyncio.get_running_loop()
    waits = asyncio.Event()
    loop.add_reader(listening, waits.set)
    try:
        await waits.wait()
    finally:
        loop.remove_reader(listening)


class _Connection(asyncio.Protocol):
    """The connection of one client."""

    def __init__(self, server: RequestSocket) -> None:
        self._server, self._limits = server, server.limits
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader(MAX_REQUEST)
        #: The requests that are being answered, by number.
        self._open: dict[int, asyncio.Task[None]] = {}
        #: The next turn in which a request that has arrived is begun; None: none has.
        self._turn: asyncio.Handle | None = None
        #: Whether the client takes what is sent to it.
        self._takes = True
        #: Since when the next frame has arrived in part, the client takes nothing, or nothing is asked.
        self._partial_since: float | None = None
        self._stalled_since: float | None = None
        self._idle_since = self._loop.time()

    # what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Greet the client."""
        self._transport = cast("asyncio.Transport", transport)
        self._server.note_use(self)
        self._transport.write(frame(Greeting(PROTOCOL_VERSION, self._server.scheduler)))

    def data_received(self, data: bytes) -> None:
        """Take what has arrived."""
        self._reader.feed(data)
        self._take()

    def connection_lost(self, _error: Exception | None) -> None:
        """The client has gone away, and with it the callers of its requests."""
        self._server.note_lost(self)
        for task in tuple(self._open.values()):
            task.cancel()

    def pause_writing(self) -> None:
        """The client takes too little of what is sent to it: it gets no more asked meanwhile."""
        self._takes, self._stalled_since = False, self._loop.time()
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """The client has taken most of it."""
        self._takes, self._stalled_since = True, None
        self._take()

    # what the server asks

    @property
    def is_idle(self) -> bool:
        """Whether nothing of it is being answered."""
        return not self._open

    @property
    def buffered(self) -> int:
        """The bytes that have arrived of frames that are not taken yet."""
        return len(self._reader)

    @property
    def untaken(self) -> int:
        """The bytes of its answers that it has not taken yet."""
        return self._transport.get_write_buffer_size()

    def exceeds_time(self, now: float) -> bool:
        """Whether it has exceeded a time limit."""
        limits = self._limits
        return (
            (self._partial_since is not None and now - self._partial_since > limits.frame_s)
            or (self._stalled_since is not None and now - self._stalled_since > limits.taken_s)
            or (self.is_idle and now - self._idle_since > limits.idle_s)
        )

    def close(self) -> None:
        """End it once what was sent is taken."""
        self._transport.close()

    def abort(self) -> None:
        """End it at once."""
        self._transport.abort()

    # its requests

    def _take(self) -> None:
        """Begin to answer the requests that have arrived, as many as may be open."""
        try:
            self._take_frames()
        except FrameError as error:
            logger.warning("a client of the supervisor's socket is disconnected: %s", error)
            self.abort()

    def _take_frames(self) -> None:
        """Take one request, and the next in another round of the event loop, so that a client with many has
        one turn among the others. Raises FrameError.
        """
        if self._transport.is_closing():
            return
        if not self._takes or len(self._open) >= self._limits.open_requests:
            self._partial_since = None
            self._transport.pause_reading()
            return
        packed = self._reader.next()
        if packed is not None:
            self._take_message(packed)
        if packed is None or not self.buffered:
            self._wait_for_more()
        elif self._turn is None:
            self._turn = self._loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._turn = None
        self._take()

    def _wait_for_more(self) -> None:
        """No frame has arrived whole. Raises FrameError where too much has arrived of all of them."""
        if not self.buffered:
            self._partial_since = None
        elif self._partial_since is None:
            self._partial_since = self._loop.time()
        elif self._server.partial_bytes > self._limits.partial_bytes:
            raise FrameError(
                f"the messages that have arrived in part have more than {self._limits.partial_bytes:,} bytes"
            )
        self._transport.resume_reading()

    def _take_message(self, packed: Packed) -> None:
        self._partial_since = None
        message = from_client(packed)
        if isinstance(message, Withdraw):
            if (task := self._open.get(message.number)) is not None:
                task.cancel()
            return
        if message.number in self._open:
            raise FrameError(
                f"request {message.number} is not answered yet, and another has its number"
            )
        task = self._loop.create_task(self._answer(message))
        self._open[message.number] = task
        # Not at the end of the coroutine: what is withdrawn at once never begins.
        task.add_done_callback(functools.partial(self._note_end, message.number))

    async def _answer(self, ask: AnyAsk) -> None:
        """Answer a request."""
        message = await self._answered(ask)
        # The client may use the number again as soon as it has the answer.
        del self._open[ask.number]
        if not self._transport.is_closing():
            self._transport.write(frame(message))

    def _note_end(self, number: int, task: asyncio.Task[None]) -> None:
        """A request was answered, or withdrawn."""
        if self._open.get(number) is task:
            del self._open[number]
        if not self._transport.is_closing():
            self._idle_since = self._loop.time()
            self._server.note_use(self)
            self._take()

    async def _answered(self, ask: AnyAsk) -> Answered | OverRay:
        """The answer, where it can be given here. Ray also says why a request fails."""
        try:
            answer = await self._server.answer(ask)
        except Exception as error:  # noqa: BLE001  # the request is repeated over Ray, and fails there, too
            logger.debug("a request over the supervisor's socket failed: %s", error)
            return OverRay(ask.number)
        data, handles = answer if isinstance(answer, tuple) else (answer, ())
        answered = Answered(ask.number, data, tuple(handles) if ask.handles else ())
        size = len(data) + sum(_AROUND + len(handle or b"") for handle in answered.handles)
        return answered if self._has_room_for(size) else OverRay(ask.number)

    def _has_room_for(self, size: int) -> bool:
        """Whether an answer of so many bytes may be sent here: whoever takes no answers gets no large ones
        made.
        """
        if self.untaken + size <= _LARGE:
            return True
        all_size = self._server.untaken_bytes + size
        return size <= MAX_ANSWER - _AROUND and all_size <= self._limits.untaken_bytes
