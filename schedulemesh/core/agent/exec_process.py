"""A command beside the driver of a job, in the process of the job's runner, from which it has all limits.

It is started by that process, so it is in the same container and control group, and carries the same mark: it
ends with the job. Its streams go over a socket to a process of the supervisor on the node. Where nobody is at
the other end any more, the command is ended.
"""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import logging
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from schedulemesh.protocol.exec_messages import (
    MAX_MESSAGE,
    PIECE_BYTES,
    STDERR,
    STDOUT,
    Ended,
    ExecOrder,
    Input,
    OutputPiece,
    Resize,
    to_runner,
)
from schedulemesh.protocol.frames import FrameError, FrameReader, Message, frame
from schedulemesh.protocol.local_sockets import connect

logger = logging.getLogger(__name__)

#: Seconds in which the socket must take the connection.
_CONNECT_S = 5.0
#: Milliseconds between two looks at whether the command has ended while it writes nothing, and the most bytes
#: that are read after its end: what it has left behind may keep the pipe open, and write on.
_LOOK_MS, _LATE_BYTES = 200, 1024 * 1024
#: Seconds from SIGHUP to SIGKILL, and between two looks at whether it has ended.
_HANGUP_S, _HANGUP_LOOK_S = 2.0, 0.05
#: Bytes that are written at once to what says that it takes some.
_WRITE_BYTES = 1024
#: What a shell exits with where there is no such command, where it cannot be run, and for a signal.
_NOT_FOUND, _NOT_RUNNABLE, _BY_SIGNAL = 127, 126, 128
#: What makes a terminal that of a command: its session leader opens it first.
_RUN_IN_TERMINAL = """
import os, signal, sys
# Ignored where Ray was started in the background of a shell; no Ctrl-C would reach the command.
for number in (signal.SIGINT, signal.SIGQUIT):
    signal.signal(number, signal.SIG_DFL)
terminal = os.open(sys.argv[1], os.O_RDWR)
for stream in range(3):
    os.dup2(terminal, stream)
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    print(f"{sys.argv[2]}: {error.strerror}", file=sys.stderr)
    sys.exit(127 if isinstance(error, FileNotFoundError) else 126)
"""
_WITH_TERMINAL = (sys.executable, "-I", "-S", "-c", _RUN_IN_TERMINAL)
#: Bytes of a character in UTF-8 that may come before its last one.
_CHARACTER = 3
#: The end of a file, as it is typed.
_END_OF_FILE = b"\x04"
#: That nobody is at the other end is noticed also while nothing is read from there.
_GONE = select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0)


def begin_exec(order: ExecOrder, environment: Mapping[str, str], folder: Path | None) -> None:
    """Start a command, in a thread that ends with it. ``folder``: its working directory; None: that of this
    process. Raises OSError where nobody listens at the address.
    """
    connected = connect(order.address, _CONNECT_S)
    connected.settimeout(None)
    work = _Exec(connected, order, dict(environment), folder).run
    threading.Thread(target=work, name="schedulemesh-exec", daemon=True).start()


class _Exec:
    """One command, with its streams."""

    def __init__(
        self,
        connected: socket.socket,
        order: ExecOrder,
        environment: dict[str, str],
        folder: Path | None,
    ) -> None:
        self._socket, self._order, self._folder = connected, order, folder
        if order.terminal:
            environment["TERM"] = order.terminal
        self._environment = environment
        #: The side of the terminal that is not the command's; -1: it has none.
        self._terminal = -1
        self._sending = threading.Lock()
        self._ended = threading.Event()

    def run(self) -> None:
        """Run the command to its end, and say what that was."""
        try:
            process = self._start()
        except OSError as error:
            code = _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_RUNNABLE
            reason = f"{self._order.command[0]!r} cannot be started: {error.strerror}"
            self._send(Ended(code, reason))
            self._socket.close()
            return
        copying = [
            threading.Thread(target=self._copy, args=(source, stream), daemon=True)
            for source, stream in self._outputs(process)
        ]
        typing = threading.Thread(target=self._take_input, args=(process,), daemon=True)
        for thread in (*copying, typing):
            thread.start()
        code = process.wait()
        self._ended.set()
        for thread in copying:
            thread.join()
        self._send(Ended(code if code >= 0 else _BY_SIGNAL - code))
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        typing.join()
        self._close(process)

    def _start(self) -> subprocess.Popen[bytes]:
        """Start the command in a session of its own. Raises OSError."""
        order = self._order
        if not order.terminal:
            return subprocess.Popen(  # noqa: S603  # running what the user gave is what this is for
                order.command,
                start_new_session=True,
                stdin=subprocess.PIPE if order.takes_input else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self._environment,
                cwd=self._folder,
            )
        self._terminal, inner = os.openpty()
        try:
            self._resize(order.rows, order.columns)
            return subprocess.Popen(  # noqa: S603  # as above
                (*_WITH_TERMINAL, os.ttyname(inner), *order.command),
                start_new_session=True,
                stdin=inner,
                stdout=inner,
                stderr=inner,
                env=self._environment,
                cwd=self._folder,
            )
        finally:
            os.close(inner)

    def _outputs(self, process: subprocess.Popen[bytes]) -> list[tuple[int, int]]:
        """What is read from the command, each with the number of its stream."""
        if self._order.terminal:
            return [(self._terminal, STDOUT)]
        pipes = ((process.stdout, STDOUT), (process.stderr, STDERR))
        return [(pipe.fileno(), stream) for pipe, stream in pipes if pipe is not None]

    def _copy(self, source: int, stream: int) -> None:
        """Send what the command writes, until its output has ended, or it has and nothing more comes."""
        begun, late = b"", 0
        while late < _LATE_BYTES and self._has_output(source):
            try:
                data = os.read(source, PIECE_BYTES - _CHARACTER)
            except OSError:  # a terminal that no process has open any more
                break
            if not data:
                break
            late += len(data) if self._ended.is_set() else 0
            size = whole_characters(begun + data)
            if not self._send(OutputPiece((begun + data)[:size], stream)):
                return
            begun = (begun + data)[size:]
        if begun:
            self._send(OutputPiece(begun, stream))

    def _has_output(self, source: int) -> bool:
        """Wait until something can be read; False: the command has ended, and nothing came for a while."""
        look = select.poll()
        look.register(source, select.POLLIN)
        while not look.poll(_LOOK_MS):
            if self._ended.is_set():
                return False
        return True

    def _send(self, message: Message) -> bool:
        """Send a message; it waits where the other end does not read. False: nobody is there."""
        with self._sending:
            try:
                self._socket.sendall(frame(message))
            except OSError:
                return False
        return True

    def _take_input(self, process: subprocess.Popen[bytes]) -> None:
        """Pass on what comes for the command until it has ended; end it where nobody is at the other end."""
        messages = _Messages(self._socket)
        try:
            while (message := messages.next()) is not None:
                if isinstance(message, Resize):
                    self._resize(message.rows, message.columns)
                elif not self._write(process, message.data):
                    break
                elif message.closes:
                    self._close_input(process)
        except (OSError, FrameError) as error:
            logger.debug("the input of a command has ended: %s", error)
        if not self._ended.is_set():
            _end_session(process)

    def _write(self, process: subprocess.Popen[bytes], data: bytes) -> bool:
        """Give the command some input, as fast as it takes that; False: nobody is at the other end."""
        target = self._terminal
        if not self._order.terminal:
            if process.stdin is None or process.stdin.closed:
                return True
            target = process.stdin.fileno()
        events = select.poll()
        events.register(target, select.POLLOUT)
        events.register(self._socket.fileno(), _GONE)
        while data:
            ready = dict(events.poll())
            if self._ended.is_set() or ready.get(self._socket.fileno()):
                return False
            try:
                data = data[os.write(target, data[:_WRITE_BYTES]) :]
            except OSError:  # it has closed its input
                return True
        return True

    def _close_input(self, process: subprocess.Popen[bytes]) -> None:
        if self._order.terminal:
            os.write(self._terminal, _END_OF_FILE)
        elif process.stdin is not None:
            process.stdin.close()

    def _resize(self, rows: int, columns: int) -> None:
        if self._terminal >= 0 and rows and columns:
            size = struct.pack("4H", rows, columns, 0, 0)
            fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, size)

    def _close(self, process: subprocess.Popen[bytes]) -> None:
        self._socket.close()
        if self._terminal >= 0:
            os.close(self._terminal)
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


class _Messages:
    """Reads the messages that come over a socket."""

    def __init__(self, source: socket.socket) -> None:
        self._socket, self._reader = source, FrameReader(MAX_MESSAGE)

    def next(self) -> Input | Resize | None:
        """The next message, once it comes; None: there is none any more. Raises OSError and FrameError."""
        while (packed := self._reader.next()) is None:
            data = self._socket.recv(PIECE_BYTES)
            if not data:
                return None
            self._reader.feed(data)
        return to_runner(packed)


def whole_characters(data: bytes) -> int:
    """How many bytes there are up to the end of the last whole character in UTF-8; all of them where it is no
    text.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data)
    return len(data) - len(decoder.getstate()[0])


def _end_session(process: subprocess.Popen[bytes]) -> None:
    """End a command and what it has started: it may end by itself at SIGHUP, as shells do."""
    until = time.monotonic() + _HANGUP_S
    _signal_session(process.pid, signal.SIGHUP, signal.SIGCONT)
    while process.poll() is None and time.monotonic() < until:
        time.sleep(_HANGUP_LOOK_S)
    _signal_session(process.pid, signal.SIGKILL)


def _signal_session(leader: int, *signals: signal.Signals) -> None:
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.getsid(int(folder.name)) == leader:
                for number in signals:
                    os.kill(int(folder.name), number)
