"""Submission calls: start an agent, with a task or without. RayScheduler documents each call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from ray.actor import ActorHandle

from schedulemesh.api.jobs import ListJobs
from schedulemesh.api.nodes import ListExternalUsage
from schedulemesh.api.tasks import SubmitTask
from schedulemesh.client.asking import ask, ask_with_handles, logged
from schedulemesh.client.results import SubmitResult, submitted
from schedulemesh.core.client.connection import Connection
from schedulemesh.core.client.deadline import WAITS
from schedulemesh.core.client.job_adoption import adoption
from schedulemesh.core.client.job_request import job_submission
from schedulemesh.core.client.task_request import PreparedSubmission, submission, task_submission
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.numbers import parse_flag
from schedulemesh.domain.reasons import Reason
from schedulemesh.engine.messages.outcomes import ProbeNeeded, Refused
from schedulemesh.protocol.answers import Listed, Response

#: Reasons for a refusal that an eviction for quota and group together may avoid.
_NO_GROUP = (
    Reason.INSUFFICIENT_QUOTA,
    Reason.GROUP_UNPLACEABLE,
    Reason.NO_PG_POOL,
    Reason.PREEMPTION_FAILED,
)


def create_agent(connection: Connection, arguments: Mapping[str, object]) -> SubmitResult:
    """Start an agent without a task; ``arguments`` are those of the call by name."""
    named = {**arguments, "agent_name": parse_name(arguments["agent_name"], "the agent's name")}
    return _send(connection, submission(connection.caller, named).changed(may_preempt=False))


def submit_task_with_preemption(
    connection: Connection, arguments: Mapping[str, object]
) -> SubmitResult:
    """Start an agent for a task, and evict others for it where needed and allowed."""
    return _send(connection, task_submission(connection.caller, arguments))


def submit_gang(
    connection: Connection, arguments: Mapping[str, object], members: object
) -> SubmitResult:
    """Start a gang whose members may differ for a task, all of them or none."""
    return _send(connection, task_submission(connection.caller, {**arguments, "members": members}))


def submit_with_pg_preemption(
    connection: Connection, arguments: Mapping[str, object], fallback: object
) -> SubmitResult:
    """Start an agent for a task in a placement group; ``fallback``: else submit it without that condition."""
    falls_back = parse_flag(fallback, "fallback")
    request = task_submission(connection.caller, arguments)
    answer = _send(connection, request.changed(for_group=True))
    if answer["success"]:
        return {**answer, "path": "pg"}
    if not falls_back or answer["reason"] not in _NO_GROUP:
        return answer
    # An id of its own, so that a repeated call gets both answers again.
    second = f"{request.submission.request_id}:fallback"
    return {**_send(connection, request.changed(request_id=second)), "path": "fallback"}


def submit_job(connection: Connection, arguments: Mapping[str, object]) -> SubmitResult:
    """Run a driver command as a task."""
    return _send(connection, job_submission(connection.caller, arguments))


def adopt_job(connection: Connection, arguments: Mapping[str, object]) -> SubmitResult:
    """Make a Ray job that somebody else has started a task."""
    external = ask(connection, ListExternalUsage(), Listed)
    if isinstance(external, Refused):
        return submitted(Response(outcome=external), (), dry_run=False, named_resources=True)
    jobs = ask(connection, ListJobs(), Listed)
    adopted = () if isinstance(jobs, Refused) else jobs.rows
    return _send(connection, adoption(connection.caller, arguments, external.rows, adopted))


def responded(connection: Connection, prepared: PreparedSubmission) -> Response:
    """Send a submission without a class and wait until it is answered."""
    return _responded(connection, prepared, prepared.request)[0]


def _send(connection: Connection, prepared: PreparedSubmission) -> SubmitResult:
    """Send a submission and wait until its agent runs, or cannot.

    The bytes of classes are sent only where the supervisor may not have them.
    """
    request, class_keys = prepared.request, prepared.submission.agent.class_keys
    sent_classes = connection.shipped.intersection(class_keys)
    if sent_classes:
        others = {key: data for key, data in request.blobs.items() if key not in sent_classes}
        request = msgspec.structs.replace(request, blobs=others)
    response, handles = _responded(connection, prepared, request)
    if isinstance(response.outcome, ProbeNeeded):
        response, handles = _responded(connection, prepared, prepared.request)
    if not prepared.submission.dry_run and not isinstance(response.outcome, Refused):
        connection.shipped.update(class_keys)
    result = submitted(
        response,
        handles,
        dry_run=prepared.submission.dry_run,
        named_resources=not prepared.submission.default_resources,
    )
    return result if prepared.submission.dry_run else logged("the submission", result)


def _responded(
    connection: Connection, prepared: PreparedSubmission, request: SubmitTask
) -> tuple[Response, Sequence[ActorHandle]]:
    what = WAITS if prepared.submission.until_runs else None
    answer, handles = ask_with_handles(connection, request, Response, prepared.refs, what)
    return Response(outcome=answer) if isinstance(answer, Refused) else answer, handles
