"""A task: the work of an agent; and the form in which user code sees it when its state is saved."""

from __future__ import annotations

import dataclasses
from enum import Enum
from typing import Any

import msgspec

from schedulemesh.domain.labels import Labels, parse_labels
from schedulemesh.domain.names import parse_key, parse_name
from schedulemesh.domain.numbers import parse_duration, parse_priority
from schedulemesh.errors import InvalidRequestError

DEFAULT_PRIORITY = 5.0


class TaskPhase(str, Enum):
    """The phases of a task."""

    #: Its agent is not running yet.
    STARTING = "starting"
    RUNNING = "running"
    #: Selected as a victim; no longer a candidate.
    PREEMPTING = "preempting"
    #: Its agent is being terminated, for another reason than preemption.
    ENDING = "ending"


#: The allowed next phases of each phase; a task that has ended is no longer part of the state.
TRANSITIONS: dict[TaskPhase, tuple[TaskPhase, ...]] = {
    TaskPhase.STARTING: (TaskPhase.RUNNING,),
    TaskPhase.RUNNING: (TaskPhase.PREEMPTING, TaskPhase.ENDING),
    TaskPhase.PREEMPTING: (TaskPhase.RUNNING,),
    TaskPhase.ENDING: (),
}


class TaskSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The specification of a task; two specs that compare equal are the same request."""

    task_id: str
    #: The pool whose rules apply to it; it may be unknown to the scheduler.
    pool_name: str
    priority: float = DEFAULT_PRIORITY
    labels: Labels = {}
    #: Seconds from its start to its end; None: unknown.
    estimated_duration: float | None = None
    #: The key of its stored payload, which only user code reads; None: no payload.
    payload_key: str | None = None
    #: The requested priority, if a plugin changed it; None: not changed.
    asked_priority: float | None = None

    def as_asked(self) -> TaskSpec:
        """The task as it was submitted."""
        if self.asked_priority is None:
            return self
        return msgspec.structs.replace(self, priority=self.asked_priority, asked_priority=None)


def check_task(spec: TaskSpec) -> None:
    """Raise InvalidRequestError for a task that no caller may ask for."""
    parse_name(spec.task_id, "task_id")
    if spec.pool_name:
        parse_name(spec.pool_name, "the pool's name")
    parse_priority(spec.priority)
    parse_labels(spec.labels)
    if spec.estimated_duration is not None:
        parse_duration(spec.estimated_duration)
    if spec.payload_key is not None:
        parse_key(spec.payload_key, "the payload's key")
    if spec.asked_priority is not None:
        raise InvalidRequestError("asked_priority is set by the scheduler, not by its callers")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskState:
    """The task whose state a preserver saves, as the preserver sees it."""

    task_id: str
    agent_name: str
    pool_name: str
    priority: float
    labels: dict[str, str]
    payload: Any = None
    #: Seconds from start to end; None: unknown.
    estimated_duration: float | None = None
    #: When it started, in seconds since 1970.
    started_at: float = 0.0
    #: The metric ``progress`` as last reported; None: never reported.
    progress: float | None = None
    #: All metrics as last reported.
    last_metrics: dict[str, Any] = dataclasses.field(default_factory=dict)
