"""What a period was for each pool: waiting, preemptions and lost work, of a history or of a rehearsal."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from schedulemesh.domain.resources import UNIT
from schedulemesh.sim.rehearsal.recording import RecordedSubmission
from schedulemesh.sim.report import Spread, spread
from schedulemesh.store.history.attempts import Attempt


class PoolPeriod(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one pool, or of all, over the submissions of a period."""

    tasks: int
    started: int
    #: Tasks that ended in any way.
    ended: int
    #: Seconds from submission to the first start, or to the end of the period.
    waited_s: Spread
    preemptions: int
    #: GPU-hours of work that evictions lost, and those that were used.
    lost_gpu_hours: float
    gpu_hours: float


class TaskWait(msgspec.Struct, frozen=True, kw_only=True):
    """How long a task waited for its first start, in seconds, in the history and in the rehearsal."""

    task_id: str
    pool: str
    owner: str
    recorded_s: float
    rehearsed_s: float


def periods(
    submissions: Iterable[RecordedSubmission], since: float, until: float, pools: Iterable[str] = ()
) -> dict[str, PoolPeriod]:
    """The figures by pool, and of all under the empty name. ``pools``: those that are named in any case."""
    by_pool: dict[str, list[RecordedSubmission]] = {name: [] for name in pools if name}
    for submission in submissions:
        if since <= submitted_at(submission) <= until:
            by_pool.setdefault(submission.attempts[0].pool_name, []).append(submission)
    every = [one for pool in by_pool.values() for one in pool]
    return {name: _period(chosen, until) for name, chosen in {"": every, **by_pool}.items()}


def _period(submissions: list[RecordedSubmission], until: float) -> PoolPeriod:
    attempts = [attempt for one in submissions for attempt in one.attempts]
    return PoolPeriod(
        tasks=len(submissions),
        started=sum(started_at(one, until) is not None for one in submissions),
        ended=sum(
            one.has_ended and (one.attempts[-1].ended_at or 0.0) <= until for one in submissions
        ),
        waited_s=spread([waited_s(one, until) for one in submissions]),
        preemptions=sum(
            one.state == "preempted" and (one.ended_at or 0.0) <= until for one in attempts
        ),
        lost_gpu_hours=sum((one.lost_s or 0.0) * one.gpu for one in attempts) / UNIT / 3600.0,
        gpu_hours=sum(_held_s(one, until) * one.gpu for one in attempts) / UNIT / 3600.0,
    )


def _held_s(attempt: Attempt, until: float) -> float:
    if attempt.started_at is None or attempt.started_at > until:
        return 0.0
    end = attempt.released_at or attempt.ended_at or until
    return max(0.0, min(end, until) - attempt.started_at)


def submitted_at(submission: RecordedSubmission) -> float:
    """When it was submitted."""
    return submission.attempts[0].submitted_at or 0.0


def started_at(submission: RecordedSubmission, until: float) -> float | None:
    """Its first start up to a moment; None: there was none."""
    starts = [one.started_at for one in submission.attempts if one.started_at is not None]
    return starts[0] if starts and starts[0] <= until else None


def waited_s(submission: RecordedSubmission, until: float) -> float:
    """Seconds from its submission to its first start, to its end, or to the end of the period."""
    end = started_at(submission, until)
    if end is None:
        end = submission.attempts[-1].ended_at or until
    return max(0.0, min(end, until) - submitted_at(submission))


def task_waits(
    recorded: Iterable[RecordedSubmission],
    rehearsed: Iterable[RecordedSubmission],
    since: float,
    until: float,
) -> list[TaskWait]:
    """The waiting of each submission of the period in both; the most that was gained first."""
    theirs = _by_number(rehearsed)
    waits = []
    for key, submission in _by_number(recorded).items():
        other, first = theirs.get(key), submission.attempts[0]
        if other is None or not since <= submitted_at(submission) <= until:
            continue
        waits.append(
            TaskWait(
                task_id=submission.key,
                pool=first.pool_name,
                owner=first.owner,
                recorded_s=waited_s(submission, until),
                rehearsed_s=waited_s(other, until),
            )
        )
    return sorted(waits, key=lambda one: one.rehearsed_s - one.recorded_s)


def _by_number(
    submissions: Iterable[RecordedSubmission],
) -> dict[tuple[str, int], RecordedSubmission]:
    seen: dict[str, int] = {}
    numbered = {}
    for submission in submissions:
        seen[submission.key] = seen.get(submission.key, 0) + 1
        numbered[submission.key, seen[submission.key]] = submission
    return numbered
