"""The documented result dicts of submissions and preemptions: their types, and how outcomes become them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict, TypeVar, cast

from schedulemesh.api.agents import AgentListing, PlacementGroupInfo
from schedulemesh.api.tasks import TaskInfo
from schedulemesh.domain.reasons import Change
from schedulemesh.domain.resources import Amounts
from schedulemesh.domain.user_data import UserValue
from schedulemesh.engine.messages.outcomes import (
    Accepted,
    Candidate,
    Done,
    Evaluation,
    Queued,
    Refused,
    RequestOutcome,
)
from schedulemesh.protocol import public
from schedulemesh.protocol.answers import MemberPlace, Response

#: The TypedDict of a public result.
ResultT = TypeVar("ResultT")


class AgentInfo(AgentListing, total=False):
    """An agent as ``AgentListing``, with its Ray handle."""

    #: A ``ray.actor.ActorHandle``. None: a dry run, which starts no agent; a lease, which has no process; an
    #: agent that has since ended; a connection over HTTP.
    handle: Any


class CandidateInfo(TaskInfo, total=False):
    """A task that may be, or was, evicted. One that was says in ``state_saved`` whether something of its
    attempt was saved, and in ``save_error`` why its state could not be saved for the eviction.
    """

    agent_name: str
    preempt_score: float
    priority_delta: float
    effective_delta: float
    remaining_time: float
    reason: str
    state_saved: bool
    save_error: str


class HolderInfo(TypedDict, total=False):
    """An agent that holds resources which a refused request lacked."""

    agent_name: str
    pool_name: str
    resources: Amounts
    task_ids: list[str]


class Result(TypedDict, total=False):
    """What every call answers: ``success``, and for a refusal ``error`` (a sentence), ``reason`` (a code) and
    what explains it.
    """

    success: bool
    error: str
    reason: str
    #: What the caller can do next.
    hint: str
    detail: str
    #: What the caller may not have meant, in sentences.
    warnings: list[str]
    #: Of a refusal: the amounts that the quota and the best node lacked.
    short: dict[str, Amounts]
    #: Of a refusal: who holds most of what was short.
    holders: list[HolderInfo]
    #: Of a refusal: how many running tasks each rule turned away as victims.
    turned_away: dict[str, int]
    #: Of a refusal: the lowest priority with which it would have been accepted, where there is one.
    sufficient_priority: float
    #: Of a refused dry run: when it could start at the earliest if it waited, in seconds since 1970.
    earliest_start: float | None
    #: Of a start that failed: victims that run again, those that wait in the queue, and those that ended.
    restarted: list[str]
    requeued: list[str]
    not_restarted: list[str]


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


class EvaluationResult(TypedDict, total=False):
    """The answer of ``evaluate_preemption``."""

    success: bool
    should_preempt: bool
    candidates: list[CandidateInfo]
    victims: list[str]
    reason: str | None
    error: str
    turned_away: dict[str, int]


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


def refused(outcome: Refused) -> Result:
    """A refusal: an ordinary answer with ``success`` False."""
    return cast("Result", public.refused(outcome))


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


def candidate(victim: Candidate) -> CandidateInfo:
    """A candidate or victim."""
    return cast("CandidateInfo", public.candidate(victim))


def evaluated(evaluation: Evaluation) -> EvaluationResult:
    """The answer of a dry run of the preemption decision."""
    return cast("EvaluationResult", public.evaluated(evaluation))


def not_evaluated(refused_: Refused) -> EvaluationResult:
    """The answer of a dry run that could not be made."""
    return {
        "success": False,
        "should_preempt": False,
        "candidates": [],
        "victims": [],
        "reason": refused_.reason.value,
        "error": refused_.error,
        "turned_away": {},
    }


def done(outcome: RequestOutcome) -> Result:
    """The answer of a call that has nothing more to say."""
    return cast("Result", public.done(outcome))


def deleted(outcome: RequestOutcome) -> DeletionResult:
    """The answer of ``delete_agent``."""
    answer = combined(DeletionResult, done(outcome))
    if isinstance(outcome, Done) and outcome.change is Change.ALREADY_GONE:
        del answer["detail"]
        answer["already_gone"] = True
    return answer
