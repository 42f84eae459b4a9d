"""Requests that would take long to be taken apart are refused before that, whoever sends them."""

from __future__ import annotations

import socket

import h11
import msgspec
import pytest

from schedulemesh.errors import InvalidRequestError
from schedulemesh.protocol.requests import MAX_VALUES
from schedulemesh.server.problems import Problem
from schedulemesh.server.request_limits import (
    LEAST_CHUNK,
    MAX_HEAD,
    MAX_HEAD_LINES,
    MAX_PARAMETER,
    MAX_PARAMETERS,
    MAX_PATH,
    MAX_SMALL_CHUNKS,
    MAX_TEXT,
    MAX_TEXTS,
    BoundedConnection,
    check_json,
    check_query,
)
from tests.counted_calls import calls_of

BEGIN = b"POST /api/v1/tasks/cancel HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = BEGIN + b"Transfer-Encoding: chunked\r\n\r\n"


def events(data):
    """What a connection makes of bytes that arrive together, up to the end of a request."""
    connection, made = BoundedConnection(), []
    connection.receive_data(data)
    while not made or not isinstance(made[-1], h11.EndOfMessage):
        event = connection.next_event()
        if event in (h11.NEED_DATA, h11.PAUSED):
            break
        made.append(event)
    return made


def refusal(data):
    """Why bytes that arrive together are refused, and how many functions were called until then."""

    def refused():
        with pytest.raises(h11.RemoteProtocolError) as raised:
            events(data)
        return str(raised.value)

    return calls_of(refused)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"a:\r\n" * 60_000 + b"\r\n", "up to 100 headers"),
        (b"GET / HTTP/1.1\r\n" + b"a:\r\n" * 60_000, "up to 100 headers"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nb: " + b"b" * MAX_HEAD + b"\r\n\r\n", "65,536 bytes"),
        (b"GET /" + b"/" * 60_000 + b"?a=b HTTP/1.1\r\nHost: a\r\n\r\n", "4,096 bytes"),
        (b"GET /" + b"%2F" * 20_000, "4,096 bytes"),
    ],
)
def test_a_head_with_too_much_is_refused_unread(data, why):
    error, calls = refusal(data)
    assert why in error
    assert calls < 200


def test_what_was_sent_before_does_not_hide_the_next_head():
    body = b"x" * 10
    first = BEGIN + b"Content-Length: 10\r\n\r\n" + body
    connection = BoundedConnection()
    connection.receive_data(first + b"GET / HTTP/1.1\r\nHost: a\r\n" + b"a:\r\n" * 50_000)
    assert isinstance(connection.next_event(), h11.Request)
    assert connection.next_event().data == body
    assert isinstance(connection.next_event(), h11.EndOfMessage)
    connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
    connection.send(h11.EndOfMessage())
    connection.start_next_cycle()
    with pytest.raises(h11.RemoteProtocolError, match="up to 100 headers"):
        connection.next_event()


def test_a_body_in_tiny_chunks_is_refused_after_some():
    error, calls = refusal(CHUNKED + b"1\r\nx\r\n" * 50_000)
    assert "has 1,024 bytes for each further one, not 102 in 102" in error
    assert calls < 20_000


def test_headers_after_a_body_are_as_few_as_those_before_it():
    last = b"2\r\n{}\r\n0\r\n"
    error, calls = refusal(CHUNKED + last + b"a:\r\n" * 15_000 + b"\r\n")
    assert error == "a body is followed by up to 100 headers, not 15,000"
    assert calls < 300
    allowed = events(CHUNKED + last + b"a: b\r\n" * MAX_HEAD_LINES + b"\r\n")
    assert isinstance(allowed[-1], h11.EndOfMessage)
    assert len(allowed[-1].headers) == MAX_HEAD_LINES


def test_some_small_chunks_and_many_large_ones_are_a_body():
    small = b"1\r\nx\r\n" * MAX_SMALL_CHUNKS
    size = 8 * LEAST_CHUNK
    large = (b"%x\r\n" % size + b"y" * size + b"\r\n") * (2 * MAX_SMALL_CHUNKS)
    for body in (small, small + large):
        made = events(CHUNKED + body + b"0\r\n\r\n")
        assert isinstance(made[-1], h11.EndOfMessage)


def test_a_body_with_its_length_may_arrive_byte_by_byte():
    connection = BoundedConnection()
    connection.receive_data(BEGIN + b"Content-Length: 500\r\n\r\n")
    assert isinstance(connection.next_event(), h11.Request)
    for _ in range(500):
        connection.receive_data(b"x")
        assert connection.next_event().data == b"x"
    assert isinstance(connection.next_event(), h11.EndOfMessage)


@pytest.mark.parametrize(
    "query",
    [
        b"",
        b"&".join([b"task_id=t"] * MAX_PARAMETERS),
        b"error=" + b"e" * (MAX_PARAMETER - 6),
        b"cursor=" + b"c" * 60_000,
        b"cursor=" + b"c" * 60_000 + b"&limit=5",
    ],
)
def test_queries_as_long_as_is_allowed(query):
    check_query(query)


@pytest.mark.parametrize(
    ("query", "why"),
    [
        (b"&" * 60_000, "up to 1,000 parameters"),
        (b"a&" * MAX_PARAMETERS + b"a", "up to 1,000 parameters"),
        (b"reason=" + b"r" * 60_000, "up to 4,096 bytes, its name included, not 60,007"),
        (b"limit=5&" + b"r" * 60_000 + b"=1", "up to 4,096 bytes"),
    ],
)
def test_longer_queries_are_refused(query, why):
    with pytest.raises(InvalidRequestError, match=why):
        check_query(query)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[" + b"1," * MAX_VALUES + b"1]",
        b'{"a":"%b"}' % (b"x" * MAX_TEXT),
        b'{"a":"%b"}' % (b'\\"' * 9_000),
        b"[" + b'"t",' * (MAX_TEXTS - 1) + b'"t"]',
    ],
)
def test_bodies_as_large_as_is_allowed(body):
    check_json(body)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b'{"%b":1}' % (b"u" * (MAX_TEXT + 1)), "up to 65,536 bytes, not 65,537"),
        (b'{"a":["b","%b' % (b"x" * (MAX_TEXT + 1)), "up to 65,536 bytes"),
        (b'{"a":"%b"}' % (b'\\"xxxxxxxx' * 9_000), "up to 65,536 bytes"),
        (b"[" + b'"t",' * (MAX_TEXTS + 1), "more than 10,000 texts"),
        (b"[" * 200_000, "more than 100,000 lists"),
        (b"[" + b"1," * (MAX_VALUES + 1) + b"1]", "more than 100,000 values"),
        (b"{" + b'"a":1,' * 4_000 + b'"a":[' + b"null," * 96_001 + b"1]}", "100,000 values"),
        (b"[" * 60_000 + b" " * 3_000_000 + b"{" * 60_000, "more than 100,000 lists"),
    ],
)
def test_larger_bodies_are_refused(body, why):
    with pytest.raises(ValueError, match=why):
        check_json(body)


def test_the_archive_of_a_job_may_be_long():
    check_json(b'{"archive":"%b"}' % (b"A" * 1_000_000), has_archive=True)


@pytest.mark.parametrize("form", ["json", "msgpack"])
@pytest.mark.parametrize("count", [900_000, 7_000_000])
def test_a_job_with_millions_of_numbers_is_refused_before_it_is_decoded(api, form, count):
    """They would be copied one by one, which takes half a minute for the largest job."""
    fields = {"task_id": "t", "entrypoint": "true", "runtime_env": {"a": [1] * count}}
    encode = msgspec.json.encode if form == "json" else msgspec.msgpack.encode
    headers = {"content-type": f"application/{form}"}
    refused = api.client.post("/api/v1/jobs", content=encode(fields), headers=headers)
    assert refused.status_code == 400
    assert "more than 100,000 values" in refused.json()["error"]
    assert api.gateway.asked == []


def answer_to(api, data):
    """The whole answer to bytes that are sent together, up to the end of the connection."""
    host, port = api.url.removeprefix("http://").split(":")
    received = b""
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(data)
        while part := connection.recv(65_536):
            received += part
    return received


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (BEGIN + b"a:\r\n" * 50_000 + b"\r\n", f"up to {MAX_HEAD_LINES} headers, not 50,0"),
        (CHUNKED + b"1\r\nx\r\n" * 10_000, "send it with a Content-Length"),
        (CHUNKED + b"0\r\n" + b"a:\r\n" * 10_000 + b"\r\n", "followed by up to 100 headers"),
        (b"GET /" + b"a" * MAX_PATH + b" HTTP/1.1\r\nHost: a\r\n\r\n", "the path of a request"),
    ],
)
def test_the_server_says_what_is_too_much_and_serves_others(api, data, why):
    try:
        answer = answer_to(api, data)
    except ConnectionResetError:
        answer = None  # it is closed while some is on its way
    if answer is not None:
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert why.encode() in answer
    api.get("/status")


def test_calls_say_which_parameter_or_text_is_too_long(api):
    refused = api.get(f"/tasks?reason={'r' * 60_000}", 400)
    assert refused["error"].startswith("a parameter of a query has up to 4,096 bytes")
    refused = api.send("PATCH", "/policy", {"u" * 100_000: 1}, 400)
    assert "a text in it has up to 65,536 bytes, not 100,000" in refused["error"]
    refused = api.send("PATCH", "/policy", {f"u{number}": 1 for number in range(20_000)}, 400)
    assert "more than 10,000 texts" in refused["error"]
    assert api.gateway.asked == []


def test_an_error_that_repeats_a_long_text_is_cut_off():
    problem = Problem(400, "invalid_request", "x" * 100_000)
    assert len(problem.body["error"]) < 5_000
