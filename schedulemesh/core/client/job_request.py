"""The submission of a job from the process of its caller, whose folders are packed and sent."""

from __future__ import annotations

from collections.abc import Mapping

from schedulemesh.client.packing import PACKER
from schedulemesh.core.backend.job_packing import packed_runner
from schedulemesh.core.client.task_request import Caller, PreparedSubmission, parent_of, submitter
from schedulemesh.protocol.job_command import parse_command
from schedulemesh.protocol.submissions import job_request


def job_submission(caller: Caller, arguments: Mapping[str, object]) -> PreparedSubmission:
    """The submission of a job from the arguments of ``submit_job``, by name. Raises InvalidRequestError."""
    by = submitter(caller, parent_of(caller, arguments))
    command, sent = parse_command(arguments, PACKER)
    request = job_request(arguments, by, packed_runner(command, sent))
    return PreparedSubmission(request=request, refs=([], []))
