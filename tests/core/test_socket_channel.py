"""Clients use the socket where their supervisor answers there, and Ray everywhere else."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from schedulemesh.client import socket_channel
from schedulemesh.client.socket_channel import SocketChannel
from schedulemesh.config.settings import PROTOCOL_VERSION
from schedulemesh.protocol.frames import (
    MAX_REQUEST,
    Answered,
    FrameReader,
    Greeting,
    OverRay,
    frame,
    from_client,
)
from schedulemesh.protocol.large_bytes import SLICE
from schedulemesh.protocol.local_sockets import ListeningSocket, SocketAddress
from schedulemesh.server import supervisor_socket
from schedulemesh.server.supervisor_socket import SupervisorSocket

SCHEDULER = "the scheduler"
GREETING = frame(Greeting(PROTOCOL_VERSION, SCHEDULER))


def no_look():
    """What a channel that gets an answer never calls."""
    raise AssertionError("the answer has come")


class Scripted:
    """Listens as a supervisor does; each connection is served by the next of these functions, the last one
    serves all others.
    """

    def __init__(self, folder, *scripts):
        self.listening = ListeningSocket(folder, "s")
        self.listening.socket.setblocking(True)
        self.address = SocketAddress(folder=str(folder), name="s", scheduler=SCHEDULER)
        self.scripts, self.accepted = list(scripts), 0
        self.threads = [threading.Thread(target=self._accept, daemon=True)]
        self.threads[0].start()

    def _accept(self):
        while True:
            try:
                connected, _ = self.listening.socket.accept()
            except OSError:
                return
            self.accepted += 1
            script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
            thread = threading.Thread(target=self._serve, args=(script, connected), daemon=True)
            self.threads.append(thread)
            thread.start()

    @staticmethod
    def _serve(script, connected):
        with connected, contextlib.suppress(OSError):
            script(connected)

    def close(self):
        # Closing alone does not wake who accepts.
        with contextlib.suppress(OSError):
            self.listening.socket.shutdown(socket.SHUT_RDWR)
        self.listening.close()


def requests(connected):
    """The requests of a client, as they arrive."""
    reader = FrameReader(MAX_REQUEST)
    while data := connected.recv(65536):
        reader.feed(data)
        while (packed := reader.next()) is not None:
            yield from_client(packed)


def echo(connected):
    """Answer each request with its bytes."""
    connected.sendall(GREETING)
    for ask in requests(connected):
        connected.sendall(frame(Answered(ask.number, ask.data)))


def once(connected):
    """Answer one request, and close."""
    connected.sendall(GREETING)
    ask = next(requests(connected))
    connected.sendall(frame(Answered(ask.number, ask.data)))


def lost(connected):
    """Close where an answer is due."""
    connected.sendall(GREETING)
    next(requests(connected))


def over_ray(connected):
    connected.sendall(GREETING)
    for ask in requests(connected):
        connected.sendall(frame(OverRay(ask.number)))


def silent(connected):
    connected.recv(100)


def no_frames(connected):
    connected.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def another(connected):
    connected.sendall(frame(Greeting(PROTOCOL_VERSION, "another")))
    connected.recv(100)


def another_version(connected):
    connected.sendall(frame(Greeting(PROTOCOL_VERSION + 1, SCHEDULER)))
    connected.recv(100)


def half_an_answer(connected):
    connected.sendall(GREETING)
    ask = next(requests(connected))
    connected.sendall(frame(Answered(ask.number, ask.data))[:-1])


@pytest.fixture
def scripted(tmp_path, monkeypatch):
    for module in (socket_channel, supervisor_socket):
        monkeypatch.setattr(module, "GREETING_S", 0.3)
        monkeypatch.setattr(module, "AGAIN_S", 0.0)
    with contextlib.ExitStack() as opened:

        def make(*scripts):
            server = Scripted(tmp_path / "sockets", *scripts)
            opened.callback(server.close)
            return server

        yield make


@pytest.fixture
def channel(scripted):
    with contextlib.ExitStack() as opened:

        def make(*scripts):
            made = SocketChannel(scripted(*scripts).address)
            opened.callback(made.close)
            return made

        yield make


def test_one_connection_serves_one_thread(scripted):
    server = scripted(echo)
    channel = SocketChannel(server.address)
    for number in range(50):
        assert channel.ask(b"%d" % number, b"", no_look) == b"%d" % number
    assert server.accepted == 1
    channel.close()


def with_handles(connected):
    """Answer each request with two handles, of which one is none."""
    connected.sendall(GREETING)
    for ask in requests(connected):
        connected.sendall(frame(Answered(ask.number, ask.data, (b"a handle", None))))


def test_handles_that_come_beside_an_answer_are_made_from_their_bytes(scripted):
    channel = SocketChannel(scripted(with_handles).address, str)
    for made in (channel, pickle.loads(pickle.dumps(channel))):
        assert made.ask(b"data", b"", no_look) == (b"data", [str(b"a handle"), None])
        made.close()


def test_threads_share_a_channel(scripted):
    server = scripted(echo)
    channel = SocketChannel(server.address)

    def asks(thread):
        return all(
            channel.ask(data, b"", no_look) == data
            for data in (b"%d-%d" % (thread, number) for number in range(100))
        )

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(asks, range(8)))
    assert server.accepted <= 8
    channel.close()


def test_large_messages_pass(channel):
    data = os.urandom(3_000_000)
    assert channel(echo).ask(data, b"", no_look) == data


@pytest.mark.parametrize(
    "script", [over_ray, lost, silent, no_frames, another, another_version, half_an_answer]
)
def test_where_the_socket_is_of_no_use_the_request_is_asked_over_ray(channel, script):
    assert channel(script).ask(b"data", b"", no_look) is None


def test_a_connection_that_has_ended_since_is_replaced(channel):
    made = channel(once, once, echo)
    for number in range(5):
        assert made.ask(b"%d" % number, b"", no_look) == b"%d" % number


def test_without_an_address_or_where_nobody_listens_nothing_is_tried(tmp_path):
    address = SocketAddress(folder=str(tmp_path / "missing"), name="s", scheduler=SCHEDULER)
    assert SocketChannel(None).ask(b"data", b"", no_look) is None
    assert SocketChannel(address).ask(b"data", b"", no_look) is None


def test_who_has_failed_to_connect_waits_a_moment_before_the_next_attempt(scripted, monkeypatch):
    monkeypatch.setattr(socket_channel, "AGAIN_S", 1_000.0)
    server = scripted(another)
    channel = SocketChannel(server.address)
    for _ in range(5):
        assert channel.ask(b"data", b"", no_look) is None
    assert server.accepted == 1


def test_what_is_too_large_for_a_frame_is_asked_over_ray(scripted):
    server = scripted(echo)
    assert SocketChannel(server.address).ask(bytes(MAX_REQUEST), b"", no_look) is None
    assert server.accepted == 0


def test_a_caller_looks_whether_a_supervisor_lives_that_does_not_answer(channel, monkeypatch):
    monkeypatch.setattr(socket_channel, "LOOK_S", 0.05)
    answer = threading.Event()

    def slow(connected):
        connected.sendall(GREETING)
        ask = next(requests(connected))
        answer.wait(20)
        connected.sendall(frame(Answered(ask.number, ask.data)))

    looks = []

    def look():
        looks.append(1)
        if len(looks) == 3:
            answer.set()

    assert channel(slow).ask(b"data", b"", look) == b"data"
    assert len(looks) >= 3


def test_the_answer_to_a_request_that_was_given_up_is_not_taken_for_another(channel, monkeypatch):
    monkeypatch.setattr(socket_channel, "LOOK_S", 0.05)
    ended = threading.Event()

    def late(connected):
        connected.sendall(GREETING)
        ask = next(requests(connected))
        ended.wait(20)
        connected.sendall(frame(Answered(ask.number, ask.data)))

    made = channel(late, echo)

    def give_up():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made.ask(b"first", b"", give_up)
    ended.set()
    assert made.ask(b"second", b"", no_look) == b"second"


def test_a_forked_process_makes_a_connection_of_its_own(scripted):
    server = scripted(echo)
    channel = SocketChannel(server.address)
    assert channel.ask(b"parent", b"", no_look) == b"parent"
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        answer = channel.ask(b"child", b"", no_look)
        os.write(writing, answer or b"None")
        os._exit(0)
    os.close(writing)
    assert os.read(reading, 100) == b"child"
    os.waitpid(pid, 0)
    os.close(reading)
    assert server.accepted == 2
    assert channel.ask(b"parent", b"", no_look) == b"parent"
    assert server.accepted == 2
    channel.close()


def test_a_channel_that_is_sent_to_another_process_makes_a_connection_of_its_own(scripted):
    server = scripted(echo)
    channel = SocketChannel(server.address)
    assert channel.ask(b"here", b"", no_look) == b"here"
    copy = pickle.loads(pickle.dumps(channel))
    assert copy.ask(b"there", b"", no_look) == b"there"
    assert server.accepted == 2
    channel.close()
    copy.close()


# the process of the HTTP API, which has many requests at a time on one connection


def ask(way, data, within_s=20.0, **how):
    return way.ask((data,), b"", b"", within_s, **how)


def asked(story, address):
    async def within():
        way = SupervisorSocket(address)
        try:
            return await asyncio.wait_for(story(way), 20)
        finally:
            way.close()
            await asyncio.sleep(0)  # the transport ends in the next round

    return asyncio.run(within())


def test_many_requests_share_a_connection(scripted):
    server = scripted(echo)

    async def story(way):
        assert await ask(way, b"first") == b"first"
        return await asyncio.gather(*(ask(way, b"%d" % number) for number in range(60)))

    assert asked(story, server.address) == [b"%d" % number for number in range(60)]
    assert server.accepted == 1


def test_while_a_connection_is_made_and_above_the_limit_others_use_ray(scripted, monkeypatch):
    monkeypatch.setattr(supervisor_socket, "MAX_OPEN", 5)

    async def story(way):
        first = await asyncio.gather(*(ask(way, b"data") for _ in range(3)))
        assert first.count(None) == 2
        answers = await asyncio.gather(*(ask(way, b"data") for _ in range(10)))
        assert answers.count(b"data") == 4

    asked(story, scripted(echo).address)


def test_requests_that_wait_leave_the_socket_to_those_that_are_answered_at_once(
    scripted, monkeypatch
):
    monkeypatch.setattr(supervisor_socket, "_MOST_WAITING", 2)

    async def story(way):
        await ask(way, b"first")
        waiting = await asyncio.gather(*(ask(way, b"waits", waits=True) for _ in range(5)))
        assert waiting.count(None) == 3
        answers = asyncio.gather(*(ask(way, b"data") for _ in range(20)))
        assert await ask(way, b"waits", waits=True) == b"waits"
        assert await answers == [b"data"] * 20

    asked(story, scripted(echo).address)


async def until(condition):
    """Return when it holds: nobody sets an event."""
    while not condition():  # noqa: ASYNC110  # see above
        await asyncio.sleep(0)  # a round of the event loop


async def opened(way):
    """Return when a request is open on a way."""
    await until(lambda: way._connection is not None and way._connection._open)


def test_a_large_request_is_sent_in_slices_beside_others(scripted):
    server, large, sizes = scripted(echo), b"x" * 3_000_000, []

    async def story(way):
        assert await ask(way, large) == large
        assert await ask(way, b"small") == b"small"
        transport = way._way_of_large._connection._transport
        write = transport.write
        transport.write = lambda part: (sizes.append(len(part)), write(part))
        parts = (b"before", large, b"after")
        in_parts = way.ask(parts, b"key", b"caller", 20.0)
        answers = await asyncio.gather(in_parts, *(ask(way, b"small") for _ in range(3)))
        assert answers == [b"".join(parts), b"small", b"small", b"small"]

    asked(story, server.address)
    assert server.accepted == 2
    assert max(sizes) <= SLICE
    assert len(large) < sum(sizes) < len(large) + 100


def test_between_two_slices_others_are_served(scripted):
    async def story(way):
        sending = asyncio.ensure_future(ask(way, b"x" * 8_000_000))
        await opened(way._way_of_large)
        connection, count = way._way_of_large._connection, 0
        while not connection._writing.done():
            count += 1
            await asyncio.sleep(0)  # a round of the event loop
        assert count >= 8_000_000 / SLICE
        await sending

    asked(story, scripted(echo).address)


def stuck(connected):
    """Read nothing until the other side has gone."""
    connected.sendall(GREETING)
    ended.wait(20)


ended = threading.Event()


@pytest.fixture
def has_ended():
    ended.clear()
    yield ended
    ended.set()


def test_a_large_request_that_is_not_taken_holds_nobody_up(scripted, has_ended, monkeypatch):
    monkeypatch.setattr(supervisor_socket, "_MOST_LARGE", 2)
    large = b"x" * 3_000_000

    async def story(way):
        assert await ask(way, b"first") == b"first"
        late = [asyncio.ensure_future(ask(way, large, 0.5)) for _ in range(2)]
        await opened(way._way_of_large)
        connection = way._way_of_large._connection
        late += [asyncio.ensure_future(ask(way, large, 0.5)) for _ in range(2)]
        answers = await asyncio.gather(*(ask(way, b"small") for _ in range(10)))
        assert answers == [b"small"] * 10
        # A second one is not asked while the connection is made; one is sent in part, and two wait.
        assert await late[1] is None
        assert len(connection._frames) == 2
        assert await ask(way, large) is None, "there is no room for it"
        for each in (late[0], *late[2:]):
            with pytest.raises(TimeoutError):
                await each
        # Those of which nothing was sent are sent no more.
        assert [number for number, _ in connection._frames] == [0]
        has_ended.set()
        await until(lambda: connection._writing.done() and not connection.is_open)

    asked(story, scripted(echo, stuck).address)


def test_a_large_request_whose_connection_is_lost_is_asked_over_ray(scripted):
    server = scripted(echo, close_at_once, echo)

    async def story(way):
        await ask(way, b"first")
        assert await ask(way, b"x" * 3_000_000) is None
        answers = [await ask(way, b"y" * 3_000_000) for _ in range(3)]
        assert [len(answer) for answer in answers[1:]] == [3_000_000] * 2

    asked(story, server.address)
    assert server.accepted == 3


def close_at_once(connected):
    connected.sendall(GREETING)
    connected.recv(100_000)


@pytest.mark.parametrize(
    "script", [over_ray, lost, silent, no_frames, another, another_version, half_an_answer]
)
def test_where_it_is_of_no_use_the_process_of_the_http_api_uses_ray(scripted, script):
    async def story(way):
        return await ask(way, b"data")

    assert asked(story, scripted(script).address) is None


def test_requests_whose_connection_is_lost_are_asked_over_ray_and_the_next_on_another(scripted):
    server = scripted(once, echo)

    async def story(way):
        assert await ask(way, b"data") == b"data"
        answers = [await ask(way, b"data") for _ in range(3)]
        assert answers[1:] == [b"data"] * 2

    asked(story, server.address)


@pytest.mark.parametrize("size", [4, 3_000_000])
def test_a_caller_that_goes_away_withdraws_its_request(scripted, size):
    withdrawn = threading.Event()

    def waits(connected):
        connected.sendall(GREETING)
        asks = requests(connected)
        first, second = next(asks), next(asks)
        if (type(second).__name__, first.number) == ("Withdraw", second.number):
            withdrawn.set()

    async def story(way):
        asking = asyncio.ensure_future(ask(way, bytes(size)))
        await opened(way._way if size == 4 else way._way_of_large)
        await asyncio.sleep(0)  # what is large is begun to be sent in the next round
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert await asyncio.to_thread(withdrawn.wait, 20)

    asked(story, scripted(waits).address)


def test_a_request_that_nobody_answers_in_time_is_given_up(scripted):
    def waits(connected):
        connected.sendall(GREETING)
        for _ in requests(connected):
            pass

    async def story(way):
        with pytest.raises(TimeoutError):
            await ask(way, b"data", within_s=0.05)

    asked(story, scripted(waits).address)
