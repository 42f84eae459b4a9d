"""A scheduler over its HTTP API: the calls that need no Ray, from any machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import NoReturn

from schedulemesh.api.cluster import GetAbout
from schedulemesh.client.arguments import public, public_calls
from schedulemesh.client.asking import References, details, logged
from schedulemesh.client.calls import SchedulerCalls
from schedulemesh.client.futures import FutureCalls
from schedulemesh.client.http_channel import PACKED_CALLS, HttpChannel, NamedServer, is_url
from schedulemesh.client.lease_calls import LeaseFields
from schedulemesh.client.listings import AboutResult
from schedulemesh.client.pickling import PLAIN
from schedulemesh.client.results import SubmitResult, submitted
from schedulemesh.client.submission_bodies import SubmissionBody, job_body, lease_body
from schedulemesh.domain.names import as_text
from schedulemesh.domain.numbers import parse_flag
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.errors import InvalidRequestError, SchedulerUnavailableError, shown
from schedulemesh.protocol.answers import Response, decode_answer
from schedulemesh.protocol.credentials import ENVIRONMENT_VARIABLE, parse_secret
from schedulemesh.protocol.patience import until_answered

_CLASS = "it sends a class"
_ON_NODE = "call it with RayScheduler on a node of the cluster"
_AS_JOB = f"{_ON_NODE}, or submit a script that does it with submit_job, which sends its folder"
#: Seconds after which a lease ends whose holder is renewing it no more: it is renewed every half minute.
_OWN_TTL_S = 90.0
#: The calls of RayScheduler that a connection over HTTP does not offer: why, and what to do instead.
NEEDS_RAY = {
    "adopt_job": (_CLASS, f"{_ON_NODE}, or use `schedulemesh adopt` there"),
    "attach": ("it looks for a scheduler in the Ray cluster", "use schedulemesh.connect(url)"),
    "create_agent": (_CLASS, _AS_JOB),
    "list": ("it lists the schedulers of the Ray cluster", _ON_NODE),
    "register_running_task": ("it registers what runs in the Ray cluster", _ON_NODE),
    "register_state_handlers": ("it sends functions", _ON_NODE),
    "shutdown": (
        "it ends actors in the Ray cluster",
        f"{_ON_NODE}, or use `schedulemesh stop` there",
    ),
    "submit_gang": (_CLASS, _AS_JOB),
    "submit_many": (_CLASS, _AS_JOB),
    "submit_task_with_preemption": (_CLASS, _AS_JOB),
    "submit_with_pg_preemption": (_CLASS, _AS_JOB),
    "supervisor_handle": ("it returns a Ray handle", _ON_NODE),
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
        """The encoded answer to an encoded call; see SchedulerConnection. No handles come beside it."""
        self._check()
        if any(references):
            raise InvalidRequestError("object references are sent over Ray only")
        return self._send(data, PACKED_CALLS, what)

    def submit(self, body: SubmissionBody) -> Response:
        """The response to a submission; a refusal is an outcome like any other."""
        self._check()
        answer = decode_answer(self._send(body.data, body.path, "submit_task"), Response)
        return Response(outcome=answer) if isinstance(answer, Refused) else answer

    def _check(self) -> None:
        """Raise InvalidRequestError once it has been left."""
        if self._is_left:
            raise InvalidRequestError(
                f"this object has detached from scheduler {self.name!r}; connect again with connect()"
            )

    def _send(self, data: bytes, path: str, what: str) -> bytes:
        try:
            return self._channel.send(data, path)
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
class HttpScheduler(SchedulerCalls, FutureCalls):
    """A scheduler over its HTTP API; made by ``schedulemesh.connect``. Agents have no handles.

    Calls that send a class, a function or an object reference, or return a Ray handle, raise
    InvalidRequestError. Of results and saved states plain data is loaded. As a context manager it is
    disconnected at the end of the block.
    """

    _connection: HttpConnection
    _pickling = PLAIN

    def __init__(self, connection: HttpConnection) -> None:
        self._connection = connection

    def _send_job(self, arguments: Mapping[str, object]) -> SubmitResult:
        """See JobCalls."""
        connection = self._connection
        body = job_body(arguments, connection.name, connection.namespace)
        submission = body.submission
        result = submitted(
            self._submitted(body),
            (),
            dry_run=submission.dry_run,
            named_resources=not submission.default_resources,
        )
        return result if submission.dry_run else logged("the submission", result)

    def _request_lease(self, arguments: Mapping[str, object]) -> Response:
        """See LeaseCalls."""
        connection, fields = self._connection, dict(arguments)
        is_detached = parse_flag(fields.pop("detached", False), "detached")
        if fields.get("ttl_s") is None:
            if is_detached:
                raise InvalidRequestError(
                    "over HTTP a detached lease needs ttl_s, the seconds after which it ends unless somebody "
                    "renews it"
                )
            fields["ttl_s"] = _OWN_TTL_S
        return self._submitted(lease_body(fields, connection.name, connection.namespace))

    def _renews(self, fields: LeaseFields) -> bool:
        """See LeaseCalls."""
        return fields.get("ttl_s") is None

    def _submitted(self, body: SubmissionBody) -> Response:
        """The response to a submission; to one that waits until it runs, however long that takes."""
        if not body.submission.until_runs:
            return self._connection.submit(body)
        # The API gives up a request after some minutes; repeated, it has no further effect.
        return until_answered(lambda: self._connection.submit(body))

    def __getattr__(self, name: str) -> Callable[..., NoReturn]:
        """A call that this connection does not offer."""
        if name not in NEEDS_RAY:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

        why, instead = NEEDS_RAY[name]

        def refuse(*_args: object, **_kwargs: object) -> NoReturn:
            raise InvalidRequestError(
                f"{name}() is not offered over HTTP, because {why}: {instead}"
            )

        return refuse


@public()
def connect(url: str, *, token: str | None = None) -> HttpScheduler:
    """The scheduler whose HTTP API is at a URL such as "http://head:8090", or, behind a proxy,
    "https://host/schedulemesh"; needs no Ray.

    ``token`` None: the one in SCHEDULEMESH_TOKEN. Raises NotAllowedError where it is not accepted, and
    SchedulerUnavailableError where nobody answers.
    """
    address = as_text(url)
    if address is None or not is_url(address):
        raise InvalidRequestError(f"url must be such as 'http://head:8090', not {shown(url)}")
    if token is None:
        in_environment = os.environ.get(ENVIRONMENT_VARIABLE)
        secret = parse_secret(in_environment, ENVIRONMENT_VARIABLE) if in_environment else ""
    else:
        secret = parse_secret(token, "token")
    try:
        channel = HttpChannel(NamedServer(address, secret))
    except OSError as error:
        raise SchedulerUnavailableError(f"nothing answers at {address} ({error})") from None
    try:
        return HttpScheduler(HttpConnection(channel))
    except BaseException:
        channel.close()
        raise
