"""Requests without a body are read without h11 only where h11 would read the same."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import threading

import h11
import pytest

from schedulemesh.server import connections
from schedulemesh.server.bodyless_requests import MAX_BYTES, bodyless_request, response_head
from schedulemesh.server.request_limits import MAX_HEAD_LINES, BoundedConnection
from tests.server.test_disconnection import until

HOST = b"Host: localhost\r\n"


def head(*lines, first=b"GET /api/v1/status?a=b HTTP/1.1", host=HOST):
    return b"".join((first, b"\r\n", host, *(line + b"\r\n" for line in lines), b"\r\n"))


def read_by_h11(data):
    """The request that h11 makes of these bytes; None: it has a body, or is the last one."""
    connection = BoundedConnection()
    connection.receive_data(data)
    try:
        request, end = connection.next_event(), connection.next_event()
    except h11.RemoteProtocolError:
        return None
    if not isinstance(request, h11.Request) or not isinstance(end, h11.EndOfMessage):
        return None
    if connection.trailing_data[0] or connection.they_are_waiting_for_100_continue:
        return None
    connection.send(h11.Response(status_code=200, headers=[(b"content-length", b"0")]))
    connection.send(h11.EndOfMessage())
    if connection.our_state is not h11.DONE:
        return None
    headers = [(name, value) for name, value in request.headers]
    return request.method.decode(), bytes(request.target), headers


@pytest.mark.parametrize(
    "data",
    [
        head(),
        head(first=b"HEAD / HTTP/1.1"),
        head(b"Authorization: Bearer x y", b"ACCEPT:*/*", b"empty:", b"spaces: \t a  b\t "),
        head(b"Connection: Keep-Alive"),
        head(*[b"a: b"] * (MAX_HEAD_LINES - 2)),
        head(b"a: " + b"x" * (MAX_BYTES - 80)),
    ],
)
def test_what_most_clients_send_is_read(data):
    request = bodyless_request(data)
    assert request is not None
    assert tuple(request) == read_by_h11(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        head()[:-1],
        head() + b"x",
        head() + head(),
        head(first=b"POST / HTTP/1.1"),
        head(first=b"get / HTTP/1.1"),
        head(first=b"GET  / HTTP/1.1"),
        head(first=b"GET / HTTP/1.0"),
        head(first=b"GET http://a/ HTTP/1.1"),
        head(first=b"GET /\xff HTTP/1.1"),
        head(first=b"OPTIONS * HTTP/1.1"),
        head(host=b""),
        head(host=HOST + HOST),
        head(b"Content-Length: 0"),
        head(b"Content-Length: 5"),
        head(b"Transfer-Encoding: chunked"),
        head(b"Connection: close"),
        head(b"Connection: keep-alive, close"),
        head(b"Connection: keep-alive", b"Connection: close"),
        head(b"Connection: Upgrade", b"Upgrade: websocket"),
        head(b"Upgrade: h2c"),
        head(b"Expect: 100-continue"),
        head(b" folded: x"),
        head(b"a: b", b"\tfolded"),
        head(b"name : value"),
        head(b": value"),
        head(b"a: \x00"),
        head(b"a: \x0b"),
        head(b"a: \xe9"),
        head().replace(b"\r\n", b"\n"),
        head(*[b"a: b"] * (MAX_HEAD_LINES - 1)),
        head(b"a: " + b"x" * MAX_BYTES),
    ],
)
def test_all_else_is_left_to_h11(data):
    assert bodyless_request(data) is None


def test_random_heads_are_read_as_h11_reads_them():
    parts = [
        *(
            b"GET ",
            b"HEAD ",
            b"POST ",
            b"/",
            b"/a?b=%2F",
            b" HTTP/1.1",
            b" HTTP/1.0",
            b"\r\n",
            b"\n",
        ),
        *(b"Host: a", b"host:b", b"Accept: */*", b"Connection: keep-alive", b"connection: close"),
        *(b"Content-Length: 0", b"transfer-encoding: chunked", b"Expect: 100-continue", b"x"),
        *(b":", b" ", b"\t", b"\r", b"\xff", b"\x00", b"a", b"Upgrade: x", b"Connection: x"),
    ]
    randomly, read = random.Random(27), 0
    for _ in range(20_000):
        lines = [randomly.choice((b"GET / HTTP/1.1", b"HEAD /a?b HTTP/1.1")), b"Host: a"]
        lines += randomly.choices(parts, k=randomly.randrange(4))
        pieces = [piece for line in lines for piece in (line, b"\r\n")] + [b"\r\n"]
        for _ in range(randomly.randrange(3)):
            pieces.insert(randomly.randrange(len(pieces) + 1), randomly.choice(parts))
        data = b"".join(pieces)
        if (request := bodyless_request(data)) is not None:
            read += 1
            assert tuple(request) == read_by_h11(data), data
    assert read > 1_000


def test_a_header_of_a_response_is_one_line():
    assert response_head(200, [(b"a", b"b")]) == b"HTTP/1.1 200 OK\r\na: b\r\n\r\n"
    for value in (b"b\r\nc: d", b"b\nc: d", b"b\rc", b"\x00"):
        with pytest.raises(ValueError, match="line break"):
            response_head(200, [(b"a", value)])


# on the server


def connected(api):
    host, port = api.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def answers(connection, count):
    """The statuses and bodies of so many answers that have a length."""
    file, found = connection.makefile("rb"), []
    for _ in range(count):
        status = int(file.readline().split()[1])
        length = 0
        while (line := file.readline()) not in (b"\r\n", b""):
            name, _, value = line.lower().partition(b":")
            length = int(value) if name == b"content-length" else length
        found.append((status, file.read(length)))
    return found


def request(api, path=b"/api/v1/status", method=b"GET", more=b""):
    return b"%b %b HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %b\r\n%b\r\n" % (
        method,
        path,
        api.token.encode(),
        more,
    )


@pytest.mark.parametrize("size", [1, 7, 100, 10_000])
def test_requests_that_arrive_in_any_pieces_are_answered_in_their_order(api, size):
    body = b'{"success":true}'
    whole = b"".join(
        (
            request(api, b"/healthz"),
            request(api, b"/api/v1/pools/none"),
            request(api, b"/healthz", more=b"Content-Length: 0\r\n"),
            request(api, b"/healthz"),
        )
    )
    with connected(api) as connection:
        for first in range(0, len(whole), size):
            connection.sendall(whole[first : first + size])
        found = answers(connection, 4)
    assert [status for status, _ in found] == [200, 404, 200, 200]
    assert [found[0][1], found[2][1], found[3][1]] == [body] * 3


def test_what_follows_a_request_waits_for_its_answer(api):
    """Each arrives alone, while the one before it is being answered."""
    with connected(api) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for path in (b"/api/v1/status", b"/api/v1/pools/none", b"/healthz"):
            connection.sendall(request(api, path))
        connection.sendall(b"no request\r\n\r\n")
        found = answers(connection, 4)
    assert [status for status, _ in found] == [200, 404, 200, 400]


def test_the_answer_to_a_request_for_the_head_has_no_body(api):
    with connected(api) as connection:
        connection.sendall(request(api, b"/healthz", b"HEAD"))
        file = connection.makefile("rb")
        lines = []
        while (line := file.readline()) != b"\r\n":
            lines.append(line)
        assert b"content-length: 16\r\n" in lines
        connection.sendall(request(api, b"/healthz"))
        assert file.readline() == b"HTTP/1.1 200 OK\r\n"


def test_an_answer_that_closes_the_connection_does_so(api, monkeypatch):
    monkeypatch.setattr(connections, "MAX_OF_TOKEN", 1)
    assert api.client.get("/api/v1/status").status_code == 200
    with connected(api) as connection:
        connection.sendall(request(api))
        data = b""
        while more := connection.recv(4096):
            data += more
    assert data.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert b"connection: close\r\n" in data


def test_a_request_of_which_the_rest_does_not_come_is_not_waited_for(api, monkeypatch):
    """Its begin came while the one before it was being answered."""
    monkeypatch.setattr(connections, "HEADERS_S", 0.3)
    with connected(api) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(request(api))
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: ")
        data = b""
        while more := connection.recv(65_536):
            data += more
    assert data.count(b"HTTP/1.1 200 OK") == 1
    assert b"400" not in data.splitlines()[-1]


def test_who_takes_nothing_of_an_answer_is_disconnected(api, monkeypatch):
    monkeypatch.setattr(connections, "STALLED_S", 0.3)
    with connected(api) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        begun = threading.Event()
        threading.Thread(
            target=flood, args=(connection, request(api, b"/api/v1/openapi.json"), begun)
        ).start()
        assert begun.wait(20)
        until(lambda: len(api.server._server.server_state.connections) == 0)


def flood(connection, data, begun):
    with contextlib.suppress(OSError):
        while True:
            connection.sendall(data)
            begun.set()


def test_a_connection_without_a_further_request_is_closed(api):
    api.server._server.config.timeout_keep_alive = 0.2
    with connected(api) as connection:
        connection.sendall(request(api))
        data = b""
        while more := connection.recv(65_536):
            data += more
    assert data.startswith(b"HTTP/1.1 200 OK\r\n")


def test_an_answer_under_way_when_the_server_ends_is_sent(api, monkeypatch):
    may_answer, begun = threading.Event(), threading.Event()
    ask_packed = api.gateway.ask_packed

    async def held(asked, caller=None):
        begun.set()
        await asyncio.to_thread(may_answer.wait, 30)
        return await ask_packed(asked, caller)

    api.client.get("/api/v1/status")
    with connected(api) as connection:
        monkeypatch.setattr(api.gateway, "ask_packed", held)
        connection.sendall(request(api))
        assert begun.wait(20)
        api.client.close()
        api.loop.call_soon_threadsafe(api.server.end)
        until(lambda: not api.server._server.servers[0].is_serving())
        may_answer.set()
        data = b""
        while more := connection.recv(65_536):
            data += more
    assert data.startswith(b"HTTP/1.1 200 OK\r\n")
    api.serving.result(30)
    monkeypatch.undo()
    api.start()
