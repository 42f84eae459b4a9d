"""Explains arrays without an entry in the queue, and members that are no tasks yet or no more."""

from __future__ import annotations

import msgspec

from schedulemesh.domain.sentences import say
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.explanation.queued import explain_queued
from schedulemesh.engine.messages.explanation import Explanation
from schedulemesh.engine.placement.strategies import Strategies
from schedulemesh.engine.state.arrays import TaskArray
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.transaction import Transaction


def explain_array(
    state: MeshState, strategies: Strategies, task_id: str, now: float
) -> Explanation | None:
    """The explanation of an array without an entry in the queue, or of a member without a task; None: it is
    neither.
    """
    one = state.arrays.alive(task_id)
    if one is not None:
        return _explained(one, one.spec, "running" if one.running else "queued")
    member = state.arrays.member_of(task_id)
    if member is None:
        return None
    array, index = member
    spec = array.member(index)
    end = array.end_of(index)
    if end is not None and task_id not in state.ended:
        return _explained(array, spec, end.value)
    if index not in array.remaining:
        return None
    waiting = state.queue.by_id[array.array_id]
    explained = explain_queued(Transaction(state, now, strategies), waiting)
    return msgspec.structs.replace(explained, task=spec)


def _explained(one: TaskArray, spec: TaskSpec, state: str) -> Explanation:
    return Explanation(
        task=spec,
        kind=one.kind,
        state=state,
        detail_text=say("array_members", array=one.array_id, members=one.described()),
        agent_name=one.agent_name,
    )
