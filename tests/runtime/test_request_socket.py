"""The supervisor's socket: whoever connects, others are served, and nothing is lost or done twice."""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
import threading

import pytest
from msgspec.structs import replace

from schedulemesh.api.audit import QueryAudit
from schedulemesh.api.cluster import GetAbout
from schedulemesh.api.pools import CreatePool, EnsurePool, ListPools
from schedulemesh.client import socket_channel
from schedulemesh.client.socket_channel import SocketChannel
from schedulemesh.config.auth import AuthSettings
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.resources import parse_resources
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.protocol.agents import pack
from schedulemesh.protocol.answers import Details, Listed, PoolResponse, decode_answer
from schedulemesh.protocol.callers import TokenCaller
from schedulemesh.protocol.credentials import Credential
from schedulemesh.protocol.frames import (
    MAX_REQUEST,
    Answered,
    Ask,
    FrameReader,
    Withdraw,
    frame,
    from_supervisor,
    greeting,
)
from schedulemesh.protocol.local_sockets import connect, user_of
from schedulemesh.protocol.requests import encode_request
from schedulemesh.runtime import request_socket
from schedulemesh.runtime.request_socket import RequestSocket, SocketLimits
from tests.runtime.composition import InThread

#: Seconds that anything in here may take.
SOON_S = 20.0
SCHEDULER = "the scheduler"
#: What all processes of a supervisor get from the process that creates it.
AUTH = AuthSettings(process_key=b"k" * 32)
WITH_TOKENS = AuthSettings(required=True, first_token_hash="0" * 64)


class Client:
    """A client that sends what a test says."""

    def __init__(self, address):
        self.socket = connect(address, SOON_S)
        self.reader = FrameReader(2**30)
        self.greeting = greeting(self.next())

    def next(self):
        """The next message; None: the supervisor has closed the connection."""
        while (packed := self.reader.next()) is None:
            try:
                data = self.socket.recv(65536)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self.reader.feed(data)
        return packed

    def send(self, *messages):
        self.socket.sendall(b"".join(map(frame, messages)))

    def answers(self, count):
        messages = [from_supervisor(self.next()) for _ in range(count)]
        return {each.number: each.data if isinstance(each, Answered) else None for each in messages}

    def ask(self, number, data=b"", **how):
        self.send(Ask(number, data, **how))
        return self.answers(1)[number]


class Served:
    """A socket on a loop of its own. A request is answered with its own bytes, unless they have a meaning."""

    def __init__(self, folder, **limits):
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.begun, self.cancelled = [], []
        self.progress = threading.Condition()
        self.let = asyncio.Event()
        self.socket = RequestSocket(folder, "s", SCHEDULER, self.answer, SocketLimits(**limits))
        self.serving = asyncio.run_coroutine_threadsafe(self.socket.serve(), self.loop)
        self.until(lambda: self.socket.address is not None)

    async def answer(self, ask):
        self.note(self.begun, ask.data)
        if ask.data.startswith(b"wait"):
            try:
                await self.let.wait()
            except asyncio.CancelledError:
                self.note(self.cancelled, ask.data)
                raise
        if ask.data == b"fail":
            raise RuntimeError("it fails")
        if ask.data == b"handles":
            return b"data", [b"a handle", None]
        if ask.data == b"many handles":
            return b"", [bytes(100)] * 10
        if ask.data == b"much":
            return bytes(8 * 1024 * 1024)
        return ask.data, []

    def note(self, noted, data):
        with self.progress:
            noted.append(data)
            self.progress.notify_all()

    def noted(self, condition):
        """Wait for what requests note."""
        with self.progress:
            assert self.progress.wait_for(condition, SOON_S)

    def until(self, condition):
        """Wait, round by round of the loop, for what nobody notes."""

        async def rounds():
            while not condition():  # noqa: ASYNC110  # nobody sets an event
                await asyncio.sleep(0)  # a round of the event loop

        asyncio.run_coroutine_threadsafe(rounds(), self.loop).result(SOON_S)

    def let_go(self):
        self.loop.call_soon_threadsafe(self.let.set)

    @contextlib.contextmanager
    def client(self):
        client = Client(self.socket.address)
        with client.socket:
            yield client

    def close(self):
        self.serving.cancel()
        self.loop.call_soon_threadsafe(self.socket.close)
        self.until(lambda: self.socket.address is None and not self.socket._connections)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


@pytest.fixture
def served(tmp_path, monkeypatch):
    monkeypatch.setattr(request_socket, "_LOOK_S", 0.02)
    with contextlib.ExitStack() as opened:

        def make(**limits):
            served = Served(tmp_path / "sockets", **limits)
            opened.callback(served.close)
            return served

        yield make


def test_requests_are_answered_in_whatever_order(served):
    server = served()
    with server.client() as client:
        assert client.greeting.scheduler == SCHEDULER
        client.send(Ask(1, b"wait"), Ask(2, b"two"))
        assert client.answers(1) == {2: b"two"}
        server.let_go()
        assert client.answers(1) == {1: b"wait"}


def test_a_number_may_be_used_again_as_soon_as_it_is_answered(served):
    with served().client() as client:
        for _ in range(500):
            assert client.ask(0, b"data") == b"data"


def test_what_cannot_be_answered_here_is_asked_over_ray(served):
    with served().client() as client:
        assert client.ask(1, b"fail") is None
        assert client.ask(2, b"two") == b"two"


def test_handles_come_as_bytes_beside_the_answer_where_they_are_asked_for(served):
    with served().client() as client:
        client.send(Ask(1, b"handles"))
        assert from_supervisor(client.next()) == Answered(1, b"data", (b"a handle", None))
        client.send(Ask(2, b"handles", handles=False))
        assert from_supervisor(client.next()) == Answered(2, b"data")


def test_an_answer_that_is_too_large_is_fetched_over_ray(served, monkeypatch):
    monkeypatch.setattr(request_socket, "MAX_ANSWER", 1_000)
    monkeypatch.setattr(request_socket, "_LARGE", 100)
    with served().client() as client:
        assert client.ask(1, b"much") is None
        assert client.ask(2, b"many handles") is None
        assert client.ask(3, b"many handles", handles=False) == b""
        assert client.ask(4, b"four") == b"four"


@pytest.mark.parametrize(
    "sent",
    [
        struct.pack(">I", MAX_REQUEST + 1),
        struct.pack(">I", 2**32 - 1) + b"x" * 100,
        struct.pack(">I", 4) + b"\xff\xff\xff\xff",
        struct.pack(">I", 0),
        b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n",
        frame(Answered(1, b"")),
        frame(Ask(1, b"wait")) + frame(Ask(1, b"wait")),
    ],
)
def test_who_sends_something_else_is_disconnected_and_others_are_served(served, sent):
    server = served()
    with server.client() as client, server.client() as other:
        client.socket.sendall(sent)
        assert client.next() is None
        assert other.ask(1, b"one") == b"one"


def test_half_a_message_ends_its_connection_only(served):
    server = served(frame_s=0.1)
    with server.client() as client, server.client() as other:
        client.socket.sendall(frame(Ask(1, b"one"))[:-1])
        assert other.ask(1, b"one") == b"one"
        assert client.next() is None
        assert other.ask(2, b"two") == b"two"
    assert server.begun == [b"one", b"two"]


def test_a_message_that_trickles_in_has_no_more_time_than_another(served):
    server = served(frame_s=0.2)
    ended = threading.Event()
    with server.client() as client:

        def trickle():
            for byte in frame(Ask(1, bytes(10_000))):
                try:
                    client.socket.sendall(bytes([byte]))
                except OSError:
                    break
                # Slower than the limit allows for all of it, faster than for a part.
                ended.wait(0.01)

        thread = threading.Thread(target=trickle)
        thread.start()
        assert client.next() is None
        ended.set()
        thread.join()
    assert server.begun == []


def test_messages_in_part_have_a_common_limit(served):
    server = served(partial_bytes=1_000_000)
    with contextlib.ExitStack() as opened:
        clients = [opened.enter_context(server.client()) for _ in range(4)]
        for client in clients[:3]:
            client.socket.sendall(struct.pack(">I", MAX_REQUEST) + bytes(200_000))
        server.until(lambda: server.socket.partial_bytes > 500_000)
        with contextlib.suppress(OSError):
            clients[2].socket.sendall(bytes(1_500_000))
        assert clients[2].next() is None
        assert clients[3].ask(1, b"one") == b"one"


def test_a_connection_without_requests_ends_after_a_while(served):
    server = served(idle_s=0.1)
    with server.client() as idle, server.client() as busy:
        busy.send(Ask(1, b"wait"))
        assert idle.next() is None
        server.let_go()
        assert busy.answers(1) == {1: b"wait"}
        assert busy.next() is None


def test_for_a_further_connection_the_one_that_is_idle_for_longest_ends(served):
    server = served(connections=3)
    with contextlib.ExitStack() as opened:
        first, second, third = (opened.enter_context(server.client()) for _ in range(3))
        second.send(Ask(1, b"wait"))
        assert first.ask(1, b"one") == b"one"
        fourth = opened.enter_context(server.client())
        assert third.next() is None
        for client in (first, fourth):
            assert client.ask(2, b"two") == b"two"
        server.let_go()
        assert second.answers(1) == {1: b"wait"}


def test_where_every_connection_is_busy_a_further_one_is_refused(served):
    server = served(connections=2)
    with server.client() as one, server.client() as two:
        one.send(Ask(1, b"wait"))
        two.send(Ask(1, b"wait"))
        server.noted(lambda: len(server.begun) == 2)
        with connect(server.socket.address, SOON_S) as further:
            assert further.recv(100) == b""
        server.let_go()
        assert one.answers(1) == two.answers(1) == {1: b"wait"}


def test_a_flood_of_connections_locks_nobody_out(served):
    server = served(connections=20)
    with contextlib.ExitStack() as opened, server.client() as honest:
        for number in range(200):
            flood = opened.enter_context(connect(server.socket.address, SOON_S))
            flood.sendall(b"\0")
            if number % 20 == 0:
                with server.client() as other:
                    assert other.ask(1, b"one") == b"one"
        del honest


def test_a_connection_that_cannot_be_taken_ends_alone(served, monkeypatch):
    supervisor, failures = served(), [OSError(107, "not connected")]

    def is_of_same_user(connected):
        if failures:
            raise failures.pop()
        return True

    monkeypatch.setattr(request_socket, "is_of_same_user", is_of_same_user)
    with connect(supervisor.socket.address, SOON_S) as failed:
        assert failed.recv(1) == b""
    with supervisor.client() as client:
        assert client.ask(1, b"a") == b"a"


def test_more_requests_than_may_be_open_wait_unread(served):
    server = served(open_requests=4)
    with server.client() as client, server.client() as other:
        client.send(*(Ask(number, b"wait%d" % number) for number in range(50)))
        server.noted(lambda: len(server.begun) == 4)
        assert other.ask(1, b"one") == b"one"
        assert len(server.begun) == 5
        server.let_go()
        assert client.answers(50) == {number: b"wait%d" % number for number in range(50)}


def test_who_takes_no_answers_is_disconnected_and_gets_few_made(served):
    server = served(taken_s=0.2, open_requests=4)
    with server.client() as client, server.client() as other:
        client.send(*(Ask(number, b"much") for number in range(100)))
        server.noted(lambda: server.begun)
        assert other.ask(1, b"one") == b"one"
        server.until(lambda: len(server.socket._connections) == 1)
        assert len(server.begun) <= 10
        assert other.ask(2, b"two") == b"two"


def test_answers_that_nobody_takes_have_a_common_limit(served):
    server = served(untaken_bytes=20 * 1024 * 1024)
    with contextlib.ExitStack() as opened:
        clients = [opened.enter_context(server.client()) for _ in range(4)]
        for client in clients:
            client.send(Ask(1, b"much"))
        server.noted(lambda: len(server.begun) == 4)
        server.until(lambda: not any(each._open for each in server.socket._connections))
        assert 0 < server.socket.untaken_bytes <= 20 * 1024 * 1024
        answers = [client.answers(1)[1] for client in clients]
        assert 0 < answers.count(None) < 4
        assert clients[0].ask(2, b"much") is not None


def test_a_client_with_many_requests_has_one_turn_among_the_others(served):
    server = served()
    with server.client() as many, server.client() as other:
        server.let_go()
        blocked = threading.Event()
        server.loop.call_soon_threadsafe(blocked.wait)
        many.send(*(Ask(number, b"many") for number in range(200)))
        other.send(Ask(1, b"one"))
        blocked.set()
        other.answers(1)
        assert server.begun.index(b"one") < 20
        assert len(many.answers(200)) == 200


def test_requests_end_with_their_connection(served):
    server = served()
    with server.client() as client:
        client.send(Ask(1, b"wait1"), Ask(2, b"wait2"))
        server.noted(lambda: len(server.begun) == 2)
    server.noted(lambda: sorted(server.cancelled) == [b"wait1", b"wait2"])


def test_a_caller_that_goes_away_withdraws_its_request_only(served):
    server = served()
    with server.client() as client:
        client.send(Ask(1, b"wait1"), Ask(2, b"wait2"))
        server.noted(lambda: len(server.begun) == 2)
        client.send(Withdraw(1), Withdraw(7))
        server.noted(lambda: server.cancelled == [b"wait1"])
        server.let_go()
        assert client.answers(1) == {2: b"wait2"}


def test_what_is_withdrawn_at_once_takes_no_room(served):
    server = served(open_requests=2)
    with server.client() as client:
        for _ in range(5):
            client.send(Ask(1, b"wait"), Withdraw(1), Ask(2, b"two"))
            assert client.answers(1) == {2: b"two"}
    assert server.begun.count(b"two") == 5
    assert len(server.cancelled) == server.begun.count(b"wait")


def test_nothing_listens_after_the_end(served, tmp_path):
    server = served()
    with server.client() as client:
        client.send(Ask(1, b"wait"))
        server.noted(lambda: server.begun)
        server.serving.cancel()
        server.until(lambda: server.socket.address is None)
        server.loop.call_soon_threadsafe(server.socket.close)
        assert client.next() is None
    assert list((tmp_path / "sockets").iterdir()) == []


def test_without_a_private_folder_there_is_no_socket(tmp_path, caplog):
    folder = tmp_path / "sockets"
    folder.mkdir(mode=0o755)
    server = RequestSocket(folder, "s", SCHEDULER, None)
    asyncio.run(server.serve())
    assert server.address is None
    assert "requests use Ray only" in caplog.text


# with a whole supervisor


class Supervisor(InThread):
    """A supervisor that may end before the test does."""

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        if not self.loop.is_closed():
            self.close()


@pytest.fixture
def supervisors(tmp_path):
    """Makes supervisors of the same scheduler, one after the other."""
    with contextlib.ExitStack() as opened:

        def make(**settings):
            return opened.enter_context(Supervisor(tmp_path / "mesh.sqlite", tmp_path, **settings))

        yield make


def pool(name, request_id):
    spec = PoolSpec(name=name, resources=parse_resources({"cpu": 1}))
    return CreatePool(spec=spec, request_id=request_id)


class Asking:
    """A client of a supervisor, who asks over the socket, and counts what it would ask over Ray."""

    def __init__(self, supervisor, credential=b""):
        self.supervisor, self.credential = supervisor, credential
        self.channel = SocketChannel(supervisor.service._socket.address)
        self.over_ray = 0

    def ask(self, request, expected):
        data = encode_request(request)
        answer = self.channel.ask(data, self.credential, lambda: None)
        if answer is None:
            self.over_ray += 1
            answer = self.supervisor.do(
                self.supervisor.service.ask(data, credential=self.credential)
            )
        return decode_answer(answer if isinstance(answer, bytes) else answer[0], expected)

    def pools(self):
        return [row["name"] for row in self.ask(ListPools(), Listed).rows]


def test_what_is_acknowledged_is_durable(supervisors):
    supervisor = supervisors()
    client = Asking(supervisor)
    for number in range(20):
        assert client.ask(pool(f"p{number}", f"r{number}"), PoolResponse).outcome is not None
    assert client.over_ray == 0
    assert len(supervisor.reloaded().ledger.accounts) == len(client.pools()) == 20
    client.channel.close()


def test_a_request_is_answered_once_though_it_comes_over_both_ways(supervisors):
    supervisor = supervisors()
    client = Asking(supervisor)
    data = encode_request(pool("p", "the request"))
    here = client.channel.ask(data, b"", lambda: None)
    assert supervisor.do(supervisor.service.ask(data)) == here
    assert client.channel.ask(data, b"", lambda: None) == here
    assert client.pools() == ["p"]
    client.channel.close()


def test_a_change_is_made_though_its_connection_is_lost_and_its_repetition_changes_nothing(
    supervisors,
):
    supervisor = supervisors()
    address = supervisor.service._socket.address
    for number in range(20):
        data = encode_request(pool(f"p{number}", f"r{number}"))
        client = Client(address)
        client.send(Ask(1, data))
        client.socket.close()
        answer = supervisor.do(supervisor.service.ask(data))
        decode_answer(answer, PoolResponse)
    assert len(supervisor.reloaded().ledger.accounts) == 20


def test_clients_find_the_socket_of_a_supervisor_that_was_restarted(supervisors, monkeypatch):
    monkeypatch.setattr(socket_channel, "AGAIN_S", 0.0)
    first = supervisors(auth=AUTH)
    client = Asking(first)
    client.ask(pool("p", "r"), PoolResponse)
    first.close()
    second = supervisors(auth=AUTH)
    client.supervisor = second
    assert client.pools() == ["p"]
    assert client.over_ray == 0
    client.channel.close()


def test_another_scheduler_at_the_same_place_is_not_asked(supervisors):
    first = supervisors()
    client = Asking(first)
    first.close()
    # Without a secret from its creation each is a scheduler of its own.
    client.supervisor = supervisors()
    assert client.pools() == []
    assert client.over_ray == 1


def test_a_supervisor_with_a_successor_serves_nobody(supervisors):
    supervisor = supervisors()
    client = Client(supervisor.service._socket.address)
    supervisor.loop.call_soon_threadsafe(
        supervisor.service._fall_silent, supervisor.running.executor
    )
    assert client.next() is None
    client.socket.close()
    assert SocketChannel(supervisor.service._socket.address).ask(b"", b"", lambda: None) is None


def test_without_a_token_that_is_accepted_nobody_is_served(supervisors):
    supervisor = supervisors(auth=WITH_TOKENS)
    client = Asking(supervisor)
    answer = client.ask(ListPools(), Listed)
    assert isinstance(answer, Refused)
    assert answer.reason.value == "token_not_accepted"
    assert client.over_ray == 0
    client.channel.close()


def test_only_the_process_of_the_http_api_asks_for_others(supervisors):
    supervisor = supervisors(auth=WITH_TOKENS)
    operator = supervisor.running.reactor.state.tokens.get("first-operator")
    caller = pack(TokenCaller(token=operator))
    data, key = encode_request(GetAbout()), supervisor.service._authentication.http_key
    client = Client(supervisor.service._socket.address)
    assert client.ask(1, data, credential=b"a guess", caller=caller) is None
    answer = client.ask(2, data, credential=key, caller=caller)
    assert isinstance(decode_answer(answer, Details), Details)
    invented = pack(TokenCaller(token=replace(operator, name="invented")))
    refused = decode_answer(client.ask(3, data, credential=key, caller=invented), Details)
    assert refused.reason.value == "not_allowed"
    assert client.ask(4, data, credential=key, caller=b"no caller") is None
    client.socket.close()


def test_the_system_says_who_asks_at_the_socket_and_nobody_says_it_over_ray(supervisors):
    supervisor = supervisors()
    credential = pack(Credential(user="eve@elsewhere", pid=7))
    client = Client(supervisor.service._socket.address)
    pools = [
        EnsurePool(name=name, resources=parse_resources({"cpu": 1}), labels={})
        for name in ("p", "q")
    ]
    client.ask(1, encode_request(pools[0]), credential=credential)
    client.socket.close()
    supervisor.do(supervisor.service.ask(encode_request(pools[1]), ([], []), credential))
    over_ray, at_socket = supervisor.do(supervisor.requests.answer(QueryAudit(), ((), ()))).rows
    assert (over_ray["who"], over_ray["who_verified"]) == ("eve@elsewhere", False)
    assert (at_socket["who"], at_socket["who_verified"]) == (user_of(os.geteuid()), True)
    assert at_socket["address"].startswith("eve@elsewhere, "), "it stays as the client has said it"
