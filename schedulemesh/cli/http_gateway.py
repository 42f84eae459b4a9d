"""The connection of commands to a scheduler over its HTTP API, which needs no Ray."""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from urllib.parse import urlsplit

from schedulemesh.cli.command import Target
from schedulemesh.cli.exits import NotAllowedError, accepted
from schedulemesh.config.http import home_folder
from schedulemesh.errors import (
    InvalidRequestError,
    ScheduleMeshError,
    SchedulerUnavailableError,
)
from schedulemesh.protocol.answers import AnswerT, decode_answer
from schedulemesh.protocol.requests import AnyRequest, encode_request
from schedulemesh.server.discovery import found

#: Seconds in which the server has to accept a connection, and to answer: an eviction saves states first.
_CONNECT_S, _ANSWER_S = 3.0, 900.0
_PATH, _TYPE = "/api/v1/requests", "application/msgpack"
_UNAVAILABLE = (502, 503, 504)


class HttpGateway:
    """Asks the supervisor through the process that serves its HTTP API."""

    def __init__(self, connection: http.client.HTTPConnection, token: str) -> None:
        self._connection = connection
        self._token = token

    def ask(self, request: AnyRequest, expected: type[AnswerT]) -> AnswerT:
        """Send a request and wait for its answer; see Gateway."""
        headers = {"content-type": _TYPE, "authorization": f"Bearer {self._token}"}
        try:
            self._connection.request("POST", _PATH, encode_request(request), headers)
            response = self._connection.getresponse()
            body = response.read()
        except TimeoutError:
            raise
        except (OSError, http.client.HTTPException) as error:
            raise SchedulerUnavailableError(
                f"the HTTP API at {self._connection.host}:{self._connection.port} does not answer: {error}"
            ) from None
        if response.status != http.client.OK:
            raise _error(response.status, body)
        return accepted(decode_answer(body, expected))


def _error(status: int, body: bytes) -> ScheduleMeshError:
    """The error that an answer with this status stands for."""
    try:
        message = str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        message = f"the HTTP API answered with status {status}"
    if status in (http.client.UNAUTHORIZED, http.client.FORBIDDEN):
        return NotAllowedError(message)
    if status in _UNAVAILABLE:
        return SchedulerUnavailableError(message)
    return InvalidRequestError(message) if status < 500 else ScheduleMeshError(message)


@contextmanager
def at_url(url: str) -> Iterator[HttpGateway]:
    """Within, the scheduler whose HTTP API is at a URL, with the token ``SCHEDULEMESH_TOKEN``."""
    try:
        connection = _connected(url)
    except OSError as error:
        raise SchedulerUnavailableError(f"nothing answers at {url} ({error})") from None
    with closing(connection):
        yield HttpGateway(connection, os.environ.get("SCHEDULEMESH_TOKEN", ""))


@contextmanager
def discovered(target: Target) -> Iterator[HttpGateway | None]:
    """Within, the scheduler through its HTTP API on this machine; None: it has none that answers."""
    file = found(home_folder(os.environ), target.namespace, target.name)
    try:
        connection = None if file is None else _connected(file.url)
    except OSError:
        connection = None
    if file is None or connection is None:
        yield None
        return
    with closing(connection):
        yield HttpGateway(connection, file.token)


def _connected(url: str) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=_CONNECT_S)
    connection.connect()
    connection.sock.settimeout(_ANSWER_S)
    return connection
