"""The request of a lease: a call's arguments, validated, as a submission."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import TypedDict

import ray

from schedulemesh.config.groups import parse_bundles, parse_strategy
from schedulemesh.core.client.task_fields import described_task
from schedulemesh.core.client.task_request import Caller, Submission, client_name, parse_wait
from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.containers import as_elements
from schedulemesh.domain.labels import parse_labels
from schedulemesh.domain.lease import LeaseSpec
from schedulemesh.domain.names import parse_name
from schedulemesh.domain.numbers import parse_duration, parse_flag
from schedulemesh.domain.resources import Resources, sum_of
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.errors import InvalidRequestError
from schedulemesh.protocol.requests import SubmitTask

#: Seconds that a holder has after a notice by default, if it is called back.
_GRACE_S = 30.0

_GROUPS = "a list of placement groups, each a list of bundles such as [[{'cpu': 1}, {'cpu': 1}]]"


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
    caller: Caller, task_id: str, given: Mapping[str, object], *, called_back: bool
) -> Submission:
    """The submission of a lease from the arguments of the call, by name. ``called_back``: whether the holder
    has a function that is called at the notice of an eviction. Raises InvalidRequestError.
    """
    task, blobs = described_task({**given, "task_id": task_id}, caller.owner, caller.task_id)
    groups = _groups(given["groups"])
    bundles = tuple(need for group in groups for need in group)
    until_runs, wait_s = parse_wait(given.get("wait", False))
    ttl_s, label = given.get("ttl_s"), given.get("same_label")
    detached = parse_flag(given.get("detached", False), "detached")
    lease = LeaseSpec(
        strategy="" if given["strategy"] is None else parse_strategy(given["strategy"], "strategy"),
        same_label="" if label is None else parse_name(label, "same_label"),
        parts=len(groups),
        holder_job="" if detached else ray.get_runtime_context().get_job_id(),
        grace_s=_grace(given.get("grace_s"), called_back=called_back),
        ttl_s=None if ttl_s is None else parse_duration(ttl_s, "ttl_s"),
    )
    agent = AgentSpec(
        name="",
        pool_name=parse_name(given["pool"], "the pool's name"),
        resources=sum_of(bundles),
        labels=parse_labels(given.get("labels")),
        bundles=bundles,
        lease=lease,
    )
    request_id = given.get("request_id")
    requested = TaskSubmitted(
        agent=agent,
        task=task,
        request_id=uuid.uuid4().hex if request_id is None else parse_name(request_id, "request_id"),
        client=client_name(),
        queue=parse_flag(given.get("queue", False), "queue") or until_runs,
        until_runs=until_runs,
        wait_s=wait_s,
    )
    return Submission(request=SubmitTask(submission=requested, blobs=blobs), refs=([], []))


def _groups(given: object) -> Sequence[tuple[Resources, ...]]:
    elements = as_elements(given, "groups", _GROUPS)
    if not elements:
        raise InvalidRequestError(f"groups is empty; it must be {_GROUPS}")
    groups = [parse_bundles(group, f"groups[{i}]") for i, group in enumerate(elements)]
    sizes = sorted({len(group) for group in groups})
    if len(sizes) > 1:
        raise InvalidRequestError(
            f"groups have {sizes[0]} to {sizes[-1]} bundles; all groups of one lease have the same number, "
            "so ask for a lease of each size"
        )
    return groups


def _grace(given: object, *, called_back: bool) -> float | None:
    if given is not None:
        return parse_duration(given, "grace_s")
    return _GRACE_S if called_back else None
