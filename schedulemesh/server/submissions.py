"""The calls that submit jobs and leases, whose bodies are read by the parser that the Python calls use."""

from __future__ import annotations

from schedulemesh.api.tasks import SubmitTask
from schedulemesh.domain.names import parse_name
from schedulemesh.errors import InvalidRequestError
from schedulemesh.protocol.job_command import parse_command
from schedulemesh.protocol.submissions import Submitter, job_request, lease_request
from schedulemesh.server import bodies, schemas
from schedulemesh.server.change import Change, Given


def _job(given: Given) -> SubmitTask:
    own = {**given.body.given(), "request_id": given.request_id}
    command, _ = parse_command(own, None)
    code = given.packed_runner(command)
    return job_request(own, Submitter(client=given.client, owner=given.owner), code)


def _lease(given: Given) -> SubmitTask:
    body: bodies.NewLease = given.body
    if body.ttl_s is None and body.holder_job is None:
        raise InvalidRequestError(
            "a lease ends with its holder: give ttl_s, seconds after which it ends unless it is renewed, or "
            "holder_job, the id of a Ray job"
        )
    own = {**body.given(), "request_id": given.request_id}
    holder = "" if body.holder_job is None else parse_name(body.holder_job, "holder_job")
    return lease_request(own, Submitter(client=given.client, owner=given.owner), holder)


SUBMISSIONS = (
    Change(
        method="POST",
        path="/jobs",
        summary="Submit a job: a driver command that runs as a task",
        body=bodies.NewJob,
        answer=schemas.Submitted,
        asks=SubmitTask,
        request=_job,
    ),
    Change(
        method="POST",
        path="/leases",
        summary="Lease placement groups for work of your own",
        body=bodies.NewLease,
        answer=schemas.Submitted,
        asks=SubmitTask,
        request=_lease,
    ),
)
