"""How commands reach a scheduler: one request, one answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from schedulemesh.api.call import Call
from schedulemesh.api.history import QueryEvents
from schedulemesh.cli.command import Target, missing_part
from schedulemesh.cli.exits import UnreachableError
from schedulemesh.cli.following import Part
from schedulemesh.cli.wording import names_asked_by
from schedulemesh.errors import ScheduleMeshError
from schedulemesh.protocol.answers import AnswerT, Response


class Gateway(Protocol):
    """A connection to one scheduler."""

    @property
    def name(self) -> str:
        """The scheduler's name."""

    @property
    def namespace(self) -> str:
        """Its Ray namespace."""

    def ask(self, request: Call, expected: type[AnswerT]) -> AnswerT:
        """Send a request and wait for its answer.

        Raises RefusedError where the scheduler refuses it, InvalidRequestError where it is malformed, and
        SchedulerUnavailableError where nobody answers.
        """

    def job_submission(self, fields: Mapping[str, object]) -> Callable[[], Response]:
        """Sends the submission of a job from the arguments of ``submit_job``, by name; sent again, it has no
        further effect. What the job takes along is packed now.

        Raises InvalidRequestError, and what is returned raises what ``ask`` does.
        """

    def follow(self, query: QueryEvents) -> Iterator[Part]:
        """The events after ``query.after``, as they happen. Where the connection is lost it continues there.

        Raises SchedulerUnavailableError where nobody answers for a minute.
        """


@contextmanager
def gateway_to(target: Target) -> Iterator[Gateway]:
    """A connection to the scheduler, closed at the end of the block, which also tells the names of nodes."""
    with connection_to(target) as gateway, names_asked_by(lambda: _node_names(gateway)):
        yield gateway


def _node_names(gateway: Gateway) -> dict[str, str]:
    """What people are shown of the nodes, by their ids; nothing where that cannot be asked."""
    from schedulemesh.api.nodes import ListNodeNames
    from schedulemesh.protocol.answers import Listed

    try:
        rows = gateway.ask(ListNodeNames(), Listed).rows
    except ScheduleMeshError:
        return {}
    return {row["node_id"]: row["name"] for row in rows}


@contextmanager
def connection_to(target: Target) -> Iterator[Gateway]:
    """The connection: over HTTP where the scheduler serves an API on this machine, for the Ray cluster at the
    address, or where the address is a URL; otherwise over Ray, which is imported only then.
    """
    from schedulemesh.cli import http_gateway

    if target.address.startswith(("http://", "https://")):
        with http_gateway.at_url(target) as gateway:
            yield gateway
        return
    with http_gateway.discovered(target) as served:
        if served is not None:
            yield served
            return
    try:
        from schedulemesh.cli.ray_gateway import connected
    except ImportError as error:
        if missing_part(error) is None:
            raise
        raise UnreachableError(
            "Ray is not installed here, so no cluster can be joined: name the HTTP API of a scheduler with "
            "--address http://HOST:8090 or in RAY_ADDRESS, and its token in SCHEDULEMESH_TOKEN"
        ) from None

    with connected(target) as over_ray:
        yield over_ray
