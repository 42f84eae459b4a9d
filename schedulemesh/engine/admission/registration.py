"""Registers tasks that run on existing agents, and checks that task ids are unique."""

from __future__ import annotations

import msgspec

from schedulemesh.domain.reasons import Reason
from schedulemesh.domain.sentences import say
from schedulemesh.domain.task import EndState, TaskPhase, TaskSpec
from schedulemesh.engine.admission.time_limits import beyond_pool, run_limit
from schedulemesh.engine.messages.facts import TaskRegistered
from schedulemesh.engine.messages.outcomes import Refused
from schedulemesh.engine.state.mesh_state import MeshState
from schedulemesh.engine.transaction import Transaction


def duplicate_task(state: MeshState, task_id: str) -> Refused | None:
    """The refusal of a task id that is taken; None: it is free."""
    registered = state.running.by_id.get(task_id)
    if registered is None:
        waiting = state.queue.by_id.get(task_id)
        return None if waiting is None else _queued(task_id, waiting.pool_name)
    return Refused(
        reason=Reason.DUPLICATE_TASK,
        error_text=say("task_exists", task=task_id, agent=registered.agent_name),
    )


def _queued(task_id: str, pool_name: str) -> Refused:
    return Refused(
        reason=Reason.DUPLICATE_TASK,
        error_text=say("task_is_queued", task=task_id, pool=pool_name),
    )


def with_known_parent(state: MeshState, task: TaskSpec) -> TaskSpec:
    """The task; where its parent has been completed or is not on record any more, as a task without one."""
    if not task.parent or task.parent in state.running.by_id:
        return task
    past = state.ended.get(task.parent)
    on_record = past is not None or task.parent in state.queue.by_id
    if on_record and (past is None or past.state is not EndState.COMPLETED):
        return task
    return msgspec.structs.replace(task, parent="")


def refused_for_parent(state: MeshState, task: TaskSpec | None) -> Refused | None:
    """The refusal of a task whose parent does not run, or is ending; None: the parent runs, or there is
    none.
    """
    if task is None or not task.parent:
        return None
    parent = state.running.by_id.get(task.parent)
    if parent is not None and parent.phase is not TaskPhase.ENDING:
        return None
    return Refused(
        reason=Reason.PARENT_ENDED,
        error_text=say("parent_has_ended", parent=task.parent, task=task.task_id),
        hint_text=say("parent_has_ended_hint"),
    )


def register(tx: Transaction, task: TaskSpec, agent_name: str) -> Refused | None:
    """Register a task that runs on this agent; a refusal if its id is taken, or its time limit too long."""
    refused = duplicate_task(tx.state, task.task_id)
    if refused is None:
        agent = tx.state.agents.get(agent_name)
        pool_name = task.pool_name if agent is None else agent.spec.pool_name
        refused = beyond_pool(tx.state, pool_name, task.max_run_s)
        if refused is not None:
            return refused
        limit = run_limit(tx.state, pool_name, task)
        tx.emit(TaskRegistered(task=task, agent_name=agent_name, at=tx.now, max_run_s=limit))
    return refused
