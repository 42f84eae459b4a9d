"""Requests as they travel over a Unix socket: frames, and the messages in them.

A frame is the length of its message in four bytes, the most significant first, and the message in msgpack.
The supervisor begins with a Greeting. Then the client sends requests, as many at a time as it likes up to
``MAX_OPEN``, and each is answered when its answer is known, in whatever order.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Generic, TypeVar, Union

import msgspec

from schedulemesh.config.settings import PROTOCOL_VERSION
from schedulemesh.errors import ScheduleMeshError
from schedulemesh.protocol.msgpack_head import LARGE, before_bytes, new_mark, split_at

#: The most bytes of a message to the supervisor; what has more is sent over Ray.
MAX_REQUEST = 16 * 1024 * 1024
#: The most bytes of a message of the supervisor; what has more is fetched over Ray.
MAX_ANSWER = 64 * 1024 * 1024
#: The most requests of one connection that are not answered yet.
MAX_OPEN = 64

_LENGTH = struct.Struct(">I")


class FrameError(ScheduleMeshError):
    """What came over a socket is no frame, or has no message that is expected there."""


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Base of all messages."""


class Greeting(Message, tag="greeting", frozen=True):
    """The first message of a supervisor."""

    protocol: int
    #: Which scheduler it is: see ``SocketAddress``.
    scheduler: str

    def check(self, scheduler: str) -> None:
        """Raise FrameError where it comes from another scheduler, or from one of another version."""
        if (self.protocol, self.scheduler) != (PROTOCOL_VERSION, scheduler):
            raise FrameError("another scheduler, or one of another version, answers at the socket")


#: A message as it travels.
Packed = Union[bytes, memoryview]
PackedT = TypeVar("PackedT", bytes, memoryview)


class Ask(Message, Generic[PackedT], tag="ask", frozen=True):
    """A request of a client. Of a large one that has arrived the data are where they are, and not copied."""

    #: Distinguishes it from the others of its connection that are not answered yet.
    number: int
    #: The encoded request.
    data: PackedT
    #: A packed Credential, or the key of the process of the HTTP API.
    credential: bytes = b""
    #: A packed TokenCaller, on whose behalf the process of the HTTP API asks; empty: it asks for itself.
    caller: bytes = b""
    #: Whether the Ray handles that belong to the answer are needed.
    handles: bool = True


class Withdraw(Message, tag="withdraw", frozen=True):
    """The caller of a request has gone away."""

    number: int


class Answered(Message, tag="answered", frozen=True):
    """The answer to a request."""

    number: int
    #: The encoded answer.
    data: bytes
    #: The Ray handles that belong to it, as bytes; None stands for one that there is none of.
    handles: tuple[bytes | None, ...] = ()


class OverRay(Message, tag="over_ray", frozen=True):
    """A request is to be repeated over Ray, because its answer is too large, or there is none."""

    number: int


MessageT = TypeVar("MessageT")
AnyAsk = Union[Ask[bytes], Ask[memoryview]]
FromClient = Union[AnyAsk, Withdraw]
FromSupervisor = Union[Answered, OverRay]

_encoder = msgspec.msgpack.Encoder()
_greetings = msgspec.msgpack.Decoder(Greeting)
_from_client = msgspec.msgpack.Decoder[Union[Ask[bytes], Withdraw]](Union[Ask[bytes], Withdraw])
_large_from_client = msgspec.msgpack.Decoder(Ask[memoryview])
_from_supervisor = msgspec.msgpack.Decoder[FromSupervisor](FromSupervisor)


def frame(message: Message) -> bytes:
    """A message as it is sent."""
    packed = _encoder.encode(message)
    return _LENGTH.pack(len(packed)) + packed


def frame_in_parts(ask: Ask[bytes], request: Sequence[bytes]) -> list[bytes]:
    """The frame of an ask without data, whose encoded request these parts are; they are not copied."""
    mark = new_mark()
    begin, end = split_at(mark, _encoder.encode(msgspec.structs.replace(ask, data=mark)))
    size = sum(map(len, request))
    begin += before_bytes(size)
    return [_LENGTH.pack(len(begin) + size + len(end)) + begin, *request, end]


def greeting(packed: Packed) -> Greeting:
    """The first message of a supervisor. Raises FrameError."""
    return _decoded(_greetings, packed)


def from_client(packed: Packed) -> FromClient:
    """A message of a client. Raises FrameError."""
    if len(packed) > LARGE:
        return _decoded(_large_from_client, packed)
    message: FromClient = _decoded(_from_client, packed)
    return message


def from_supervisor(packed: Packed) -> FromSupervisor:
    """A message of a supervisor after its first. Raises FrameError."""
    message: FromSupervisor = _decoded(_from_supervisor, packed)
    return message


def _decoded(decoder: msgspec.msgpack.Decoder[MessageT], packed: Packed) -> MessageT:
    try:
        return decoder.decode(packed)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise FrameError(f"a message on a socket cannot be read: {error}") from error


class FrameReader:
    """Takes bytes as they arrive, and gives the messages of whole frames. ``most``: bytes of a message."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._buffer = bytearray()
        #: Where in the buffer the next frame begins.
        self._begin = 0

    def __len__(self) -> int:
        """The bytes that have arrived and were not given yet."""
        return len(self._buffer) - self._begin

    def feed(self, data: bytes) -> None:
        """Further bytes have arrived."""
        if self._begin:
            del self._buffer[: self._begin]
            self._begin = 0
        self._buffer += data

    def next(self) -> Packed | None:
        """The next message; None: its frame has not arrived whole. A large one is not copied. Raises
        FrameError as soon as it is known to be too large.
        """
        if len(self) < _LENGTH.size:
            return None
        (size,) = _LENGTH.unpack_from(self._buffer, self._begin)
        if size > self._most:
            raise FrameError(
                f"a message on a socket has at most {self._most:,} bytes, not {size:,}"
            )
        first = self._begin + _LENGTH.size
        if len(self._buffer) < first + size:
            return None
        end = first + size
        if size > LARGE:
            arrived, self._buffer, self._begin = self._buffer, self._buffer[end:], 0
            return memoryview(arrived)[first:end]
        self._begin = end
        return bytes(memoryview(self._buffer)[first:end])
