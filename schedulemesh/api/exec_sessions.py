"""Commands and terminals inside the claims of tasks and leases: start, read and write one."""

from __future__ import annotations

from typing import Annotated, ClassVar, TypedDict

import msgspec

from schedulemesh.api.routes import post
from schedulemesh.api.tasks import OfTask, OwnTaskChange, Wait
from schedulemesh.api.values import Checked, Name, RequestId, whole_number
from schedulemesh.domain.placement import MAX_BUNDLES
from schedulemesh.domain.tokens import Role
from schedulemesh.errors import InvalidRequestError

#: Words of a command, and characters of all of them.
MAX_WORDS, MAX_COMMAND = 1_000, 100_000
#: Bytes of input that one request brings.
MAX_INPUT = 64 * 1024
#: Rows and columns of a terminal, as many as the kernel counts.
MAX_CELLS = 65_535


def _check_command(words: tuple[str, ...], _: str) -> None:
    if not words or not words[0]:
        raise InvalidRequestError(
            "a command has at least one word, the program, such as nvidia-smi"
        )
    if len(words) > MAX_WORDS or sum(map(len, words)) > MAX_COMMAND:
        raise InvalidRequestError(
            f"a command has up to {MAX_WORDS:,} words of together {MAX_COMMAND:,} characters"
        )
    if any("\0" in word for word in words):
        raise InvalidRequestError("no word of a command has a zero byte in it")


def _check_terminal(terminal: str, _: str) -> None:
    if terminal and not (len(terminal) < 100 and terminal.isprintable() and " " not in terminal):
        raise InvalidRequestError(
            f"terminal is {terminal!r}; it is the type of a terminal, such as xterm-256color, or empty"
        )


def _check_input(data: bytes, _: str) -> None:
    if len(data) > MAX_INPUT:
        raise InvalidRequestError(
            f"one request brings up to {MAX_INPUT:,} bytes, not {len(data):,}"
        )


#: How many rows or columns; 0: as they are.
Cells = Annotated[int, whole_number(0, MAX_CELLS)]
#: A position in a stream.
Position = Annotated[int, whole_number(0, 2**53)]


class ExecStarted(TypedDict):
    """A command that was started inside the claim of a task or a lease."""

    #: Names it from now on.
    session_id: str
    #: Where it runs, and in which attempt of the task.
    node_id: str
    attempt: int


class StartExec(OwnTaskChange, tag="start_exec", frozen=True, kw_only=True):
    """Start a command inside the claim of a task that runs: on its node, in its environment, until its end.

    Refused unless the policy has ``allow_exec``.
    """

    routes: ClassVar = (
        post(
            "/tasks/{task_id}/exec",
            "Start a command inside the claim of a task that runs, or of a lease",
            takes_input=False,
            terminal="",
            rows=0,
            columns=0,
        ),
    )

    #: Its words, which no shell sees.
    command: Annotated[tuple[str, ...], msgspec.Meta(max_length=MAX_WORDS), Checked(_check_command)]
    #: Of a gang: that of the member that it is started beside.
    rank: Annotated[int, whole_number(0, MAX_BUNDLES)] = 0
    #: Whether it gets input; otherwise it reads the end of a file at once.
    takes_input: bool = False
    #: The type of the terminal that it gets, such as "xterm-256color"; empty: it gets none.
    terminal: Annotated[str, Checked(_check_terminal)] = ""
    rows: Cells = 0
    columns: Cells = 0
    #: It becomes the id of the session.
    request_id: RequestId


class OfExec(OfTask, frozen=True, kw_only=True):
    """Base of calls about a command that was started."""

    least_role: ClassVar[Role] = Role.SUBMITTER

    session_id: Name


class ReadExec(OfExec, tag="read_exec", frozen=True, kw_only=True):
    """Read what a command writes, and how it ends, once there is something or the time is over."""

    #: How many pieces the caller has received; they are not kept any longer.
    after: Position = 0
    wait_s: Wait = 0.0


class WriteExec(OfExec, tag="write_exec", frozen=True, kw_only=True):
    """Send a command input, tell it the size of its terminal, or end it."""

    data: Annotated[bytes, Checked(_check_input)] = b""
    #: The position of the first byte in all that was sent; what the command has got already is left out.
    begin: Position = 0
    #: Whether the input ends with it.
    closes: bool = False
    rows: Cells = 0
    columns: Cells = 0
    #: Whether the command is ended, with all that it has started.
    ends: bool = False
