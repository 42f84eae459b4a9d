"""The phases of a task from its admission to its end, and which may follow which."""

from __future__ import annotations

from typing import ClassVar, Union

import msgspec

from schedulemesh.domain.reasons import PreemptionReason
from schedulemesh.domain.task import TaskPhase


class Preempting(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="preempting", gc=False
):
    """The phase of a task that was selected as a victim; it is no longer a candidate."""

    value: ClassVar[str] = "preempting"
    reason: PreemptionReason
    score: float | None = None
    #: The request that its eviction answers.
    request_id: str | None = None
    #: Why its present state could not be saved; empty: it was saved, or saving was not tried yet.
    save_error: str = ""


AnyTaskPhase = Union[TaskPhase, Preempting]

#: The allowed next phases of each phase; ``RunningTask.enter`` checks it. A task that has ended is removed.
TRANSITIONS: dict[TaskPhase | type[Preempting], tuple[TaskPhase | type[Preempting], ...]] = {
    TaskPhase.STARTING: (TaskPhase.RUNNING,),
    TaskPhase.RUNNING: (Preempting, TaskPhase.ENDING),
    Preempting: (TaskPhase.RUNNING,),
    TaskPhase.ENDING: (),
}


def kind_of(phase: AnyTaskPhase) -> TaskPhase | type[Preempting]:
    """What distinguishes a phase in ``TRANSITIONS``: of one with data its class."""
    return phase if isinstance(phase, TaskPhase) else type(phase)
