"""A scheduler over its HTTP API: the calls that need no Ray, from any machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NoReturn
from urllib.parse import urlsplit

from schedulemesh.api.cluster import GetAbout
from schedulemesh.client.arguments import public, public_calls
from schedulemesh.client.asking import References, details
from schedulemesh.client.calls import SchedulerCalls
from schedulemesh.client.http_channel import HttpChannel, Served
from schedulemesh.client.listings import AboutResult
from schedulemesh.domain.names import as_text
from schedulemesh.errors import InvalidRequestError, SchedulerUnavailableError, shown
from schedulemesh.protocol.credentials import ENVIRONMENT_VARIABLE, parse_secret

_CLASS = "it sends a class"
_STATE = "it loads what user code has pickled"
_GROUPS = "placement groups are Ray handles"
#: The calls of RayScheduler that a connection over HTTP does not offer, and why.
NEEDS_RAY = {
    "adopt_job": _CLASS,
    "attach": "it looks for a scheduler in the Ray cluster",
    "create_agent": _CLASS,
    "execute_preemption": _STATE,
    "future": _STATE,
    "get_lease": _GROUPS,
    "get_saved_state": _STATE,
    "lease": _GROUPS,
    "list": "it lists the schedulers of the Ray cluster",
    "preempt_task": _STATE,
    "register_running_task": "it registers what runs in the Ray cluster",
    "register_state_handlers": "it sends functions",
    "restore_task": _STATE,
    "result": _STATE,
    "save_task_state": _STATE,
    "shutdown": "it ends actors in the Ray cluster",
    "submit_gang": _CLASS,
    "submit_job": "it sends a class that runs the command; `schedulemesh submit` and POST /jobs do not",
    "submit_many": _CLASS,
    "submit_task_with_preemption": _CLASS,
    "submit_with_pg_preemption": _CLASS,
    "supervisor_handle": "it returns a Ray handle",
}


class HttpConnection:
    """The connection of a scheduler object to a supervisor over its HTTP API."""

    def __init__(self, channel: HttpChannel) -> None:
        self._channel = channel
        self._is_left = False
        about = details(self, GetAbout(), AboutResult)
        if not about["success"]:
            raise SchedulerUnavailableError(about["error"])
        #: The scheduler's name and Ray namespace.
        self.name, self.namespace = about["name"], about["namespace"]

    def call(self, _method: str, data: bytes, references: References, /, *, what: str) -> bytes:
        """The encoded answer to an encoded call; see SchedulerConnection."""
        if self._is_left:
            raise InvalidRequestError(
                f"this object has detached from scheduler {self.name!r}; connect again with connect()"
            )
        if any(references):
            raise InvalidRequestError("object references are sent over Ray only")
        try:
            return self._channel.send(data)
        except TimeoutError:
            raise SchedulerUnavailableError(
                f"the HTTP API at {self._channel.served.url} has not answered {what!r} in time; it may "
                "still be carried out"
            ) from None

    def leave(self) -> None:
        """Use the scheduler no more, and let it run."""
        self._is_left = True
        self._channel.close()

    def described(self) -> str:
        """See SchedulerConnection."""
        return ", ".join(f"{name}={value!r}" for name, value in self.description().items())

    def description(self) -> dict[str, object]:
        """See SchedulerConnection."""
        state = "detached from it" if self._is_left else "connected"
        url = self._channel.served.url
        return {"name": self.name, "namespace": self.namespace, "url": url, "state": state}


@public_calls
class HttpScheduler(SchedulerCalls):
    """A scheduler over its HTTP API; made by ``schedulemesh.connect``. Agents have no handles.

    Calls that send a class, a function or an object reference, or return a Ray handle, raise
    InvalidRequestError. As a context manager it is disconnected at the end of the block.
    """

    def __init__(self, connection: HttpConnection) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Callable[..., NoReturn]:
        """A call that this connection does not offer."""
        if name not in NEEDS_RAY:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

        def refuse(*_args: object, **_kwargs: object) -> NoReturn:
            raise InvalidRequestError(
                f"{name}() is not offered over HTTP: {NEEDS_RAY[name]}; call it with RayScheduler on a node "
                "of the cluster"
            )

        return refuse


@public()
def connect(url: str, *, token: str | None = None) -> HttpScheduler:
    """The scheduler whose HTTP API is at a URL such as "http://head:8090"; needs no Ray.

    ``token`` None: the one in SCHEDULEMESH_TOKEN. Raises NotAllowedError where it is not accepted, and
    SchedulerUnavailableError where nobody answers.
    """
    address = as_text(url)
    if address is None or not _is_url(address):
        raise InvalidRequestError(f"url must be such as 'http://head:8090', not {shown(url)}")
    if token is None:
        in_environment = os.environ.get(ENVIRONMENT_VARIABLE)
        secret = parse_secret(in_environment, ENVIRONMENT_VARIABLE) if in_environment else ""
    else:
        secret = parse_secret(token, "token")
    served = Served(address, secret, "", "")
    try:
        channel = HttpChannel(lambda: served)
    except OSError as error:
        raise SchedulerUnavailableError(f"nothing answers at {address} ({error})") from None
    try:
        return HttpScheduler(HttpConnection(channel))
    except BaseException:
        channel.close()
        raise


def _is_url(address: str) -> bool:
    """Whether this is the address of an HTTP server, without a path."""
    try:
        parts = urlsplit(address)
        port_is_valid = parts.port is None or parts.port > 0
    except ValueError:
        return False
    is_server = parts.scheme in ("http", "https") and bool(parts.hostname)
    return is_server and port_is_valid and parts.path in ("", "/") and not parts.query
