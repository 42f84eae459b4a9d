"""The connection of commands to a scheduler over its HTTP API, which needs no Ray."""

from __future__ import annotations

import http.client
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from schedulemesh.api.call import Call
from schedulemesh.cli.command import Target, note
from schedulemesh.cli.exits import accepted
from schedulemesh.cli.following import Part, by_stream
from schedulemesh.client.http_channel import (
    HttpChannel,
    ImpostorError,
    NamedServer,
    Served,
    connected,
    error_of,
    is_url,
)
from schedulemesh.config.discovery import Discovered, all_found, found
from schedulemesh.config.http import home_folder
from schedulemesh.config.settings import DEFAULT_NAME, DEFAULT_NAMESPACE
from schedulemesh.errors import (
    InvalidRequestError,
    SchedulerNotFoundError,
    SchedulerUnavailableError,
)
from schedulemesh.protocol.answers import AnswerT, Details, Response, decode_answer
from schedulemesh.protocol.credentials import (
    ENVIRONMENT_VARIABLE,
)
from schedulemesh.protocol.requests import encode_request

if TYPE_CHECKING:
    from schedulemesh.api.history import QueryEvents

#: Seconds without a byte, not even a heartbeat, after which a stream is given up.
_SILENT_S = 30.0
_STREAM = "/api/v1/events/stream"


class HttpGateway:
    """Asks the supervisor through the process that serves its HTTP API. ``locate``: where that is now.

    Raises OSError where nobody listens there.
    """

    def __init__(self, locate: Callable[[], Served]) -> None:
        self._channel = HttpChannel(locate)

    @property
    def name(self) -> str:
        """See Gateway."""
        return self._channel.served.name

    @property
    def namespace(self) -> str:
        """See Gateway."""
        return self._channel.served.namespace

    def ask(self, request: Call, expected: type[AnswerT]) -> AnswerT:
        """Send a request and wait for its answer; see Gateway."""
        return accepted(decode_answer(self._channel.send(encode_request(request)), expected))

    def job_submission(self, fields: Mapping[str, object]) -> Callable[[], Response]:
        """Sends the submission of a job, whose runner the HTTP API packs; see Gateway."""
        from schedulemesh.client.submission_bodies import job_body

        body = job_body(fields, self.name, self.namespace)
        return lambda: accepted(decode_answer(self._channel.send(body.data, body.path), Response))

    def close(self) -> None:
        """End the connection."""
        self._channel.close()

    def follow(self, query: QueryEvents) -> Iterator[Part]:
        """The events after ``query.after``, as they happen; see Gateway."""
        return by_stream(self._stream, query)

    @contextmanager
    def _stream(self, query: QueryEvents) -> Iterator[http.client.HTTPResponse]:
        """Within, a stream of events. Raises OSError where nobody answers, and what a refusal stands for."""
        served = self._channel.locate()
        filters = {"after": query.after, "task_id": query.task_id, "pool_name": query.pool_name}
        parameters = [(name, value) for name, value in filters.items() if value is not None]
        path = f"{_STREAM}?{urlencode([*parameters, *(('kind', kind) for kind in query.kinds)])}"
        with closing(connected(served)) as connection:
            connection.sock.settimeout(_SILENT_S)
            connection.request(
                "GET", served.path(path), headers={"authorization": f"Bearer {served.token}"}
            )
            response = connection.getresponse()
            if response.status != http.client.OK:
                raise error_of(served.url, response.status, response.read())
            yield response


@contextmanager
def at_url(target: Target) -> Iterator[HttpGateway]:
    """Within, the scheduler whose HTTP API is at a URL, with the token ``SCHEDULEMESH_TOKEN``."""
    url, token = target.address, os.environ.get(ENVIRONMENT_VARIABLE, "")
    if not is_url(url):
        raise InvalidRequestError(f"--address is {url!r}; a URL is such as http://head:8090")
    name, namespace = target.name or DEFAULT_NAME, target.namespace or DEFAULT_NAMESPACE
    try:
        gateway = HttpGateway(NamedServer(url, token, name, namespace))
    except OSError as error:
        raise SchedulerUnavailableError(f"nothing answers at {url} ({error})") from None
    with closing(gateway):
        if target.name is not None or target.namespace is not None:
            _check_name(gateway, url)
        yield gateway


def _check_name(gateway: HttpGateway, url: str) -> None:
    """Raise SchedulerNotFoundError where another scheduler than the one that was named is at the URL."""
    from schedulemesh.api.cluster import GetAbout

    about = gateway.ask(GetAbout(), Details).facts
    if (about["name"], about["namespace"]) != (gateway.name, gateway.namespace):
        raise SchedulerNotFoundError(
            f"at {url} is scheduler {about['name']!r} in namespace {about['namespace']!r}, not "
            f"{gateway.name!r} in {gateway.namespace!r}; leave both out, or give the address of the other one"
        )


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


@contextmanager
def at_once(options: Mapping[str, Any]) -> Iterator[HttpGateway | None]:
    """Within, the scheduler that these options of a command name, for completion; None: it serves no API that
    can be reached.
    """
    target = Target(
        name=options.get("name"),
        namespace=options.get("namespace"),
        address=options.get("address") or "auto",
    )
    is_at_url = target.address.startswith(("http://", "https://"))
    with (at_url if is_at_url else discovered)(target) as gateway:
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
        connected(_served(file)).close()
    except OSError:
        return False
    return True


def _served(file: Discovered) -> Served:
    token = os.environ.get(ENVIRONMENT_VARIABLE) or file.token
    return Served(file.url, token, file.name, file.namespace, (file.key,))


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
