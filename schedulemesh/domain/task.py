"""A task: the work of an agent; and the form in which user code sees it when its state is saved."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from enum import Enum
from operator import attrgetter
from typing import Any

import msgspec

from schedulemesh.domain.arrays import check_array_id, parse_array
from schedulemesh.domain.dependencies import parse_after
from schedulemesh.domain.labels import Labels, parse_labels
from schedulemesh.domain.names import as_text, parse_key, parse_method, parse_name
from schedulemesh.domain.numbers import (
    parse_count,
    parse_duration,
    parse_positive,
    parse_priority,
    parse_timeout,
)
from schedulemesh.domain.priorities import class_of
from schedulemesh.domain.resources import LIKE_BYTES, as_megabytes
from schedulemesh.domain.topology import parse_topology
from schedulemesh.errors import InvalidRequestError, shown

DEFAULT_PRIORITY = 5.0
#: The most retries that a task may ask for.
MAX_RETRIES = 1000

#: After its retries, a task whose state cannot be restored fails, is started from the state before that one,
#: or is started anew. The state is kept.
ON_RESTORE_FAILURE = ("fail", "previous", "restart")

#: After its process was killed because its node was short of memory, a task is started again as after any
#: other loss, started again with more memory, or fails.
ON_OOM = ("retry", "grow", "fail")

#: An evicted task joins the queue again with its saved state, or is dropped, and its user submits it again.
ON_PREEMPTED = ("requeue", "drop")

#: A task that has run for as long as it may ends, or joins the queue again with its saved state.
ON_TIME_LIMIT = ("end", "requeue")


class TaskPhase(str, Enum):
    """The phases of a task that have no data of their own; the fourth, ``Preempting``, has."""

    #: Its agent is not running yet.
    STARTING = "starting"
    RUNNING = "running"
    #: Its agent is being terminated, for another reason than preemption.
    ENDING = "ending"


class EndState(str, Enum):
    """The states of a task that has ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"

    #: That of its value, which it equals.
    __hash__ = str.__hash__


#: For states as texts, too, which equal their members.
ENDED_STATES = frozenset(EndState)


class TaskSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The specification of a task; two specs that compare equal are the same request.

    It is passed on and stored whole. A field that is added here needs its parser in ``PARSERS`` and its
    keyword in ``client/task_fields.py``; every listing shows it unless it is in ``INTERNAL``.
    """

    task_id: str
    #: The pool whose rules apply to it; it may be unknown to the scheduler.
    pool_name: str = ""
    priority: float = DEFAULT_PRIORITY
    labels: Labels = {}
    #: Seconds from its start to its end; None: unknown.
    estimated_duration: float | None = None
    #: The user that it belongs to, as the submitting process says; empty: unknown.
    owner: str = ""
    #: Evictions after which it cannot be evicted any more; None: as the policy says.
    max_preemptions: int | None = None
    #: The key of its stored payload, which only user code reads; None: no payload.
    payload_key: str | None = None
    #: The method of its agent that it consists of: the agent calls it once it runs, and the task ends with
    #: it. Empty: its caller calls methods, and completes the task.
    run: str = ""
    #: The key of the stored arguments of that call; None: it takes none.
    run_key: str | None = None
    #: How often it is started again after its run raised or its agent was lost; evictions do not count.
    max_retries: int = 0
    #: The requested priority, if a plugin changed it; None: not changed.
    asked_priority: float | None = None
    #: The priority that it has but for a budget that is spent; None: no budget lowers it.
    full_priority: float | None = None
    #: The agent of the elastic gang whose extra member runs it; empty: it is no extra member's.
    extra_of: str = ""
    #: What becomes of it when it is evicted: one of ``ON_PREEMPTED``; empty: what its pool's definition says.
    on_preempted: str = ""
    #: The task from inside which it was started, and with which it ends; empty: none, or that one was
    #: completed.
    parent: str = ""
    #: What becomes of it when its state cannot be restored: one of ``ON_RESTORE_FAILURE``; empty: "fail".
    on_restore_failure: str = ""
    #: The pools whose tasks it may evict, by the token that it was submitted with; None: any.
    evict_pools: tuple[str, ...] | None = None
    #: What becomes of it when its process was killed because its node was short of memory: one of
    #: ``ON_OOM``; empty: "retry". "grow" doubles its memory each time.
    on_oom: str = ""
    #: The most memory that it gets by that, in MB; None: the quota of its pool.
    oom_max_memory: float | None = None
    #: Seconds that each of its attempts may run; None: what its pool's definition says.
    max_run_s: float | None = None
    #: What becomes of it then: one of ``ON_TIME_LIMIT``; empty: "end".
    on_time_limit: str = ""
    #: Seconds for which its GPUs may be idle before it is warned, and again before it is ended; None: what
    #: its pool's definition says.
    idle_s: float | None = None
    #: The tasks that it starts after, each as ``ok:ID``, ``any:ID`` or ``fail:ID``; see ``dependencies``.
    after: tuple[str, ...] = ()
    #: Of an array: its indices, and how many members run at once; see ``arrays``. Empty: it is none.
    array: str = ""
    #: Of a member of an array: the array's id, and its index; set by the scheduler.
    array_id: str = ""
    array_index: int | None = None
    #: How close together its members are placed, such as ``rack``; see ``topology``. Empty: wherever there is
    #: room.
    topology: str = ""

    def as_asked(self) -> TaskSpec:
        """The task as it was submitted."""
        if self.asked_priority is None and self.full_priority is None:
            return self
        of_caller = self.full_priority if self.asked_priority is None else self.asked_priority
        return msgspec.structs.replace(
            self, priority=of_caller, asked_priority=None, full_priority=None
        )

    def with_priority(self, priority: float) -> TaskSpec:
        """The task with another priority, as if no budget lowered it."""
        return msgspec.structs.replace(self, priority=priority, full_priority=None)


class Attempts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What happened to a task before its present attempt to run."""

    #: When it was first submitted, in seconds since 1970; None: with the present attempt.
    arrived_at: float | None = None
    #: How often it was evicted.
    preemptions: int = 0
    #: How often its run failed or its agent was lost.
    failures: int = 0
    #: Seconds that it has run.
    ran_s: float = 0.0
    #: GPU-seconds that it has used.
    gpu_s: float = 0.0
    #: How often it was evicted because its node or pool was drained, which counts as no preemption.
    drains: int = 0
    #: How often it reached a limit in time, which counts neither as an eviction nor as a failure.
    time_limits: int = 0
    #: Whether anything was saved in any of its attempts.
    has_saved: bool = False
    #: The key of the state before its last one, or of one that could not be restored; None: none is kept.
    previous_state: str | None = None
    #: Whether its last state could not be restored, and it was started from another or anew instead.
    fell_back: bool = False
    #: How often in a row its start was lost with its node; a start that succeeds resets it.
    lost_starts: int = 0

    @property
    def number(self) -> int:
        """The number of the present attempt, from 1: one more after each eviction, failure, loss or limit."""
        return 1 + self.preemptions + self.failures + self.drains + self.time_limits


FIRST_ATTEMPT = Attempts()


def parse_on_preempted(value: object) -> str:
    """What becomes of a task that is evicted. Raises InvalidRequestError."""
    word = as_text(value)
    if word not in ON_PREEMPTED:
        raise InvalidRequestError(
            f"on_preempted is {shown(value)}; allowed are {', '.join(ON_PREEMPTED)}"
        )
    return word


def parse_on_restore_failure(value: object) -> str:
    """What becomes of a task whose state cannot be restored. Raises InvalidRequestError."""
    word = as_text(value)
    if word not in ON_RESTORE_FAILURE:
        raise InvalidRequestError(
            f"on_restore_failure is {shown(value)}; allowed are {', '.join(ON_RESTORE_FAILURE)}"
        )
    return word


def parse_on_oom(value: object) -> str:
    """What becomes of a task that ran out of memory. Raises InvalidRequestError."""
    word = as_text(value)
    if word not in ON_OOM:
        raise InvalidRequestError(f"on_oom is {shown(value)}; allowed are {', '.join(ON_OOM)}")
    return word


def parse_on_time_limit(value: object) -> str:
    """What becomes of a task that has run for as long as it may. Raises InvalidRequestError."""
    word = as_text(value)
    if word not in ON_TIME_LIMIT:
        raise InvalidRequestError(
            f"on_time_limit is {shown(value)}; allowed are {', '.join(ON_TIME_LIMIT)}"
        )
    return word


def _check_growth(spec: TaskSpec) -> None:
    """Raise InvalidRequestError where a task is to grow and cannot, or has a limit for nothing."""
    if spec.on_oom == "grow" and not spec.max_retries:
        raise InvalidRequestError(
            "on_oom is 'grow', but max_retries is 0, so that it is never started again; say max_retries"
        )
    if spec.oom_max_memory is not None and spec.on_oom != "grow":
        raise InvalidRequestError(
            "oom_max_memory limits on_oom='grow'; say that too, or leave it out"
        )


#: Fields that no listing shows.
INTERNAL = frozenset(
    {
        "payload_key",
        "run",
        "run_key",
        "max_retries",
        "asked_priority",
        "full_priority",
        "extra_of",
        "evict_pools",
        "on_restore_failure",
        "on_oom",
        "oom_max_memory",
        "on_time_limit",
    }
)
_PUBLIC = tuple(name for name in TaskSpec.__struct_fields__ if name not in INTERNAL)
_public_values = attrgetter(*_PUBLIC)

#: How each field that a caller may set is checked and converted; all raise InvalidRequestError.
PARSERS: dict[str, Callable[[Any], Any]] = {
    "task_id": lambda value: parse_name(value, "task_id"),
    "pool_name": lambda value: parse_name(value, "the pool's name"),
    "priority": parse_priority,
    "labels": parse_labels,
    "estimated_duration": parse_duration,
    "owner": lambda value: parse_name(value, "owner"),
    "max_preemptions": lambda value: parse_count(value, "max_preemptions"),
    "payload_key": lambda value: parse_key(value, "the payload's key"),
    "on_preempted": parse_on_preempted,
    "run": lambda value: parse_method(value, "run"),
    "max_retries": lambda value: parse_count(value, "max_retries", 0, MAX_RETRIES),
    "run_key": lambda value: parse_key(value, "the key of the run's arguments"),
    "parent": lambda value: parse_name(value, "the parent's task_id"),
    "on_restore_failure": parse_on_restore_failure,
    "on_oom": parse_on_oom,
    "oom_max_memory": lambda value: parse_positive(
        as_megabytes(value, "oom_max_memory"), "oom_max_memory", LIKE_BYTES
    ),
    "max_run_s": lambda value: parse_timeout(value, "max_run_s"),
    "on_time_limit": parse_on_time_limit,
    "idle_s": lambda value: parse_timeout(value, "idle_s"),
    "after": parse_after,
    "array": parse_array,
    "topology": parse_topology,
}

#: Every field with its default; the task's id has none, so that it is always checked.
_DEFAULTS = tuple(
    (field.name, {} if field.default_factory is dict else field.default)
    for field in msgspec.structs.fields(TaskSpec)
)


def parse_task(fields: Mapping[str, object]) -> TaskSpec:
    """The task with these fields of TaskSpec, by name; None takes a field's default.

    Raises InvalidRequestError for what no caller may ask for.
    """
    parsed = {
        name: PARSERS[name](value)
        for name, value in fields.items()
        if value is not None or name == "task_id"
    }
    spec = TaskSpec(**parsed)
    _check_growth(spec)
    if spec.array:
        check_array_id(spec.task_id)
    return spec


def check_task(spec: TaskSpec) -> None:
    """Raise InvalidRequestError for a task that no caller may ask for."""
    for name, default in _DEFAULTS:
        value = getattr(spec, name)
        if value == default:
            continue
        if name == "evict_pools":
            # Set by a token; a client that sends one itself limits itself.
            for pool_name in value:
                parse_name(pool_name, "each of evict_pools")
            continue
        if name not in PARSERS:
            raise InvalidRequestError(f"{name} is set by the scheduler, not by its callers")
        PARSERS[name](value)
    _check_growth(spec)
    if spec.array:
        check_array_id(spec.task_id)


def task_row(spec: TaskSpec, own_class: str = "") -> dict[str, Any]:
    """The task as listings show it: its public fields by name, and the class of its priority. ``own_class``:
    that of the policy, if one has it.
    """
    row: dict[str, Any] = dict(zip(_PUBLIC, _public_values(spec), strict=True))
    row["after"] = list(spec.after)
    row["priority_class"] = class_of(spec.priority, own_class)
    return row


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskState:
    """The task whose state a preserver saves, as the preserver sees it."""

    task_id: str
    agent_name: str
    pool_name: str
    priority: float
    labels: dict[str, str]
    payload: Any = None
    #: The class that has its priority; None: no class has.
    priority_class: str | None = None
    #: Seconds from start to end; None: unknown.
    estimated_duration: float | None = None
    #: The user that it belongs to; empty: unknown.
    owner: str = ""
    #: "requeue" or "drop" when it is evicted; empty: what its pool says.
    on_preempted: str = ""
    #: Evictions after which it cannot be evicted any more; None: as the policy says.
    max_preemptions: int | None = None
    #: The task from inside which it was started, and with which it ends; empty: none.
    parent: str = ""
    #: Seconds that each of its attempts may run; None: what its pool says.
    max_run_s: float | None = None
    #: Seconds for which its GPUs may be idle; None: what its pool says.
    idle_s: float | None = None
    #: The tasks that it started after, each as ``ok:ID``, ``any:ID`` or ``fail:ID``.
    after: list[str] = dataclasses.field(default_factory=list)
    #: The indices of an array as it was submitted; empty, as it is of a member: it is none.
    array: str = ""
    #: Of a member of an array: the array's id, and its index; empty, None: it is none.
    array_id: str = ""
    array_index: int | None = None
    #: How close together its members are placed, such as ``rack``; empty: wherever there is room.
    topology: str = ""
    #: When it started, in seconds since 1970.
    started_at: float = 0.0
    #: The metric ``progress`` as last reported; None: never reported.
    progress: float | None = None
    #: All metrics as last reported.
    last_metrics: dict[str, Any] = dataclasses.field(default_factory=dict)
