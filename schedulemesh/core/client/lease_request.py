"""The submission of a lease from the process of its holder, with whose Ray job it ends."""

from __future__ import annotations

from collections.abc import Mapping

import ray

from schedulemesh.core.client.task_request import Caller, PreparedSubmission, submitter
from schedulemesh.domain.numbers import parse_flag
from schedulemesh.protocol.submissions import lease_request


def lease_submission(caller: Caller, arguments: Mapping[str, object]) -> PreparedSubmission:
    """The submission of a lease from the arguments of the call, by name. Raises InvalidRequestError."""
    detached = parse_flag(arguments.get("detached", False), "detached")
    request = lease_request(
        arguments,
        submitter(caller, caller.task_id),
        holder_job="" if detached else ray.get_runtime_context().get_job_id(),
    )
    return PreparedSubmission(request=request, refs=([], []))
