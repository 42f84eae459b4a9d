"""What is checked of every HTTP request before it is routed: its Host, its Origin, its size, its token.

Nothing here asks the supervisor, so requests that are refused cost it nothing.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Callable, Collection
from functools import lru_cache, partial
from typing import Protocol
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from schedulemesh.config.http import HttpSettings, is_address
from schedulemesh.domain.reasons import Reason
from schedulemesh.errors import InvalidRequestError, SchedulerUnavailableError
from schedulemesh.protocol.callers import TokenCaller
from schedulemesh.protocol.portions import STEPS_BETWEEN
from schedulemesh.server.connections import Connections
from schedulemesh.server.parameters import path_of
from schedulemesh.server.peers import is_proxied
from schedulemesh.server.problems import Problem, json_response, unavailable
from schedulemesh.server.request_limits import check_query

#: The most bytes of the body of a request, with classes and arguments and otherwise, and the seconds in which
#: they have to arrive.
MAX_BODY, MAX_JSON, BODY_S = 16 * 1024 * 1024, 1024 * 1024, 30.0
#: The most bytes of a job with the archive of its folder, which takes a third more in JSON.
MAX_JOB = 24 * 1024 * 1024
#: The paths of requests whose bodies may be larger.
PACKED, JOBS = "/api/v1/requests", "/api/v1/jobs"
#: The paths of the page at which a browser signs in and out and makes changes, and the most bytes of forms:
#: a change may name many tasks.
SIGN_IN, SIGN_OUT, CHANGE = "/sign-in", "/sign-out", "/change"
MAX_FORM, MAX_CHANGE = 8 * 1024, 128 * 1024
_LIMITS = {
    PACKED: MAX_BODY,
    JOBS: MAX_JOB,
    SIGN_IN: MAX_FORM,
    SIGN_OUT: MAX_FORM,
    CHANGE: MAX_CHANGE,
}
#: Bytes of all bodies that are in memory, and of those that come with one token.
MAX_BODIES, MAX_BODIES_OF_TOKEN = 128 * 1024 * 1024, 32 * 1024 * 1024
#: Bytes of all answers that clients have not taken, and of those with one token; an answer alone may have
#: more than that. Those of up to ``_PART`` bytes, in which others are sent, are not counted.
MAX_ANSWERS, MAX_ANSWERS_OF_TOKEN, _PART = 512 * 1024 * 1024, 128 * 1024 * 1024, 64 * 1024

#: Paths that are answered without a token: the first to anybody, the second to this machine's processes.
_OPEN, _OPEN_ON_LOOPBACK = ("/healthz", "/proof"), "/metrics"
#: What the paths of calls begin with; all others but those above are the page's.
_CALLS = "/api/"

#: Characters of a Host header: those of a name and a port. Of so many it is remembered what they are.
_MAX_HOST, _MOST_HOSTS = 300, 256


class TokenSource(Protocol):
    """Knows the tokens that are accepted."""

    async def caller(self, token: str, address: str) -> TokenCaller | None:
        """Who has this token and sends a request from this address; None: nobody.

        Raises SchedulerUnavailableError while it is not known which tokens are accepted.
        """

    async def holder(self, hashed: str, address: str) -> TokenCaller | None:
        """As ``caller``, from the hash of the token."""

    async def named(self, name: str, address: str) -> TokenCaller | None:
        """As ``caller``, from the name of the token."""

    def outdated(self) -> None:
        """The tokens have changed."""

    def refused(self) -> None:
        """A request had no token that is accepted."""


class BytesInMemory:
    """How many bytes of bodies are in memory, in all and with each token.

    ``what``: they are of. ``reason``: the code of what is refused.
    """

    def __init__(self, what: str, reason: str, most: int, most_of_token: int) -> None:
        self._what, self._reason = what, reason
        self._most, self._most_of_token = most, most_of_token
        self._all = 0
        self._of_token: Counter[str] = Counter()

    def add(self, token: str, size: int) -> None:
        """There are bytes more with a token. Raises Problem where there are too many, but not for the only
        ones of a token because of its own limit; they are counted all the same.
        """
        self._all += size
        self._of_token[token] += size
        of_token = self._of_token[token]
        if self._all > self._most or (of_token > self._most_of_token and of_token > size):
            raise Problem(
                503,
                self._reason,
                f"the bodies of all {self._what} have {self._all:,} bytes, those with this token "
                f"{of_token:,}; the most are {self._most:,} and {self._most_of_token:,} at a time, so try "
                "again",
                {"retry-after": "1", "connection": "close"},
            )

    def remove(self, token: str, size: int) -> None:
        """Bytes are no longer needed."""
        self._all -= size
        self._of_token[token] -= size
        if not self._of_token[token]:
            del self._of_token[token]


class BasePath:
    """ASGI middleware that takes off the path below which a proxy serves, where the proxy has not done so."""

    def __init__(self, app: ASGIApp, base_path: str) -> None:
        self._app, self._base_path = app, base_path.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI. The path is read from ``raw_path``; see ``path_of``."""
        path = scope.get("raw_path", b"")
        if self._base_path and (path + b"/").startswith(self._base_path + b"/"):
            scope["raw_path"] = path.removeprefix(self._base_path) or b"/"
        await self._app(scope, receive, send)


class Guard:
    """ASGI middleware that lets a request through once all that is checked of it holds."""

    def __init__(
        self, app: ASGIApp, settings: HttpSettings, tokens: TokenSource, connections: Connections
    ) -> None:
        self._app = app
        self._connections = connections
        self._bodies = BytesInMemory("requests", "too_many_bodies", MAX_BODIES, MAX_BODIES_OF_TOKEN)
        self._answers = BytesInMemory(
            "answers", "too_many_answers", MAX_ANSWERS, MAX_ANSWERS_OF_TOKEN
        )
        #: Held by whoever sends a part of a large answer.
        self._part_turn = asyncio.Lock()
        self._settings = settings
        self._tokens = tokens
        self._names = _own_names(settings)
        #: Whether a Host header names this server. Clients send the same one with each request.
        self._is_own = lru_cache(_MOST_HOSTS)(partial(_is_own_host, self._names))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            scope["path"] = path_of(scope)
            check_query(scope["query_string"])
            headers = Headers(scope=scope)
            self._check_host(headers)
            _check_origin(headers)
            caller = await self._caller(scope, headers)
            scope["state"]["caller"] = caller
            limit = _LIMITS.get(scope["path"], MAX_JSON)
            _check_length(headers, limit)
            token = "" if caller is None else caller.token.name
        except InvalidRequestError as error:
            problem = Problem(400, "invalid_request", str(error))
            await json_response(problem.body, problem.status)(scope, receive, send)
            return
        except Problem as problem:
            response = json_response(problem.body, problem.status, problem.headers)
            await response(scope, receive, send)
            return
        body = _Body(receive, asyncio.get_running_loop().time, limit, self._bodies, token)
        try:
            answer = _Answer(scope, send, self._answers, self._part_turn)
            await self._app(scope, body.receive, answer.send)
        finally:
            body.end()

    def _check_host(self, headers: Headers) -> None:
        """Refuse a Host that a page of another site may have made point here (DNS rebinding)."""
        hosts = headers.getlist("host")
        if len(hosts) != 1 or len(hosts[0]) > _MAX_HOST or not self._is_own(hosts[0]):
            raise Problem(
                421,
                "host_not_allowed",
                f"the Host header {', '.join(hosts)!r} does not name this server; use its address, "
                f"or one of {', '.join(sorted(self._names))}",
            )

    async def _caller(self, scope: Scope, headers: Headers) -> TokenCaller | None:
        """Who sends the request; None: it needs no token, or is one of the page, which has sessions. Raises
        Problem where a token is needed and none is accepted.
        """
        path = scope["path"]
        if is_page(path):
            return None
        token = secret_in(headers)
        if token:
            try:
                caller = await self._tokens.caller(token, address_of(scope))
            except SchedulerUnavailableError as error:
                raise unavailable(error) from None
            if caller is not None:
                check_connection(self._connections, scope, caller)
                return caller
        elif path in _OPEN or (path == _OPEN_ON_LOOPBACK and _from_loopback(scope, headers)):
            return None
        self._tokens.refused()
        raise Problem(
            401,
            Reason.TOKEN_NOT_ACCEPTED.value if token else "token_needed",
            (
                "the token is unknown, expired or revoked"
                if token
                else "send a token as the header `Authorization: Bearer TOKEN`; on this machine the "
                "commands read one from ~/.schedulemesh"
            ),
            {"www-authenticate": 'Bearer realm="schedulemesh"'},
        )


def is_page(path: str) -> bool:
    """Whether a path is one of the page, not of a call."""
    return not (path.startswith(_CALLS) or path in (*_OPEN, _OPEN_ON_LOOPBACK))


def check_connection(connections: Connections, scope: Scope, caller: TokenCaller) -> None:
    """Note that a token was accepted on a connection. Raises Problem where too many have this token, or come
    from its address.
    """
    client = scope.get("client")
    too_many = None if client is None else connections.accept(tuple(client), caller.token.name)
    if too_many is not None:
        raise Problem(
            503,
            "too_many_connections",
            f"there are {too_many}, which is the most; close some",
            {"retry-after": "1", "connection": "close"},
        )


def secret_in(headers: Headers) -> str:
    """The token of a request; empty: it has none. Raises Problem where it has several."""
    authorizations = headers.getlist("authorization")
    if len(authorizations) > 1:
        raise Problem(400, "invalid_request", "the header Authorization is given more than once")
    scheme, _, token = (authorizations[0] if authorizations else "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _own_names(settings: HttpSettings) -> Collection[str]:
    """The names under which this server is addressed, beside addresses, which no other site can have."""
    names = {"localhost", settings.host.lower()}
    if not settings.loopback:
        names |= {socket.gethostname().lower(), socket.getfqdn().lower()}
    return names


def _is_own_host(names: Collection[str], host: str) -> bool:
    """Whether a Host header has one of these names, or an address."""
    name = _host_name(host)
    return bool(name) and (name in names or is_address(name))


def _host_name(host: str) -> str:
    """The name or address in a Host header, without the port; empty: it is not valid."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port  # it has to be a number
    except ValueError:
        return ""
    name = parts.hostname or ""
    # Of an address in brackets, urlsplit leaves out what comes between the bracket and the port.
    host_name = f"[{name}]" if ":" in name else name
    rest = host.lower().removeprefix(host_name)
    port = rest.removeprefix(":")
    if (
        parts.netloc != host
        or rest == host.lower()
        or (rest and not (rest != port and port.isdigit()))
    ):
        return ""
    return name


def _check_origin(headers: Headers) -> None:
    """Refuse what a page of another site sends from a user's browser."""
    for origin in headers.getlist("origin"):
        if _site(origin) != headers.get("host", "").lower():
            raise Problem(
                403, "origin_not_allowed", f"requests from pages of {origin!r} are not accepted"
            )


def _site(origin: str) -> str:
    """The host and port in an Origin header; empty: it is not valid."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _from_loopback(scope: Scope, headers: Headers) -> bool:
    """Whether a process of this machine asks for itself: a proxy asks for others, who may be anywhere."""
    return not is_proxied(headers) and address_of(scope) in ("127.0.0.1", "::1")


def address_of(scope: Scope) -> str:
    """The address that a request comes from: of IPv4 as such, also where the server listens at ``::``."""
    client = scope.get("client")
    address = "" if client is None else str(client[0])
    return address.removeprefix("::ffff:") if "." in address else address


def _check_length(headers: Headers, limit: int) -> None:
    """Refuse a body that is announced as too large before it is read, and one of whose length two headers say
    something: a proxy before this server may believe the other one.
    """
    names = [name for name, _ in headers.raw]
    if b"content-length" not in names:
        return
    if b"transfer-encoding" in names:
        raise Problem(
            400,
            "invalid_request",
            "a request has either Content-Length or Transfer-Encoding, not both; leave one out",
            {"connection": "close"},
        )
    length = headers["content-length"]
    if length.isdigit() and int(length) > limit:
        raise _too_large(limit)


class _Body:
    """The body of one request, as far as it has arrived; receiving ends in a Problem where it is too large or
    takes too long.
    """

    def __init__(
        self,
        receive: Receive,
        time: Callable[[], float],
        limit: int,
        bodies: BytesInMemory,
        token: str,
    ) -> None:
        self._receive, self._time, self._limit = receive, time, limit
        self._bodies, self._token = bodies, token
        self._until = time() + BODY_S
        self._size = 0
        self._whole = False

    async def receive(self) -> Message:
        """See ASGI."""
        if self._whole:
            # Returns when the client disconnects.
            return await self._receive()
        try:
            message = await asyncio.wait_for(self._receive(), max(0.0, self._until - self._time()))
        except (asyncio.TimeoutError, TimeoutError):
            raise Problem(
                408, "too_slow", f"the request's body did not arrive within {BODY_S:g} s"
            ) from None
        size = len(message.get("body", b""))
        self._size += size
        self._bodies.add(self._token, size)
        self._whole = not message.get("more_body", False)
        if self._size > self._limit:
            raise _too_large(self._limit)
        return message

    def end(self) -> None:
        """The request was answered."""
        self._bodies.remove(self._token, self._size)


class _Answer:
    """The answer to one request. A large body is counted until its client has taken it, and sent in parts,
    because all of what is sent at once is in memory until then.
    """

    def __init__(
        self, scope: Scope, send: Send, answers: BytesInMemory, part_turn: asyncio.Lock
    ) -> None:
        self._scope, self._send, self._answers = scope, send, answers
        self._part_turn = part_turn
        #: The head, until it is known that the body is not refused.
        self._start: Message | None = None

    async def send(self, message: Message) -> None:
        """See ASGI."""
        if message["type"] == "http.response.start":
            self._start = message
            return
        body = message.get("body", b"")
        start, self._start = self._start, None
        if start is None or message.get("more_body") or len(body) <= _PART:
            # The parts of a stream are small, and streams are few.
            await self._send_started(start, message)
            return
        token = self._token()
        try:
            self._answers.add(token, len(body))
            await self._send_in_parts(start, body)
        except Problem as problem:
            response = json_response(problem.body, problem.status, problem.headers)
            await response(self._scope, _received, self._send)
        finally:
            self._answers.remove(token, len(body))

    def _token(self) -> str:
        """The name of the token; the page says whose it is once it knows the session."""
        caller: TokenCaller | None = self._scope["state"].get("caller")
        return "" if caller is None else caller.token.name

    async def _send_started(self, start: Message | None, message: Message) -> None:
        if start is not None:
            await self._send(start)
        await self._send(message)

    async def _send_in_parts(self, start: Message, body: bytes) -> None:
        await self._send(start)
        view = memoryview(body)
        for first in range(0, len(body), _PART):
            await self._send_part(
                bytes(view[first : first + _PART]), more=first + _PART < len(body)
            )

    async def _send_part(self, part: bytes, *, more: bool) -> None:
        """Send a part in its turn among those of all answers, and let others be served before the next."""
        # Waits while the client has not taken what was sent: not in the turn, which others wait for.
        await self._send({"type": "http.response.body", "body": b"", "more_body": True})
        async with self._part_turn:
            await self._send({"type": "http.response.body", "body": part, "more_body": more})
            for _ in range(STEPS_BETWEEN):
                await asyncio.sleep(0)


async def _received() -> Message:
    """What a response to which nothing more is received waits for."""
    return {"type": "http.disconnect"}


def _too_large(limit: int) -> Problem:
    return Problem(413, "too_large", f"the body of this request has at most {limit:,} bytes")
