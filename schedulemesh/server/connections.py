"""Connections whose clients send or take nothing, or too slowly, are closed, so that others get through; and
so are those that have shown no token where there are too many.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any
from urllib.parse import unquote

import h11
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from schedulemesh.server.bodyless_requests import (
    BodylessCycle,
    BodylessRequest,
    bodyless_request,
)
from schedulemesh.server.disconnection import ClientPresence
from schedulemesh.server.request_limits import BoundedConnection

#: Seconds in which the headers of a request have to arrive.
HEADERS_S = 10.0
#: Seconds for which a client may take nothing, or too little, of an answer.
STALLED_S = 30.0


#: Connections that have not sent an accepted token yet; above it the oldest of the address that has most is
#: closed.
MAX_UNAUTHENTICATED = 100
#: Connections whose first accepted token was the same one, and those that come from one address and have sent
#: an accepted token.
MAX_OF_TOKEN, MAX_OF_ADDRESS = 250, 500
#: The part of an IPv6 address that one user has all addresses of.
_IPV6_PREFIX = 64

#: The address and the port that a connection comes from.
Client = tuple[str, int]


class Connections:
    """The open connections by whether a token was accepted on them, and which.

    ``shared``: addresses of proxies, from which many users come; so they do from this machine's own.
    """

    def __init__(self, shared: Collection[str] = ()) -> None:
        self._shared = frozenset(shared)
        #: Without one, the oldest first, by address.
        self._unauthenticated: dict[str, dict[Client, Callable[[], None]]] = {}
        self._count = 0
        #: The names of the tokens of the others.
        self._tokens: dict[Client, str] = {}
        self._of_token: Counter[str] = Counter()
        #: How many of those come from each address that is not shared.
        self._of_address: Counter[str] = Counter()

    def opened(self, client: Client, close: Callable[[], None]) -> None:
        """A client has connected. ``close``: closes its connection at once."""
        self._unauthenticated.setdefault(client[0], {})[client] = close
        self._count += 1
        if self._count > MAX_UNAUTHENTICATED:
            of_address = max(self._unauthenticated.values(), key=len)
            oldest = next(iter(of_address))
            close_oldest = of_address[oldest]
            self.closed(oldest)
            close_oldest()

    def accept(self, client: Client, token: str) -> str | None:
        """A token was accepted on a connection. Returns of what there are too many already; None: it is
        counted.
        """
        if client in self._tokens or client not in self._unauthenticated.get(client[0], ()):
            return None
        if self._of_token[token] >= MAX_OF_TOKEN:
            return f"{MAX_OF_TOKEN} connections with token {token!r}"
        address = self._limited_address(client)
        if address is not None and self._of_address[address] >= MAX_OF_ADDRESS:
            return f"{MAX_OF_ADDRESS} connections from {address}"
        self._forget_unauthenticated(client)
        self._tokens[client] = token
        self._of_token[token] += 1
        if address is not None:
            self._of_address[address] += 1
        return None

    def closed(self, client: Client) -> None:
        """A connection has ended."""
        token = self._tokens.pop(client, None)
        if token is None:
            self._forget_unauthenticated(client)
            return
        _take_one(self._of_token, token)
        address = self._limited_address(client)
        if address is not None:
            _take_one(self._of_address, address)

    def _limited_address(self, client: Client) -> str | None:
        """The address whose connections are counted, of IPv6 the network of one user; None: many users share
        it.
        """
        address = ip_address(client[0])
        mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
        address = mapped or address
        if address.is_loopback or str(address) in self._shared:
            return None
        if isinstance(address, IPv6Address):
            return str(ip_network((address, _IPV6_PREFIX), strict=False))
        return str(address)

    def _forget_unauthenticated(self, client: Client) -> None:
        of_address = self._unauthenticated.get(client[0], {})
        if of_address.pop(client, None) is not None:
            self._count -= 1
        if not of_address:
            self._unauthenticated.pop(client[0], None)


def _take_one(counter: Counter[str], name: str) -> None:
    counter[name] -= 1
    if not counter[name]:
        del counter[name]


class PatientProtocol(H11Protocol):
    """HTTP/1.1 with a time limit for the headers of each request, and for clients that do not take an answer;
    and with limits for what a request may consist of.

    uvicorn itself limits only the pause between a response and the first byte of the next request.
    """

    _limit: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None

    def __init__(self, *given: Any, open_connections: Connections, **named: Any) -> None:
        super().__init__(*given, **named)
        self._open = open_connections
        self.conn = self._bounded = BoundedConnection()
        #: Whether a bodyless request is being answered, and what has arrived since it.
        self._answers_bodyless, self._later = False, bytearray()
        self._presence = ClientPresence(self._listen)
        # Each request gets a copy of this.
        self.app_state = {**self.app_state, "client": self._presence}

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._set_limit()
        if self.client is not None:
            self._open.opened(self.client, transport.abort)

    def data_received(self, data: bytes) -> None:
        """Take what arrived; where it does not complete the headers, the time limit holds."""
        if self._answers_bodyless:
            self._later += data
            self.flow.pause_reading()
            return
        request = bodyless_request(data) if self._may_be_bodyless() else None
        if request is None:
            super().data_received(data)
        else:
            self._answer(request)
        if self.cycle is not None and not self.cycle.response_complete:
            self._remove_limit()
        elif self._limit is None:
            self._set_limit()

    def on_response_complete(self) -> None:
        """Take what has arrived meanwhile."""
        super().on_response_complete()
        self._answers_bodyless = False
        if self._later and not self.transport.is_closing():
            later, self._later = bytes(self._later), bytearray()
            self.data_received(later)

    def _may_be_bodyless(self) -> bool:
        """Whether the next request begins with what arrives, and is answered by the application."""
        idle, connection = h11.IDLE, self._bounded
        most = self.limit_concurrency
        return (
            connection.our_state is idle
            and connection.their_state is idle
            and not connection.has_begun
            and (most is None or max(len(self.connections), len(self.tasks)) < most)
        )

    def _answer(self, request: BodylessRequest) -> None:
        """Have the application answer a request, as ``handle_events`` does after h11 has read one."""
        self._unset_keepalive_if_required()
        path, _, query = request.target.partition(b"?")
        self.headers = request.headers
        self.scope = {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": "1.1",
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme or "http",
            "method": request.method,
            "root_path": "",
            "path": unquote(path.decode()),
            "raw_path": path,
            "query_string": query,
            "headers": request.headers,
            "state": self.app_state.copy(),
        }
        self.cycle = BodylessCycle(
            scope=self.scope,
            conn=self.conn,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            on_response=self.on_response_complete,
        )
        self._answers_bodyless = True
        task = self.loop.create_task(self.cycle.run_asgi(self.app))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request, too much of one, or in another version of HTTP; where it is being
        answered already, hang up.
        """
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._refuse(self._bounded.status, self._bounded.excess or msg)
        self.transport.close()

    def _refuse(self, status: int, why: str) -> None:
        body = why.encode()
        headers = [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        head = h11.Response(status_code=status, headers=headers, reason=STATUS_PHRASES[status])
        for event in (head, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event))

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        if self.client is not None:
            self._open.closed(self.client)
        self._presence.note_end()
        self._remove_limit()
        self.resume_writing()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """More of an answer is buffered than is right: give the client some time to take it."""
        super().pause_writing()
        # abort: close would wait until the client has taken what is buffered.
        self._stalled = self.loop.call_later(STALLED_S, self.transport.abort)

    def resume_writing(self) -> None:
        """The client has taken most of what was buffered, or has left."""
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
        super().resume_writing()

    def _listen(self) -> None:
        self.flow.resume_reading()

    def _set_limit(self) -> None:
        self._limit = self.loop.call_later(HEADERS_S, self.transport.close)

    def _remove_limit(self) -> None:
        if self._limit is not None:
            self._limit.cancel()
            self._limit = None
