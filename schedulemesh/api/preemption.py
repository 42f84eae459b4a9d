"""Evictions: make, foresee and list them."""

from __future__ import annotations

from typing import Annotated, ClassVar, TypedDict

from schedulemesh.api.call import Call, ChangingCall
from schedulemesh.api.routes import ListRoute, get, post
from schedulemesh.api.rows import OneOf
from schedulemesh.api.tasks import TaskInfo
from schedulemesh.api.values import (
    CheckedResources,
    Labels,
    Name,
    PoolName,
    Priority,
    RequestId,
    TaskId,
    whole_number,
)
from schedulemesh.domain.reasons import PreemptionReason
from schedulemesh.domain.tokens import Role
from schedulemesh.errors import InvalidRequestError

#: The most candidates that one evaluation lists, and the most preemptions that one call lists.
MAX_CANDIDATES, MAX_PREEMPTIONS = 10_000, 10_000


class EvictorInfo(TypedDict, total=False):
    """For whom a task was evicted."""

    #: None: its agent was submitted without a task.
    task_id: str | None
    agent_name: str
    pool_name: str
    owner: str
    priority: float | None


class PreemptionRecord(TaskInfo, total=False):
    """A preemption; the fields of a task are those of the evicted one. Durations are seconds from the
    decision, None where that has not happened.
    """

    #: When the task had been evicted, in seconds since 1970; while it is being evicted, the decision.
    timestamp: float
    agent_name: str
    reason: Annotated[str, OneOf.codes(PreemptionReason)]
    #: None: the task was preempted manually, without an evaluation.
    preempt_score: float | None
    #: Whether the state at the eviction is stored; ``get_saved_state`` returns it.
    state_saved: bool
    #: When the state was last saved, in seconds since 1970.
    saved_at: float | None
    save_error: str
    #: None: it was evicted for no other task; the reason says why.
    evictor: EvictorInfo | None
    #: The client that requested it (host:pid), if one did and said who it is.
    requested_by: str | None
    decided_at: float
    #: Seconds of work that were lost; while the task is being evicted, that would be.
    lost_work: float
    #: The same times the GPUs of its agent.
    lost_gpu_seconds: float
    time_to_evicted: float | None
    #: Until its agent had ended, so that its resources were free; None also where the agent stayed.
    time_to_freed: float | None
    #: Until the evictor's agent ran.
    time_to_start: float | None
    #: Whether the evictor started on what was freed; None: not known yet, or there is no evictor.
    used: bool | None
    #: Whether the evicted task joined the queue again.
    requeued: bool
    time_to_run_again: float | None
    idle_since: float | None


class PreemptionCounts(TypedDict, total=False):
    """How many preemptions there were, and the last of them."""

    total_preemptions: int
    same_pool_preemptions: int
    cross_pool_preemptions: int
    label_preemptions: int
    #: Evictions by which pools got back quota that they had lent.
    reclaims: int
    running_tasks: int
    #: Evicted tasks that joined the queue again.
    requeued_preemptions: int
    #: The same counts by the reason of the eviction.
    preemptions_by_reason: dict[str, int]
    requeues_by_reason: dict[str, int]
    #: The newest last.
    recent_preemptions: list[PreemptionRecord]


class ExecutePreemption(ChangingCall, tag="execute_preemption", frozen=True, kw_only=True):
    """Save a task's state and cancel it; its agent is kept."""

    least_role: ClassVar[Role] = Role.POOL_OPERATOR

    task_id: TaskId
    agent_name: Name
    request_id: RequestId


class PreemptTask(ChangingCall, tag="preempt_task", frozen=True, kw_only=True):
    """Evict manually: save the states of an agent's tasks, cancel them and terminate the agent."""

    least_role: ClassVar[Role] = Role.POOL_OPERATOR

    routes: ClassVar = (
        post(
            "/tasks/{task_id}/preempt",
            "Save and cancel a task and the others of its agent, and end the agent",
            agent_name=None,
        ),
        post(
            "/agents/{agent_name}/preempt",
            "Save and cancel the tasks of an agent, and end it",
            task_id=None,
        ),
    )

    task_id: TaskId | None = None
    agent_name: Name | None = None
    #: Hold the freed quota for this pool; None: for the client.
    for_pool: Name | None = None
    #: Who asks, as host:pid.
    client: Name | None = None
    request_id: RequestId

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.task_id is None and self.agent_name is None:
            raise InvalidRequestError("preempt_task needs a task_id or an agent_name")


class EvaluatePreemption(Call, tag="evaluate_preemption", frozen=True, kw_only=True):
    """Report which tasks an incoming task may evict."""

    priority: Priority
    pool_name: PoolName
    labels: Labels = {}  # noqa: RUF012  # a struct copies it
    resources: CheckedResources | None = None
    limit: Annotated[int, whole_number(0, MAX_CANDIDATES)] = 100

    @property
    def searches(self) -> bool:
        """See Call."""
        return True


class GetPreemptionStats(Call, tag="get_preemption_stats", frozen=True, kw_only=True):
    """Get preemption statistics."""

    routes: ClassVar = (
        get("/preemption_stats", "Count preemptions by kind, with the most recent ones"),
    )


class ListPreemptions(Call, tag="list_preemptions", frozen=True, kw_only=True):
    """List the last preemptions in which a task, a pool or an owner was evicted or evicted others."""

    listings: ClassVar = (
        ListRoute(
            path="/preemptions",
            summary="List the preemptions on record, those in progress included",
            row=PreemptionRecord,
            key=("decided_at", "task_id"),
            paged="preemptions",
            fixed={"limit": MAX_PREEMPTIONS},
        ),
    )

    task_id: TaskId | None = None
    pool_name: Name | None = None
    owner: Name | None = None
    limit: Annotated[int, whole_number(0, MAX_PREEMPTIONS)] = 100
