"""The way of calls to a scheduler over its HTTP API, which needs no Ray."""

from __future__ import annotations

import http.client
import json
import os
import re
import time
from collections.abc import Callable
from contextlib import closing, suppress
from ipaddress import ip_address
from socket import AF_INET, AF_INET6, SOCK_DGRAM, getaddrinfo, gethostname, socket
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from schedulemesh.client.origin import user_name
from schedulemesh.config.discovery import all_found
from schedulemesh.config.http import home_folder
from schedulemesh.errors import (
    InvalidRequestError,
    NotAllowedError,
    ScheduleMeshError,
    SchedulerUnavailableError,
)
from schedulemesh.protocol.credentials import (
    CLIENT_USER_HEADER,
    new_nonce,
    same,
    server_proof,
)

#: Seconds in which the server has to accept a connection, and to answer: an eviction saves states first.
_CONNECT_S, _ANSWER_S = 3.0, 900.0
#: Seconds without a call after which a connection is not used again: the server closes it after 5.
_IDLE_S = 3.0
#: The paths of calls in packed form, of jobs, which are sent with the archives of their folders, and of
#: leases.
PACKED_CALLS, JOBS, LEASES = "/api/v1/requests", "/api/v1/jobs", "/api/v1/leases"
_TYPE = "application/msgpack"
#: Scheme, host and path, without a user, a query and a fragment.
_URL = re.compile(r"https?://[^\s/?#@\\]+(/[\w.~%!$&'()*+,;=:@/-]*)?", re.ASCII)
_PROOF = "/proof"
#: The ports of URLs that name none.
_DEFAULT_PORTS = {"http": 80, "https": 443}
#: What localhost may stand for; and the address of a server that listens at every address of its machine.
_LOCALHOST = ("127.0.0.1", "::1")
_EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104  # nothing is bound here
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
    #: With one of which the API proves that it is the scheduler's; None: it is at a URL that the user gave.
    keys: tuple[str, ...] | None = None

    def path(self, path: str) -> str:
        """A path of the API below that of its URL, under which a proxy may serve it."""
        return urlsplit(self.url).path.rstrip("/") + path


def is_url(address: str) -> bool:
    """Whether this is the URL of an HTTP server, or of a path below which a proxy serves one."""
    try:
        parts = urlsplit(address)
        port_is_valid = parts.port is None or parts.port > 0
    except ValueError:
        return False
    is_server = parts.scheme in ("http", "https") and bool(parts.hostname)
    return is_server and port_is_valid and _URL.fullmatch(address) is not None


class NamedServer:
    """An API that the user has named by its URL, with a token for it. Where a file of this user says that a
    scheduler of theirs serves there, it has to prove that, because another user of this machine may have
    taken the port meanwhile; nor is a token sent to the same port of another loopback address.
    """

    def __init__(self, url: str, token: str, name: str = "", namespace: str = "") -> None:
        self._served = Served(url, token, name, namespace)
        self._is_in_files = False

    def __call__(self) -> Served:
        """Where it is. Raises ImpostorError where it has moved, or is at another address."""
        named = urlsplit(self._served.url)
        host, port = named.hostname or "", _port_of(named)
        files = [file for file in all_found(home_folder(os.environ)) if is_url(file.url)]
        hosts = {
            file.url: parts.hostname or ""
            for file in files
            if _port_of(parts := urlsplit(file.url)) == port
        }
        urls = [url for url, listening in hosts.items() if _is_at(host, listening)]
        if urls:
            self._is_in_files, url = True, min(urls, key=lambda each: hosts[each] != host)
            keys = tuple(file.key for file in files if file.url == url)
            return self._served._replace(url=f"{url}{self._served.path('')}", keys=keys)
        if self._is_in_files:
            raise ImpostorError(
                f"the scheduler that served at {self._served.url} serves there no more; `schedulemesh "
                "status` finds it"
            )
        others = [url for url, listening in hosts.items() if _is_loopback(listening)]
        if others and _is_loopback(host):
            raise ImpostorError(
                f"a scheduler of yours serves at {others[0]}, and {self._served.url} is another address of "
                "this machine, where anybody may listen; use the former one, or another port"
            )
        return self._served


def _port_of(parts: SplitResult) -> tuple[str, int | None]:
    return parts.scheme, parts.port or _DEFAULT_PORTS.get(parts.scheme)


def _is_at(host: str, listening: str) -> bool:
    """Whether a host is where a server listens, which at the loopback has both addresses of localhost."""
    if host == listening:
        return True
    if listening not in (*_LOCALHOST, *_EVERYWHERE):
        return False
    address = _address_of(host)
    if listening in _LOCALHOST or address is None:
        return address in _LOCALHOST
    return _is_of_this_machine(address)


def _is_loopback(host: str) -> bool:
    """Whether a name or an address stands for an address of the loopback."""
    address = _address_of(host)
    return address is not None and ip_address(address).is_loopback


def _address_of(host: str) -> str | None:
    """The first address that a name or an address stands for; None: none."""
    with suppress(OSError, UnicodeError):
        address = str(getaddrinfo(host, None)[0][4][0])
        return address.partition("%")[0]
    return None


def _is_of_this_machine(address: str) -> bool:
    """Whether an address is one of this machine's: nobody can bind a socket to another."""
    family = AF_INET6 if ":" in address else AF_INET
    with suppress(OSError), socket(family, SOCK_DGRAM) as probe:
        probe.bind((address, 0))
        return True
    return False


class ImpostorError(ConnectionRefusedError):
    """Another process than the scheduler's listens where its HTTP API was: it is sent no token."""


class HttpChannel:
    """Sends encoded calls to the process that serves the HTTP API of a scheduler. Threads may share it: each
    open call has a connection of its own. ``locate``: where the API is now.

    Raises OSError where nobody listens there.
    """

    def __init__(self, locate: Callable[[], Served]) -> None:
        self.locate = locate
        #: Where the API was when it was connected to last.
        self.served = locate()
        #: Connections that no call uses, and since when, by the monotonic clock; the newest last.
        self._idle = [(connected(self.served), time.monotonic())]
        self._is_closed = False
        #: The user of this process, as the header that says so has it.
        self._user = f"{user_name()}@{gethostname()}".encode("ascii", "ignore").decode()

    def send(self, data: bytes, path: str = PACKED_CALLS) -> bytes:
        """The encoded answer to an encoded call, or to another request in packed form.

        Raises SchedulerUnavailableError where nobody answers, TimeoutError where the answer takes too long,
        and what a status other than 200 stands for.
        """
        try:
            response, body = self._exchange(path, data)
        except TimeoutError:
            raise
        except (OSError, http.client.HTTPException) as error:
            # The others would fail as well; the next call is sent to where the API is by then.
            self._close_idle()
            raise SchedulerUnavailableError(
                f"the HTTP API at {urlsplit(self.served.url).netloc} does not answer: {error}"
            ) from None
        if response.status != http.client.OK:
            raise error_of(self.served.url, response.status, body)
        if response.getheader("content-type") != _TYPE:
            raise SchedulerUnavailableError(
                f"what answers at {self.served.url} is not the HTTP API of a scheduler; check the address"
            )
        return body

    def close(self) -> None:
        """End the connections, each when no call uses it any more."""
        self._is_closed = True
        self._close_idle()

    def _close_idle(self) -> None:
        # Threads may take some meanwhile.
        with suppress(IndexError):
            while True:
                self._idle.pop()[0].close()

    def _exchange(self, path: str, data: bytes) -> tuple[http.client.HTTPResponse, bytes]:
        connection = self._take_connection()
        headers = {
            "content-type": _TYPE,
            "authorization": f"Bearer {self.served.token}",
            CLIENT_USER_HEADER: self._user,
        }
        try:
            connection.request("POST", self.served.path(path), data, headers)
            response = connection.getresponse()
            body = response.read()
        except BaseException:
            connection.close()
            raise
        if connection.sock is not None:
            self._idle.append((connection, time.monotonic()))
        if self._is_closed:
            self._close_idle()
        return response, body

    def _take_connection(self) -> http.client.HTTPConnection:
        """A connection that was used just now, or a new one."""
        try:
            connection, idle_since = self._idle.pop()
        except IndexError:
            pass
        else:
            if time.monotonic() - idle_since < _IDLE_S:
                return connection
            # The others have been idle for even longer.
            connection.close()
            self._close_idle()
        self.served = self.locate()
        return connected(self.served)


def error_of(url: str, status: int, body: bytes) -> ScheduleMeshError:
    """The error that an answer with this status stands for, of whoever listens at a URL."""
    try:
        message = str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        if _is_dashboard(url):
            return InvalidRequestError(
                f"{url} is Ray's dashboard, not the HTTP API of a scheduler; unset RAY_ADDRESS, "
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
    with suppress(OSError, http.client.HTTPException), closing(connected(served)) as api:
        api.request("GET", served.path("/api/version"))
        answer = api.getresponse().read(_MOST_OF_PROOF)
        return b"ray_version" in answer or urlsplit(url).port == _DASHBOARD_PORT
    return False


def connected(served: Served) -> http.client.HTTPConnection:
    """A connection to an API that has proved itself where it can. Raises OSError."""
    parts = urlsplit(served.url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=_CONNECT_S)
    # Otherwise it would connect again by itself, to whoever listens by then.
    connection.auto_open = 0
    try:
        connection.connect()
        if served.keys is not None:
            _check_server(connection, f"{parts.scheme}://{parts.netloc}", served.keys)
    except BaseException:
        connection.close()
        raise
    connection.sock.settimeout(_ANSWER_S)
    return connection


def _check_server(connection: http.client.HTTPConnection, url: str, keys: tuple[str, ...]) -> None:
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
    if not any(key and same(proof, server_proof(key, url, nonce).encode()) for key in keys):
        raise ImpostorError(
            f"the process that listens at {url} does not prove that it is the scheduler's, so it is sent no "
            "token; if another scheduler serves there now, remove the file of the former one in "
            "~/.schedulemesh"
        )
    if connection.sock is None:
        raise ConnectionResetError(f"the HTTP API at {url} has closed the connection")
