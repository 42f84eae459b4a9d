"""Passes on the streams of commands inside claims, on their node: the runner's end is a socket, the other end
are requests that come whenever they like.

What a command writes is kept until it was received, up to a limit at which the command has to wait. Nothing
is written to disk. A session that nobody has asked for within a while is ended, and its command with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections import deque
from pathlib import Path

from schedulemesh.api.exec_sessions import ReadExec, WriteExec
from schedulemesh.protocol.exec_messages import (
    MAX_MESSAGE,
    PIECE_BYTES,
    Ended,
    Input,
    OutputPiece,
    Resize,
    from_runner,
)
from schedulemesh.protocol.frames import FrameError, FrameReader, frame
from schedulemesh.protocol.local_sockets import ListeningSocket, SocketAddress, is_of_same_user
from schedulemesh.runtime.backend import ExecPart

logger = logging.getLogger(__name__)

#: Bytes of output, and of input, that wait to be taken.
_WAITING_BYTES = 1024 * 1024
#: Seconds in which the runner must connect, and without a request after which a session is ended.
_CONNECT_S, _SILENT_S = 30.0, 60.0
#: Seconds for which a request with input waits for the command to take it.
_INPUT_S = 5.0


class ExecRelay:
    """The sessions of one node. ``folder``: where the sockets are. A session is ended after ``silent_s``
    seconds without a request.
    """

    def __init__(self, folder: Path, silent_s: float = _SILENT_S) -> None:
        self._folder, self._silent_s = folder, silent_s
        self._sessions: dict[str, _Session] = {}

    def open(self, session_id: str) -> SocketAddress:
        """Wait for the runner of a new session: where it is to connect to. Raises OSError."""
        name = f"{uuid.uuid4().hex}.sock"
        self._sessions[session_id] = _Session(ListeningSocket(self._folder, name))
        self._look(session_id)
        return SocketAddress(folder=str(self._folder), name=name, scheduler="")

    async def read(self, request: ReadExec) -> ExecPart | None:
        """What a command has written since, once there is something or the time is over; None: there is no
        such session.
        """
        session = self._sessions.get(request.session_id)
        if session is None:
            return None
        part = await session.read(request.after, request.wait_s)
        if part.ended and not part.pieces:
            self.end(request.session_id)
        return part

    async def write(self, request: WriteExec) -> int | None:
        """Pass input on: how much of all input was taken by now; None: there is no such session."""
        session = self._sessions.get(request.session_id)
        if session is None:
            return None
        if request.ends:
            session.end()
        return await session.write(request)

    def end(self, session_id: str) -> None:
        """End a session, if there is one, and forget it."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.end()

    def close(self) -> None:
        """End all sessions."""
        for session_id in tuple(self._sessions):
            self.end(session_id)

    def _look(self, session_id: str) -> None:
        """End a session that nobody asks for, else look again later."""
        session = self._sessions.get(session_id)
        if session is None:
            return
        remaining_s = session.asked_at + self._silent_s - time.monotonic()
        if remaining_s <= 0:
            self.end(session_id)
        else:
            asyncio.get_running_loop().call_later(remaining_s, self._look, session_id)


class _Session:
    """A command, as it is followed."""

    def __init__(self, listening: ListeningSocket) -> None:
        self._listening = listening
        self._writer: asyncio.StreamWriter | None = None
        #: What the caller has not received yet, and the number of the first piece.
        self._pieces: deque[tuple[int, bytes]] = deque()
        self._first = 0
        #: How the command has ended; None: it runs, or that is not known.
        self._end: Ended | None = None
        self._is_over = False
        #: Whether there is something to read; whether more may come.
        self._changed, self._has_room = asyncio.Event(), asyncio.Event()
        self._has_room.set()
        #: Whether the runner has connected; how much input was passed on.
        self._connected = asyncio.Event()
        self._taken = 0
        #: When somebody last asked for it, by the monotonic clock.
        self.asked_at = time.monotonic()
        self._work = asyncio.ensure_future(self._follow())

    async def read(self, after: int, wait_s: float) -> ExecPart:
        """The pieces after so many, once there are any, or it has ended, or the time is over."""
        while self._pieces and self._first < after:
            self._pieces.popleft()
            self._first += 1
        if self._waiting_bytes() < _WAITING_BYTES:
            self._has_room.set()
        if not self._pieces and not self._is_over:
            self._changed.clear()
            with contextlib.suppress(asyncio.TimeoutError, TimeoutError):
                await asyncio.wait_for(self._changed.wait(), wait_s)
        self.asked_at = time.monotonic()
        return ExecPart(
            pieces=tuple(self._pieces),
            first=self._first,
            ended=self._is_over,
            exit_code=None if self._end is None else self._end.exit_code,
            error="" if self._end is None else self._end.error,
        )

    async def write(self, request: WriteExec) -> int:
        """Pass input on, as far as it is new, once the command takes it or the time is over; how much was
        taken by now.
        """
        self.asked_at = time.monotonic()
        has_room = await self._has_room_for_input()
        writer = self._writer
        if writer is None or writer.is_closing():
            return self._taken
        if request.rows and request.columns:
            writer.write(frame(Resize(request.rows, request.columns)))
        new = request.data[max(0, self._taken - request.begin) :]
        if request.begin <= self._taken and has_room and (new or request.closes):
            writer.write(frame(Input(new, request.closes)))
            self._taken += len(new)
        return self._taken

    async def _has_room_for_input(self) -> bool:
        """Whether the runner has connected and takes what comes, within a while."""
        try:
            await asyncio.wait_for(self._connected.wait(), _INPUT_S)
            if self._writer is not None:
                await asyncio.wait_for(self._writer.drain(), _INPUT_S)
        except (OSError, asyncio.TimeoutError, TimeoutError):
            return False
        return True

    def end(self) -> None:
        """End the command: nobody is at this end of its socket any more."""
        self._work.cancel()

    async def _follow(self) -> None:
        """Take what the runner sends until the command has ended."""
        try:
            reader = await asyncio.wait_for(self._connection(), _CONNECT_S)
            await self._take_all(reader)
        except (OSError, FrameError, asyncio.TimeoutError, TimeoutError) as error:
            logger.warning("a command inside a claim is not followed any more: %r", error)
        finally:
            self._listening.close()
            if self._writer is not None:
                self._writer.close()
            self._is_over = True
            for event in (self._changed, self._connected):
                event.set()

    async def _connection(self) -> asyncio.StreamReader:
        """What the runner sends, once it has connected. Raises OSError for another user's process."""
        connected, _ = await asyncio.get_running_loop().sock_accept(self._listening.socket)
        self._listening.close()
        if not is_of_same_user(connected):
            connected.close()
            raise PermissionError("a process of another user has connected")
        reader, self._writer = await asyncio.open_unix_connection(sock=connected)
        self._writer.transport.set_write_buffer_limits(high=_WAITING_BYTES)
        self._connected.set()
        return reader

    async def _take_all(self, reader: asyncio.StreamReader) -> None:
        frames = FrameReader(MAX_MESSAGE)
        while data := await reader.read(PIECE_BYTES):
            frames.feed(data)
            while (packed := frames.next()) is not None:
                self._take(from_runner(packed))
            await self._has_room.wait()

    def _take(self, message: OutputPiece | Ended) -> None:
        if isinstance(message, Ended):
            self._end = message
            return
        self._pieces.append((message.stream, message.data))
        if self._waiting_bytes() >= _WAITING_BYTES:
            self._has_room.clear()
        self._changed.set()

    def _waiting_bytes(self) -> int:
        return sum(len(data) for _, data in self._pieces)
