"""What is refused before it is routed: other hosts and origins, missing tokens, what is too large or slow."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from starlette.responses import Response

from schedulemesh.api.pools import ListPools
from schedulemesh.api.tasks import CancelTasks
from schedulemesh.domain.tokens import Role, TokenSpec
from schedulemesh.protocol.callers import TokenCaller
from schedulemesh.protocol.requests import encode_request
from schedulemesh.runtime import supervisor
from schedulemesh.server import app, connections, guard


def test_the_status_needs_a_token_and_the_supervisor_is_asked_only_with_one(api):
    for token, reason in ((None, "token_needed"), ("wrong", "token_not_accepted")):
        with api.client_with(token) as client:
            answer = client.get("/api/v1/status")
        assert answer.status_code == 401
        assert answer.json()["reason"] == reason
        assert answer.headers["www-authenticate"].startswith("Bearer")
    assert api.gateway.asked == []
    status = api.get("/status")
    assert (status["success"], status["name"], status["epoch"]) == (True, "mesh", 1)


def test_whether_the_server_runs_is_answered_without_a_token(api):
    with api.client_with(None) as client:
        assert client.get("/healthz").json() == {"success": True}
        assert client.get("/api/v1/nothing").status_code == 401
    assert api.get("/nothing", 404)["reason"] == "not_found"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:8090", 200),
        ("127.0.0.1:1", 200),
        ("[::1]:8090", 200),
        ("10.0.0.7", 200),
        ("evil.example", 421),
        ("evil.example:8090", 421),
        ("localhost.evil.example", 421),
        ("user@localhost", 421),
        ("localhost:port", 421),
        ("localhost/..", 421),
        ("[::1].evil.example", 421),
        ("[::1]x:8090", 421),
        ("[::1]", 200),
        ("localhost:", 421),
        ("localhost:8x", 421),
        ("", 421),
    ],
)
def test_the_host_has_to_be_this_server(api, host, status):
    answer = api.client.get("/api/v1/status", headers={"host": host})
    assert answer.status_code == status
    assert status == 200 or answer.json()["reason"] == "host_not_allowed"


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (None, 200),
        ("http://evil.example", 403),
        ("null", 403),
        ("", 403),
        ("http://[", 403),
        ("http://{own}", 200),
    ],
)
def test_pages_of_other_sites_are_refused(api, origin, status):
    own = httpx.URL(api.url).netloc.decode()
    headers = {} if origin is None else {"origin": origin.format(own=own)}
    answer = api.client.get("/api/v1/status", headers=headers)
    assert answer.status_code == status
    assert status == 200 or answer.json()["reason"] == "origin_not_allowed"
    assert "access-control-allow-origin" not in answer.headers


def sent(api, text):
    """What is answered to these bytes until the connection is closed."""
    host, port = httpx.URL(api.url).host, httpx.URL(api.url).port
    with socket.create_connection((host, port), timeout=20) as connection:
        connection.sendall(text)
        answer = b""
        while part := connection.recv(65_536):
            answer += part
    return answer


def head(api, length):
    return (
        f"POST /api/v1/requests HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {api.token}\r\n"
        f"Content-Type: application/msgpack\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    ).encode()


def test_a_body_that_is_too_large_is_refused_before_it_is_read(api):
    assert b" 413 " in sent(api, head(api, guard.MAX_BODY + 1)).splitlines()[0]
    assert api.gateway.asked == []


@pytest.mark.parametrize("path", ["/api/v1/requests", "/api/v1/status", "/healthz"])
@pytest.mark.parametrize("first", [b"Content-Length: 3", b"Transfer-Encoding: chunked"])
def test_a_request_with_two_headers_for_its_length_is_refused(api, path, first):
    both = [b"Content-Length: 3", b"Transfer-Encoding: chunked"]
    lines = [first, *(line for line in both if line != first)]
    request = head(api, 3).replace(b"/api/v1/requests", path.encode()).replace(both[0], b"X: y")
    end = b"Connection: close\r\n"
    smuggled = b"0\r\n\r\nGET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    answer = sent(api, request.replace(end, b"\r\n".join(lines) + b"\r\n") + smuggled)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"either Content-Length or Transfer-Encoding" in answer
    assert answer.count(b"HTTP/1.1 ") == 1
    assert api.gateway.asked == []


def test_a_body_that_does_not_arrive_is_not_waited_for(api, monkeypatch):
    monkeypatch.setattr(guard, "BODY_S", 0.2)
    assert b" 408 " in sent(api, head(api, 10) + b"abc").splitlines()[0]
    assert api.gateway.asked == []


@pytest.mark.parametrize("text", [b"", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: "])
def test_a_connection_without_whole_headers_is_closed(api, monkeypatch, text):
    monkeypatch.setattr(connections, "HEADERS_S", 0.2)
    assert sent(api, text) == b""


def test_headers_of_a_later_request_are_not_waited_for_either(api, monkeypatch):
    monkeypatch.setattr(connections, "HEADERS_S", 0.2)
    whole = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    answer = sent(api, whole + b"GET /healthz HTTP/1.1\r\nHost: ")
    assert answer.count(b"HTTP/1.1 200 OK") == 1


def test_whoever_floods_the_server_without_a_token_does_not_reach_the_supervisor(api):
    with api.client_with("guess") as client:
        for _ in range(200):
            assert client.get("/api/v1/status").status_code == 401
    assert api.gateway.asked == []


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("authorization", "")],
        [("authorization", "Bearer")],
        [("authorization", "{token}")],
        [("authorization", "Basic {token}")],
        [("authorization", "Bearer {upper}")],
        [("authorization", "Bearer {token}x")],
        [("authorization", "Bearer {token} {token}")],
        [("authorization", "Bearer,{token}")],
        [("authorization", 'Bearer "{token}"')],
        [("proxy-authorization", "Bearer {token}")],
        [("x-authorization", "Bearer {token}")],
        [("cookie", "authorization=Bearer {token}; token={token}")],
        [("x-forwarded-for", "127.0.0.1"), ("x-forwarded-user", "local")],
    ],
)
def test_a_token_is_taken_from_its_header_only_and_as_it_is(api, headers):
    names = {"token": api.token, "upper": api.token.upper()}
    with api.client_with(None) as client:
        given = [(name, value.format(**names)) for name, value in headers]
        answer = client.get("/api/v1/status", headers=given)
    assert answer.status_code == 401, answer.text
    assert api.token not in answer.text
    assert api.gateway.asked == []


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "Bearer  "])
def test_the_scheme_is_in_any_case(api, scheme):
    with api.client_with(None) as client:
        headers = {"authorization": f"{scheme} {api.token}"}
        assert client.get("/api/v1/status", headers=headers).status_code == 200


def test_two_tokens_in_one_request_are_refused(api):
    with api.client_with(None) as client:
        for first, second in ((api.token, "guess"), ("guess", api.token), (api.token,) * 2):
            headers = [("authorization", f"Bearer {one}") for one in (first, second)]
            assert client.get("/api/v1/status", headers=headers).status_code == 400
    assert api.gateway.asked == []


@pytest.mark.parametrize("name", ["token", "access_token", "authorization", "bearer"])
def test_a_token_in_the_url_is_not_read(api, name):
    with api.client_with(None) as client:
        assert client.get("/api/v1/status", params={name: api.token}).status_code == 401
    assert api.gateway.asked == []


@pytest.mark.parametrize("name", ["Forwarded", "Via", "X-Forwarded-For", "X-Real-IP"])
def test_metrics_through_a_proxy_need_a_token(api, name):
    with api.client_with(None) as client:
        assert client.get("/metrics").status_code == 200
        assert client.get("/metrics", headers={name: "127.0.0.1"}).status_code == 401


def test_the_address_of_a_change_is_that_of_the_connection(api):
    headers = {"x-forwarded-for": "6.6.6.6", "forwarded": "for=6.6.6.6", "x-real-ip": "6.6.6.6"}
    made = api.client.put("/api/v1/pools/p", json={"resources": {"cpu": 1}}, headers=headers)
    assert made.status_code == 200, made.text
    (change,) = [c for c in api.get("/audit")["items"] if c["call"] == "ensure_pool"]
    assert (change["token"], change["address"]) == ("local", "127.0.0.1")


def test_headers_without_end_are_refused(api):
    token = "x" * 300_000
    text = f"GET /healthz HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"
    try:
        answer = sent(api, text.encode())
    except ConnectionResetError:
        answer = b""
    assert b"200 OK" not in answer
    assert api.gateway.asked == []


def test_requests_without_an_accepted_token_are_counted(api):
    with api.client_with("guess") as client:
        for _ in range(3):
            client.get("/api/v1/status")
    assert api.server.failures == 3


class Idle:
    """Connections that send nothing."""

    def __init__(self, api, count):
        address = (httpx.URL(api.url).host, httpx.URL(api.url).port)
        self.sockets = [socket.create_connection(address, timeout=20) for _ in range(count)]

    def ended(self):
        """How many of them the server has closed."""
        poll = select.poll()
        for one in self.sockets:
            poll.register(one, select.POLLIN)
        return len(poll.poll(0))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for one in self.sockets:
            one.close()


def test_connections_without_a_token_keep_nobody_out(api):
    with Idle(api, 50) as first, Idle(api, 600) as others:
        for _ in range(10):
            with api.client_with(api.token) as client:
                assert client.get("/api/v1/status").status_code == 200
        assert first.ended() == 50
        assert others.ended() >= 500
        # One that has shown a token stays, also while it sends nothing.
        assert api.get("/status")["success"]


def test_the_connections_of_the_address_that_has_most_are_closed_first(monkeypatch):
    monkeypatch.setattr(connections, "MAX_UNAUTHENTICATED", 4)
    closed = []
    known = connections.Connections()

    def connect(address, port):
        known.opened((address, port), lambda: closed.append((address, port)))

    connect("10.0.0.1", 1)
    for port in range(1, 6):
        connect("10.0.0.2", port)
    assert closed == [("10.0.0.2", 1), ("10.0.0.2", 2)]
    assert known.accept(("10.0.0.1", 1), "t") is None
    known.closed(("10.0.0.1", 1))
    connect("10.0.0.2", 6)
    assert closed == [("10.0.0.2", 1), ("10.0.0.2", 2)]
    connect("10.0.0.1", 2)
    assert closed[2:] == [("10.0.0.2", 3)]
    for client in [("10.0.0.1", 2), ("10.0.0.2", 4), ("10.0.0.2", 5), ("10.0.0.2", 6)]:
        known.closed(client)
    assert (known._unauthenticated, known._count, known._tokens) == ({}, 0, {})


def test_the_connections_with_tokens_from_one_address_are_limited(monkeypatch):
    monkeypatch.setattr(connections, "MAX_OF_ADDRESS", 2)
    known = connections.Connections(shared=["10.0.0.9"])

    def connect(address, port):
        known.opened((address, port), lambda: None)
        return known.accept((address, port), f"token {port}")

    assert [connect("10.0.0.1", port) for port in range(3)] == [
        None,
        None,
        "2 connections from 10.0.0.1",
    ]
    assert connect("10.0.0.2", 0) is None
    assert connect("::ffff:10.0.0.1", 9) == "2 connections from 10.0.0.1"
    # One user has all addresses of such a network.
    ipv6 = [connect(f"2001:db8::{port}", port) for port in range(1, 4)]
    assert ipv6 == [None, None, "2 connections from 2001:db8::/64"]
    assert connect("2001:db8:0:1::1", 1) is None
    for address in ("127.0.0.1", "::1", "::ffff:127.0.0.1", "10.0.0.9"):
        assert [connect(address, port) for port in range(5)] == [None] * 5
    known.closed(("10.0.0.1", 0))
    assert connect("10.0.0.1", 5) is None
    for client in [*known._tokens, ("10.0.0.1", 2), ("::ffff:10.0.0.1", 9), ("2001:db8::3", 3)]:
        known.closed(client)
    assert known._of_address == known._of_token == known._tokens == known._unauthenticated == {}


def test_the_connections_of_one_token_are_limited(api, monkeypatch):
    api.client.close()
    monkeypatch.setattr(connections, "MAX_OF_TOKEN", 2)
    clients = [api.client_with(api.token) for _ in range(3)]
    try:
        codes = [client.get("/api/v1/status").status_code for client in clients]
        assert codes == [200, 200, 503]
        refused = clients[2].get("/api/v1/status")
        assert refused.json()["reason"] == "too_many_connections"
        assert refused.headers["connection"] == "close"
    finally:
        for client in clients:
            client.close()
    api.client = api.client_with(api.token)
    assert api.client.get("/healthz").status_code == 200


def test_bodies_that_do_not_arrive_whole_are_limited_in_memory(api, monkeypatch):
    monkeypatch.setattr(guard, "MAX_BODIES_OF_TOKEN", 1_000_000)
    part = b"x" * 400_000
    address = (httpx.URL(api.url).host, httpx.URL(api.url).port)
    uploads = [socket.create_connection(address, timeout=20) for _ in range(4)]
    try:
        for upload in uploads:
            upload.sendall(head(api, 8_000_000) + part)
        ready, _, _ = select.select(uploads, [], [], 20)
        assert b" 503 " in ready[0].recv(65_536)
    finally:
        for upload in uploads:
            upload.close()
    # What was cut off is forgotten.
    data = encode_request(
        ListPools(),
    )
    until = time.monotonic() + 20
    while (
        answer := api.client.post(
            "/api/v1/requests", content=data, headers={"content-type": "application/msgpack"}
        )
    ).status_code == 503 and time.monotonic() < until:
        pass
    assert answer.status_code == 200


class Taker:
    """A client that takes so many messages of an answer, and then no more until it is told to."""

    def __init__(self, takes):
        self.takes, self.sent, self.goes_on = takes, [], asyncio.Event()

    async def send(self, message):
        if len(self.sent) >= self.takes:
            await self.goes_on.wait()
        self.sent.append(message)

    @property
    def status(self):
        return self.sent[0]["status"]

    @property
    def body(self):
        return b"".join(message.get("body", b"") for message in self.sent)


def answering(taker, token, body, answers):
    """The task that sends a client an answer with this body."""
    caller = TokenCaller(token=TokenSpec(name=token, role=Role.VIEWER, secret_hash="h"), address="")
    scope = {"type": "http", "method": "GET", "state": {"caller": caller}}
    response = Response(body)
    answer = guard._Answer(scope, taker.send, answers, asyncio.Lock())
    return asyncio.ensure_future(response(scope, None, answer.send))


def test_answers_that_are_not_taken_are_limited_in_memory():
    async def story():
        answers = guard.BytesInMemory("answers", "too_many_answers", 700_000, 250_000)
        slow = [Taker(2), Taker(2)]
        first = answering(slow[0], "a", b"1" * 400_000, answers)
        await asyncio.sleep(0)
        refused = Taker(9)
        await answering(refused, "a", b"2" * 100_000, answers)
        small, other, stream = Taker(9), Taker(9), Taker(9)
        await answering(small, "a", b"3" * 60_000, answers)
        await answering(other, "b", b"4" * 200_000, answers)
        second = answering(slow[1], "b", b"5" * 290_000, answers)
        await asyncio.sleep(0)
        third = Taker(9)
        await answering(third, "c", b"6" * 100_000, answers)
        assert (refused.status, small.status, other.status, third.status) == (503, 200, 200, 503)
        assert b"too_many_answers" in refused.body
        assert (small.body, other.body) == (b"3" * 60_000, b"4" * 200_000)
        for taker in slow:
            taker.goes_on.set()
        await asyncio.gather(first, second)
        assert slow[0].body == b"1" * 400_000
        assert max(len(message.get("body", b"")) for message in slow[0].sent) == 65_536
        assert [m.get("more_body") for m in slow[0].sent[-2:]] == [True, False]
        await answering(stream, "a", b"7" * 240_000, answers)
        assert stream.status == 200
        assert answers._all == 0
        assert not answers._of_token

    asyncio.run(story())


def test_the_answer_to_a_client_that_went_away_is_forgotten():
    async def story():
        answers = guard.BytesInMemory("answers", "too_many_answers", 700_000, 250_000)
        sending = answering(Taker(1), "a", b"1" * 400_000, answers)
        await asyncio.sleep(0)
        assert answers._all == 400_000
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        assert answers._all == 0

    asyncio.run(story())


def test_bodies_of_json_are_smaller(api):
    body = b"[" + b"1," * (guard.MAX_JSON // 2) + b"1]"
    answer = api.client.post("/api/v1/tasks/cancel", content=body)
    assert (answer.status_code, answer.json()["reason"]) == (413, "too_large")
    assert api.gateway.asked == []


@pytest.mark.parametrize("side", [app, supervisor])
def test_large_bodies_are_checked_one_at_a_time(api, monkeypatch, side):
    """Each takes the interpreter's lock from those who are served meanwhile."""
    together, decode = threading.Barrier(2, timeout=0.2), side.decode_request

    def met(data):
        if len(data) < 16 * 1024:
            return decode(data)
        with contextlib.suppress(threading.BrokenBarrierError):
            together.wait()
            meetings.append(data)
        together.reset()
        return decode(data)

    meetings = []
    monkeypatch.setattr(side, "decode_request", met)
    content = encode_request(CancelTasks(task_ids=tuple(f"t{n:0200}" for n in range(100))))

    def send(_):
        with api.client_with(api.token) as client:
            headers = {"content-type": "application/msgpack"}
            return client.post("/api/v1/requests", content=content, headers=headers).status_code

    with ThreadPoolExecutor(3) as clients:
        assert list(clients.map(send, range(3))) == [200] * 3
    assert meetings == []
