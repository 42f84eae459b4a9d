"""Messages between the process that runs a command inside a claim and the one that passes its streams on.

They travel in frames over a Unix socket on the node, which ends with either process.
"""

from __future__ import annotations

from typing import Union

import msgspec

from schedulemesh.protocol.frames import FrameError, Message, Packed
from schedulemesh.protocol.local_sockets import SocketAddress

#: Bytes of output in one message; and of a whole message.
PIECE_BYTES, MAX_MESSAGE = 64 * 1024, 256 * 1024
#: The numbers of the streams that a command writes to. A terminal has the first alone.
STDOUT, STDERR = 1, 2


class ExecOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Which command a runner starts, and where its streams go."""

    address: SocketAddress
    command: tuple[str, ...]
    #: The task or the lease in whose claim it runs.
    task_id: str
    takes_input: bool = False
    #: The type of its terminal; empty: it has none.
    terminal: str = ""
    rows: int = 0
    columns: int = 0


class Input(Message, tag="input", frozen=True):
    """Bytes for the command."""

    data: bytes
    #: Whether the input ends with them.
    closes: bool = False


class Resize(Message, tag="resize", frozen=True):
    """The terminal has another size."""

    rows: int
    columns: int


class OutputPiece(Message, tag="output", frozen=True):
    """Bytes that the command has written."""

    data: bytes
    #: ``STDOUT`` or ``STDERR``.
    stream: int = STDOUT


class Ended(Message, tag="ended", frozen=True):
    """The command has ended, or could not be started."""

    #: As a shell says it: 128 more than the signal that has ended it.
    exit_code: int
    #: Why it could not be started; empty: it was.
    error: str = ""


ToRunner = Union[Input, Resize]
FromRunner = Union[OutputPiece, Ended]

_to_runner = msgspec.msgpack.Decoder[ToRunner](ToRunner)
_from_runner = msgspec.msgpack.Decoder[FromRunner](FromRunner)


def to_runner(packed: Packed) -> ToRunner:
    """A message to the process with the command. Raises FrameError."""
    try:
        message: ToRunner = _to_runner.decode(packed)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise FrameError(f"a message to a command cannot be read: {error}") from error
    return message


def from_runner(packed: Packed) -> FromRunner:
    """A message of the process with the command. Raises FrameError."""
    try:
        message: FromRunner = _from_runner.decode(packed)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise FrameError(f"a message of a command cannot be read: {error}") from error
    return message
