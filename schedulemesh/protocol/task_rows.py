"""Rows of tasks, as the Python calls and the HTTP API return them."""

from __future__ import annotations

from typing import Literal, TypedDict

from schedulemesh.domain.resources import Amounts
from schedulemesh.domain.user_data import UserValue


class TaskInfo(TypedDict, total=False):
    """A task as every listing shows it: the public fields of its specification."""

    task_id: str
    pool_name: str
    priority: float
    labels: dict[str, str]
    #: Seconds from its start to its end; None: unknown.
    estimated_duration: float | None
    #: The user that it belongs to; empty: unknown.
    owner: str
    #: "requeue" or "drop" when it is evicted; empty: what its pool says.
    on_preempted: str
    #: Evictions after which it cannot be evicted any more; None: as the policy says.
    max_preemptions: int | None
    #: The task from inside which it was started, and with which it ends; empty: none.
    parent: str


class TaskListing(TaskInfo, total=False):
    """A task that holds resources, is registered, or waits in the queue; times are in seconds."""

    agent_name: str
    #: "agent", "gang", "lease" or "job".
    kind: str
    phase: str
    #: Where its agent runs, of several processes the first; None: it has none.
    node_id: str | None
    #: Since 1970; None: it does not run yet.
    started_at: float | None
    remaining_time: float
    last_metrics: dict[str, UserValue]
    #: Only of a task that waits in the queue; see QueueListing.
    position: int
    held: bool
    waiting_time: float
    #: Its resources, of a lease or gang those of all parts.
    resources: Amounts
    #: Only of a task that waits in the queue; see QueueListing.
    reason: str
    short: Amounts


class QueueListing(TaskInfo, total=False):
    """A task that waits in the queue; times are in seconds."""

    #: The name that its agent will have.
    agent_name: str
    #: "agent", "gang", "lease" or "job".
    kind: str
    #: "queued".
    state: str
    #: How many tasks of its pool come before it, plus one.
    position: int
    #: Whether it does not start until it is released.
    held: bool
    #: Since it joined the queue.
    waiting_time: float
    #: When it joined the queue, and when it was first submitted, since 1970.
    queued_at: float
    arrived_at: float
    #: When it may start, since 1970; None: at once.
    not_before: float | None
    #: How often it was evicted.
    preemptions: int
    #: The start that is reserved for it, since 1970; None: none is, or its time is not known.
    reserved_start: float | None
    #: How long it runs in all, as declared, else by earlier runs; None: not known.
    expected_duration: float | None
    #: From how many earlier runs that is estimated; 0: it is not.
    estimated_from: int
    #: The code of why its pool as it is defined could not hold it even if nothing else ran, so that those
    #: behind it do not wait for it; None: the pool could.
    cannot_start: str | None
    #: What it asks for.
    resources: Amounts
    #: Why it waits: the code that ``explain`` gives.
    reason: str
    #: What its pool's quota lacks, or else the closest node; empty where neither is why it waits.
    short: Amounts


class JobListing(TaskInfo, total=False):
    """A job as ``jobs`` lists it."""

    #: As in TaskStatus.
    state: str
    #: The number of its present attempt, or of the last one.
    attempt: int
    #: Its claim.
    resources: Amounts
    #: The Ray job that was adopted as this task; absent: its driver was started by the scheduler.
    ray_job_id: str
    #: Of one that waits: its place in the queue of its pool, and whether it is held.
    position: int
    held: bool
    #: Of one that waits: among how many of its pool, for how many seconds; see QueueListing.
    queue_length: int
    waiting_time: float
    short: Amounts
    #: How often it was evicted, and how often its driver failed or was lost; absent: never.
    preemptions: int
    failures: int
    #: Of a job that runs: its claim by node; what its drivers hold in Ray, and what of that is more than its
    #: claim. What plain tasks hold is not in it.
    claimed: dict[str, Amounts]
    used: Amounts
    beyond_claim: Amounts
    agent_name: str
    node_id: str | None
    #: Seconds since 1970.
    started_at: float
    ended_at: float
    #: Why it waits, or was not completed.
    reason: str
    error: str


class SavedStateInfo(TaskInfo, total=False):
    """A task whose state is stored, or that was lost with its agent."""

    status: Literal["running", "preempted", "lost"]
    #: False: the task was lost before a state of it was saved.
    state_saved: bool


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
    reason: str
    #: None: the task was preempted manually, without an evaluation.
    preempt_score: float | None
    #: Whether the state at the eviction is stored; ``get_saved_state`` returns it.
    state_saved: bool
    #: When the state was last saved, in seconds since 1970.
    saved_at: float | None
    save_error: str
    #: None: it was requested by a client.
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
