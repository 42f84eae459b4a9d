"""The connection of commands to a scheduler over its HTTP API, which needs no Ray."""

from __future__ import annotations

import http.client
import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import NamedTuple
from urllib.parse import urlencode, urlsplit

from schedulemesh.api.call import Call
from schedulemesh.api.history import QueryEvents
from schedulemesh.cli.command import Target, note
from schedulemesh.cli.exits import accepted
from schedulemesh.cli.following import Part, by_stream
from schedulemesh.config.discovery import Discovered, all_found, found
from schedulemesh.config.http import home_folder
from schedulemesh.config.settings import DEFAULT_NAME, DEFAULT_NAMESPACE
from schedulemesh.errors import (
    InvalidRequestError,
    NotAllowedError,
    ScheduleMeshError,
    SchedulerNotFoundError,
    SchedulerUnavailableError,
)
from schedulemesh.protocol.answers import AnswerT, decode_answer
from schedulemesh.protocol.credentials import (
    ENVIRONMENT_VARIABLE,
    new_nonce,
    same,
    server_proof,
)
from schedulemesh.protocol.requests import encode_request

#: Seconds in which the server has to accept a connection, and to answer: an eviction saves states first.
_CONNECT_S, _ANSWER_S = 3.0, 900.0
#: Seconds without a byte, not even a heartbeat, after which a stream is given up.
_SILENT_S = 30.0
_PATH, _TYPE = "/api/v1/requests", "application/msgpack"
_STREAM = "/api/v1/events/stream"
_PROOF = "/proof"
#: Bytes of a proof that are read of whoever answers.
_MOST_OF_PROOF = 10_000
#: Where Ray's dashboard listens by default; one with tokens does not say what it is.
_DASHBOARD_PORT = 8265
_UNAVAILABLE = (502, 503, 504)


class Served(NamedTuple):
    """Where an API is, and a token that it accepts."""

    url: str
    token: str
    name: str
    namespace: str
    #: With which the API proves that it is the scheduler's; None: it is at a URL that the user gave.
    key: str | None = None


class ImpostorError(ConnectionRefusedError):
    """Another process than the scheduler's listens where its HTTP API was: it is sent no token."""


class HttpGateway:
    """Asks the supervisor through the process that serves its HTTP API. ``locate``: where that is now.

    Raises OSError where nobody listens there.
    """

    def __init__(self, locate: Callable[[], Served]) -> None:
        self._locate = locate
        self._connect()

    @property
    def name(self) -> str:
        """See Gateway."""
        return self._served.name

    @property
    def namespace(self) -> str:
        """See Gateway."""
        return self._served.namespace

    def ask(self, request: Call, expected: type[AnswerT]) -> AnswerT:
        """Send a request and wait for its answer; see Gateway."""
        try:
            response, body = self._sent(encode_request(request))
        except TimeoutError:
            raise
        except (OSError, http.client.HTTPException) as error:
            # It would not take another request; the next one is sent to where the API is by then.
            self._connection.close()
            raise SchedulerUnavailableError(
                f"the HTTP API at {self._connection.host}:{self._connection.port} does not answer: {error}"
            ) from None
        if response.status != http.client.OK:
            raise self._error(response.status, body)
        return accepted(decode_answer(body, expected))

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def _sent(self, data: bytes) -> tuple[http.client.HTTPResponse, bytes]:
        if self._connection.sock is None:
            self._connect()
        headers = {"content-type": _TYPE, "authorization": f"Bearer {self._served.token}"}
        self._connection.request("POST", _PATH, data, headers)
        response = self._connection.getresponse()
        return response, response.read()

    def _connect(self) -> None:
        self._served = self._locate()
        self._connection = _connected(self._served)

    def follow(self, query: QueryEvents) -> Iterator[Part]:
        """The events after ``query.after``, as they happen; see Gateway."""
        return by_stream(self._stream, query)

    @contextmanager
    def _stream(self, query: QueryEvents) -> Iterator[http.client.HTTPResponse]:
        """Within, a stream of events. Raises OSError where nobody answers, and what a refusal stands for."""
        served = self._locate()
        filters = {"after": query.after, "task_id": query.task_id, "pool_name": query.pool_name}
        given = [(name, value) for name, value in filters.items() if value is not None]
        path = f"{_STREAM}?{urlencode([*given, *(('kind', kind) for kind in query.kinds)])}"
        with closing(_connected(served)) as connection:
            connection.sock.settimeout(_SILENT_S)
            connection.request("GET", path, headers={"authorization": f"Bearer {served.token}"})
            response = connection.getresponse()
            if response.status != http.client.OK:
                raise self._error(response.status, response.read())
            yield response

    def _error(self, status: int, body: bytes) -> ScheduleMeshError:
        """The error that an answer with this status stands for."""
        try:
            message = str(json.loads(body)["error"])
        except (ValueError, KeyError, TypeError):
            served = self._locate()
            if _is_dashboard(served.url):
                return InvalidRequestError(
                    f"{served.url} is Ray's dashboard, not the HTTP API of a scheduler; unset RAY_ADDRESS, "
                    "or give the address of the cluster as host:6379"
                )
            message = f"the HTTP API answered with status {status}"
        if status in (http.client.UNAUTHORIZED, http.client.FORBIDDEN):
            return NotAllowedError(message)
        if status in _UNAVAILABLE:
            return SchedulerUnavailableError(message)
        return InvalidRequestError(message) if status < 500 else ScheduleMeshError(message)


def _is_dashboard(url: str) -> bool:
    """Whether a URL is that of Ray's dashboard, which says its version to everybody."""
    served = Served(url, "", "", "")
    with suppress(OSError, http.client.HTTPException), closing(_connected(served)) as api:
        api.request("GET", "/api/version")
        answer = api.getresponse().read(_MOST_OF_PROOF)
        return b"ray_version" in answer or urlsplit(url).port == _DASHBOARD_PORT
    return False


@contextmanager
def at_url(target: Target) -> Iterator[HttpGateway]:
    """Within, the scheduler whose HTTP API is at a URL, with the token ``SCHEDULEMESH_TOKEN``."""
    url, token = target.address, os.environ.get(ENVIRONMENT_VARIABLE, "")
    name, namespace = target.name or DEFAULT_NAME, target.namespace or DEFAULT_NAMESPACE
    served = Served(url, token, name, namespace)
    try:
        gateway = HttpGateway(lambda: served)
    except OSError as error:
        raise SchedulerUnavailableError(f"nothing answers at {url} ({error})") from None
    with closing(gateway):
        yield gateway


@contextmanager
def discovered(target: Target) -> Iterator[HttpGateway | None]:
    """Within, the scheduler through its HTTP API on this machine; None: it has none that answers, or it
    is not certain which scheduler is meant.
    """
    file = _file_of(target)
    try:
        if file is None or not file.url:
            gateway = None
        else:
            namespace, name = file.namespace, file.name
            gateway = HttpGateway(lambda: _found_again(namespace, name))
    except OSError as error:
        if isinstance(error, ImpostorError):
            note(f"{error}; the scheduler is asked over Ray instead")
        gateway = None
    if gateway is None:
        yield None
        return
    with closing(gateway):
        yield gateway


def _file_of(target: Target) -> Discovered | None:
    """The file of the scheduler that is meant, if that is in the cluster at the address; where no name is
    given, of the only one that serves an API there, unless the cluster has another one without.
    """
    folder = home_folder(os.environ)
    if target.name is not None:
        file = found(folder, target.namespace or DEFAULT_NAMESPACE, target.name)
        return file if file is not None and _is_of_cluster(file, target.address) else None
    files = [
        file
        for file in all_found(folder, target.namespace)
        if file.url and _is_of_cluster(file, target.address)
    ]
    if len(files) > 1:
        files = [file for file in files if _serves(file)]
    return files[0] if len(files) == 1 and not files[0].others else None


def _is_of_cluster(file: Discovered, address: str) -> bool:
    """Whether a scheduler is in the Ray cluster at an address as users give it."""
    if address == "auto":
        return True
    host, _, port = address.rpartition(":")
    if address in file.cluster or not host:
        return address in file.cluster
    try:
        found_hosts = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return any(f"{ip[0]}:{port}" in file.cluster for *_, ip in found_hosts)


def _serves(file: Discovered) -> bool:
    """Whether an API answers where the file says."""
    try:
        _connected(_served(file)).close()
    except OSError:
        return False
    return True


def _served(file: Discovered) -> Served:
    token = os.environ.get(ENVIRONMENT_VARIABLE) or file.token
    return Served(file.url, token, file.name, file.namespace, file.key)


def _found_again(namespace: str, name: str) -> Served:
    """Where the API is now.

    Raises SchedulerNotFoundError where it has ended with its scheduler, and OSError where the scheduler lives
    without it.
    """
    file = found(home_folder(os.environ), namespace, name)
    if file is None:
        raise SchedulerNotFoundError(f"scheduler {name!r} was shut down")
    if not file.url:
        raise ConnectionRefusedError(f"scheduler {name!r} was started again without one")
    return _served(file)


def _connected(served: Served) -> http.client.HTTPConnection:
    """A connection to an API that has proved itself where it can. Raises OSError."""
    parts = urlsplit(served.url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=_CONNECT_S)
    # Otherwise it would connect again by itself, to whoever listens by then.
    connection.auto_open = 0
    try:
        connection.connect()
        if served.key is not None:
            _check_server(connection, served.url, served.key)
    except BaseException:
        connection.close()
        raise
    connection.sock.settimeout(_ANSWER_S)
    return connection


def _check_server(connection: http.client.HTTPConnection, url: str, key: str) -> None:
    """Raise OSError unless the process at the other end knows the key in the scheduler's file: whoever has
    taken the port since would get the token of an operator.
    """
    nonce = new_nonce()
    try:
        connection.request("GET", f"{_PROOF}?nonce={nonce}")
        response = connection.getresponse()
        body = response.read(_MOST_OF_PROOF)
    except http.client.HTTPException as error:
        raise ImpostorError(f"what listens at {url} is not the scheduler: {error!r}") from None
    if response.status in _UNAVAILABLE:
        raise ConnectionRefusedError(f"the HTTP API at {url} takes no more connections")
    try:
        proof = json.loads(body)["proof"].encode()
    except (ValueError, KeyError, TypeError, AttributeError):
        proof = b""
    if not (key and same(proof, server_proof(key, url, nonce).encode())):
        raise ImpostorError(
            f"the process that listens at {url} does not prove that it is the scheduler's, so it is sent no "
            "token"
        )
    if connection.sock is None:
        raise ConnectionResetError(f"the HTTP API at {url} has closed the connection")
