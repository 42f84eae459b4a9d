"""Evictions: make, foresee and list them."""

from __future__ import annotations

from typing import Annotated, ClassVar

from schedulemesh.api.call import Call, Change
from schedulemesh.api.routes import post
from schedulemesh.api.values import (
    Amounts,
    Labels,
    Name,
    PoolName,
    Priority,
    RequestId,
    TaskId,
    whole_number,
)
from schedulemesh.errors import InvalidRequestError

#: The most candidates that one evaluation lists, and the most preemptions that one call lists.
MAX_CANDIDATES, MAX_PREEMPTIONS = 10_000, 10_000


class ExecutePreemption(Change, tag="execute_preemption", frozen=True, kw_only=True):
    """Save a task's state and cancel it; its agent is kept."""

    task_id: TaskId
    agent_name: Name
    request_id: RequestId


class PreemptTask(Change, tag="preempt_task", frozen=True, kw_only=True):
    """Evict manually: save the states of an agent's tasks, cancel them and terminate the agent."""

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
    resources: Amounts | None = None
    limit: Annotated[int, whole_number(0, MAX_CANDIDATES)] = 100


class GetPreemptionStats(Call, tag="get_preemption_stats", frozen=True, kw_only=True):
    """Get preemption statistics."""


class ListPreemptions(Call, tag="list_preemptions", frozen=True, kw_only=True):
    """List the last preemptions in which a task, a pool or an owner was evicted or evicted others."""

    task_id: TaskId | None = None
    pool_name: Name | None = None
    owner: Name | None = None
    limit: Annotated[int, whole_number(0, MAX_PREEMPTIONS)] = 100
