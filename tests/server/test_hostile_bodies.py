"""Bodies and lengths that are wrong are refused by every change; nothing of them is taken for a request."""

from __future__ import annotations

import contextlib
import gzip
import socket

import httpx
import msgspec
import pytest

from schedulemesh.server.changes import CHANGES
from tests.runtime.composition import InThread
from tests.server.local import Api
from tests.server.work import filled

MULTIPART = b'--x\r\nContent-Disposition: form-data; name="task_ids"\r\n\r\nnone\r\n--x--\r\n'
#: What no call takes for its body, by what is wrong with it.
BODIES = {
    "a list": b"[]",
    "null": b"null",
    "a number": b"1",
    "a text": b'"x"',
    "only spaces": b" \n\t ",
    "a second body": b"{}{}",
    "trailing data": b"{} x",
    "a trailing null byte": b"{}\0",
    "a comment": b"{}//",
    "a comma too many": b'{"a":1,}',
    "single quotes": b"{'a':1}",
    "NaN": b'{"priority":NaN}',
    "Infinity": b'{"priority":-Infinity}',
    "a number beyond all": b'{"priority":1e400}',
    "digits without end": b'{"priority":' + b"9" * 10_000 + b"}",
    "a lone surrogate": rb'{"name":"\ud800"}',
    "surrogates in the wrong order": rb'{"name":"\udc00\ud800"}',
    "a surrogate in UTF-8": b'{"name":"\xed\xa0\x80"}',
    "an overlong character": b'{"name":"\xc0\xaf"}',
    "Latin-1": '{"name":"é"}'.encode("latin-1"),
    "UTF-16": "{}".encode("utf-16"),
    "UTF-32": "{}".encode("utf-32"),
    "a byte order mark": b"\xef\xbb\xbf{}",
    "a control character": b'{"name":"\x01"}',
    "deep lists": b"[" * 90_000 + b"]" * 90_000,
    "deep objects": b'{"a":' * 9_000 + b"1" + b"}" * 9_000,
    "deep values of a field": b'{"runtime_env":' + b"[" * 5_000 + b"]" * 5_000 + b"}",
    "an unknown field": b'{"__class__":"os","__proto__":{"a":1}}',
    "MessagePack": msgspec.msgpack.encode({"name": "x"}),
}
#: The same in the forms that browsers and others send, by their headers.
FORMS = (
    ("multipart/form-data; boundary=x", None, MULTIPART),
    ("application/x-www-form-urlencoded", None, b"task_ids=none&name=x"),
    ("application/xml", None, b"<task_ids><name>x</name></task_ids>"),
    ("application/json", "gzip", gzip.compress(b"{}", mtime=0)),
    ("application/json; charset=utf-16", None, "{}".encode("utf-16")),
)
#: Heads with lengths that have another meaning to some proxies than to others.
LENGTHS = (
    b"Content-Length: 2\r\nContent-Length: 3",
    b"Content-Length: +2",
    b"Content-Length: -2",
    b"Content-Length: 0x2",
    b"Content-Length: 2 2",
    b"Content-Length: 2.0",
    b"Content-Length:",
    b"Content-Length: " + b"9" * 30,
    b"Content-Length: \xb2",
    b"Transfer-Encoding: identity",
    b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding: chunked, chunked",
    b"Transfer-Encoding: xchunked",
    b"Transfer-Encoding: chunked;q=1",
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
    b"Transfer-Encoding : chunked",
    b"Transfer-Encoding: chunked\r\nContent-Length: 2",
    b"Content-Length: 2\r\nX: a\rTransfer-Encoding: chunked",
    b"Content-Length: 2\r\nX: a\0",
)
CHUNKS = (
    b"0x2\r\n{}\r\n0\r\n\r\n",
    b"+2\r\n{}\r\n0\r\n\r\n",
    b"-2\r\n{}\r\n0\r\n\r\n",
    b"2_0\r\n{}\r\n0\r\n\r\n",
    b"\r\n{}\r\n0\r\n\r\n",
    b"2\r\n{}0\r\n\r\n",
    b"2;a\nb\r\n{}\r\n0\r\n\r\n",
    b"2\r\n{}\r\n0\r\nA b: c\r\n\r\n",
)


@pytest.fixture(scope="module")
def busy(tmp_path_factory):
    """One API for all, whose scheduler has tasks and agents that hostile requests would end."""
    folder = tmp_path_factory.mktemp("hostile")
    mesh = InThread(folder / "j.sqlite")
    api = Api(mesh, folder / "home")
    filled(mesh)
    yield api
    api.close()
    mesh.close()


@pytest.fixture(autouse=True)
def nothing_is_changed(busy):
    """None of these requests reaches the supervisor, and the next request on a connection is served."""
    busy.gateway.asked.clear()
    yield
    assert busy.gateway.asked == []
    assert busy.get("/agents/first-agent")["tasks"] == ["first"]


def refused(answer, change):
    assert answer.status_code == 400, (change.method, change.path, answer.status_code, answer.text)
    assert answer.json()["reason"] == "invalid_request"
    assert len(answer.content) < 10_000


@pytest.mark.parametrize("what", BODIES)
def test_every_change_refuses(busy, what):
    for change in CHANGES:
        path = f"/api/v1{change.path.replace('{', '').replace(':name}', '')}"
        headers = {"content-type": "application/json"}
        answer = busy.client.request(change.method, path, content=BODIES[what], headers=headers)
        refused(answer, change)


@pytest.mark.parametrize(("kind", "encoding", "body"), FORMS, ids=[form[0] for form in FORMS])
def test_every_change_refuses_what_is_sent_in_another_form(busy, kind, encoding, body):
    headers = {"content-type": kind} | ({} if encoding is None else {"content-encoding": encoding})
    for change in CHANGES:
        path = f"/api/v1{change.path.replace('{', '').replace(':name}', '')}"
        answer = busy.client.request(change.method, path, content=body, headers=headers)
        refused(answer, change)


def sent(api, *parts):
    """All that is answered to bytes until the connection is closed, or answers a request in the end."""
    address = httpx.URL(api.url)
    received = b""
    with socket.create_connection((address.host, address.port), timeout=20) as connection:
        # What is sent after the server has closed the connection is not taken.
        with contextlib.suppress(ConnectionError):
            for part in parts:
                connection.sendall(part)
        with contextlib.suppress(ConnectionError):
            while part := connection.recv(65_536):
                received += part
    return received


def head(api, method="POST", path="/api/v1/tasks/cancel", token=None):
    authorization = f"Authorization: Bearer {token or api.token}"
    return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{authorization}\r\n".encode()


def ending(api):
    """A request that ends an agent, hidden in the body of another one."""
    return head(api, "DELETE", "/api/v1/agents/first-agent") + b"Connection: close\r\n\r\n"


@pytest.mark.parametrize("lengths", LENGTHS)
def test_a_length_that_is_none_is_refused_and_the_connection_closed(busy, lengths):
    answer = sent(busy, head(busy) + lengths + b"\r\n\r\n{}" + ending(busy))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("chunks", CHUNKS)
def test_a_chunk_that_is_none_is_refused_and_the_connection_closed(busy, chunks):
    answer = sent(busy, head(busy) + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + ending(busy))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("version", [b"9.9", b"2.0", b"0.9"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_another_version_of_http_is_refused_and_the_connection_closed(busy, version, method):
    path = "/healthz" if method == "GET" else "/api/v1/tasks/cancel"
    request = head(busy, method, path).replace(b"HTTP/1.1", b"HTTP/" + version)
    answer = sent(busy, request + b"Content-Length: 2\r\n\r\n{}" + ending(busy))
    assert answer.startswith(b"HTTP/1.1 505 HTTP Version Not Supported\r\n")
    assert answer.endswith(b"this server speaks HTTP/1.1, not HTTP/" + version)
    assert answer.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("version", [b"1.0", b"1.1", b"1.2", b"1.9"])
def test_versions_that_differ_in_their_second_digit_are_answered(busy, version):
    request = head(busy, "GET", "/healthz").replace(b"HTTP/1.1", b"HTTP/" + version)
    assert sent(busy, request + b"Connection: close\r\n\r\n").startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("form", ["length", "chunked", "continue"])
@pytest.mark.parametrize(
    ("method", "path", "token", "more", "status"),
    [
        ("POST", "/api/v1/tasks/cancel", "wrong", b"", 401),
        ("POST", "/api/v1/tasks/cancel", None, b"Origin: http://evil.example\r\n", 403),
        ("POST", "/api/v1/nothing", None, b"", 404),
        ("PATCH", "/api/v1/tasks/cancel", None, b"", 405),
        ("POST", "/api/v1/requests", None, b"", 415),
        ("POST", "/api/v1/tasks/cancel?x=1", None, b"", 400),
        ("POST", "/api/v1/tasks/cancel", None, b"Authorization: Bearer x\r\n", 400),
        ("POST", "/healthz", None, b"", 405),
        ("POST", "/sign-in", None, b"", 403),
        ("GET", "/healthz", None, b"", 200),
    ],
)
def test_a_body_that_nobody_reads_is_no_request(busy, form, method, path, token, more, status):
    hidden = ending(busy)
    length = {
        "length": b"Content-Length: %d\r\n" % len(hidden),
        "chunked": b"Transfer-Encoding: chunked\r\n",
        "continue": b"Expect: 100-continue\r\nContent-Length: %d\r\n" % len(hidden),
    }[form]
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(hidden), hidden) if form == "chunked" else hidden
    last = head(busy, "GET", "/healthz") + b"Connection: close\r\n\r\n"
    answer = sent(busy, head(busy, method, path, token) + more + length + b"\r\n", body, last)
    statuses = [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]]
    assert [code for code in statuses if code != 100] in ([status, 200], [status])
