"""Registers tasks that run on existing agents, and checks that task ids are unique."""

from __future__ import annotations

from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.task import TaskSpec
from schedulemesh.engine.messages.facts import TaskRegistered
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.transaction import Transaction


def duplicate_task(state: MeshState, task_id: str) -> Refused | None:
    """The refusal of a task id that is taken; None: it is free."""
    known = state.running.by_id.get(task_id)
    if known is None:
        return _queued(state, task_id)
    return Refused(
        reason=Reason.DUPLICATE_TASK,
        error=f"task {task_id!r} already exists, on agent {known.agent_name!r}; "
        "complete it first or choose another id",
    )


def _queued(state: MeshState, task_id: str) -> Refused | None:
    waiting = state.queue.by_id.get(task_id)
    if waiting is None:
        return None
    return Refused(
        reason=Reason.DUPLICATE_TASK,
        error=f"task {task_id!r} already exists, in the queue of pool {waiting.pool_name!r}; cancel it first "
        "or choose another id",
    )


def register(tx: Transaction, task: TaskSpec, agent_name: str) -> Refused | None:
    """Register a task that runs on this agent; a refusal if its id is taken."""
    refused = duplicate_task(tx.state, task.task_id)
    if refused is None:
        tx.emit(TaskRegistered(task=task, agent_name=agent_name, at=tx.now))
    return refused
