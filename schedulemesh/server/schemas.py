"""The objects of the HTTP API, version 1: they have the fields that the Python calls return."""

from __future__ import annotations

from typing import Any, TypedDict

from schedulemesh.domain.resources import Amounts


class Task(TypedDict, total=False):
    """A task that holds resources, is registered, or waits in the queue; durations are in seconds."""

    task_id: str
    pool_name: str
    priority: float
    labels: dict[str, str]
    estimated_duration: float | None
    owner: str
    on_preempted: str
    max_preemptions: int | None
    agent_name: str
    kind: str
    phase: str
    started_at: float | None
    remaining_time: float
    last_metrics: dict[str, Any]
    position: int
    held: bool
    waiting_time: float


class Job(TypedDict, total=False):
    """A job: a driver command that runs as a task; times are in seconds since 1970."""

    task_id: str
    pool_name: str
    priority: float
    labels: dict[str, str]
    estimated_duration: float | None
    owner: str
    on_preempted: str
    max_preemptions: int | None
    state: str
    attempt: int
    resources: dict[str, Any]
    used: dict[str, Any]
    beyond_claim: dict[str, Any]
    agent_name: str
    node_id: str | None
    started_at: float
    ended_at: float
    reason: str
    error: str
    position: int
    held: bool
    preemptions: int
    failures: int


class QueuedTask(TypedDict, total=False):
    """A task that waits in the queue; times are in seconds since 1970, durations in seconds."""

    task_id: str
    pool_name: str
    priority: float
    labels: dict[str, str]
    estimated_duration: float | None
    owner: str
    on_preempted: str
    max_preemptions: int | None
    agent_name: str
    kind: str
    state: str
    position: int
    held: bool
    waiting_time: float
    queued_at: float
    arrived_at: float
    not_before: float | None
    preemptions: int


class MeasuredUsage(TypedDict):
    """What a process and those that it has started really use."""

    cpu: float
    memory_mb: float
    gpu_utilization: float | None
    gpu_memory_mb: float | None
    at: float


class Agent(TypedDict, total=False):
    """An agent: what it holds, where it runs, and its tasks."""

    name: str
    kind: str
    pool: str
    resources: Amounts
    labels: dict[str, str]
    ray_options: dict[str, Any]
    state: str
    node_id: str | None
    placement_group: dict[str, Any] | None
    pid: int
    restarts: int
    tasks: list[str]
    task_details: list[dict[str, Any]]
    last_metrics: dict[str, Any]
    usage: MeasuredUsage | None
    idle_since: float | None
    extra_of: str
    members: list[dict[str, Any]]


class Pool(TypedDict, total=False):
    """A pool, its quota by use, and the names of its agents."""

    name: str
    labels: dict[str, str]
    resources: Amounts
    target_agents: int
    placement_strategy: str
    pg_pool_config: dict[str, Any] | None
    on_preempted: str
    queueing: str
    queued: int
    cohort: str | None
    lending_limit: Any
    borrowing_limit: Any
    weight: float
    lent_to: dict[str, Amounts]
    borrowed_from: dict[str, Amounts]
    free: Amounts
    reserved: Amounts
    used: Amounts
    lent: Amounts
    borrowed: Amounts
    agents: list[str]


class Cohort(TypedDict, total=False):
    """A cohort, its pools, and their quota together."""

    name: str
    parent: str | None
    weight: float
    pools: list[str]
    cohorts: list[str]
    resources: Amounts
    idle: Amounts


class ExternalJob(TypedDict, total=False):
    """What a Ray job that is not the scheduler's holds of a node."""

    job_id: str
    namespace: str
    entrypoint: str
    resources: Amounts


class ExternalWork(TypedDict, total=False):
    """What a Ray job holds and waits for in one namespace, beside what is the scheduler's."""

    job_id: str
    namespace: str
    entrypoint: str
    driver_node_id: str | None
    driver_pid: int | None
    started_at: float | None
    ended: bool
    metadata: dict[str, str]
    resources: Amounts
    nodes: dict[str, Amounts]
    waiting: Amounts
    actors: int
    placement_groups: int


class Node(TypedDict, total=False):
    """A living node of the cluster, by the scheduler's own accounting."""

    node_id: str
    labels: dict[str, str]
    total: Amounts
    free: Amounts
    external_usage: Amounts
    external_jobs: list[ExternalJob]
    cordoned: bool
    draining: bool
    agents: list[str]


class Preemption(TypedDict, total=False):
    """A preemption; the fields of a task are those of the evicted one."""

    timestamp: float
    task_id: str
    pool_name: str
    priority: float
    labels: dict[str, str]
    estimated_duration: float | None
    owner: str
    on_preempted: str
    max_preemptions: int | None
    agent_name: str
    reason: str
    preempt_score: float | None
    state_saved: bool
    saved_at: float | None
    save_error: str
    evictor: dict[str, Any] | None
    requested_by: str | None
    decided_at: float
    lost_work: float
    lost_gpu_seconds: float
    time_to_evicted: float | None
    time_to_freed: float | None
    time_to_start: float | None
    used: bool | None
    requeued: bool
    time_to_run_again: float | None
    idle_since: float | None


class SavedState(TypedDict, total=False):
    """A task whose state is stored, or that was lost with its agent."""

    task_id: str
    pool_name: str
    priority: float
    labels: dict[str, str]
    estimated_duration: float | None
    owner: str
    on_preempted: str
    max_preemptions: int | None
    status: str
    state_saved: bool


class Drain(TypedDict, total=False):
    """A drain in progress, with the agents and tasks that have not ended yet."""

    node_id: str | None
    pool_name: str | None
    started_at: float
    deadline: float | None
    requested_by: str | None
    by_ray: bool
    agents: list[str]
    tasks: list[str]
    done: bool


class Orphan(TypedDict, total=False):
    """An actor or a placement group of the scheduler that its journal does not know."""

    name: str
    #: The namespace in Ray of an actor; null: it is a placement group.
    namespace: str | None
    kind: str


class Strategy(TypedDict, total=False):
    """A strategy that the scheduler was made with, and how often it was called."""

    name: str
    hooks: list[str]
    calls: int
    failures: int
    slow_calls: int
    disabled: str


class Token(TypedDict, total=False):
    """A token, without its secret; times are seconds since 1970."""

    name: str
    role: str
    pools: list[str]
    max_priority: float | None
    owner: str
    created_at: float
    created_by: str
    expires_at: float | None


class IssuedToken(TypedDict, total=False):
    """A token that was issued, with its secret."""

    success: bool
    detail: str
    token: str


class Status(TypedDict, total=False):
    """The supervisor, its journal, and how much there is."""

    success: bool
    name: str
    namespace: str
    detached: bool
    node_id: str
    pid: int
    journal: str
    epoch: int
    http: str | None
    time: float
    pools: int
    agents: int
    running_tasks: int
    queued_tasks: int


class Error(TypedDict):
    """Why a request was not carried out; a refusal may have more fields, such as ``hint`` and ``holders``."""

    success: bool
    error: str
    reason: str


class Saved(TypedDict):
    """Whether a task has a saved state now."""

    success: bool
    state_saved: bool


class Done(TypedDict, total=False):
    """A change that was made."""

    success: bool
    detail: str
    warnings: list[str]
