"""Requests without a body whose head arrives at once, as reads do, are taken apart and answered here, in a
fraction of the time that h11 takes for it.

What does not have exactly the form that is read here is left to h11, which alone refuses anything.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, RequestResponseCycle

from schedulemesh.server.request_limits import MAX_HEAD_LINES

Headers = list[tuple[bytes, bytes]]

#: Bytes of a head that is read here: less than any limit of a head or of a part of it.
MAX_BYTES = 4 * 1024
_HEAD = re.compile(
    rb"(GET|HEAD) (/[!-~]*) HTTP/1\.1\r\n((?:[-!#$%&'*+.^_`|~0-9A-Za-z]+:[ -~\t]*\r\n)+)\r\n"
)
#: Headers that say where a request ends, or what becomes of the connection; the one that says what holds
#: without it is allowed.
_OF_CONNECTION = frozenset(
    (b"connection", b"content-length", b"expect", b"transfer-encoding", b"upgrade")
)
_KEEP_ALIVE, _CLOSE = (b"connection", b"keep-alive"), (b"connection", b"close")
#: The statuses of responses that never have a body.
_WITHOUT_BODY = (204, 304)


class BodylessRequest(NamedTuple):
    """A request that has no body, and after which the connection stays open."""

    method: str
    target: bytes
    #: Names in lower case.
    headers: Headers


def bodyless_request(data: bytes) -> BodylessRequest | None:
    """The request that these bytes are; None: that is for h11 to say."""
    matched = _HEAD.fullmatch(data) if len(data) <= MAX_BYTES else None
    if matched is None:
        return None
    lines = [line.partition(b":") for line in matched[3].split(b"\r\n")[:-1]]
    headers = [(name.lower(), value.strip(b" \t")) for name, _, value in lines]
    names = [name for name, _ in headers]
    if names.count(b"host") != 1 or len(headers) >= MAX_HEAD_LINES:
        return None
    if not _OF_CONNECTION.isdisjoint(names) and not _keeps_alive(headers):
        return None
    return BodylessRequest(matched[1].decode(), matched[2], headers)


def _keeps_alive(headers: Headers) -> bool:
    """Whether all that headers say of the connection is that it stays open."""
    of_connection = [(name, value.lower()) for name, value in headers if name in _OF_CONNECTION]
    return of_connection == [_KEEP_ALIVE]


class BodylessCycle(RequestResponseCycle):
    """Has a bodyless request answered by the application."""

    def __init__(self, **parameters: Any) -> None:
        super().__init__(**parameters)
        self.more_body = False
        self.message_event.set()
        #: The head of the response, until it is sent with what follows it.
        self._head = b""
        self._has_body = self._is_chunked = self._closes = False

    async def send(self, message: Any) -> None:
        """See ASGI."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if message["type"] == "http.response.start":
            self._start(message["status"], [*self.default_headers, *message.get("headers", ())])
        else:
            self._continue(message.get("body", b""), more=message.get("more_body", False))

    def _start(self, status: int, headers: Headers) -> None:
        has_length = any(name == b"content-length" for name, _ in headers)
        may_have_body = status not in _WITHOUT_BODY
        self._has_body = may_have_body and self.scope["method"] != "HEAD"
        self._is_chunked = may_have_body and not has_length
        if self._is_chunked:
            headers.append((b"transfer-encoding", b"chunked"))
        self._closes = _CLOSE in headers
        self._head = response_head(status, headers)
        self.response_started = True

    def _continue(self, body: bytes, *, more: bool) -> None:
        if self.response_complete:
            raise RuntimeError("a response was continued after its end")
        data, self._head = self._head, b""
        if self._has_body:
            data += _chunk(body, last=not more) if self._is_chunked else body
        if data:
            self.transport.write(data)
        if not more:
            self._end()

    def _end(self) -> None:
        self.response_complete = True
        self.message_event.set()
        if self._closes or not self.keep_alive:
            self.transport.close()
        self.on_response()


def response_head(status: int, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """The head of a response. Raises ValueError where a header would be several lines."""
    lines = [b"%b: %b\r\n" % header for header in headers]
    head = b"".join((b"HTTP/1.1 %d %b\r\n" % (status, STATUS_PHRASES[status]), *lines, b"\r\n"))
    breaks = len(lines) + 2
    if (head.count(b"\r"), head.count(b"\n"), head.count(b"\0")) != (breaks, breaks, 0):
        raise ValueError("a header of a response has a line break or a null byte in it")
    return head


def _chunk(body: bytes, *, last: bool) -> bytes:
    """A part of a body whose length nobody knows."""
    chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
    return chunk + b"0\r\n\r\n" if last else chunk
