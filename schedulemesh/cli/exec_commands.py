"""The commands exec and shell: a command, or a terminal, inside the claim of a task or a lease."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from schedulemesh.cli.command import Target, command, note
from schedulemesh.errors import InvalidRequestError, ScheduleMeshError

if TYPE_CHECKING:
    from schedulemesh.api.exec_sessions import StartExec
    from schedulemesh.protocol.answers import ExecOutput
    from schedulemesh.protocol.exec_reader import ExecReader

app = typer.Typer()

#: Bytes of input that are read at once.
_READ = 16 * 1024
#: What a terminal runs where no command is named: bash where there is one.
_SHELL = ("sh", "-c", "exec $(command -v bash || echo sh)")
#: What is typed at the beginning of a line to leave a terminal that does not answer.
_LEAVE = b"~."

TaskOfCommand = Annotated[str, typer.Argument(help="The id of a task that runs, or of a lease.")]
RankInGang = Annotated[
    int,
    typer.Option("--rank", "--member", min=0, help="Of a gang: the member to run it beside."),
]


@command(app, "exec")
def exec_command(
    target: Target,
    task: TaskOfCommand,
    words: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND…", help="The command, after `--`.")
    ],
    stdin: Annotated[
        bool, typer.Option("--stdin", "-i", help="Pass what comes on stdin on to it.")
    ] = False,
    rank: RankInGang = 0,
) -> int:
    """Run a command in a task that runs, or a lease, such as `schedulemesh exec ID -- nvidia-smi`.

    It runs on the node, in the environment and the folder of the job's driver, of the agent or of a member of
    the gang, sees the same GPUs, and ends with it, or with the lease. Its exit code is passed on. The policy
    must have `allow_exec`.
    """
    from schedulemesh.api.exec_sessions import StartExec

    request = StartExec(
        task_id=task,
        command=tuple(words),
        rank=rank,
        takes_input=stdin,
        request_id=uuid.uuid4().hex,
    )
    with _started(target, request) as reader:
        if stdin:
            threading.Thread(target=_send_stdin, args=(reader,), daemon=True).start()
        return _print(reader)


@command(app)
def shell(
    target: Target,
    task: TaskOfCommand,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND…", help="A command, after `--`; else bash or sh."),
    ] = None,
    rank: RankInGang = 0,
) -> int:
    """Open a terminal in a task that runs, or a lease.

    As `exec`, with this terminal. A line that begins with `~.` leaves one that does not answer.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InvalidRequestError(
            "shell needs a terminal; in a pipe, use `schedulemesh exec ID --stdin -- COMMAND`"
        )
    from schedulemesh.api.exec_sessions import StartExec

    rows, columns = _size()
    request = StartExec(
        task_id=task,
        command=tuple(words or _SHELL),
        rank=rank,
        terminal=os.environ.get("TERM") or "dumb",
        rows=rows,
        columns=columns,
        request_id=uuid.uuid4().hex,
    )
    with _started(target, request) as reader:
        with _raw_terminal() as resized:
            typing = threading.Thread(target=_type, args=(reader, resized), daemon=True)
            typing.start()
            for _, data in reader.pieces():
                _write(sys.stdout.fileno(), data)
        return _code(reader.end)


@contextmanager
def _started(target: Target, request: StartExec) -> Iterator[ExecReader]:
    """Within, a command runs; it is ended where the block is left before it has ended."""
    from schedulemesh.cli.gateway import gateway_to
    from schedulemesh.protocol.exec_reader import ExecReader

    with gateway_to(target) as gateway:
        reader = ExecReader(gateway.ask, request)
        try:
            yield reader
        finally:
            if reader.end is None:
                with contextlib.suppress(ScheduleMeshError):
                    reader.stop()


def _print(reader: ExecReader) -> int:
    """Print what a command writes, each stream where it belongs; its exit code."""
    from schedulemesh.protocol.exec_messages import STDERR

    for stream, data in reader.pieces():
        output = sys.stderr if stream == STDERR else sys.stdout
        output.buffer.write(data)
        output.flush()
    return _code(reader.end)


def _code(end: ExecOutput | None) -> int:
    """The exit code with which a command has ended; one that did not end by itself has failed."""
    from schedulemesh.cli.wording import in_commands

    if end is None:
        return 1
    if end.error:
        note(in_commands(end.error))
    return 1 if end.exit_code is None else end.exit_code


def _send_stdin(reader: ExecReader) -> None:
    """Send what comes on stdin until its end. A command that has ended takes no more."""
    with contextlib.suppress(ScheduleMeshError, OSError):
        while data := os.read(sys.stdin.fileno(), _READ):
            reader.write(data)
        reader.write(b"", closes=True)


def _type(reader: ExecReader, resized: int) -> None:
    """Send what is typed, and the size of the terminal whenever something comes from ``resized``."""
    leaving = _Leaving()
    with contextlib.suppress(ScheduleMeshError, OSError):
        while True:
            ready, _, _ = select.select([sys.stdin.fileno(), resized], [], [])
            if resized in ready:
                os.read(resized, _READ)
                reader.resize(*_size())
                continue
            data = os.read(sys.stdin.fileno(), _READ)
            if not data or leaving.is_in(data):
                reader.stop()
                return
            reader.write(data)


class _Leaving:
    """Finds what is typed to leave a terminal, at the beginning of a line."""

    def __init__(self) -> None:
        self._line = b""

    def is_in(self, data: bytes) -> bool:
        """Whether a line begins so with these bytes."""
        *_, last = (self._line + data).replace(b"\n", b"\r").split(b"\r")
        self._line = last[: len(_LEAVE)]
        return self._line == _LEAVE


@contextmanager
def _raw_terminal() -> Iterator[int]:
    """Within, what is typed goes to the command as it is; a file in which there is something whenever the
    terminal has another size.
    """
    import termios
    import tty

    former = termios.tcgetattr(sys.stdin.fileno())
    reading, writing = os.pipe()

    def resized(_number: int, _frame: FrameType | None) -> None:
        os.write(writing, b"\0")

    handler = signal.signal(signal.SIGWINCH, resized)
    try:
        tty.setraw(sys.stdin.fileno())
        yield reading
    finally:
        termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, former)
        signal.signal(signal.SIGWINCH, handler)


def _size() -> tuple[int, int]:
    """The rows and the columns of this terminal."""
    size = os.get_terminal_size(sys.stdout.fileno())
    return size.lines, size.columns


def _write(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]
