"""The calls that submit jobs and leases, whose bodies are read by the parser that the Python calls use."""

from __future__ import annotations

from schedulemesh.api.tasks import SubmitTask
from schedulemesh.domain.names import parse_name
from schedulemesh.errors import InvalidRequestError
from schedulemesh.protocol.job_command import parse_command
from schedulemesh.protocol.submissions import Submitter, job_request, lease_request
from schedulemesh.server import bodies, schemas
from schedulemesh.server.change import ChangeRoute, ReceivedChange


def _job(received: ReceivedChange) -> SubmitTask:
    arguments = {**received.body.arguments(), "request_id": received.request_id}
    command, _ = parse_command(arguments, None)
    code = received.packed_runner(command)
    return job_request(arguments, Submitter(client=received.client, owner=received.owner), code)


def _lease(received: ReceivedChange) -> SubmitTask:
    body: bodies.NewLease = received.body
    if body.ttl_s is None and body.holder_job is None:
        raise InvalidRequestError(
            "a lease ends with its holder: give ttl_s, seconds after which it ends unless it is renewed, or "
            "holder_job, the id of a Ray job"
        )
    arguments = {**body.arguments(), "request_id": received.request_id}
    holder = "" if body.holder_job is None else parse_name(body.holder_job, "holder_job")
    return lease_request(arguments, Submitter(client=received.client, owner=received.owner), holder)


SUBMISSIONS = (
    ChangeRoute(
        method="POST",
        path="/jobs",
        summary="Submit a job: a driver command that runs as a task",
        body=bodies.NewJob,
        answer=schemas.Submitted,
        asks=SubmitTask,
        request=_job,
    ),
    ChangeRoute(
        method="POST",
        path="/leases",
        summary="Lease placement groups for work of your own",
        body=bodies.NewLease,
        answer=schemas.Submitted,
        asks=SubmitTask,
        request=_lease,
    ),
)
