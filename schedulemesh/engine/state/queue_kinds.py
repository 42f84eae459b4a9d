"""Waiting tasks by kind, where the order of the queue depends on how long earlier runs of each kind took."""

from __future__ import annotations

import msgspec

from schedulemesh.domain.task_kinds import TaskKind
from schedulemesh.engine.messages.stimuli import TaskSubmitted


class WaitingKind(msgspec.Struct, kw_only=True, gc=False):
    """The tasks of a kind that wait and declare no duration."""

    #: How long each of them runs in all by earlier runs; None: not known, or not looked up yet.
    estimate_s: float | None
    task_ids: dict[str, None] = {}


class QueueKinds:
    """All kinds of tasks that wait and declare no duration."""

    def __init__(self) -> None:
        self.by_kind: dict[TaskKind, WaitingKind] = {}
        #: Kinds whose first task joined in this step, until they are estimated.
        self.new: dict[TaskKind, None] = {}
        #: The version of the estimates when all kinds were last looked at; -1: they were not. It only spares
        #: work: what has joined since was estimated then.
        self.seen = -1

    def add(
        self, submission: TaskSubmitted, task_id: str, estimate_s: float | None
    ) -> float | None:
        """A task waits; gives the estimate of its kind. ``estimate_s``: its own, if it is the first."""
        kind = _kind_of(submission)
        if kind is None:
            return estimate_s
        alike = self.by_kind.get(kind)
        if alike is None:
            alike = self.by_kind[kind] = WaitingKind(estimate_s=estimate_s)
            self.new[kind] = None
        alike.task_ids[task_id] = None
        return alike.estimate_s

    def estimate_of(self, submission: TaskSubmitted) -> float | None:
        """The estimate of the kind of a submission; None: there is none, or none of its kind waits."""
        kind = _kind_of(submission)
        alike = None if kind is None else self.by_kind.get(kind)
        return None if alike is None else alike.estimate_s

    def remove(self, submission: TaskSubmitted, task_id: str) -> None:
        """A task waits no longer."""
        kind = _kind_of(submission)
        if kind is None or kind not in self.by_kind:
            return
        alike = self.by_kind[kind]
        alike.task_ids.pop(task_id, None)
        if not alike.task_ids:
            del self.by_kind[kind]
            self.new.pop(kind, None)


def _kind_of(submission: TaskSubmitted) -> TaskKind | None:
    """The kind of a task; None: it declares a duration."""
    spec = submission.task
    if spec is None or spec.estimated_duration is not None:
        return None
    need = None if submission.default_resources else submission.agent.resources
    return TaskKind.of(spec, need)
