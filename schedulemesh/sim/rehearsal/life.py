"""What one submission does in a rehearsal: how much of its work is done, and what the history says of it."""

from __future__ import annotations

import msgspec

from schedulemesh.domain.end_reasons import TaskEndReason
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.messages import stimuli as s
from schedulemesh.sim.rehearsal.recording import RecordedSubmission, was_evicted
from schedulemesh.store.history.attempts import Attempt

#: Seconds of work by which two amounts may differ and still be the same.
_SAME_S = 1e-3
_REASONS = {reason.value: reason for reason in TaskEndReason}
#: Why leases end that their holders have stopped using.
_ENDS_OF_LEASES = (TaskEndReason.HOLDER_ENDED.value, TaskEndReason.EXPIRED.value)


class End(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How the work of an attempt ends."""

    at: float
    #: "completed", "failed", "lost", or "cancelled" of a lease.
    state: str
    #: The code of why it was not completed; empty: it was.
    reason: str


class Life:
    """One submission from its start to its end, in virtual time."""

    __slots__ = (
        "_began_at",
        "_done_s",
        "_failures",
        "admitted_at",
        "agent_name",
        "attempt",
        "capabilities",
        "incarnation",
        "is_running",
        "submission",
        "task",
        "waits",
    )

    def __init__(
        self, submission: RecordedSubmission, task: TaskSpec | None, agent_name: str
    ) -> None:
        """``submission``: what the history says of it; without attempts where it has none."""
        self.submission = submission
        self.task = task
        self.agent_name = agent_name
        #: Which of its attempts is the present one, from 0; -1: it has not been submitted.
        self.attempt = -1
        self.incarnation = 0
        #: Whether it is in the queue, or is being submitted.
        self.waits = False
        self.is_running = False
        self.admitted_at = 0.0
        #: The control methods of its agent.
        self.capabilities: tuple[str, ...] = ()
        self._began_at = 0.0
        self._done_s = 0.0
        self._failures = 0

    @property
    def recorded(self) -> Attempt | None:
        """The attempt of the history that corresponds to the present one; None: there is none."""
        attempts = self.submission.attempts
        return attempts[self.attempt] if 0 <= self.attempt < len(attempts) else None

    @property
    def late_s(self) -> float:
        """By how many seconds it began to work later than in the history; 0: unknown."""
        recorded = self.recorded
        if recorded is None or recorded.started_at is None or not self.is_running:
            return 0.0
        return self._began_at - recorded.started_at

    @property
    def savable(self) -> bool:
        """Whether an eviction saves its state."""
        return "save_state" in self.capabilities or any(
            one.saved_at is not None for one in self.submission.attempts
        )

    def starts(self, incarnation: int, *, restored: bool) -> None:
        """An agent of it is being started, from its saved state or from the beginning."""
        self.incarnation, self.is_running = incarnation, False
        if not restored:
            self._done_s = 0.0

    def runs(self, now: float) -> None:
        """It works from now on."""
        self.is_running, self._began_at = True, now

    def stops(self, now: float, *, saved: bool) -> None:
        """It works no more, because it is evicted; what it has done is kept, or lost."""
        self.is_running = False
        self._done_s = self._done_s + now - self._began_at if saved else 0.0

    def stops_as_recorded(self) -> None:
        """It works no more, because it is evicted as in the history."""
        self.is_running = False
        if self.attempt + 1 < len(self.submission.attempts):
            self._done_s = self.submission.done_before(self.attempt + 1)

    def fails(self) -> None:
        """Its run has failed, or its agent was lost."""
        self.is_running = False
        self._failures += 1
        self._done_s = 0.0

    def end(self, now: float) -> End | None:
        """How its work ends that begins now; None: the history does not have its end, or it was ended from
        outside.
        """
        recorded = self.recorded
        if recorded is None or not self._is_as_recorded(recorded):
            return self._from_work(now)
        later = now - (recorded.started_at or now)
        if was_evicted(recorded):
            end = self._from_work(now)
            # It worked until it was evicted, however much work it seems to have had.
            least = (recorded.ended_at or 0.0) + later
            return None if end is None else msgspec.structs.replace(end, at=max(end.at, least))
        if recorded.ended_at is None or not _ends_by_itself(recorded):
            return None
        return End(at=recorded.ended_at + later, state=recorded.state, reason=recorded.reason)

    def end_report(self, end: End) -> s.AnyStimulus:
        """What tells the engine of this end."""
        task, name, incarnation = self.task, self.agent_name, self.incarnation
        if end.state == "lost":
            return s.AgentGone(agent_name=name, incarnation=incarnation)
        if task is None:
            return s.AgentDeletionRequested(agent_name=name)
        if end.state == "cancelled":
            reason = _REASONS[end.reason]
            return s.TaskCancellationRequested(task_id=task.task_id, reason=reason)
        if not task.run:
            return s.TaskFinished(task_id=task.task_id, end_agent=True)
        return s.RunEnded(
            task_id=task.task_id,
            agent_name=name,
            incarnation=incarnation,
            reason=_REASONS[end.reason] if end.state == "failed" else None,
        )

    def _is_as_recorded(self, recorded: Attempt) -> bool:
        """Whether as much work was done before this attempt as in the history."""
        done = self.submission.done_before(self.attempt)
        return recorded.started_at is not None and abs(done - self._done_s) <= _SAME_S

    def _from_work(self, now: float) -> End | None:
        if not self.submission.has_ended:
            return None
        ends, last = self.submission.work_s, self.submission.attempts[-1]
        if not _ends_by_itself(last) or last.started_at is None:
            return None
        number = min(self._failures, len(ends) - 1)
        at = now + max(0.0, ends[number] - self._done_s)
        if number < len(ends) - 1:
            return End(at=at, state="failed", reason=TaskEndReason.RUN_RAISED.value)
        return End(at=at, state=last.state, reason=last.reason)


def _ends_by_itself(attempt: Attempt) -> bool:
    """Whether the end of an attempt belongs to its work: no client and no decision ended it."""
    if attempt.state == "cancelled":
        return attempt.reason in _ENDS_OF_LEASES
    return attempt.state in ("completed", "failed", "lost")
