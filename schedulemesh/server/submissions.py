"""The calls that submit jobs and leases, whose bodies are read by the parser that the Python calls use."""

from __future__ import annotations

from schedulemesh.api.tasks import SubmitTask
from schedulemesh.config.settings import MAX_BLOB_BYTES
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.payloads import PackedModule
from schedulemesh.errors import InvalidRequestError
from schedulemesh.protocol.agents import key_of
from schedulemesh.protocol.job_command import PackedFolder, Sent, parse_command
from schedulemesh.protocol.submissions import Submitter, job_request, lease_request
from schedulemesh.server import bodies, schemas
from schedulemesh.server.change import ChangeRoute, ReceivedChange


def _job(received: ReceivedChange) -> SubmitTask:
    body: bodies.NewJob = received.body
    arguments = {"request_id": received.request_id, **body.arguments()}
    command, _ = parse_command(arguments, None)
    code = received.packed_runner(command, _sent(body))
    return job_request(arguments, _submitter(received), code)


def _submitter(received: ReceivedChange) -> Submitter:
    """Who submits. Raises InvalidRequestError."""
    body: bodies.NewJob | bodies.NewLease = received.body
    return Submitter(
        client=received.client if body.client is None else parse_name(body.client, "client"),
        owner=received.owner or ("" if body.user is None else parse_name(body.user, "user")),
        parent="" if body.parent is None else parse_name(body.parent, "parent"),
    )


def _sent(body: bodies.NewJob) -> Sent:
    """What is sent with a job. Raises InvalidRequestError for more than is kept of one archive."""
    archives = {"archive": body.archive, **{module.uri: module.data for module in body.modules}}
    for what, data in archives.items():
        if data is not None and len(data) > MAX_BLOB_BYTES:
            raise InvalidRequestError(
                f"{what} has {len(data):,} bytes; an archive has up to {MAX_BLOB_BYTES:,}, so put what is "
                "larger where all nodes find it, and give its URI in runtime_env"
            )
    folder = body.archive
    return Sent(
        folder=None if folder is None else PackedFolder(data=folder, suffix=body.archive_suffix),
        modules=tuple(
            (PackedModule(uri=module.uri, key=key_of(module.data)), module.data)
            for module in body.modules
        ),
    )


def _lease(received: ReceivedChange) -> SubmitTask:
    body: bodies.NewLease = received.body
    if body.ttl_s is None and body.holder_job is None:
        raise InvalidRequestError(
            "a lease ends with its holder: give ttl_s, seconds after which it ends unless it is renewed, or "
            "holder_job, the id of a Ray job"
        )
    arguments = {"request_id": received.request_id, **body.arguments()}
    holder = "" if body.holder_job is None else parse_name(body.holder_job, "holder_job")
    return lease_request(arguments, _submitter(received), holder)


SUBMISSIONS = (
    ChangeRoute(
        method="POST",
        path="/jobs",
        summary="Submit a job: a driver command that runs as a task",
        body=bodies.NewJob,
        answer=schemas.Submitted,
        asks=SubmitTask,
        packed=True,
        request=_job,
    ),
    ChangeRoute(
        method="POST",
        path="/leases",
        summary="Lease placement groups for work of your own",
        body=bodies.NewLease,
        answer=schemas.Submitted,
        asks=SubmitTask,
        packed=True,
        request=_lease,
    ),
)
