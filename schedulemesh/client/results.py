"""The documented result dicts of submissions and preemptions: their types, and how outcomes become them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict, TypeVar

from schedulemesh.api.agents import AgentListing, PlacementGroupInfo
from schedulemesh.api.results import CandidateInfo, EvaluationResult, Result
from schedulemesh.domain.reasons import Change
from schedulemesh.domain.user_data import UserValue
from schedulemesh.engine.messages.outcomes import (
    Accepted,
    Done,
    Queued,
    Refused,
    RequestOutcome,
)
from schedulemesh.protocol.answers import MemberPlace, Response
from schedulemesh.protocol.public import candidate, refused, result_of

#: The TypedDict of a public result.
ResultT = TypeVar("ResultT")


class AgentInfo(AgentListing, total=False):
    """An agent as ``AgentListing``, with its Ray handle."""

    #: A ``ray.actor.ActorHandle``. None: a dry run, which starts no agent; a lease, which has no process; an
    #: agent that has since ended; a connection over HTTP.
    handle: Any


class SubmitResult(Result, total=False):
    """The answer to a submission."""

    agent: AgentInfo
    #: Of a gang: its members in the order of ranks; ``agent`` is the first.
    agents: list[AgentInfo]
    task_id: str | None
    preempted: list[CandidateInfo]
    #: Only in pools that keep placement groups.
    placement_group: PlacementGroupInfo
    #: Of submit_with_pg_preemption: "pg", or "fallback" where it went the ordinary way.
    path: str
    #: Of a submission with ``queue=True``: "queued", or "starting" where the task did not have to wait.
    state: str
    #: How many tasks of its pool come before it, plus one; 0: it does not wait.
    position: int
    agent_name: str
    pool_name: str
    dry_run: bool
    #: In a dry run: seconds of work that the victims would lose at most.
    lost_work: float
    #: In a dry run: tasks on borrowed quota that do not run yet, whose start would be cancelled.
    cancelled_starts: list[str]
    restartable: bool
    state_restored: bool


class RestoreResult(SubmitResult, total=False):
    """The answer of ``restore_task``."""

    #: Whether an agent was started for the task.
    resubmitted: bool


class DeletionResult(Result, total=False):
    """The answer of ``delete_agent``."""

    #: The agent had ended before.
    already_gone: bool


class SavedStateResult(Result, total=False):
    """The answer of ``get_saved_state`` and ``save_task_state``."""

    saved_state: dict[str, UserValue]


class EvictedTask(TypedDict, total=False):
    """A task that ``preempt_task`` evicted."""

    task_id: str
    reason: str
    saved_state: dict[str, UserValue] | None
    state_saved: bool
    save_error: str


class PreemptionResult(Result, total=False):
    """The answer of ``execute_preemption`` and ``preempt_task``."""

    task_id: str
    agent_name: str
    saved_state: dict[str, UserValue] | None
    cancel_success: bool
    #: Whether something that the task can be restored from was saved since its attempt began.
    state_saved: bool
    save_error: str
    preempted: list[EvictedTask]


def combined(result: Callable[..., ResultT], *parts: Mapping[str, object]) -> ResultT:
    """A result of this TypedDict with the keys of all parts; a later part overwrites an earlier one."""
    merged: dict[str, object] = {}
    for part in parts:
        merged.update(part)
    return result(**merged)


def submitted(
    response: Response,
    handles: Sequence[Any],
    *,
    dry_run: bool,
    named_resources: bool = True,
) -> SubmitResult:
    """The answer to a submission. ``named_resources`` False: it took what the pool gives by default."""
    outcome, group = response.outcome, response.group
    if isinstance(outcome, Refused):
        return combined(SubmitResult, refused(outcome))
    if isinstance(outcome, Queued):
        return queued(outcome)
    if not isinstance(outcome, Accepted):
        raise TypeError(f"a submission cannot end in {outcome!r}")
    agent: AgentInfo = {
        "name": outcome.agent_name,
        "handle": handles[0] if handles else None,
        "resources": outcome.resources.public(),
        "labels": dict(outcome.labels),
        "node_id": outcome.node_id,
    }
    answer: SubmitResult = {
        "success": True,
        "agent": agent,
        "task_id": outcome.task_id,
        "preempted": [candidate(c) for c in outcome.preempted],
    }
    if response.members:
        answer["agents"] = members(response.members, handles)
        answer["agent"] = {**agent, **answer["agents"][0]}
    if dry_run:
        answer["dry_run"] = True
        answer["lost_work"] = sum(c.lost_work for c in outcome.preempted)
        answer["cancelled_starts"] = list(outcome.cancelled_starts)
    if outcome.group_path:
        answer["placement_group"] = {
            "id": outcome.group_id,
            "name": "" if group is None else group.name,
            "node_ids": [] if group is None else list(group.node_ids),
            "path": outcome.group_path,
        }
    if not outcome.restartable:
        answer["restartable"] = False
    if outcome.state_restored is not None:
        answer["state_restored"] = outcome.state_restored
    if outcome.whole_pool and not named_resources:
        answer["hint"] = (
            f"It named no resources, so it received the whole quota of pool {outcome.pool_name!r}: "
            f"{outcome.resources}. Name its resources to leave room for others"
        )
    return answer


def members(places: Sequence[MemberPlace], handles: Sequence[Any | None]) -> list[AgentInfo]:
    """The members of a gang in the order of ranks, each with its Ray handle."""
    pairs = zip(places, handles, strict=True)
    return [
        {
            "name": member.name,
            "handle": handle,
            "rank": rank,
            "resources": member.resources.public(),
            "node_id": member.node_id,
        }
        for rank, (member, handle) in enumerate(pairs)
    ]


def queued(outcome: Queued) -> SubmitResult:
    """The answer to a submission that may wait in the queue."""
    return {
        "success": True,
        "state": "queued" if outcome.position else "starting",
        "position": outcome.position,
        "task_id": outcome.task_id,
        "agent_name": outcome.agent_name,
        "pool_name": outcome.pool_name,
    }


def not_evaluated(refused_: Refused) -> EvaluationResult:
    """The answer of a dry run that could not be made."""
    return {
        "success": False,
        "should_preempt": False,
        "candidates": [],
        "victims": [],
        "cancelled_starts": [],
        "reason": refused_.reason.value,
        "error": refused_.error,
        "turned_away": {},
    }


def deleted(outcome: RequestOutcome) -> DeletionResult:
    """The answer of ``delete_agent``."""
    answer = combined(DeletionResult, result_of(outcome))
    if isinstance(outcome, Done) and outcome.change is Change.ALREADY_GONE:
        del answer["detail"]
        answer["already_gone"] = True
    return answer
