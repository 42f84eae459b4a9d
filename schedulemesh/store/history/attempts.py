"""An attempt to run a task, as the history keeps it; an agent that runs without a task is one, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.end_reasons import EndReason
from schedulemesh.domain.resources import Resources
from schedulemesh.domain.task import TaskSpec

if TYPE_CHECKING:
    from sqlalchemy import Row

#: The states of an attempt that has not ended; those of one that has are ``api.history.ENDS``.
QUEUED, STARTING, RUNNING, PREEMPTING = "queued", "starting", "running", "preempting"
#: How an attempt ended whose task gave its claim back before it ran, and waits in the queue again.
RETURNED = "returned"

#: How a task ends that is left when its agent has ended, with the reason.
WITH_AGENT: dict[EndReason, tuple[str, str]] = {
    EndReason.COMPLETED: ("completed", ""),
    EndReason.DELETED: ("cancelled", "deleted"),
    EndReason.PREEMPTED: ("preempted", ""),
    EndReason.RUN_FAILED: ("failed", "run_raised"),
    EndReason.LOST: ("lost", "lost"),
    EndReason.OUT_OF_MEMORY: ("failed", "out_of_memory"),
    EndReason.OVER_CLAIM: ("failed", "over_claim"),
    EndReason.START_FAILED: ("failed", "not_started"),
}


class Attempt(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """See the columns of ``schema.attempts``, which its fields are; None and "" are stored as NULL."""

    id: int
    task_id: str = ""
    number: int = 1
    agent_name: str = ""
    pool_name: str = ""
    owner: str = ""
    client: str = ""
    priority: float | None = None
    labels: str = ""
    cpu: int = 0
    memory: int = 0
    gpu: int = 0
    custom: str = ""
    submitted_at: float | None = None
    queued_at: float | None = None
    admitted_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    released_at: float | None = None
    state: str = QUEUED
    reason: str = ""
    error: str = ""
    nodes: str = ""
    rule: str = ""
    evicted_at: float | None = None
    by_task: str = ""
    by_agent: str = ""
    by_pool: str = ""
    by_owner: str = ""
    by_client: str = ""
    saved_at: float | None = None
    save_error: str = ""
    lost_s: float | None = None
    restored: bool | None = None
    max_run_s: float | None = None
    on_time_limit: str = ""
    node_labels: str = ""
    alternative: int = 0
    flavor: str = ""
    topology: str = ""
    starts_after: str = ""
    charged: bool = False
    open: bool = True

    @property
    def has_ended(self) -> bool:
        """Whether the task has ended; its agent may still hold its resources."""
        return self.ended_at is not None

    def describe(self, task: TaskSpec | None, agent: AgentSpec | None) -> None:
        """Take what these specifications say of it; the agent holds the resources."""
        if agent is not None:
            self.agent_name, self.pool_name = agent.name, agent.pool_name
            # Also while it waits: an agent gets its pool as a label when it is admitted.
            of_pool = {"pool": agent.pool_name} if agent.pool_name else {}
            self.labels = text_of({**of_pool, **agent.labels})
            self.node_labels = text_of(agent.label_selector)
            self.charge(agent.resources)
        if task is None:
            return
        self.task_id, self.owner, self.priority = task.task_id, task.owner, task.priority
        self.pool_name = task.pool_name or self.pool_name
        self.labels = text_of(task.labels) or self.labels
        self.max_run_s, self.on_time_limit = task.max_run_s, task.on_time_limit
        self.topology = task.topology
        self.starts_after = text_of(task.after) or self.starts_after

    def as_member(self, task_id: str) -> dict[str, Any]:
        """The fields of the first attempt of a member of this array, which has waited with it."""
        shared = ("pool_name", "owner", "client", "priority", "labels", "submitted_at", "queued_at")
        of_task = ("max_run_s", "on_time_limit", "starts_after", "topology")
        fields = {name: getattr(self, name) for name in (*shared, *of_task)}
        resources = {name: getattr(self, name) for name in ("cpu", "memory", "gpu", "custom")}
        return {**fields, **resources, "task_id": task_id}

    def charge(self, resources: Resources) -> None:
        """Count the use of these resources for it."""
        self.cpu, self.memory, self.gpu = resources.cpu, resources.memory, resources.gpu
        self.custom = text_of(dict(resources.custom))

    def forget_eviction(self) -> None:
        """The task was not evicted after all."""
        self.rule = self.by_task = self.by_agent = self.by_pool = ""
        self.by_owner = self.by_client = self.save_error = ""
        self.evicted_at = None

    def lost_by_eviction(self) -> float | None:
        """The seconds of work that its eviction lost: from its start, or the last saved state, to the
        decision; None: it was not evicted, or had not started.
        """
        if self.started_at is None or self.evicted_at is None:
            return None
        return max(0.0, self.evicted_at - max(self.started_at, self.saved_at or 0.0))

    def row(self, journal: int) -> tuple[Any, ...]:
        """Its row in the table, in the order of the columns."""
        return (journal, *(None if v == "" else v for v in msgspec.structs.astuple(self)))


FIELDS = Attempt.__struct_fields__


def text_of(values: object) -> str:
    """A JSON text; empty for what is empty."""
    return msgspec.json.encode(values).decode() if values else ""


def attempt_of(row: Row[Any]) -> Attempt:
    """The attempt of a row of the table."""
    fields = {name: value for name in FIELDS if (value := getattr(row, name)) is not None}
    return Attempt(**fields)
