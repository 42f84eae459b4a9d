"""The decisions of a history, and of a rehearsal of it, compared one by one."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from schedulemesh.sim.rehearsal.recording import RecordedSubmission, was_evicted
from schedulemesh.store.history.attempts import Attempt


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """One decision about one attempt of one submission."""

    #: The task, or the agent where it has no task, and which of its submissions and attempts.
    key: str
    submission: int
    attempt: int
    #: "admitted", "evicted" or "removed" (from the queue, by the scheduler).
    kind: str
    #: The nodes of a start; for whom something was evicted; why something was removed.
    how: str = ""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A decision that one of the two did not make, or made at another time."""

    decision: Decision
    #: In seconds since 1970; None: it was not made.
    recorded_at: float | None
    rehearsed_at: float | None


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """How far a rehearsal decides what was decided."""

    #: Decisions of the history.
    decisions: int
    #: Those that the rehearsal made, too, at the same time up to one tick.
    same: int
    #: The others, and those that the history does not have, by time.
    differences: tuple[Difference, ...]
    #: What of the history could not be rehearsed, as the code of a text, and how often it happened.
    left_out: dict[str, int]


def compared(
    recorded: Iterable[tuple[Decision, float]],
    rehearsed: Iterable[tuple[Decision, float]],
    left_out: dict[str, int],
    tick_s: float,
) -> Check:
    """The check of two sequences of decisions with their times."""
    recorded_times, rehearsed_times = dict(recorded), dict(rehearsed)
    differences = [
        Difference(
            decision=one, recorded_at=recorded_times.get(one), rehearsed_at=rehearsed_times.get(one)
        )
        for one in recorded_times | rehearsed_times
        if one not in recorded_times
        or one not in rehearsed_times
        or abs(recorded_times[one] - rehearsed_times[one]) > tick_s
    ]
    missed = sum(one.recorded_at is not None for one in differences)
    return Check(
        decisions=len(recorded_times),
        same=len(recorded_times) - missed,
        differences=tuple(
            sorted(differences, key=lambda d: min(d.recorded_at or 1e18, d.rehearsed_at or 1e18))
        ),
        left_out=left_out,
    )


def decisions(
    submissions: Iterable[RecordedSubmission], nodes: dict[int, str], until: float
) -> list[tuple[Decision, float]]:
    """What was decided about these submissions up to a moment, each with its time."""
    timed: list[tuple[Decision, float]] = []
    seen: dict[str, int] = {}
    for submission in submissions:
        number = seen[submission.key] = seen.get(submission.key, 0) + 1
        for position, attempt in enumerate(submission.attempts):
            for kind, how, at in _of(attempt, nodes):
                if at <= until:
                    decision = Decision(
                        key=submission.key,
                        submission=number,
                        attempt=position + 1,
                        kind=kind,
                        how=how,
                    )
                    timed.append((decision, at))
    return timed


def _of(attempt: Attempt, nodes: dict[int, str]) -> Iterable[tuple[str, str, float]]:
    if attempt.admitted_at is not None:
        numbers = msgspec.json.decode(attempt.nodes, type=list[int]) if attempt.nodes else []
        how = " ".join(nodes.get(number, "") for number in numbers)
        yield "admitted", how, attempt.admitted_at
    if was_evicted(attempt) and attempt.evicted_at is not None:
        yield "evicted", attempt.by_task or attempt.by_agent or attempt.rule, attempt.evicted_at
    if (
        attempt.admitted_at is None
        and attempt.state == "cancelled"
        and attempt.ended_at is not None
    ):
        yield "removed", attempt.reason, attempt.ended_at
