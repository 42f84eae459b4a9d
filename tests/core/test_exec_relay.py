"""Commands inside claims, from the runner's process over the socket to those who ask for their output."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from contextlib import asynccontextmanager

import msgspec
import pytest

from schedulemesh.api.exec_sessions import ReadExec, WriteExec
from schedulemesh.core.agent import exec_relay
from schedulemesh.core.agent.exec_process import begin_exec, whole_characters
from schedulemesh.core.agent.exec_relay import ExecRelay
from schedulemesh.core.agent.process_marks import living
from schedulemesh.protocol.exec_messages import ExecOrder

ENVIRONMENT = {"PATH": os.environ["PATH"], "CUDA_VISIBLE_DEVICES": "3,5"}
#: Prints its id, then waits for ever.
FOREVER = "echo $$; exec sleep 600"


class Session:
    """A command, as its caller sees it."""

    def __init__(self, relay, session_id):
        self._relay, self._id = relay, session_id
        self.written = {1: b"", 2: b""}
        self._after, self._sent = 0, 0

    async def read(self, wait_s=5.0):
        request = ReadExec(task_id="t", session_id=self._id, after=self._after, wait_s=wait_s)
        part = await self._relay.read(request)
        for stream, data in part.pieces:
            self.written[stream] += data
        self._after = part.first + len(part.pieces)
        return part

    async def until(self, text):
        while text not in self.written[1]:
            assert not (await self.read()).ended
        return self.written[1]

    async def end(self):
        """How it ends, once everything was read."""
        part = await self.read()
        while not (part.ended and not part.pieces):
            part = await self.read()
        return part

    async def write(self, data=b"", **fields):
        request = WriteExec(task_id="t", session_id=self._id, data=data, begin=self._sent, **fields)
        self._sent = await self._relay.write(request)
        return self._sent


@asynccontextmanager
async def begun(tmp_path, *command, silent_s=30.0, environment=ENVIRONMENT, folder=None, **fields):
    relay = ExecRelay(tmp_path / "sockets", silent_s)
    order = ExecOrder(address=relay.open("one"), command=command, task_id="t", **fields)
    await asyncio.to_thread(begin_exec, order, environment, folder)
    try:
        yield Session(relay, "one")
    finally:
        relay.close()


async def ended(pid):
    """Return once a process has ended."""
    for _ in range(1000):
        if living(pid) is None:
            return
        # No event tells of the end of somebody else's process.
        await asyncio.sleep(0.01)
    raise AssertionError(f"{pid} lives")


def with_session(check, *command, **fields):
    async def work(tmp_path):
        async with begun(tmp_path, *command, **fields) as session:
            await check(session)

    return work


def run(tmp_path, *command, **fields):
    """The exit code, and what a command has written."""
    result = []

    async def check(session):
        part = await session.end()
        result.extend((part.exit_code, part.error, session.written[1], session.written[2]))

    asyncio.run(with_session(check, *command, **fields)(tmp_path))
    return tuple(result)


def test_streams_are_told_apart_and_the_exit_code_is_passed_on(tmp_path):
    script = "echo out; echo err >&2; exit 7"
    assert run(tmp_path, "sh", "-c", script) == (7, "", b"out\n", b"err\n")
    assert run(tmp_path, "sh", "-c", "kill -9 $$")[0] == 137
    assert list((tmp_path / "sockets").iterdir()) == []


def test_it_has_the_environment_and_the_folder_and_no_input(tmp_path):
    script = 'echo "$CUDA_VISIBLE_DEVICES $PWD $HOME"; cat; tty'
    code, _, out, _ = run(tmp_path, "sh", "-c", script, folder=tmp_path)
    assert out.decode() == f"3,5 {tmp_path} \nnot a tty\n"
    assert code == 1


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [("no-such-program", 127, "No such file"), ("/etc/passwd", 126, "Permission denied")],
)
def test_what_cannot_be_started_says_why(tmp_path, command, code, words):
    exit_code, error, *_ = run(tmp_path, command)
    assert exit_code == code
    assert error.startswith(f"'{command}' cannot be started: {words}")


def test_much_output_arrives_whole_however_slowly_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(exec_relay, "_WAITING_BYTES", 100_000)
    script = "import sys; sys.stdout.write('é' * 1_000_000)"
    code, _, out, _ = run(tmp_path, sys.executable, "-c", script)
    assert (code, out.decode()) == (0, "é" * 1_000_000)


def test_a_process_that_it_leaves_behind_does_not_keep_it_open(tmp_path):
    began = time.monotonic()
    code, _, out, _ = run(tmp_path, "sh", "-c", "sleep 60 & echo $!")
    os.kill(int(out), 9)
    assert code == 0
    assert time.monotonic() - began < 20


def test_input_is_passed_on_once_though_it_is_sent_twice(tmp_path):
    async def check(session):
        assert await session.write(b"hel") == 3
        session._sent = 1
        assert await session.write(b"ello\n") == 6
        await session.until(b"hello\n")
        await session.write(b"", closes=True)
        assert (await session.end()).exit_code == 0
        assert session.written[1] == b"hello\n"

    asyncio.run(with_session(check, "cat", takes_input=True)(tmp_path))


def test_a_terminal_has_a_size_a_type_and_signals(tmp_path):
    async def check(session):
        await session.write(b"tty; stty size; echo $TERM\n")
        await session.until(b"xterm")
        assert b"/dev/pts/" in session.written[1]
        assert b"25 90" in session.written[1]
        await session.write(b"trap 'echo resized' WINCH; echo re''ady\n")
        await session.until(b"ready")
        await session.write(rows=40, columns=120)
        await session.until(b"resized")
        # Once it has written, it is what Ctrl-C is for.
        await session.write(b"sh -c 'stty size; exec sleep 600'\n")
        await session.until(b"40 120")
        await session.write(b"\x03")
        await session.until(b"^C")
        await session.write(b"exit 3\n")
        assert (await session.end()).exit_code == 3

    asyncio.run(
        with_session(check, "bash", "--norc", terminal="xterm", rows=25, columns=90)(tmp_path)
    )


@pytest.mark.parametrize("terminal", ["", "dumb"])
def test_a_command_that_is_ended_leaves_nothing(tmp_path, terminal):
    async def check(session):
        # It ignores the end of its terminal.
        await session.until(b"\n")
        pid = int(session.written[1])
        await session.write(ends=True)
        assert (await session.end()).exit_code is None
        await ended(pid)

    script = f"trap '' HUP; {FOREVER}"
    asyncio.run(with_session(check, "sh", "-c", script, terminal=terminal)(tmp_path))


def test_a_session_that_nobody_asks_for_is_ended(tmp_path):
    async def check(session):
        pid = int(await session.until(b"\n"))
        await ended(pid)
        assert await session._relay.read(ReadExec(task_id="t", session_id="one")) is None

    asyncio.run(with_session(check, "sh", "-c", FOREVER, silent_s=2.0)(tmp_path))


def test_a_runner_that_dies_ends_the_session_without_a_code(tmp_path):
    async def check(session):
        await session.until(b"begun")
        session._relay._sessions["one"]._writer.transport.abort()
        part = await session.end()
        assert (part.ended, part.exit_code) == (True, None)

    asyncio.run(with_session(check, "sh", "-c", f"echo begun; {FOREVER}")(tmp_path))


def test_pieces_end_where_characters_do():
    text = "né".encode()
    assert [whole_characters(text[:size]) for size in (1, 2, 3)] == [1, 1, 3]
    assert whole_characters(b"\xff\xfe\x80") == 3


def test_an_order_is_the_same_after_its_way(tmp_path):
    async def check():
        address = ExecRelay(tmp_path / "s").open("x")
        order = ExecOrder(address=address, command=("a",), task_id="t", rows=3)
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(order), type=ExecOrder) == order

    asyncio.run(check())
