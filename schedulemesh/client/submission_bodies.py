"""The bodies of POST /jobs and POST /leases from the arguments of the Python calls, made without Ray."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from schedulemesh.api.values import client_name
from schedulemesh.client.http_channel import JOBS, LEASES
from schedulemesh.client.origin import job_origin, task_within, user_name
from schedulemesh.client.packing import PACKER
from schedulemesh.config.groups import parse_bundles
from schedulemesh.config.settings import MAX_BLOB_BYTES
from schedulemesh.domain.containers import plain_data
from schedulemesh.domain.numbers import parse_flag
from schedulemesh.domain.resources import parse_resources
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.errors import InvalidRequestError
from schedulemesh.protocol.agents import key_of
from schedulemesh.protocol.job_command import JobCommand, Sent, parse_command
from schedulemesh.protocol.submissions import RunnerCode, Submitter, job_request, lease_request

#: The arguments that the parsed command has, and those that are a part of it or of who submits.
_OF_COMMAND = tuple(JobCommand.__dataclass_fields__)
_ELSEWHERE = frozenset((*_OF_COMMAND, "working_dir", "detached", "request_id"))
#: What stands for the runner, which the HTTP API packs, while the arguments are checked.
_NO_RUNNER = RunnerCode(class_key=key_of(b""), arguments_key=key_of(b""), options="{}", blobs={})
#: Bytes of all archives that one job may be sent with: the HTTP API takes a few more in one request.
_MAX_ARCHIVES = MAX_BLOB_BYTES + 4 * 2**20


class SubmissionBody(msgspec.Struct, frozen=True, kw_only=True):
    """A job or a lease, ready to be sent."""

    #: Where it is sent.
    path: str
    #: The body of the request, packed.
    data: bytes
    #: As the supervisor will have it, but for its runner.
    submission: TaskSubmitted


def job_body(arguments: Mapping[str, object], scheduler: str, namespace: str) -> SubmissionBody:
    """The request that submits a job to a scheduler, from the arguments of ``submit_job``, by name. Its
    folder and its modules are read and packed. Raises InvalidRequestError.
    """
    is_detached = parse_flag(arguments.get("detached", False), "detached")
    by = _submitter(scheduler, namespace, is_detached=is_detached)
    command, sent = parse_command(arguments, PACKER)
    submission = job_request(arguments, by, _NO_RUNNER).submission
    archives = _archives(sent)
    body = {
        **_plain(arguments),
        **{name: getattr(command, name) for name in _OF_COMMAND},
        **archives,
        "checkpoint_dir": command.checkpoint_dir or None,
    }
    return _packed(JOBS, body, by, submission)


def lease_body(arguments: Mapping[str, object], scheduler: str, namespace: str) -> SubmissionBody:
    """The request for a lease from a scheduler, from the arguments of ``lease``, by name. Raises
    InvalidRequestError.
    """
    by = _submitter(scheduler, namespace, is_detached=False)
    submission = lease_request(arguments, by, "").submission
    bundles = [bundle.public() for bundle in submission.agent.bundles]
    size = len(bundles) // submission.agent.payload.parts
    groups = [bundles[i : i + size] for i in range(0, len(bundles), size)]
    others = {name: value for name, value in arguments.items() if name != "groups"}
    return _packed(LEASES, {**_plain(others), "groups": groups}, by, submission)


def _submitter(scheduler: str, namespace: str, *, is_detached: bool) -> Submitter:
    """Who submits to a scheduler from this process."""
    parent = "" if is_detached else task_within(job_origin(), scheduler, namespace)
    return Submitter(client=client_name(), owner=user_name(), parent=parent)


def _packed(
    path: str, body: Mapping[str, object], by: Submitter, submission: TaskSubmitted
) -> SubmissionBody:
    who = {"parent": by.parent or None, "client": by.client, "user": by.owner}
    fields = {**body, **who, "request_id": submission.request_id}
    data = msgspec.msgpack.encode({n: value for n, value in fields.items() if value is not None})
    return SubmissionBody(path=path, data=data, submission=submission)


def _archives(sent: Sent) -> dict[str, object]:
    """What is sent of this machine. Raises InvalidRequestError for more than one request may have."""
    size = sum(len(data) for _, data in sent.modules)
    folder = sent.folder
    if folder is not None:
        size += len(folder.data)
    if size > _MAX_ARCHIVES:
        raise InvalidRequestError(
            f"working_dir and py_modules take {size / 2**20:.1f} MB packed; over HTTP a job is sent with up "
            f"to {_MAX_ARCHIVES // 2**20} MB of both, so put some of them where all nodes find them, and "
            "give the URI in runtime_env"
        )
    modules = [{"uri": module.uri, "data": data} for module, data in sent.modules]
    if folder is None:
        return {"modules": modules}
    return {"modules": modules, "archive": folder.data, "archive_suffix": folder.suffix}


def _plain(arguments: Mapping[str, object]) -> dict[str, object]:
    """The arguments that the command does not have, as plain data; they have been checked."""
    plain = {
        name: plain_data(value, name)
        for name, value in arguments.items()
        if name not in _ELSEWHERE and name not in ("resources", "bundles")
    }
    if arguments.get("resources") is not None:
        plain["resources"] = parse_resources(arguments["resources"]).public()
    if arguments.get("bundles") is not None:
        plain["bundles"] = [bundle.public() for bundle in parse_bundles(arguments["bundles"])]
    return plain
