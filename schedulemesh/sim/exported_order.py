"""What the jobs of an export start after: of the submissions that it has, those that each one waited for."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from schedulemesh.domain.arrays import members_named
from schedulemesh.domain.dependencies import MAX_DEPENDENCIES, dependency
from schedulemesh.sim.jobs import Job


class ExportedJob(NamedTuple):
    """A job of an export."""

    #: The id of its task, which may have been submitted several times.
    task_id: str
    #: When it was submitted; below 0: before the export begins.
    submit_s: float
    job: Job


def linked(submissions: Sequence[ExportedJob]) -> Iterator[Job]:
    """The jobs, each after the last submissions of the tasks that it waited for before its own: those that
    have run and that a simulation submits earlier. Of an array these are its members.
    """
    by_task: dict[str, list[tuple[float, list[int]]]] = {}
    for number, one in enumerate(submissions):
        if one.job.duration_s <= 0.0:
            continue
        named = members_named(one.task_id)
        for task_id in (one.task_id, *(() if named is None else (named[0],))):
            _add(by_task.setdefault(task_id, []), one.submit_s, number)
    for number, one in enumerate(submissions):
        if not one.job.after:
            yield one.job
            continue
        position = _position(submissions, number)
        others = [
            other
            for text in one.job.after
            for other in _last_before(by_task.get(dependency(text).task_id, []), one.submit_s)
            if _position(submissions, other) < position
        ]
        names = dict.fromkeys(submissions[other].job.job_id for other in others)
        after = tuple(f"any:{name}" for name in names)[-MAX_DEPENDENCIES:]
        yield msgspec.structs.replace(one.job, after=after)


def _add(times: list[tuple[float, list[int]]], submit_s: float, number: int) -> None:
    """Note that a task was submitted, the members of an array together."""
    at = bisect_right(times, submit_s, key=lambda entry: entry[0])
    if at and times[at - 1][0] == submit_s:
        times[at - 1][1].append(number)
    else:
        times.insert(at, (submit_s, [number]))


def _last_before(times: list[tuple[float, list[int]]], submit_s: float) -> list[int]:
    """The jobs that were submitted last under an id, up to this time."""
    at = bisect_right(times, submit_s, key=lambda entry: entry[0])
    return times[at - 1][1] if at else []


def _position(submissions: Sequence[ExportedJob], number: int) -> tuple[float, int]:
    """When a simulation submits a job: those of one time in the order of the export."""
    return submissions[number].job.submit_s, number
