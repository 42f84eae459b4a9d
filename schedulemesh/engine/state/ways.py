"""The ways in which a task may run: each of its alternatives, in each flavor of its pool in which it may."""

from __future__ import annotations

import msgspec

from schedulemesh.domain.agent import AgentSpec
from schedulemesh.domain.flavors import covered_kinds, flavors_for
from schedulemesh.domain.pool import PoolSpec
from schedulemesh.domain.resources import Resources
from schedulemesh.engine.messages.stimuli import TaskSubmitted
from schedulemesh.engine.state.queued_tasks import QueuedTask, Reservation
from schedulemesh.engine.state.quota import Ledger


def ways_of(ledger: Ledger, submission: TaskSubmitted) -> tuple[TaskSubmitted, ...]:
    """A submission in each way in which it may run, the preferred one first: its alternatives in their order,
    each of them in the flavors of its pool in theirs. An alternative that may run in no flavor is there
    without one; so is one that needs none.
    """
    agent = submission.agent
    if agent.pool_name not in ledger.flavored or agent.flavor is not None:
        return submission.each_alternative
    spec, ways = ledger.accounts[agent.pool_name].spec, list[AgentSpec]()
    for each in agent.each_alternative:
        need = spec.default_agent() if submission.default_resources else each.resources
        flavors = (
            flavors_for(spec.flavors, need, each.node_labels) if is_covered(spec, need) else ()
        )
        ways += map(each.with_flavor, flavors) if flavors else (each,)
    return tuple(msgspec.structs.replace(submission, agent=way) for way in ways)


def in_way(submission: TaskSubmitted, way: TaskSubmitted) -> TaskSubmitted:
    """A submission in the way in which another one is that may run in the same ways."""
    if way is submission:
        return submission
    agent = submission.agent.as_chosen(way.agent)
    return msgspec.structs.replace(submission, agent=agent)


def is_covered(spec: PoolSpec, need: Resources) -> bool:
    """Whether a need has a kind of which the pool has quota by flavor alone."""
    return not covered_kinds(spec.flavors).isdisjoint(kind for kind, _ in need.items())


def ways_of_task(ledger: Ledger, task: QueuedTask) -> tuple[QueuedTask, ...]:
    """A task that waits in each way in which it may run, the preferred one first."""
    if not has_ways(ledger, task.common):
        return (task,)
    return tuple(
        msgspec.structs.replace(task, submission=submission, entry=None)
        for submission in ways_of(ledger, task.submission)
    )


def has_ways(ledger: Ledger, submission: TaskSubmitted) -> bool:
    """Whether a submission may run in another way than as it is: in an alternative, or in a flavor."""
    agent = submission.agent
    return bool(agent.alternatives) or (
        bool(ledger.flavored) and agent.pool_name in ledger.flavored and agent.flavor is None
    )


def as_reserved(ledger: Ledger, task: QueuedTask) -> QueuedTask:
    """A task in the way in which its start is reserved; where its pool has lost that flavor since, in the
    first one of the same alternative.
    """
    reserved = task.reservation
    if reserved is None or not has_ways(ledger, task.submission):
        return task
    ways = [way for way in ways_of_task(ledger, task) if _alternative(way) == reserved.alternative]
    return next((way for way in ways if _flavor(way) == reserved.flavor), ways[0])


def in_way_of(start: Reservation, task: QueuedTask) -> Reservation:
    """A start of a task, in the way in which the task is."""
    return msgspec.structs.replace(start, alternative=_alternative(task), flavor=_flavor(task))


def _alternative(task: QueuedTask) -> int:
    return task.submission.agent.alternative


def _flavor(task: QueuedTask) -> str:
    return task.submission.agent.taken_flavor
