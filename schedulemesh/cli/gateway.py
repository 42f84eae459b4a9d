"""How commands reach a scheduler: one request, one answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from msgspec.structs import replace

from schedulemesh.api.call import Call
from schedulemesh.api.history import QueryEvents
from schedulemesh.cli.command import Target, missing_part
from schedulemesh.cli.exits import RefusedError, UnreachableError
from schedulemesh.cli.following import Part
from schedulemesh.cli.wording import names_asked_by
from schedulemesh.domain.priorities import OWN_CLASSES
from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.sentences import Sentence, say
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.errors import ScheduleMeshError
from schedulemesh.protocol.answers import AnswerT, Explained, Response

#: What people type between several ids.
_BETWEEN_IDS = ",;，；、"


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
    """A connection to the scheduler, closed at the end of the block, which also tells the names of nodes and
    the own priority classes.
    """
    with connection_to(target) as gateway, names_asked_by(lambda: _node_names(gateway)):
        token = OWN_CLASSES.set(lambda: _own_classes(gateway))
        try:
            yield gateway
        except ScheduleMeshError as error:
            raise with_hint(gateway, error) from error.__cause__
        finally:
            OWN_CLASSES.reset(token)


def _own_classes(gateway: Gateway) -> dict[str, float]:
    """The own priority classes of the policy in force."""
    from schedulemesh.api.policies import GetPolicy
    from schedulemesh.protocol.answers import Details

    classes: dict[str, float] = gateway.ask(GetPolicy(), Details).facts["policy"][
        "priority_classes"
    ]
    return classes


def with_hint(gateway: Gateway, error: ScheduleMeshError) -> ScheduleMeshError:
    """The error; the refusal of a task or a node that is not known with what was probably meant."""
    if not isinstance(error, RefusedError):
        return error
    refused = error.refused
    hint = None
    if refused.reason is Reason.TASK_NOT_FOUND:
        hint = _near_ids(gateway, refused)
    elif refused.reason is Reason.NODE_NOT_FOUND:
        hint = _pool_of_that_name(gateway, refused)
    return error if hint is None else RefusedError(replace(refused, hint_text=hint))


def _pool_of_that_name(gateway: Gateway, refused: Refused) -> Sentence | None:
    """How the pool is drained that has the name of a node that is not known; None: there is none."""
    from schedulemesh.api.pools import ListPools
    from schedulemesh.protocol.answers import Listed

    text = refused.error_text
    name = "" if isinstance(text, str) else text.parameters.get("node")
    try:
        pools = [row["name"] for row in gateway.ask(ListPools(), Listed).rows]
    except ScheduleMeshError:
        return None
    return say("is_a_pool", pool=str(name)) if name in pools else None


def _near_ids(gateway: Gateway, refused: Refused) -> Sentence | None:
    """The ids of tasks that are like the one that a refusal does not know; None: it knows it, says what to do
    by itself, or there is none.
    """
    from schedulemesh.api.tasks import ExplainTask

    text = refused.error_text
    if refused.hint_text or isinstance(text, str):
        return None
    task_id = text.parameters.get("task")
    if not isinstance(task_id, str) or not task_id:
        return None
    if any(mark in task_id for mark in _BETWEEN_IDS):
        return say("ids_with_spaces")
    try:
        gateway.ask(ExplainTask(task_id=task_id), Explained)
    except RefusedError as unknown:
        explained = unknown.refused.error_text
        near = "" if isinstance(explained, str) else explained.parameters.get("near", "")
        return say("like_ids", ids=near.parameters["ids"]) if isinstance(near, Sentence) else None
    except ScheduleMeshError:
        return None
    return None


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
