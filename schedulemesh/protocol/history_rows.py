"""The rows of answers about the history, over Ray and over HTTP. Times are seconds since 1970."""

from __future__ import annotations

from typing import Any, TypedDict


class HistoryEvent(TypedDict, total=False):
    """Something that happened."""

    #: Its number; events after it are listed with ``after``.
    cursor: int
    at: float
    kind: str
    #: The pool, node or group that it is about, where it is about no task.
    subject: str
    detail: dict[str, Any]
    #: The task that it is about; empty: none, or an agent without a task.
    task_id: str
    agent_name: str
    pool_name: str
    owner: str


class AttemptInfo(TypedDict, total=False):
    """An attempt to run a task, or an agent without a task, whose ``task_id`` is empty."""

    #: Its number; older ones are listed with ``before``.
    cursor: int
    task_id: str
    #: Which attempt of the task it is: 1 for the first.
    attempt: int
    agent_name: str
    pool_name: str
    owner: str
    #: The client that submitted it (host:pid), where it was submitted to the queue.
    client: str
    priority: float | None
    labels: dict[str, str]
    cpu: float
    memory_mb: float
    gpu: float
    custom: dict[str, float]
    node_ids: list[str]
    #: The first submission of the task, and when this attempt joined the queue.
    submitted_at: float | None
    queued_at: float | None
    admitted_at: float | None
    started_at: float | None
    ended_at: float | None
    #: When what it held was free.
    released_at: float | None
    #: ``queued``, ``starting``, ``running``, ``preempting``; or how it ended: ``completed``, ``failed``,
    #: ``cancelled``, ``lost``, ``preempted`` or, where the history has a gap, ``unknown``.
    state: str
    reason: str
    error: str
    #: Its eviction: the rule, when it was decided, and for whom or by which client.
    rule: str
    evicted_at: float | None
    by_task: str
    by_agent: str
    by_pool: str
    by_owner: str
    by_client: str
    saved_at: float | None
    save_error: str
    #: Seconds of work that its eviction lost; None: it was not evicted.
    lost_s: float | None
    #: Whether it began with a restored state; None: there was none.
    restored: bool | None
    waited_s: float
    ran_s: float
    #: What it used: CPU-seconds and GPU-seconds, until its agent had ended.
    cpu_s: float
    gpu_s: float
    events: list[HistoryEvent]


class UsageInfo(TypedDict, total=False):
    """What one pool, owner or label used."""

    pool: str
    owner: str
    #: ``key=value``.
    label: str
    gpu_hours: float
    cpu_hours: float
    memory_gb_hours: float
    #: The sum of the times for which tasks waited that started.
    waiting_hours: float
    #: Work that evictions lost, and the same in GPU-hours.
    lost_hours: float
    lost_gpu_hours: float
    started: int
    completed: int
    failed: int
    cancelled: int
    lost: int
    preempted: int
