"""Requests of this process over a supervisor's socket, one after the other in each thread."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from schedulemesh.client.asking import RawAnswer
from schedulemesh.protocol.frames import (
    MAX_ANSWER,
    MAX_REQUEST,
    Answered,
    Ask,
    FrameError,
    FrameReader,
    Packed,
    frame,
    from_supervisor,
    greeting,
)
from schedulemesh.protocol.local_sockets import SocketAddress, connect

#: Seconds that a supervisor may take to greet, and after which it is tried again where nobody did.
GREETING_S, AGAIN_S = 2.0, 1.0
#: Seconds without an answer after which the caller looks whether the supervisor lives.
LOOK_S = 5.0
#: Bytes of a message beside the request and the credential.
_AROUND = 64
_CHUNK = 64 * 1024


class SocketChannel:
    """The connections of one scheduler object to its supervisor's socket. Each thread that asks takes one
    for as long as that takes, and a process that was forked makes its own. ``address`` None: there is none.
    ``unpack_handle`` makes a Ray handle from its bytes; it must be a function of a module.
    """

    def __init__(
        self, address: SocketAddress | None, unpack_handle: Callable[[bytes], Any] = bytes
    ) -> None:
        self._address = address
        self._unpack_handle = unpack_handle
        #: Connections that nobody uses; taking and adding one is safe among threads.
        self._idle: deque[_Connection] = deque()
        self._pid = os.getpid()
        #: When the next connection may be tried.
        self._again_at = float("-inf")

    def ask(self, data: bytes, credential: bytes, look: Callable[[], None]) -> RawAnswer | None:
        """The encoded answer to an encoded request, with the Ray handles that belong to it, if any do; None:
        it is to be asked over Ray, where a request that may have been carried out here is recognised by its
        id.

        ``look`` is called every few seconds without an answer; what it raises is raised.
        """
        if len(data) + len(credential) + _AROUND > MAX_REQUEST:
            return None
        packed = frame(Ask(0, data, credential))
        for connection in self._connections():
            try:
                answer = connection.exchange(packed, look)
            except (OSError, FrameError):
                connection.close()
            except BaseException:
                # What arrives later would be taken for another answer.
                connection.close()
                raise
            else:
                self._idle.append(connection)
                return None if answer is None else self._with_handles(answer)
        return None

    def _with_handles(self, answer: Answered) -> RawAnswer:
        if not answer.handles:
            return answer.data
        unpack = self._unpack_handle
        return answer.data, [None if each is None else unpack(each) for each in answer.handles]

    def __reduce__(self) -> tuple[type[SocketChannel], tuple[object, ...]]:
        """In another process, where a scheduler object may be sent to, it makes connections of its own."""
        return SocketChannel, (self._address, self._unpack_handle)

    def close(self) -> None:
        """End the connections that nobody uses."""
        while self._idle:
            self._idle.pop().close()

    def _connections(self) -> Iterator[_Connection]:
        """One that exists, if any does, which the supervisor may have closed; then a new one."""
        if self._pid != os.getpid():
            # They are those of the process from which this one was forked, which goes on using them.
            self._pid, self._idle = os.getpid(), deque()
        with contextlib.suppress(IndexError):
            yield self._idle.pop()
        if self._address is not None and time.monotonic() >= self._again_at:
            try:
                yield _Connection(self._address)
            except (OSError, FrameError):
                self._again_at = time.monotonic() + AGAIN_S


class _Connection:
    """A connection to a supervisor's socket. Raises OSError or FrameError where that supervisor does not
    answer there.
    """

    def __init__(self, address: SocketAddress) -> None:
        self._reader = FrameReader(MAX_ANSWER)
        self._socket: socket.socket | None = None
        self._socket = connect(address, GREETING_S)
        try:
            greeting(self._next_message(None)).check(address.scheduler)
        except BaseException:
            self.close()
            raise
        self._socket.settimeout(LOOK_S)

    def exchange(self, packed: bytes, look: Callable[[], None]) -> Answered | None:
        """Send a request and wait for its answer; None: it is to be asked over Ray."""
        self._connected.sendall(packed)
        message = from_supervisor(self._next_message(look))
        return message if isinstance(message, Answered) else None

    def close(self) -> None:
        """End the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    __del__ = close

    @property
    def _connected(self) -> socket.socket:
        if self._socket is None:
            raise ConnectionError("the connection has ended")
        return self._socket

    def _next_message(self, look: Callable[[], None] | None) -> Packed:
        while (message := self._reader.next()) is None:
            try:
                data = self._connected.recv(_CHUNK)
            except TimeoutError:
                if look is None:
                    raise
                look()
                continue
            if not data:
                raise ConnectionResetError("the supervisor has closed the connection")
            self._reader.feed(data)
        return message
