"""The submission of a lease from the process of its holder, with whose Ray job it ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

import ray

from schedulemesh.core.client.task_request import Caller, PreparedSubmission, submitter
from schedulemesh.domain.numbers import parse_flag
from schedulemesh.protocol.submissions import lease_request


class LeaseFields(TypedDict, total=False):
    """What ``lease`` takes by keyword only, beside what it names itself."""

    labels: Mapping[str, str] | None
    #: Seconds from its start to its end.
    estimated_duration: float | None
    #: The user that it belongs to; None: the one that this process runs as.
    owner: str | None
    #: Evictions after which it cannot be evicted any more; None: as the policy says.
    max_preemptions: int | None
    #: A node label: all groups are on nodes with the same value of it.
    same_label: str | None
    #: Seconds after which it ends unless it is renewed; None: it need not be.
    ttl_s: float | None
    #: Whether it outlives the Ray job of this process.
    detached: bool
    request_id: str | None


def lease_submission(
    caller: Caller, task_id: str, arguments: Mapping[str, object]
) -> PreparedSubmission:
    """The submission of a lease from the arguments of the call, by name. Raises InvalidRequestError."""
    detached = parse_flag(arguments.get("detached", False), "detached")
    request = lease_request(
        {**arguments, "task_id": task_id},
        submitter(caller, caller.task_id),
        holder_job="" if detached else ray.get_runtime_context().get_job_id(),
    )
    return PreparedSubmission(request=request, refs=([], []))
