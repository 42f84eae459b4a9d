"""The tasks that the scheduler knows, whatever has become of them: whose they are, and in which pool."""

from __future__ import annotations

from collections.abc import Mapping

from schedulemesh.domain.arrays import members_named
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.state.arrays import TaskArray
from schedulemesh.engine.state.mesh_state import MeshState


def lost_tasks(state: MeshState) -> dict[str, TaskSpec]:
    """The tasks that were lost with their agents, by id."""
    return {spec.task_id: spec for agent in state.lost.values() for spec, _ in agent.tasks}


def task_on_record(
    state: MeshState, task_id: str, lost: Mapping[str, TaskSpec] | None = None
) -> TaskSpec | None:
    """A task that runs, waits, was evicted, has ended or was lost; None: there is none. ``lost``: the lost
    tasks, where several are looked for.
    """
    running = state.running.by_id.get(task_id)
    if running is not None:
        return running.spec
    waiting = state.queue.by_id.get(task_id)
    if waiting is not None:
        return waiting.spec
    array = array_on_record(state, task_id)
    if array is not None and array.ended_at is None:
        # Whoever had a task with the id of a member before has no part in it.
        return array.spec
    ended = state.ended.get(task_id)
    if ended is not None:
        return ended.spec
    # It may be of a former task of this id, which somebody else had.
    past = state.preempted.get(task_id)
    if past is not None:
        return past.fact.task
    if array is not None:
        return array.spec
    return (lost_tasks(state) if lost is None else lost).get(task_id)


def array_on_record(state: MeshState, task_id: str) -> TaskArray | None:
    """The array on record that an id means, or some of whose members it means; None: there is none."""
    named = members_named(task_id)
    return state.arrays.by_id.get(task_id if named is None else named[0])
