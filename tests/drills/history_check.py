"""Checks that the history has the life of every task once, whatever was killed while it was written."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from schedulemesh.api.history import ENDS
from schedulemesh.core import RayScheduler
from tests.drills.acknowledged import BEGINS, Expected
from tests.drills.batch import named
from tests.drills.processes import DrillFailed, until

#: Seconds in which the history must contain what has happened; it is tried again every 5 s after a failure.
_WRITTEN_WITHIN_S = 60.0
_PAGE = 5_000
#: Events that say that facts are missing.
_MISSING = frozenset(("gap", "found", "unknown"))
_BEGINS = ("admitted", "registered")
#: The ends that usage counts.
_COUNTED = ("completed", "failed", "cancelled", "lost", "preempted")


def history_inconsistencies(
    mesh: RayScheduler, attempts: list[dict[str, Any]], expected: Expected
) -> list[str]:
    """What the history has more than once, or not at all; ``attempts`` are those in it."""
    events = list(_events(mesh))
    wrong = _numbering(events)
    wrong += [f"the history has the event {event}" for event in events if event["kind"] in _MISSING]
    for attempt in attempts:
        wrong += _life(attempt)
    wrong += _acknowledged(attempts, expected)
    return wrong + _sums(mesh, attempts)


def all_attempts(mesh: RayScheduler) -> list[dict[str, Any]]:
    """All attempts to run tasks, with their events, once the history has caught up."""
    until(lambda: _is_written(mesh), "the history does not catch up", _WRITTEN_WITHIN_S)
    return list(_attempts(mesh))


def _is_written(mesh: RayScheduler) -> bool:
    answer = mesh.events(limit=1)
    return answer["success"] and answer["behind"] == 0


def _events(mesh: RayScheduler) -> Iterable[dict[str, Any]]:
    after = 0
    while True:
        answer = mesh.events(after, limit=_PAGE)
        if not answer["success"] or answer["gap"] is not None:
            raise DrillFailed(f"the events after {after} are {answer}")
        yield from answer["events"]
        if len(answer["events"]) < _PAGE:
            return
        after = answer["cursor"]


def _attempts(mesh: RayScheduler) -> Iterable[dict[str, Any]]:
    before, more = None, True
    while more:
        answer = mesh.history(limit=_PAGE, before=before, with_events=True)
        for attempt in answer["attempts"]:
            before = attempt["cursor"]
            if attempt["task_id"]:
                yield attempt
        more = answer["more"]


def _numbering(events: list[dict[str, Any]]) -> list[str]:
    """Events come in the order of their numbers, each once; numbers that none has are those of steps."""
    numbers = [event["cursor"] for event in events]
    if numbers == sorted(set(numbers)):
        return []
    return [f"the events of the history are numbered {numbers}"]


def _life(attempt: dict[str, Any]) -> list[str]:
    """An attempt begins and starts at most once, and ends once if it has ended."""
    kinds = Counter(event["kind"] for event in attempt["events"])
    begun, ended = (sum(kinds[kind] for kind in some) for some in (_BEGINS, ENDS))
    has_ended = attempt["ended_at"] is not None
    if begun > 1 or kinds["started"] > 1 or ended != has_ended:
        told = [event["kind"] for event in attempt["events"]]
        return [f"attempt {attempt['attempt']} of {attempt['task_id']} has the events {told}"]
    return []


def _acknowledged(attempts: list[dict[str, Any]], expected: Expected) -> list[str]:
    """The attempts of each task that was acknowledged as begun and ended are those in the history."""
    by_task: dict[str, Counter[str]] = defaultdict(Counter)
    for attempt in attempts:
        by_task[attempt["task_id"]][attempt["state"]] += 1
    wrong = []
    for task_id, balance in expected.balance.items():
        states = by_task[task_id]
        running = sum(states[state] for state in ("starting", "running", "preempting"))
        completed = int(task_id in expected.completed)
        began = sum(expected.counts[task_id, what] for what in BEGINS)
        if (running, states["completed"]) != (balance, completed) or states.total() < began:
            wrong.append(
                f"{task_id} began {began} times, runs {balance} times, completed {completed} times; "
                f"the history has {dict(states)}"
            )
    return wrong


def _sums(mesh: RayScheduler, attempts: list[dict[str, Any]]) -> list[str]:
    """Each end is counted once in the use of its pool; that of an array is those of its members."""
    states = Counter(
        (attempt["pool_name"], attempt["state"])
        for attempt in attempts
        if attempt["task_id"].endswith("]") or not named(attempt["task_id"]).is_array
    )
    rows = mesh.usage("pool", since="1d")["usage"]
    return [
        f"{row[state]} tasks of pool {row['pool']} are summed up as {state}, the history has "
        f"{states[row['pool'], state]}"
        for row in rows
        for state in _COUNTED
        if row[state] != states[row["pool"], state]
    ]
